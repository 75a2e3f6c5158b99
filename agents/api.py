"""The agents' doors: `POST /agent/v1/enrol` and `POST /agent/v1/sync`. The owners' doors are in hosts_api.py.

Under ASGI a sync is held until something is wanted of the host; under WSGI, where a held request would block a worker,
it is answered at once and the agent is told to pause. Answers and refusals to a known host are signed.
"""

import json
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from agents import enrolment, quiet, signing, sync_answers, waiting
from agents import sync as syncing
from agents.protocol import SIGNATURE_HEADER, EnrolRequest, ProtocolError, SyncAnswer, SyncRequest
from apikit import clock
from apikit.errors import InvalidInput
from apikit.problems import problem_response
from apikit.strict_json import loads

SYNC_PATH = "/agent/v1/sync"
log = logging.getLogger(__name__)
type Said = tuple[signing.Caller, SyncRequest]


@csrf_exempt
@require_POST
def enrol(request: HttpRequest) -> HttpResponse:
    """Trade a one-time token for the host's id and the keys to pin."""
    try:
        asked = _read(EnrolRequest.from_json, request.body)
        answer = enrolment.enrol(request=asked, at=clock.now())
    except Exception as fault:
        return refusal(request, fault)
    return HttpResponse(json.dumps(answer.to_json()), status=201, content_type="application/json")


@csrf_exempt
@require_POST
async def sync(request: HttpRequest) -> HttpResponse:
    """Take a host's report in and answer with what it should run. Under ASGI `agents.sync_door` stands before this."""
    can_hold = isinstance(request, ASGIRequest)
    received = await _call(can_hold, receive, request)
    if isinstance(received, HttpResponse):
        return received
    if can_hold and received.may_be_held:
        await waiting.moved(
            host_id=received.host_id, generation=received.generation, within_s=settings.HOST_SYNC_HOLD_S
        )
    return await _call(can_hold, answer, request, received, settings.HOST_SYNC_HOLD_S if can_hold else 0)


async def _call[**P, T](can_hold: bool, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    if can_hold:
        return await waiting.in_pool(act, *args, **kwargs)
    return await sync_to_async(act)(*args, **kwargs)


def receive(request: HttpRequest) -> syncing.Applied | HttpResponse:
    """Take one request in; return what its answer needs, or the refusal."""
    return receive_quiet([request])[0] or receive_in_full(request)


def receive_quiet(requests: Sequence[HttpRequest], *, late_s: int = 0) -> list[syncing.Applied | HttpResponse | None]:
    """Take in those that say nothing new, all by one statement; None: this one says something, and nothing was done.

    late_s: see quiet.heard. A request that cannot be right has its refusal; where all fail together, each is looked at
    by itself.
    """
    headers = [request.headers.get(SIGNATURE_HEADER) for request in requests]
    try:
        quiet.learn(headers)
        at = clock.now()
        said = [_said(request, header, at=at) for request, header in zip(requests, headers, strict=True)]
        generations = iter(quiet.heard([one for one in said if isinstance(one, tuple)], at=at, late_s=late_s))
    except Exception:
        log.warning("quiet syncs could not be taken in together", exc_info=True)
        return [None] * len(requests)
    return [_applied(one, next(generations), at=at) if isinstance(one, tuple) else one for one in said]


def _said(request: HttpRequest, header: str | None, *, at: datetime) -> Said | HttpResponse | None:
    """Return who says what, or the refusal; None: his key is not known here."""
    body = request.body
    caller = quiet.identify(header=header, method="POST", path=SYNC_PATH, body=body)
    if caller is None:
        return None
    try:
        signing.check_clock(caller, at=at)
        return caller, _asked(caller, body)
    except Exception as fault:
        return _signed(refusal(request, fault), caller.host, caller.boot_no, caller.seq)


def _applied(said: Said, generation: int | None, *, at: datetime) -> syncing.Applied | None:
    if generation is None:
        return None
    caller, asked = said
    return syncing.Applied(
        host_id=caller.host_id, boot_no=caller.boot_no, seq=caller.seq, have_generation=asked.have_generation,
        generation=generation, quiet_at=at,
    )  # fmt: skip


def receive_in_full(request: HttpRequest) -> syncing.Applied | HttpResponse:
    """Take one request in with all that it says; return what its answer needs, or the refusal."""
    caller: signing.Caller | None = None
    try:
        at = clock.now()
        caller = signing.identify(
            header=request.headers.get(SIGNATURE_HEADER), method="POST", path=SYNC_PATH, body=request.body
        )
        quiet.remember(caller)
        signing.check_clock(caller, at=at)
        asked = _asked(caller, request.body)
        return syncing.apply(caller=caller, request=asked, peer=request.META.get("REMOTE_ADDR", ""), at=at)
    except Exception as fault:
        refused = refusal(request, fault)
        return refused if caller is None else _signed(refused, caller.host, caller.boot_no, caller.seq)


def _asked(caller: signing.Caller, body: bytes) -> SyncRequest:
    asked = _read(SyncRequest.from_json, body)
    if (asked.boot_no, asked.seq) != (caller.boot_no, caller.seq):
        raise signing.UnknownAgent("The numbers of the body are not those that were signed.")
    return asked


def answer(request: HttpRequest, applied: syncing.Applied, hold_s: int) -> HttpResponse:
    """Return the signed answer as of now. hold_s: how long the next request may be held; 0: nothing can be held."""
    try:
        told = sync_answers.answer(applied=applied, hold_s=hold_s, at=clock.now())
    except Exception as fault:
        return _signed(refusal(request, fault), applied.host, applied.boot_no, applied.seq)
    return _answered(applied, told)


def answer_unmoved(applied: syncing.Applied, hold_s: int) -> HttpResponse:
    """Return the signed answer to a quiet sync after whose hold nothing has moved: no question to the database."""
    return _answered(applied, sync_answers.nothing_new(applied, hold_s=hold_s))


def _answered(applied: syncing.Applied, told: SyncAnswer) -> HttpResponse:
    response = HttpResponse(json.dumps(told.to_json()), content_type="application/json")
    return _signed(response, applied.host, applied.boot_no, applied.seq)


def _signed(response: HttpResponse, host: str, boot_no: int, seq: int) -> HttpResponse:
    response[SIGNATURE_HEADER] = signing.answer_header(
        status=response.status_code, body=response.content, host=host, boot_no=boot_no, seq=seq
    )
    response["Cache-Control"] = "no-store"
    return response


def _read[T](read: Callable[[Any], T], body: bytes) -> T:
    """Return the message in the body. Raises InvalidInput and the refusals of strict JSON."""
    try:
        return read(loads(body))
    except ProtocolError as fault:
        detail = str(fault)[:300]
        raise InvalidInput(detail, errors=[{"pointer": "", "code": "bad_value", "detail": detail}]) from None


def refusal(request: HttpRequest, fault: Exception) -> HttpResponse:
    """Return the problem document of a refusal; a bug is raised on, and becomes a 500."""
    problem = problem_response(fault, {"request": request})
    if problem is None:
        raise fault
    response = HttpResponse(json.dumps(problem.data), status=problem.status_code, content_type=problem.content_type)
    for name, value in problem.headers.items():
        if name.lower() != "content-type":
            response[name] = value
    return response

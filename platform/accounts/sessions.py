"""How long a session lives: it ends when nothing was asked for a while, and after a working day in any case."""

import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from inspect import iscoroutinefunction, markcoroutinefunction
from typing import cast

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import SESSION_KEY, logout
from django.contrib.sessions.models import Session
from django.http import HttpRequest
from django.http.response import HttpResponseBase

BEGAN, SEEN = "session_began", "session_seen"
NOTED_EVERY_S = 60  # a write per request would cost more than the request

type Answer = HttpResponseBase
type Next = Callable[[HttpRequest], Answer] | Callable[[HttpRequest], Awaitable[Answer]]


class SessionLimits:
    """Middleware after the authentication: signs out who was idle for too long, or signed in too long ago.

    A request without a session cookie (an API key, an agent) costs nothing.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Next) -> None:
        self.get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Answer | Awaitable[Answer]:
        if self._is_async:
            return self._call_async(request)
        if settings.SESSION_COOKIE_NAME in request.COOKIES:
            keep_or_end(request, now_s=int(time.time()))
        return cast(Answer, self.get_response(request))

    async def _call_async(self, request: HttpRequest) -> Answer:
        if settings.SESSION_COOKIE_NAME in request.COOKIES:
            await sync_to_async(keep_or_end)(request, now_s=int(time.time()))
        return await cast(Awaitable[Answer], self.get_response(request))


def forget_old(*, at: datetime) -> int:
    """Delete sessions that are over; return how many."""
    return Session.objects.filter(expire_date__lt=at).delete()[0]


def keep_or_end(request: HttpRequest, *, now_s: int) -> None:
    """Note that the person is there, or sign him out. now_s: seconds since 1970."""
    session = request.session
    if SESSION_KEY not in session:
        return
    seen, began = session.get(SEEN, now_s), session.setdefault(BEGAN, now_s)
    if now_s - seen > settings.SESSION_IDLE_S or now_s - began > settings.SESSION_COOKIE_AGE:
        logout(request)
    elif SEEN not in session or now_s - seen >= NOTED_EVERY_S:
        session[SEEN] = now_s

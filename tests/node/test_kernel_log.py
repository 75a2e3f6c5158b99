"""Lines of the kernel log, by the samples of the vectors."""

import json
from pathlib import Path
from typing import Any

import pytest

from agents.node import kernel_log

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "xids.json").read_text())


@pytest.mark.parametrize("sample", VECTORS["samples"], ids=lambda sample: sample["line"][:60])
def test_each_sample_gives_exactly_what_is_expected(sample: dict[str, Any]) -> None:
    found = kernel_log.read(sample["line"])
    expected = sample["expect"]

    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert (found.bdf, found.xid, found.gpu_instance) == (
            expected["bdf"],
            expected["xid"],
            expected["gpu_instance"],
        )
        assert found.recovery_action == expected.get("recovery_action")
        assert found.synthetic is expected.get("synthetic", False)


def test_the_patterns_are_those_of_the_vectors() -> None:
    regex = VECTORS["regex"]

    assert kernel_log.XID.pattern == regex["xid"]
    assert kernel_log.BUS_LOSS.pattern == regex["bus_loss"]
    assert kernel_log.RECOVERY.pattern == regex["recovery"]


@pytest.mark.parametrize("other", ["00000000:65:00.0", "0000:65:00", "0:65:00.0"])
def test_addresses_are_compared_without_regard_to_their_width(other: str) -> None:
    assert kernel_log.same_address("0000:65:00.0", other)
    assert not kernel_log.same_address("0001:65:00.0", other)

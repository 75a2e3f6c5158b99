"""What is known of a model: the figures of one device, without those that are not to be trusted. Pure.

A figure of low confidence is unknown: it is not shown, and nothing is decided by it.
"""

from typing import Any

from catalogue.models import GpuModel

# Figures of a board with several devices are divided among them; the others hold for each device as they are.
_OF_THE_BOARD = frozenset(
    {"memory_gib", "memory_bandwidth_gb_s", "fp16_tensor_dense_tflops", "interconnect_gb_s", "tdp_w"}
)


def known(model: GpuModel, field: str) -> Any:
    """Return the field's value for one device, or None where it is unknown or of low confidence."""
    value = getattr(model, field)
    if model.field_confidence.get(field, model.confidence) == "low" or value in (None, "", []):
        return None
    if model.figures_are_per == "board" and field in _OF_THE_BOARD:
        value = value / model.devices_per_board
        return int(value) if value == int(value) else value
    return value

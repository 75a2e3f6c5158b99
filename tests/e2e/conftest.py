"""The one real container engine of a run."""

from tests.engines import dockerd

__all__ = ["dockerd"]

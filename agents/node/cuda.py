"""The few functions of NVIDIA's CUDA driver library that a figure or an overwritten memory takes, by ctypes.

For the short-lived child (agents.node.device_work) only: whoever opens it has a context on the GPU until he ends. The
names are those of the public driver API; `_v2` ones are what its header calls by the names without. Memory is counted
in bytes here.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LIBRARY = "libcuda.so.1"
UINT, SIZE, POINTER = ctypes.c_uint, ctypes.c_size_t, ctypes.c_uint64


class NoCuda(Exception):
    """There is no CUDA driver here, or it has no such device: nothing can be said about it."""


class CudaFault(Exception):
    """The device did not do what it was told."""


class Cuda:
    """One device, with its primary context. Close it: nothing of ours may stay on it."""

    def __init__(self, uuid: str) -> None:
        """Raises NoCuda, CudaFault."""
        os.environ["CUDA_VISIBLE_DEVICES"] = uuid  # no context and no memory on its neighbours
        try:
            self._library = ctypes.CDLL(LIBRARY)
            if self._library.cuInit(UINT(0)) != 0:
                raise NoCuda("the CUDA driver does not start")
        except (OSError, AttributeError) as fault:
            raise NoCuda(str(fault)) from None
        self._device = self._find(uuid)
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._call("cuCtxSetCurrent", context)

    def _find(self, uuid: str) -> ctypes.c_int:
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        for index in range(count.value):
            device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
            self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(index))
            self._call("cuDeviceGetUuid_v2", raw, device)
            digits = bytes(raw).hex()
            parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
            if f"GPU-{'-'.join(parts)}" == uuid:
                return device
        raise NoCuda(f"the CUDA driver knows no {uuid}")

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise NoCuda(f"the CUDA driver has no {name}") from None
        code = function(*arguments)
        if code != 0:
            raise CudaFault(f"{name} answered {code}")

    def free(self) -> int:
        """Return how much memory nobody has."""
        free, total = SIZE(), SIZE()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, size: int) -> int:
        found = POINTER()
        self._call("cuMemAlloc_v2", ctypes.byref(found), SIZE(size))
        return found.value

    def release(self, address: int) -> None:
        self._call("cuMemFree_v2", POINTER(address))

    @contextmanager
    def pinned(self, size: int) -> Iterator[int]:
        """Give memory of this machine that the device reaches by itself."""
        found = ctypes.c_void_p()
        self._call("cuMemAllocHost_v2", ctypes.byref(found), SIZE(size))
        try:
            yield int(found.value or 0)
        finally:
            self._call("cuMemFreeHost", found)

    def to_device(self, device: int, host: int, size: int) -> None:
        self._call("cuMemcpyHtoD_v2", POINTER(device), ctypes.c_void_p(host), SIZE(size))

    def to_host(self, host: int, device: int, size: int) -> None:
        self._call("cuMemcpyDtoH_v2", ctypes.c_void_p(host), POINTER(device), SIZE(size))

    def copy(self, to: int, of: int, size: int) -> None:
        """Copy within the device; it may still be under way when this returns (see `wait`)."""
        self._call("cuMemcpyDtoD_v2", POINTER(to), POINTER(of), SIZE(size))

    def fill(self, address: int, word: int, size: int) -> None:
        self._call("cuMemsetD32_v2", POINTER(address), UINT(word), SIZE(size // 4))

    def wait(self) -> None:
        """Wait until the device has done all it was told."""
        self._call("cuCtxSynchronize")

    def close(self) -> None:
        self._call("cuDevicePrimaryCtxRelease_v2", self._device)

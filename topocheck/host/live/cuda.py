"""Questions to the CUDA driver, answered as plain values by `libcuda.so.1` itself, without making a context.

`ask(call, *args)`: `call` is the driver's function name without the `cu` prefix; devices are CUDA ordinals, so
`CUDA_VISIBLE_DEVICES` hides what it hides from any CUDA program.

| call | arguments | answer |
| --- | --- | --- |
| DriverGetVersion | | int: 13000 is 13.0 |
| DeviceGetCount | | int |
| DeviceGetPCIBusId | i | str: `0000:3B:00.0` |
| DeviceGetUuid | i | str: `GPU-` and 8-4-4-4-12 hex; of the whole GPU also where the device is a MIG instance |
| DeviceGetName | i | str |
| DeviceGetAttribute | i, name of the attribute (a key of `ATTRIBUTES`) | int |
| DeviceCanAccessPeer | i, j | int: 0 or 1 |

Through ctypes rather than `cuda-bindings`: these nine functions have kept their form since CUDA 4 (the DMA-BUF and
fabric attributes are new numbers of an old call), so the report needs no further package, and a driver newer or
older than that package answers as well. An attribute that a driver does not know is `unsupported:
CUDA_ERROR_INVALID_VALUE`. Nothing here allocates, maps, or creates a multicast object; it only asks.

Errors: no library, or a driver without a device, is `absent`; every other is `unsupported` with the driver's name
for it (`CUDA_ERROR_SYSTEM_NOT_READY`: the fabric manager is not running).
"""

from __future__ import annotations

import ctypes
import functools
import uuid
from collections.abc import Callable
from typing import Any

from topocheck.host.base import Answer, HostError
from topocheck.model.base import Reason

ATTRIBUTES: dict[str, int] = {
    "INTEGRATED": 18,
    "COMPUTE_MODE": 20,
    "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED": 110,
    "GPU_DIRECT_RDMA_SUPPORTED": 116,
    "GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS": 117,
    "GPU_DIRECT_RDMA_WRITES_ORDERING": 118,
    "DMA_BUF_SUPPORTED": 124,
    "HANDLE_TYPE_FABRIC_SUPPORTED": 128,
    "MULTICAST_SUPPORTED": 132,
}
"""CU_DEVICE_ATTRIBUTE_<name> -> its number in cuda.h (CUdevice_attribute); numbers are never reused."""

LIBRARY_NOT_FOUND = "libcuda.so.1 not found"
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_NAME_BYTES = 256
_BUS_ID_BYTES = 32


def ask(call: str, *args: str | int) -> Answer:
    """Return the driver's answer to one call of the table above.

    Raises:
        HostError: no answer; the detail is the driver's own name for why.
    """
    if call not in CALLS:
        raise HostError(Reason.UNSUPPORTED, f"{call} is not among the calls of topocheck")
    answer: Answer = CALLS[call](*args)
    return answer


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as e:
        # A library that is there and cannot be loaded says so in words; those are kept.
        detail = LIBRARY_NOT_FOUND if "No such file" in str(e) else str(e)
        raise HostError(Reason.ABSENT, detail) from None


@functools.cache
def _initialised() -> ctypes.CDLL:
    """Return the library after cuInit(0), which opens the devices and makes no context."""
    _call(_library(), "cuInit", ctypes.c_uint(0))
    return _library()


def _call(library: ctypes.CDLL, function: str, *args: Any) -> None:
    try:
        found = getattr(library, function)
    except AttributeError:
        raise HostError(Reason.UNSUPPORTED, f"{function} is not in libcuda.so.1") from None
    code = found(*args)
    if code:
        raise HostError(Reason.ABSENT if code == _NO_DEVICE else Reason.UNSUPPORTED, _error_name(library, code))


def _error_name(library: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    named = getattr(library, "cuGetErrorName", None)
    if named is None or named(ctypes.c_int(code), ctypes.byref(text)) or not text.value:
        return f"CUDA error {code}"
    return text.value.decode("utf-8", "replace")


def _driver_version() -> int:
    """Answered without cuInit: it works where no device can be opened."""
    value = ctypes.c_int()
    _call(_library(), "cuDriverGetVersion", ctypes.byref(value))
    return value.value


def _count() -> int:
    value = ctypes.c_int()
    _call(_initialised(), "cuDeviceGetCount", ctypes.byref(value))
    return value.value


def _device(ordinal: str | int) -> ctypes.c_int:
    device = ctypes.c_int()
    _call(_initialised(), "cuDeviceGet", ctypes.byref(device), ctypes.c_int(int(ordinal)))
    return device


def _bus_id(ordinal: str | int) -> str:
    text = ctypes.create_string_buffer(_BUS_ID_BYTES)
    _call(_initialised(), "cuDeviceGetPCIBusId", text, ctypes.c_int(_BUS_ID_BYTES), _device(ordinal))
    return text.value.decode("utf-8", "replace")


def _uuid(ordinal: str | int) -> str:
    """Asked in its first form: the second answers for the MIG instance, not for the GPU."""
    raw = (ctypes.c_ubyte * 16)()
    _call(_initialised(), "cuDeviceGetUuid", ctypes.byref(raw), _device(ordinal))
    return f"GPU-{uuid.UUID(bytes=bytes(raw))}"


def _name(ordinal: str | int) -> str:
    text = ctypes.create_string_buffer(_NAME_BYTES)
    _call(_initialised(), "cuDeviceGetName", text, ctypes.c_int(_NAME_BYTES), _device(ordinal))
    return text.value.decode("utf-8", "replace")


def _attribute(ordinal: str | int, name: str) -> int:
    number = ATTRIBUTES.get(str(name))
    if number is None:
        raise HostError(Reason.UNSUPPORTED, f"{name} is not among the attributes of topocheck")
    value = ctypes.c_int()
    _call(_initialised(), "cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(number), _device(ordinal))
    return value.value


def _can_access_peer(ordinal: str | int, peer: str | int) -> int:
    value = ctypes.c_int()
    _call(_initialised(), "cuDeviceCanAccessPeer", ctypes.byref(value), _device(ordinal), _device(peer))
    return value.value


CALLS: dict[str, Callable[..., Answer]] = {
    "DriverGetVersion": _driver_version,
    "DeviceGetCount": _count,
    "DeviceGetPCIBusId": _bus_id,
    "DeviceGetUuid": _uuid,
    "DeviceGetName": _name,
    "DeviceGetAttribute": _attribute,
    "DeviceCanAccessPeer": _can_access_peer,
}
"""Every call that can be asked."""

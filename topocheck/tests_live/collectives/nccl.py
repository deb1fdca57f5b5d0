"""NCCL called directly, through the library that torch has already loaded in this process.

torch.distributed puts an event and two waits around every call, which costs microseconds on the GPU; what NCCL itself
takes is measured without them, as nccl-tests does. Numbers and signatures: NCCL's public header nccl.h (2.13 or newer).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

SONAME = "libnccl.so.2"

UNIQUE_ID_BYTES = 128
"""NCCL_UNIQUE_ID_BYTES (nccl.h)."""

DATA_TYPES = {
    "uint8": 1,
    "int32": 2,
    "int64": 4,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
"""torch's name of a type -> ncclDataType_t (nccl.h)."""

SUM = 0
"""ncclSum of ncclRedOp_t (nccl.h)."""

SUCCESS, IN_PROGRESS = 0, 7
"""ncclSuccess and ncclInProgress of ncclResult_t (nccl.h)."""

_P, _N, _I = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


class UniqueId(ctypes.Structure):
    """ncclUniqueId (nccl.h); bytes, since the id may hold zeros."""

    _fields_ = (("internal", ctypes.c_ubyte * UNIQUE_ID_BYTES),)


# Each ends in ncclComm_t and cudaStream_t.
_COLLECTIVES: dict[str, tuple[Any, ...]] = {
    "ncclAllReduce": (_P, _P, _N, _I, _I),
    "ncclBroadcast": (_P, _P, _N, _I, _I),
    "ncclReduce": (_P, _P, _N, _I, _I, _I),
    "ncclAllGather": (_P, _P, _N, _I),
    "ncclReduceScatter": (_P, _P, _N, _I, _I),
    "ncclSend": (_P, _N, _I, _I),
    "ncclRecv": (_P, _N, _I, _I),
}
_OTHERS: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (ctypes.POINTER(_I),),
    "ncclGetUniqueId": (ctypes.POINTER(UniqueId),),
    "ncclCommInitRank": (ctypes.POINTER(_P), _I, UniqueId, _I),
    "ncclCommDestroy": (_P,),
    "ncclCommAbort": (_P,),
    "ncclCommGetAsyncError": (_P, ctypes.POINTER(_I)),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
}
_TEXTS: dict[str, tuple[Any, ...]] = {"ncclGetErrorString": (_I,), "ncclGetLastError": (_P,)}

ISSUED_BY = {
    "all_reduce": "ncclAllReduce",
    "broadcast": "ncclBroadcast",
    "reduce": "ncclReduce",
    "all_gather": "ncclAllGather",
    "reduce_scatter": "ncclReduceScatter",
    "all_to_all": "ncclSend and ncclRecv",
    "send_recv": "ncclSend and ncclRecv",
}
"""collective -> the functions of NCCL that make it up."""


class NcclError(RuntimeError):
    """A call of NCCL failed; says which, and NCCL's own words."""


class NcclMissingError(Exception):
    """NCCL cannot be called directly here; says why."""


def version_code(version: Sequence[int]) -> int:
    """Return NCCL_VERSION_CODE of (major, minor, patch), by the macro NCCL_VERSION of nccl.h."""
    major, minor, patch = version[:3]
    if major <= 2 and minor <= 8:
        return major * 1000 + minor * 100 + patch
    return major * 10000 + minor * 100 + patch


def places(torch_file: str) -> tuple[tuple[str, int], ...]:
    """Return where the library may be, and how each place is opened, best first.

    First the one already in the process under its own name (RTLD_NOLOAD opens nothing new), then that of the package
    torch depends on, beside torch in site-packages.
    """
    loaded = os.RTLD_NOW | os.RTLD_NOLOAD
    packaged = Path(torch_file).resolve().parents[1] / "nvidia" / "nccl" / "lib" / SONAME
    return ((SONAME, loaded), (str(packaged), os.RTLD_NOW))


def load(where: Sequence[tuple[str, int]], version: Sequence[int]) -> ctypes.CDLL:
    """Return the library with its signatures set.

    Args:
        where: names or paths with the flags of dlopen, in the order to try; see `places`.
        version: what torch says its NCCL is; another one is not taken, since it would not be what torch's users get.

    Raises:
        NcclMissingError: no such library, another version, or a function that is not in it.
    """
    reasons: list[str] = []
    for name, mode in where:
        try:
            lib = ctypes.CDLL(name, mode=mode)
            _declare(lib)
        except (OSError, AttributeError) as e:
            reasons.append(str(e).splitlines()[0][:160] if str(e) else name)
            continue
        found = _I()
        lib.ncclGetVersion(ctypes.byref(found))
        if found.value != version_code(version):
            told = ".".join(map(str, version))
            reasons.append(f"{name} has version code {found.value}, and torch's NCCL is {told}")
            continue
        return lib
    raise NcclMissingError("; ".join(reasons) or f"no {SONAME} to look for")


def _declare(lib: ctypes.CDLL) -> None:
    for name, types in _COLLECTIVES.items():
        getattr(lib, name).argtypes = (*types, _P, _P)
    for name, types in (_OTHERS | _TEXTS).items():
        getattr(lib, name).argtypes = types
    for name in _TEXTS:
        getattr(lib, name).restype = ctypes.c_char_p


def unique_id(lib: ctypes.CDLL) -> bytes:
    """Return a new id for one communicator; one rank asks and gives it to the others.

    Raises:
        NcclError: NCCL gives none (no network interface it can use, for instance).
    """
    uid = UniqueId()
    result = lib.ncclGetUniqueId(ctypes.byref(uid))
    if result != SUCCESS:
        raise NcclError(_message(lib, "ncclGetUniqueId", result, None))
    return bytes(uid.internal)


def _message(lib: ctypes.CDLL, call: str, result: int, comm: Any) -> str:
    def text(raw: bytes | None) -> str:
        return " ".join((raw or b"").decode(errors="replace").split())

    said, last = text(lib.ncclGetErrorString(result)), text(lib.ncclGetLastError(comm))
    return f"{call}: {said} (ncclResult_t {result})" + (f"; NCCL's last error: {last}" if last else "")


class Communicator:
    """One rank's ncclComm_t, and the stream its calls go to.

    Args:
        lib: from `load`.
        uid: from `unique_id` of one of the members.
        rank, size: this member's number, and how many there are.
        stream: raw cudaStream_t.
        limit_s: seconds a communicator that does not block (NCCL_COMM_BLOCKING=0) may take for one call.

    Raises:
        NcclError: the members cannot meet.
    """

    def __init__(
        self, lib: ctypes.CDLL, uid: bytes, *, rank: int, size: int, stream: int, limit_s: float = 60.0
    ) -> None:
        self._lib, self.rank, self.size, self._limit_s = lib, rank, size, limit_s
        self._comm, self._stream = _P(), _P(stream)
        result = lib.ncclCommInitRank(ctypes.byref(self._comm), size, UniqueId.from_buffer_copy(uid), rank)
        if result != SUCCESS:
            self._failed("ncclCommInitRank", result)

    def _failed(self, call: str, result: int) -> None:
        """Wait for a call in progress; raise what went wrong."""
        begun = monotonic()
        while result == IN_PROGRESS and self._comm and monotonic() - begun < self._limit_s:
            result = self._async()
        if result != SUCCESS:
            raise NcclError(_message(self._lib, call, result, self._comm))

    def _async(self) -> int:
        state = _I()
        result = int(self._lib.ncclCommGetAsyncError(self._comm, ctypes.byref(state)))
        return result if result != SUCCESS else state.value

    def check(self, call: str) -> None:
        """Raise NcclError if something has gone wrong behind a call that was queued (a peer that is gone)."""
        result = self._async()
        if result not in (SUCCESS, IN_PROGRESS):
            raise NcclError(_message(self._lib, call, result, self._comm))

    def collective(self, name: str, *, send: int, recv: int, count: int, dtype: str, width: int) -> Callable[[], None]:
        """Return a function that queues one collective on the stream.

        Args:
            name: all_reduce, broadcast, reduce (both with root 0), all_gather, reduce_scatter, all_to_all or send_recv
                (a ring: to the next rank, from the one before).
            send: address of the buffer that is read.
            recv: address of the one written; the same, or one within the other, where it works in place.
            count: elements as NCCL counts them: of each rank's part where the data is split, otherwise all.
            dtype: torch's name of the type.
            width: bytes of one element.
        """
        kind = DATA_TYPES[dtype]
        if name in ("all_to_all", "send_recv"):
            peers = range(self.size)
            if name == "all_to_all":
                step = count * width
                sends = [("ncclSend", send + r * step, count, kind, r) for r in peers]
                recvs = [("ncclRecv", recv + r * step, count, kind, r) for r in peers]
                pairs = [call for pair in zip(sends, recvs, strict=True) for call in pair]
            else:
                after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
                pairs = [("ncclSend", send, count, kind, after), ("ncclRecv", recv, count, kind, before)]
            return self._group([self._queue(*p) for p in pairs])
        more = {"all_reduce": (SUM,), "broadcast": (0,), "reduce": (SUM, 0), "all_gather": (), "reduce_scatter": (SUM,)}
        return self._queue(ISSUED_BY[name], send, recv, count, kind, *more[name])

    def _queue(self, name: str, *args: int) -> Callable[[], None]:
        function = getattr(self._lib, name)
        # Made once: at a few microseconds per call, converting the arguments each time would be seen.
        types = _COLLECTIVES[name]
        ready = (*(t(a) for t, a in zip(types, args, strict=True)), self._comm, self._stream)

        def call() -> None:
            result = function(*ready)
            if result != SUCCESS:
                self._failed(name, result)

        return call

    def _group(self, calls: Sequence[Callable[[], None]]) -> Callable[[], None]:
        start, end = self._lib.ncclGroupStart, self._lib.ncclGroupEnd

        def call() -> None:
            result = start()
            if result != SUCCESS:
                self._failed("ncclGroupStart", result)
            try:
                for one in calls:
                    one()
            except NcclError:
                end()  # a group left open would swallow every later call
                raise
            result = end()
            if result != SUCCESS:
                self._failed("ncclGroupEnd", result)

        return call

    def destroy(self) -> None:
        """Free the communicator; every graph that holds its calls must be gone. A second time does nothing."""
        comm, self._comm = self._comm, _P()
        if comm:
            result = self._lib.ncclCommDestroy(comm)
            if result not in (SUCCESS, IN_PROGRESS):
                raise NcclError(_message(self._lib, "ncclCommDestroy", result, None))

    def abort(self) -> None:
        """Free the communicator and end what still runs on the device; for use after an error."""
        comm, self._comm = self._comm, _P()
        if comm:
            self._lib.ncclCommAbort(comm)

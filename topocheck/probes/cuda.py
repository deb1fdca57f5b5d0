"""The CUDA driver's own attributes of each visible device, those that NCCL asks, without making a context."""

from __future__ import annotations

from typing import Any

from topocheck.host.base import Host, HostError, each_named
from topocheck.model.address import normalize_address
from topocheck.model.base import Missing, Reason, unparsable
from topocheck.model.gpu import CudaDevice, CudaFacts, CudaPeer

MAX_DEVICES = 256
"""More than any node has; an answer above it is not believed."""

_COMPUTE_MODES = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}
"""CUcomputemode of cuda.h in nvidia-smi's words."""

_WORDS = {
    "libcuda.so.1 not found": "The CUDA driver's library libcuda.so.1 is not on this machine.",
    "CUDA_ERROR_NO_DEVICE": "The CUDA driver sees no device (none there, or hidden by CUDA_VISIBLE_DEVICES).",
    "CUDA_ERROR_SYSTEM_NOT_READY": "The CUDA driver is not ready: on NVSwitch machines the fabric manager must run.",
}


def read(host: Host) -> CudaFacts:
    """Return what the CUDA driver says of the devices that this process may see.

    Starting the driver takes a quarter of a second a GPU. What only it knows matters beside an RDMA NIC (GPUDirect
    RDMA, DMA-BUF) or in a job with devices of its own (their order); elsewhere it is not asked. NVML tells of peer
    access either way.
    """
    if _no_rdma_nic(host) and not _in_job(host):
        why = Missing(Reason.NOT_RECORDED, "not asked: no RDMA NIC here, and CUDA_VISIBLE_DEVICES is not set")
        return CudaFacts(source="CUDA driver", driver_api_version=why, devices=why)
    raw: dict[str, str] = {}
    version = _integer(_ask(host, raw, "DriverGetVersion"))
    api = version if isinstance(version, Missing) else f"{version // 1000}.{version % 1000 // 10}"
    count = version if isinstance(version, Missing) else _integer(_ask(host, raw, "DeviceGetCount"))
    if isinstance(count, int) and count > MAX_DEVICES:
        count = unparsable(f"{count}: more than {MAX_DEVICES} devices")
    if isinstance(count, Missing):
        error = _WORDS.get(count.detail, f"The CUDA driver does not answer ({count}).")
        return CudaFacts(source="CUDA driver", raw=raw, driver_api_version=api, devices=count, error=error)
    devices = tuple(_device(host, ordinal) for ordinal in range(count))
    return CudaFacts(
        source="CUDA driver", raw=raw, driver_api_version=api, devices=devices, peers=_peers(host, raw, devices)
    )


def _no_rdma_nic(host: Host) -> bool:
    try:
        return not host.listdir("/sys/class/infiniband")
    except HostError as e:
        return e.reason is Reason.ABSENT


def _in_job(host: Host) -> bool:
    try:
        return "CUDA_VISIBLE_DEVICES" in host.environ()
    except HostError:
        return False


def _device(host: Host, ordinal: int) -> CudaDevice:
    raw: dict[str, str] = {}

    def attribute(name: str) -> int | Missing:
        return _integer(_ask(host, raw, "DeviceGetAttribute", ordinal, name))

    address = parse_bus_id(_ask(host, raw, "DeviceGetPCIBusId", ordinal))
    mode = attribute("COMPUTE_MODE")
    return CudaDevice(
        source=f"CUDA device {ordinal if isinstance(address, Missing) else address}",
        raw=raw,
        ordinal=ordinal,
        address=address,
        uuid=_text(_ask(host, raw, "DeviceGetUuid", ordinal)),
        name=_text(_ask(host, raw, "DeviceGetName", ordinal)),
        gpudirect_rdma=_flag(attribute("GPU_DIRECT_RDMA_SUPPORTED")),
        dma_buf=_flag(attribute("DMA_BUF_SUPPORTED")),
        fabric_handles=_flag(attribute("HANDLE_TYPE_FABRIC_SUPPORTED")),
        multicast=_flag(attribute("MULTICAST_SUPPORTED")),
        integrated=_flag(attribute("INTEGRATED")),
        compute_mode=mode if isinstance(mode, Missing) else _COMPUTE_MODES.get(mode, unparsable(str(mode))),
        flush_writes_options=attribute("GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS"),
    )


def _peers(host: Host, raw: dict[str, str], devices: tuple[CudaDevice, ...]) -> tuple[CudaPeer, ...]:
    """Return every ordered pair of two devices at different addresses (MIG instances of one GPU share theirs)."""
    placed = [(d.address, d.ordinal) for d in devices if not isinstance(d.address, Missing)]
    pairs = [(a, b) for a in placed for b in placed if a[0] != b[0]]
    ordinals = [(a[1], b[1]) for a, b in pairs]
    answers = host.cuda_each("DeviceCanAccessPeer", ordinals)
    peers = []
    names = each_named("DeviceCanAccessPeer(", ", ", ")", ordinals)
    for (a, b), name, said in zip(pairs, names, answers, strict=True):
        answer = said.missing() if isinstance(said, HostError) else said
        raw[name] = _kept(answer)
        can = _WORD_OF[answer] if type(answer) is int and answer in _WORD_OF else _flag(_integer(answer))
        peers.append(CudaPeer(from_address=a[0], to_address=b[0], can_access=can))
    return tuple(peers)


_WORD_OF = {0: False, 1: True}


def _ask(host: Host, raw: dict[str, str], call: str, *args: str | int) -> Any:
    """Return the answer or its Missing, kept in `raw` under the call (for attributes: under their name)."""
    try:
        answer = host.cuda(call, *args)
    except HostError as e:
        answer = e.missing()
    raw[str(args[1]) if call == "DeviceGetAttribute" else call] = _kept(answer)
    return answer


def _kept(answer: Any) -> str:
    return f"!{answer}" if isinstance(answer, Missing) else str(answer)[:200]


def parse_bus_id(answer: Any) -> str | Missing:
    """Return the normalised address in `0000:3B:00.0`. Never raises."""
    if isinstance(answer, Missing):
        return answer
    address = normalize_address(answer) if isinstance(answer, str) else None
    return address if address is not None else unparsable(repr(answer))


def _text(answer: Any) -> str | Missing:
    if isinstance(answer, Missing):
        return answer
    if not isinstance(answer, str):
        return unparsable(repr(answer))
    return answer.strip() or Missing(Reason.ABSENT, "empty")


def _integer(answer: Any) -> int | Missing:
    if isinstance(answer, Missing):
        return answer
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < 1 << 31:
        return answer
    return unparsable(repr(answer))


def _flag(number: int | Missing) -> bool | Missing:
    if isinstance(number, Missing):
        return number
    return bool(number) if number in (0, 1) else unparsable(str(number))

"""What a log shows of RDMA that the job wanted and did not get: no device that matches, no GPUDirect."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.nccl.logs.transports import take_apart
from topocheck.nccl.logs.types import LogFinding, NcclLog

OWN_NETWORKS = frozenset({"IB", "Socket"})
"""Networks that are part of NCCL (src/transport/net_ib, net_socket)."""
_SHOWN = 8


def several_nodes(log: NcclLog) -> bool:
    """Tell whether the job ran on several nodes."""
    return (log.nnodes or len(log.hosts)) > 1


def asks_for_sockets(log: NcclLog) -> list[str]:
    """Return the settings of the log, as `NAME=value`, that keep NCCL from its own RDMA network."""
    return [
        f"{name}={v}"
        for name, values in (("NCCL_NET", ("Socket",)), ("NCCL_IB_DISABLE", ("1",)))
        for v in log.settings.get(name, [])
        if v in values
    ]


def no_matching_hca(log: NcclLog) -> Iterator[LogFinding]:
    """Find NCCL_IB_HCA that leaves NCCL no RDMA device (src/transport/net_ib: `NET/IB : No device found.`)."""
    asked = [v for v in log.settings.get("NCCL_IB_HCA", []) if v]
    sign = log.signs.get("verbs_absent")
    if not asked or sign is None or "No device found" not in sign.text:
        return
    if asks_for_sockets(log) or set(log.networks) - OWN_NETWORKS:
        return
    yield LogFinding(
        id="no-matching-hca",
        state="warn",
        title=f"no usable RDMA device matches NCCL_IB_HCA={' or '.join(asked[:4])}"
        + ("; NCCL uses Socket" if log.networks == ["Socket"] else ""),
        evidence=sign.text,
        consequence="RDMA and GPUDirect are not used: traffic between nodes goes over TCP sockets, or init ends where"
        " NCCL_NET=IB asks for RDMA",
        fix="name devices that exist and have an active port in NCCL_IB_HCA, or unset it (ibv_devinfo -l lists the"
        " devices, ibstat their ports)",
        line=sign.line,
    )


def gdr_off(log: NcclLog) -> Iterator[LogFinding]:
    """Find a job over RDMA whose HCAs all cannot reach GPU memory.

    The line is of src/transport/net.cc: `GPU Direct RDMA Disabled for HCA`. NCCL prints it for TCP interfaces too,
    which never can: they do not count. One HCA of several without it may be one that no GPU uses.
    """
    kinds = [take_apart(t) for p in log.pairs.values() for t in p.transports]
    if not ("IB" in log.networks or any(t.network == "IB" for t in kinds)):
        return
    sockets = {s.split(":")[0] for s in log.sockets}
    hcas = {name: on for name, on in log.gdr_of_hca.items() if name not in sockets}
    used = several_nodes(log) or any(t.kind == "NET" for t in kinds)
    if not hcas or any(hcas.values()) or not used:
        return
    names = ", ".join(list(hcas)[:_SHOWN]) + (f" and {len(hcas) - _SHOWN} more" if len(hcas) > _SHOWN else "")
    disabled = "NCCL_DMABUF_ENABLE" in log.settings and "0" in log.settings["NCCL_DMABUF_ENABLE"]
    yield LogFinding(
        id="gpudirect-off",
        state="warn",
        title=f"GPUDirect RDMA is off for {'every HCA: ' if len(hcas) > 1 else ''}{names}",
        evidence=f"GPU Direct RDMA Disabled for HCA: {names}" + ("; NCCL_DMABUF_ENABLE=0" if disabled else ""),
        consequence="neither nvidia_peermem nor DMA-BUF works there: data between GPU and NIC goes through host memory,"
        " slower and with more load on CPU and PCIe",
        fix=("unset NCCL_DMABUF_ENABLE, or " if disabled else "")
        + "modprobe nvidia-peermem on the host, and at boot; or use DMA-BUF (open kernel modules of the NVIDIA driver,"
        " Linux 5.12 or newer); topocheck check --only rdma names what is missing. GeForce GPUs do not support it",
    )

"""Causes of failures in the light of the rest of the log: the transport in use, the interface of the start-up."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from topocheck.nccl.logs.transports import take_apart
from topocheck.nccl.logs.types import LogCause, LogFailure, NcclLog

_BRIDGES = ("docker", "virbr", "br-", "cni", "lxcbr", "lxdbr", "podman", "veth", "flannel", "cali")
"""Beginnings of names that Docker, libvirt, Podman, LXD and Kubernetes' plugins give to interfaces of one host."""
_NEXT_OF_KIND = {
    "SHM": "channels went through shared memory (SHM): check the host's memory and the GPUs (dmesg for EDAC, MCE and"
    " Xid; nvidia-smi -q -d ECC), ACS and the IOMMU, and run with NCCL_SHM_DISABLE=1 as a test",
    "NET": "channels went through the network (NET): check the NICs' counters, and run with NCCL_NET_GDR_LEVEL=LOC as a"
    " test of GPUDirect RDMA",
}


def fitted(log: NcclLog, failures: tuple[LogFailure, ...]) -> tuple[LogFailure, ...]:
    """Return the failures with causes and next steps that suit what else the log states."""

    def of_log(c: LogCause) -> LogCause:
        rule = _RULES.get(c.id)
        return rule(log, c) if rule else c

    return tuple(msgspec.structs.replace(f, causes=tuple(map(of_log, f.causes))) for f in failures)


def _wrong_values(log: NcclLog, c: LogCause) -> LogCause:
    """Advise against P2P only where the log names it, or names no transport."""
    kinds = {take_apart(t).kind for p in log.pairs.values() for t in p.transports}
    steps = [text for kind, text in _NEXT_OF_KIND.items() if kind in kinds]
    if not steps or any(kind.startswith("P2P") for kind in kinds):
        return c
    return msgspec.structs.replace(c, next="; ".join([*steps, "prove the path with topocheck bw"]))


def _unreached(log: NcclLog, c: LogCause) -> LogCause:
    """Name the interface of the start-up traffic where it is one that other hosts do not reach."""
    names = [text.split(":")[0] for text in log.bootstrap]
    inside = [n for n in names if n.startswith(_BRIDGES) or n == "lo"]
    if not inside:
        return c
    name = inside[0]
    return msgspec.structs.replace(
        c,
        cause=f"Bootstrap uses {name}, an interface inside one host, which other hosts do not reach; or a rank died"
        " first",
        next=f"set NCCL_SOCKET_IFNAME on every node to the interface that the nodes share, not {name} (ip -br addr"
        " lists them); then find the first rank that failed",
    )


_RULES: dict[str, Callable[[NcclLog, LogCause], LogCause]] = {
    "wrong_values": _wrong_values,
    "connect_refused": _unreached,
}

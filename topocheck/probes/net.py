"""The network side of a node: RDMA devices, interfaces, and whether this process may use verbs."""

from __future__ import annotations

from topocheck.host.base import Host, HostError
from topocheck.model.base import ABSENT, Missing, known
from topocheck.model.net import NetFacts
from topocheck.probes.ask import list_or_missing
from topocheck.probes.netdev import read_interfaces
from topocheck.probes.rdma import natural, read_rdma

VERBS = "/dev/infiniband"


def _verbs_accessible(host: Host, names: list[str] | Missing) -> bool | Missing:
    """Return whether this process may open every uverbs device: a container is often given only some, or none."""
    if isinstance(names, Missing):
        return names
    devices = [n for n in names if n.startswith("uverbs")]
    if not devices:
        return ABSENT
    try:
        return all(host.access(f"{VERBS}/{n}", "rw") for n in devices)
    except HostError as e:
        return e.missing()


def read(host: Host) -> NetFacts:
    """Read RDMA devices, interfaces and the verbs devices."""
    verbs = list_or_missing(host, VERBS)
    return NetFacts(
        rdma=read_rdma(host),
        interfaces=read_interfaces(host),
        verbs_devices=tuple(sorted(verbs, key=natural)) if known(verbs) else verbs,
        verbs_accessible=_verbs_accessible(host, verbs),
    )

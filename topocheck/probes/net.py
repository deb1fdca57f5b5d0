"""The network side of a node: RDMA devices, interfaces, and whether this process may use verbs."""

from __future__ import annotations

from topocheck.host.base import Host, HostError
from topocheck.model.base import ABSENT, NOT_RECORDED, Missing, known
from topocheck.model.names import natural_key
from topocheck.model.net import NetFacts
from topocheck.probes.netdev import read_interfaces
from topocheck.probes.rdma import MAX_DEVICES, read_rdma
from topocheck.probes.routes import read_filters, read_other_tables, read_routes
from topocheck.probes.sysfs_reader import list_or_missing

VERBS = "/dev/infiniband"


def _verbs_opens(host: Host, names: list[str] | Missing) -> dict[str, bool | Missing]:
    """Return which uverbs devices this process may open: a container is often given only some, or none."""
    devices = [] if isinstance(names, Missing) else [n for n in names if n.startswith("uverbs")]
    return {n: _opens(host, n) for n in host.at_most(devices, MAX_DEVICES, f"names in {VERBS}")}


def _opens(host: Host, name: str) -> bool | Missing:
    try:
        return host.access(f"{VERBS}/{name}", "rw")
    except HostError as e:
        return e.missing()


def _all_open(names: list[str] | Missing, opens: dict[str, bool | Missing]) -> bool | Missing:
    """Return whether every uverbs device may be opened; the reason where one did not say, and none is refused."""
    if isinstance(names, Missing):
        return names
    if False in opens.values() or not opens:
        return False if opens else ABSENT
    return next((x for x in opens.values() if isinstance(x, Missing)), True)


def read(host: Host) -> NetFacts:
    """Read RDMA devices, interfaces and the verbs devices."""
    verbs = list_or_missing(host, VERBS)
    opens = _verbs_opens(host, verbs)
    rdma = read_rdma(host)
    interfaces = read_interfaces(host)
    # Routes say something only beside netmasks, which older recordings do not have.
    masks = known(interfaces) and any(known(i.ip_netmasks) for i in interfaces)
    return NetFacts(
        rdma=rdma,
        interfaces=interfaces,
        routes=read_routes(host) if masks else NOT_RECORDED,
        other_tables=read_other_tables(host) if masks else NOT_RECORDED,
        filters=read_filters(host, interfaces) if masks else (),
        verbs_devices=tuple(sorted(verbs, key=natural_key)) if known(verbs) else verbs,
        verbs_accessible=_all_open(verbs, opens),
        verbs_opens=opens,
    )

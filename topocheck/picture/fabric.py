"""NVLink as it is drawn: the links of each GPU, and what joins them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from topocheck.model.base import Missing, Reason, State, known
from topocheck.model.gpu import NvLink
from topocheck.picture.types import Fabric, FabricPair, Link, LinkState, Part
from topocheck.picture.words import rate
from topocheck.topology.nvlink import link_rate
from topocheck.topology.types import Gpu, Hop, NvLinkGroup, Path, Topology

_NO_RATE = Missing(Reason.ABSENT, "no pair of it has a known rate")
_FAULTS = (State.FAIL, State.WARN)


class Nvlinks:
    """Makes links and fabrics of one node.

    Args:
        topology: its structure.
        findings: GPU -> the worst state of the findings about its NVLinks; only these make a link `reduced`, since
            many products leave links unused.
        link_id: gives the id of the next link.
    """

    def __init__(self, topology: Topology, findings: Mapping[str, State], link_id: Callable[[], str]) -> None:
        self.topology, self.findings, self.link_id = topology, findings, link_id
        self.grouped = {a: g for g in topology.nvlink_groups for a in g.gpus}

    def to_cpu(self, hop: Hop) -> Link:
        """Return the link of a GPU to its CPU that replaces its PCIe link."""
        lost = isinstance(hop.gb_s, Missing)
        return Link(
            id=self.link_id(),
            kind="c2c" if hop.kind.value == "c2c" else "nvlink",
            state=LinkState.UNKNOWN if lost else LinkState.OK,
            what=hop.text.removesuffix(" to the CPU").replace(" x ", " × "),
            rate=rate(hop.gb_s),
            mark="rate not known" if lost else "",
            gb_s=None if isinstance(hop.gb_s, Missing) else hop.gb_s,
        )

    def outward(self, gpu: Gpu) -> Link | None:
        """Return a GPU's NVLinks to other GPUs as one link; None where it has none that matter."""
        every = [x for x in (gpu.nvml.nvlinks if gpu.nvml is not None else ()) if x.remote_type != "ibmnpu"]
        faulty = self.findings.get(gpu.address) in _FAULTS
        if gpu.address not in self.grouped:
            down = [x for x in every if x.active is False]
            if not down or not faulty:
                return None
            mark = f"{len(down)} of {len(every)} down"
            return Link(id=self.link_id(), kind="nvlink", state=LinkState.DOWN, what="NVLink", mark=mark)
        up = [x for x in every if x.active is True]
        gb_s = link_rate(up) if up else self._rate_of_pairs(gpu.address)
        short = faulty and 0 < len(up) < len(every)
        split = gpu.nvml is not None and gpu.nvml.mig_current is True
        state = LinkState.REDUCED if short else LinkState.IDLE if split else LinkState.OK
        mark = f"{len(up)} of {len(every)} up" if short else "not used under MIG" if split else ""
        if faulty and (why := _unregistered(gpu)):
            state, mark = LinkState.DOWN, why
        return Link(
            id=self.link_id(),
            kind="nvlink",
            state=state,
            what=f"{len(up)} × NVLink{_version(up)}" if up else f"NVLink, {self._class(gpu.address)}",
            rate="" if state is LinkState.DOWN else rate(gb_s),
            mark=mark,
            gb_s=None if isinstance(gb_s, Missing) else gb_s,
        )

    def _paths(self, address: str) -> list[Path]:
        return [p for p in self.topology.paths if p.from_ == address and p.nvlinks]

    def _class(self, address: str) -> str:
        classes = Counter(p.class_ for p in self._paths(address) if known(p.class_))
        return ", ".join(sorted(classes))

    def _rate_of_pairs(self, address: str) -> float | Missing:
        rates = [p.theoretical_gb_s for p in self._paths(address)]
        return max((r for r in rates if known(r)), default=_NO_RATE)

    def fabrics(self, parts: Sequence[Part], switches: tuple[str, ...]) -> tuple[Fabric, ...]:
        """Return what joins the GPUs; `switches` are the NVSwitches' PCI functions."""
        box = {a: p for part in parts for p in part.walk() for a in p.devices}
        out: list[Fabric] = []
        for i, group in enumerate(self.topology.nvlink_groups):
            members = tuple(dict.fromkeys(box[a].id for a in group.gpus if a in box))
            pairs = list(self._pairs(group))
            equal = len({(p.nvlinks, p.theoretical_gb_s) for p in pairs}) == 1
            if group.kind == "switch":
                first = not any(f.addresses for f in out)
                count = f"{len(switches)} ×" if first and len(switches) > 1 else ""
                here = switches if first else ()
                out.append(Fabric(id=f"f{i}", title="NVSwitch", name=count, members=members, addresses=here))
            elif group.kind == "mesh" and equal and len(group.gpus) > 2:
                each = " ".join(x for x in ("each pair", pairs[0].hops[0].text, rate(pairs[0].theoretical_gb_s)) if x)
                out.append(Fabric(id=f"f{i}", title="NVLink mesh", name=each.replace(" x ", " × "), members=members))
            else:
                joined = tuple(
                    FabricPair(one=box[p.from_].id, other=box[p.to].id, link=self._pair(p, box, alone=len(pairs) == 1))
                    for p in pairs
                    if p.from_ in box and p.to in box and box[p.from_].id != box[p.to].id
                )
                out.append(Fabric(id=f"f{i}", members=members, pairs=joined))
        return tuple(out)

    def _pairs(self, group: NvLinkGroup) -> Iterator[Path]:
        """Yield each pair of a group that NVLink joins, once."""
        for i, a in enumerate(group.gpus):
            for b in group.gpus[i + 1 :]:
                path = self.topology.find_path(a, b)
                if path is not None and path.nvlinks:
                    yield path

    def _pair(self, path: Path, box: Mapping[str, Part], *, alone: bool) -> Link:
        """Return the links of a pair; where they are all that both GPUs have, in the state of the worse GPU's."""
        gb_s = path.theoretical_gb_s
        lost = isinstance(gb_s, Missing)
        ends = [x for a in (path.from_, path.to) if (x := box[a].outward) is not None and x.state is not LinkState.OK]
        worse = ends[0] if ends and alone and not lost else None
        return Link(
            id=self.link_id(),
            kind="nvlink",
            state=worse.state if worse is not None else LinkState.UNKNOWN if lost else LinkState.OK,
            mark=worse.mark if worse is not None else "",
            what=path.hops[0].text.replace(" x ", " × ") if path.hops else f"{path.nvlinks} × NVLink",
            rate=rate(gb_s),
            gb_s=None if isinstance(gb_s, Missing) else gb_s,
        )


def _unregistered(gpu: Gpu) -> str:
    """Return why NVML says that the fabric does not take a GPU's traffic; empty where it does, or there is none."""
    if gpu.nvml is None or not known(gpu.nvml.fabric_state) or gpu.nvml.fabric_state == "Not Supported":
        return ""
    if gpu.nvml.fabric_state != "Completed":
        return f"fabric {gpu.nvml.fabric_state.lower()}"
    status = gpu.nvml.fabric_status
    return "fabric not ready" if known(status) and status != "Success" else ""


def _version(links: Sequence[NvLink]) -> str:
    versions = sorted({x.version for x in links if known(x.version)})
    return f" {versions[0]}" if len(versions) == 1 else ""

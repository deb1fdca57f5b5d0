"""A topology from a matrix that somebody pasted: labels for addresses, and nothing that the text does not say."""

from __future__ import annotations

import msgspec

from topocheck.model.address import address_key, parse_cpulist
from topocheck.model.base import Missing, Reason, ReasonStep, Verdict, small_number
from topocheck.model.smi import SmiMatrix
from topocheck.topology.classes import path_class
from topocheck.topology.types import Gpu, Hop, HopKind, NearestNics, Nic, Path, PathClass, Topology

NOT_TOLD = Missing(Reason.NOT_RECORDED, "the matrix does not say")
_ORDER = list(PathClass)

P2P_CODES = {
    "CNS": "chipset not supported: the driver's table of chipsets does not list this host bridge",
    "GNS": "GPU not supported: this product has no peer access with this driver",
    "TNS": "topology not supported: these two are joined in a way the driver does not support",
    "DR": "disabled by a registry key of the driver",
    "NS": "not supported",
    "U": "unknown to the driver",
}
"""Codes of `nvidia-smi topo -p2p`, as its legend and NVML's nvmlGpuP2PStatus_t spell them."""


def is_gpu(label: str) -> bool:
    """Tell whether a label of the matrix is a GPU (`GPU0`); every other one is a NIC."""
    return label.startswith("GPU") and small_number(label[3:]) is not None


def topology_of(matrix: SmiMatrix) -> Topology:
    """Return the topology that a matrix tells. Addresses are the labels of its rows; NICs bear their legend names."""
    labels = list(dict.fromkeys((*matrix.rows, *matrix.columns)))
    gpus = tuple(_gpu(matrix, label) for label in labels if is_gpu(label))
    nics = tuple(
        Nic(address=label, label=matrix.device_name(label), cpu_node=NOT_TOLD) for label in labels if not is_gpu(label)
    )
    ends = [(x.address, x.label) for x in gpus] + [(x.address, x.label) for x in nics]
    paths = tuple(_path(matrix, g.address, at, name) for g in gpus for at, name in ends if at != g.address)
    return Topology(
        gpus=gpus,
        nics=nics,
        paths=paths,
        nearest_nics=tuple(_nearest(matrix, g, nics) for g in gpus),
        nics_untold=Missing(Reason.NOT_RECORDED, "a P2P table lists GPUs only") if matrix.kind == "p2p" else None,
    )


def p2p_codes(matrix: SmiMatrix) -> dict[tuple[str, str], dict[str, str]]:
    """Return (from, to) -> capability letter -> code, from all P2P tables of the text."""
    codes: dict[tuple[str, str], dict[str, str]] = {}
    for table in matrix.p2p:
        for row, cells in table.codes.items():
            for column, code in cells.items():
                for letter in table.capability or "?":
                    codes.setdefault((row, column), {})[letter] = code
    return codes


def p2p_reasons(codes: dict[str, str]) -> tuple[Verdict, tuple[ReasonStep, ...]]:
    """Return the verdict that the codes of one pair give, with a reason for each capability told."""
    words = {"r": "read", "w": "write", "n": "NVLink", "a": "atomics", "p": "PCIe", "?": "a capability not named"}
    judged = [codes[c] for c in ("r", "w", "?") if c in codes]
    if not judged or "U" in judged:
        verdict = Verdict.UNKNOWN
    else:
        verdict = Verdict.YES if all(c == "OK" for c in judged) else Verdict.NO
    steps = tuple(
        ReasonStep(
            f"nvidia-smi says {code} for {words.get(letter, letter)}"
            + (f" ({P2P_CODES[code]})" if code in P2P_CODES else ""),
            "info" if letter in "nap" else ("yes" if code == "OK" else "no"),
        )
        for letter, code in codes.items()
    )
    return verdict, steps


def _gpu(matrix: SmiMatrix, label: str) -> Gpu:
    numa = matrix.numa_affinity.get(label, "")
    own = small_number(matrix.gpu_numa_id.get(label, ""))
    return Gpu(
        address=label,
        label=label,
        vendor="NVIDIA",
        uuid=NOT_TOLD,
        name=NOT_TOLD,
        index=int(label[3:]),
        cpu_node=_first_node(numa),
        memory_node=NOT_TOLD if own is None else own,
        cpu_affinity=matrix.cpu_affinity.get(label, NOT_TOLD),
    )


def _first_node(text: str) -> int | Missing:
    """Return the CPU node of a NUMA affinity cell: the first number; coherent machines list memory nodes after it."""
    try:
        nodes = parse_cpulist(text)
    except ValueError:
        return NOT_TOLD
    return min(nodes) if nodes else NOT_TOLD


def _path(matrix: SmiMatrix, a: str, b: str, b_label: str) -> Path:
    cls = matrix.class_of(a, b) or matrix.class_of(b, a)
    pcie = matrix.pcie_cells.get(a, {}).get(b)
    nvlinks = (small_number(cls[2:]) or 0) if cls and cls.startswith("NV") else 0
    if pcie is None and cls and not nvlinks:
        pcie = cls
    return Path(
        from_=a,
        to=b,
        from_label=a,
        to_label=b_label,
        class_=cls or Missing(Reason.UNPARSABLE, "the text lost this cell"),
        pcie_class=NOT_TOLD if not pcie else path_class(pcie) or Missing(Reason.UNPARSABLE, pcie),
        nvlinks=nvlinks,
        nvlinks_untold=_links_untold(matrix, cls, is_gpu(b)),
        theoretical_gb_s=NOT_TOLD,
    )


def _links_untold(matrix: SmiMatrix, cls: str | None, between_gpus: bool) -> Missing | None:
    """Return why a text does not tell whether NVLink joins a pair: `-mp` leaves it out, a P2P table too."""
    if not between_gpus or (cls is not None and matrix.kind == "m"):
        return None
    if cls is None and matrix.kind != "p2p":
        return Missing(Reason.UNPARSABLE, "the text has no class in this cell")
    return Missing(Reason.NOT_RECORDED, f"nvidia-smi topo -{matrix.kind} leaves NVLink out")


def _nearest(matrix: SmiMatrix, gpu: Gpu, nics: tuple[Nic, ...]) -> NearestNics:
    classes = {n.address: path_class(matrix.class_of(gpu.address, n.address) or "") for n in nics}
    told = [c for c in classes.values() if c is not None]
    if not told:
        return NearestNics(gpu=gpu.address, nics=(), class_=NOT_TOLD)
    best = min(told, key=_ORDER.index)
    return NearestNics(gpu=gpu.address, nics=tuple(a for a, c in classes.items() if c == best), class_=best)


def with_matrix(topology: Topology, matrix: SmiMatrix) -> Topology:
    """Return a topology with the classes that a matrix tells of pairs of GPUs whose own could not be determined.

    nvidia-smi counts GPUs in the order of their addresses; the rows are these GPUs only where there are as many.
    """
    rows = [label for label in matrix.rows if is_gpu(label)]
    addresses = sorted((g.address for g in topology.gpus), key=address_key)
    if matrix.kind not in ("m", "mp") or len(rows) != len(addresses):
        return topology
    labels = dict(zip(addresses, sorted(rows, key=lambda label: int(label[3:])), strict=True))
    return msgspec.structs.replace(topology, paths=tuple(_told(p, matrix, labels) for p in topology.paths))


def _told(path: Path, matrix: SmiMatrix, labels: dict[str, str]) -> Path:
    if path.from_ not in labels or path.to not in labels:
        return path
    cls = matrix.class_of(labels[path.from_], labels[path.to])
    if cls is None:
        return path
    if matrix.kind == "mp":  # which leaves NVLink out
        return msgspec.structs.replace(path, pcie_class=cls) if isinstance(path.pcie_class, Missing) else path
    if not isinstance(path.class_, Missing):
        return path
    if not cls.startswith("NV"):
        return msgspec.structs.replace(path, class_=cls)
    nvlinks = small_number(cls[2:]) or 0
    hop = Hop(
        kind=HopKind.NVLINK,
        address=f"{path.from_}-{path.to}",
        gb_s=NOT_TOLD,
        attainable_gb_s=NOT_TOLD,
        text=f"{nvlinks} x NVLink",
    )
    # Data goes over NVLink, so the PCIe links say nothing of its rate; the matrix has the number of links alone.
    return msgspec.structs.replace(
        path, class_=cls, nvlinks=nvlinks, theoretical_gb_s=NOT_TOLD, upper_bound=True, narrowest=None, hops=(hop,)
    )

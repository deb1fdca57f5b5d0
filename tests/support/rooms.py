"""The table of the folders: what lives in each, and what it may import.

`python -m tests.support.rooms` writes it into docs/architecture.md. tests/test_architecture.py holds it against the
code's own imports, both ways: no import that is not in the table, nothing in the table that no file imports.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- rooms: python -m tests.support.rooms -->", "<!-- end of rooms -->"


class Room(msgspec.Struct, frozen=True):
    """A folder or a single file of the package; a folder's files without the folders below it.

    Attributes:
        holds: what lives there.
        imports: the other rooms that it may import.
        types: those that it may import for annotations alone (`if TYPE_CHECKING`), beyond `imports`.
    """

    holds: str
    imports: str = ""
    types: str = ""

    @property
    def may(self) -> frozenset[str]:
        """All it may import at run time."""
        return frozenset(self.imports.split())

    @property
    def may_name(self) -> frozenset[str]:
        """All it may import for annotations."""
        return self.may | frozenset(self.types.split())


_AREA = "checks checks/shared model"
ROOMS = {
    "model": Room("frozen structs of facts, with units in the names; the reasons why a value is missing"),
    "knowledge": Room("data files with a source per row: link rates, products, NCCL's settings and versions"),
    "process": Room("the one primitive for child processes: start, events and frames with limits, deadline, end"),
    "parallel": Room("a pool of processes for commands that read many files", "process"),
    "host": Room("the one way to the machine: questions, answers, the one reader and the one writer of files", "model"),
    "host/live": Room("what this machine answers: files, commands, NVML, CUDA, psutil", "host model process"),
    "host/gather": Room("all answers collected by children with deadlines", "host host/live model process"),
    "host/recording": Room("snapshots: written, read, anonymized, exported", "host host/live model"),
    "probes": Room("one file per source: a thin `read(host)` and pure `parse_*` functions", "host knowledge model"),
    "probes/pci": Room("PCI: sysfs, configuration space, text of lspci", "host knowledge model probes"),
    "probes/nvml": Room("NVML's answers as facts", "host model"),
    "probes/smi": Room("text of nvidia-smi", "host model"),
    "probes/kept": Room(
        "the allow-list: what a snapshot keeps",
        "host host/live host/recording knowledge model probes probes/pci",
    ),
    "readers": Room(
        "files that people hand over, as the answers of a recording; merged where several are of one machine",
        "host host/gather host/live host/recording model probes probes/nvml",
    ),
    "readers/formats": Room(
        "one format per file: recognised by content, read",
        "host host/live knowledge model probes probes/nvml probes/pci probes/smi readers",
    ),
    "topology": Room("PCI tree, NVLink graph, path classes, theoretical rates, nearest NICs", "knowledge model"),
    "gpudirect": Room("P2P and RDMA verdicts with their reasons", "knowledge model topology"),
    "nccl": Room("what each backend would use on this node", "model nccl/predict nccl/rules nccl/topofile topology"),
    "nccl/rules": Room("NCCL's settings, their values, its versions", "knowledge model"),
    "nccl/topofile": Room("NCCL's topology file: read, written, compared", "knowledge model nccl/rules topology"),
    "nccl/predict": Room(
        "what NCCL will choose: graph, paths, transports, bounds",
        "gpudirect knowledge model nccl/rules nccl/topofile topology",
    ),
    "nccl/logs": Room("NCCL's debug log, read and compared with the prediction", "knowledge model nccl/predict"),
    "policy": Room("what a site expects: the TOML policy", "gpudirect knowledge model topology"),
    "bandwidth": Room(
        "bandwidth tests without the running of them: plans, link rates, statistics, assessment, baseline, cost model",
        "knowledge model topology",
    ),
    "fabric": Room("the network between nodes: dumps read, tiers, what is usual of its cables", "knowledge model"),
    "overtime": Room("what changes over time: samples, growth of counters, recordings of both", "model"),
    "checks": Room(
        "the registry, the outcome, and what each check needs to judge",
        "gpudirect model nccl/predict policy topology",
    ),
    "checks/shared": Room(
        "what checks of several areas use",
        "checks gpudirect knowledge model nccl/rules topology",
    ),
    "checks/probe": Room("area `probe`", _AREA),
    "checks/driver": Room("area `driver`", f"{_AREA} knowledge topology"),
    "checks/pcie": Room("area `pcie`", f"{_AREA} knowledge topology"),
    "checks/nvlink": Room("area `nvlink`", f"{_AREA} knowledge topology"),
    "checks/p2p": Room("area `p2p`", f"{_AREA} gpudirect knowledge topology"),
    "checks/rdma": Room("area `rdma`", f"{_AREA} gpudirect knowledge topology"),
    "checks/numa": Room("area `numa`", f"{_AREA} nccl/rules topology"),
    "checks/nccl": Room("area `nccl`", f"{_AREA} gpudirect knowledge nccl/rules nccl/topofile topology"),
    "checks/limits": Room("area `limits`", _AREA),
    "checks/consistency": Room("area `consistency`", f"{_AREA} topology"),
    "checks/policy": Room("area `policy`", "checks model topology"),
    "checks/bw": Room(
        "area `bw`: measurements on one node",
        "bandwidth checks gpudirect model nccl/predict policy topology",
    ),
    "checks/network": Room(
        "area `network`: measurements between nodes",
        "bandwidth checks gpudirect model nccl/predict policy topology",
    ),
    "checks/fabric": Room(
        "area `fabric`: dumps of the network between nodes",
        "checks fabric gpudirect model nccl/predict policy topology",
    ),
    "checks/watch": Room(
        "area `watch`: samples over time",
        "checks gpudirect knowledge model nccl/predict overtime policy topology",
    ),
    "compare": Room("what differs between nodes", "knowledge model"),
    "placement": Room("ranks, bindings, orders, Slurm's topology", "fabric knowledge model topology"),
    "picture": Room(
        "the drawing of a node without a format: what is drawn, where, which way a pair goes",
        "knowledge model topology",
    ),
    "pipeline": Room(
        "the one composition: facts, topology, verdicts, checks",
        "checks checks/shared gpudirect host model nccl nccl/predict places policy probes topology",
    ),
    "places": Room("evidence of facts from files: file and line", "model"),
    "collect": Room(
        "asks this machine while the program loads",
        "checks gpudirect host host/gather nccl/predict pipeline probes process render topology",
        types="model",
    ),
    "api": Room(
        "the Python API: `topocheck.report()` and `topocheck.load()`",
        "checks collect host host/gather model pipeline policy probes readers render render/html",
        types="gpudirect nccl/predict topology",
    ),
    "monitor": Room(
        "the one sampler of a running machine: `watch`, and `bw` while it measures",
        "host host/live knowledge model overtime probes probes/nvml probes/pci process topology",
    ),
    "tests_live": Room(
        "one run of `bw`; the entry point of ranks",
        "bandwidth model monitor overtime process tests_live/collectives tests_live/copies tests_live/labs "
        "tests_live/launch tests_live/training topology",
    ),
    "tests_live/launch": Room("ranks: started, met, named; the rendezvous store", "bandwidth model process"),
    "tests_live/copies": Room("copies between GPUs and host memory", "bandwidth model process"),
    "tests_live/collectives": Room(
        "collectives, a rank in each process", "bandwidth model process tests_live/copies tests_live/launch"
    ),
    "tests_live/nodes": Room("bandwidth between nodes, pair by pair", "bandwidth model process tests_live/launch"),
    "tests_live/training": Room(
        "training steps, timed and predicted",
        "bandwidth host model tests_live/collectives tests_live/launch",
    ),
    "tests_live/labs": Room(
        "the experiments of `lab`: what ranks do, the record of all nodes",
        "bandwidth model tests_live/collectives tests_live/labs/plans tests_live/launch tests_live/training topology",
    ),
    "tests_live/labs/plans": Room(
        "which rows a lab has, and what of its tables they fill",
        "bandwidth model tests_live/launch tests_live/training topology",
    ),
    "render": Room(
        "a result in, text out; of other rooms it takes types",
        "compare gpudirect host model overtime picture placement topology",
        types="bandwidth checks checks/fabric fabric host/recording knowledge nccl/logs nccl/predict nccl/rules "
        "nccl/topofile pipeline tests_live/training",
    ),
    "render/html": Room(
        "pages and drawings: templates of `render/templates` filled",
        "model picture render",
        types="checks/fabric compare gpudirect nccl/predict overtime pipeline tests_live/training topology",
    ),
    "render/formats": Room("formats of other programs", "model overtime render topology", types="checks pipeline"),
    "cli": Room("one thin file per command", ""),
    "__main__": Room("starts the command line", "cli process"),
}


def table() -> str:
    """Return the table of docs/architecture.md."""
    rows = ["| folder | what it holds | imports | for annotations |", "| --- | --- | --- | --- |"]
    for name, room in ROOMS.items():
        shown = f"`{name}/`" if (ROOT / "topocheck" / name).is_dir() else f"`{name}.py`"
        rows.append(f"| {shown} | {room.holds} | {_listed(room.imports)} | {_listed(room.types)} |")
    return "\n".join(rows)


def _listed(names: str) -> str:
    return ", ".join(sorted(names.split())) or "-"


def renewed(page: str) -> str:
    """Return a page with the table in its place."""
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n\n{table()}\n\n{END}", page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

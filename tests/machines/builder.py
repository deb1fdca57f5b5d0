"""From a description to a machine that can be asked, exported and compared with what is expected of it."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tests.machines import net_files, nvidia_files, pci_files, system_files
from tests.machines.backend import TreeBackend
from tests.machines.cuda_answers import Cuda
from tests.machines.description import (
    HERE,
    DescriptionError,
    Function,
    Root,
    functions,
    load,
    merge,
    negotiate,
    parse_tree,
    products,
)
from tests.machines.nvml_answers import Nvml
from tests.machines.tree import Dir, Entry, Error, File, Link, Tree
from topocheck.host.base import Host


class Machine(msgspec.Struct, kw_only=True):
    """A described machine. `functions` are its PCI functions by address; `expect` is the `[expect]` table."""

    name: str
    description: dict[str, Any]
    roots: list[Root]
    functions: dict[str, Function]
    tree: Tree
    backend: TreeBackend

    def host(self) -> Host:
        """Return the door to this machine."""
        return Host(self.backend, source=self.name)

    def export(self, folder: Path) -> None:
        """Write its files to disk, for programs that read a tree (`lspci -O sysfs.path=`, `HWLOC_FSROOT=`)."""
        self.tree.export(folder)

    @property
    def facts_expected(self) -> dict[str, Any]:
        """The `[expect]` table: what a public capture of such a machine shows."""
        return dict(self.description.get("expect", {}))

    def classes_expected(self, pcie: bool = False) -> dict[tuple[str, str], str]:
        """Return (label, label) -> class of `topo -m`, or of `topo -mp` with `pcie`, as `[expect]` tells them.

        Labels are `GPU3` and RDMA names; each pair once, GPUs first, the lower index first. Empty where the
        capture does not tell; pairs with a device of `unknown = [...]` are left out.
        """
        return expected_classes(self.facts_expected, sum(f.kind == "gpu" for f in self.functions.values()), pcie)

    def label(self, label: str) -> Function:
        """Return the function behind `GPU3`, an RDMA device's name or an address.

        Raises:
            DescriptionError: there is none.
        """
        return _labelled(self.functions, label, self.name)[0]


_CASE = re.compile(r"h\d\d[a-z]?_")


def names() -> list[str]:
    """Return the names of the described machines; the cases from the field are not among them."""
    return [n for n in _all_names() if not _CASE.match(n)]


def healthy_names() -> list[str]:
    """Return the machines that have nothing wrong with them: no `fault` in their `[machine]` table."""
    return [n for n in names() if "fault" not in load(n)["machine"]]


def case_names() -> list[str]:
    """Return the cases: machines of public reports, whose `[case]` table says what is right to say of them."""
    return [n for n in _all_names() if _CASE.match(n)]


def _all_names() -> list[str]:
    return sorted(p.stem for p in (HERE / "descriptions").glob("*.toml"))


def machine(name: str, /, **overrides: Any) -> Machine:
    """Return the described machine, with tables of `overrides` laid over its description.

    `machine("hgx_h100_cx7", patch={"GPU3": {"now": "5x8"}})` is that machine with one link at half width.

    Raises:
        DescriptionError: the description is wrong; says where.
    """
    return build(merge(load(name), overrides), name)


@functools.cache
def cached(name: str) -> Machine:
    """Return the described machine, built once; do not change it."""
    return machine(name)


_TABLES = frozenset(
    "machine system numa pci ports patch gpus gpu nvlink p2p driver nvml cuda nics software_rdma bonds addresses "
    "modules files dmi process limits environment commands psutil software hangs now expect case "
    "services interfaces network".split()
)


def build(d: Mapping[str, Any], name: str) -> Machine:
    """Return the machine of a description."""
    unknown = sorted(set(d) - _TABLES)
    if unknown:
        raise DescriptionError(f"{name}: unknown table {unknown[0]!r}; known: {', '.join(sorted(_TABLES))}")
    d = {**d, "commands": dict(d.get("commands", {}))}
    own = {k: v for k, v in d.items() if k not in _APART}
    base = _base(name, msgspec.json.encode(own))
    tree = base.tree.copy()
    _software(tree, d.get("software", {}))
    for service, state in d.get("services", {}).items():
        populated = int(state == "active")
        tree.put(f"/sys/fs/cgroup/system.slice/{service}.service/cgroup.events", f"populated {populated}\nfrozen 0")
    if not d.get("system", {}).get("no_pci_ids"):
        tree.put("/usr/share/misc/pci.ids", _pci_ids())
    net_files.write_routes(tree, d)
    _files(tree, d.get("files", {}), name)
    for command, output in base.commands.items():
        d["commands"].setdefault(command, output)
    nvml = Nvml(base.seen, d, name, d.get("numa", []))
    cuda = Cuda(nvml, d.get("cuda", {}), {k: str(v) for k, v in d.get("environment", {}).items()})
    backend = TreeBackend(tree, nvml, cuda, d)
    return Machine(name=name, description=d, roots=base.roots, functions=base.functions, tree=tree, backend=backend)


class _Base(msgspec.Struct, frozen=True, kw_only=True):
    """What all variants of a machine share that differ in tables of _APART only; nobody changes it.

    Attributes:
        functions: all PCI functions by address; `seen` are those that a guest is shown.
        tree: the files, less those that tables of _APART tell.
        commands: what commands print that follow from the rest.
    """

    roots: list[Root]
    functions: dict[str, Function]
    seen: list[Function]
    tree: Tree
    commands: dict[str, str]


_APART = frozenset(
    "machine p2p nvml cuda addresses network files environment commands psutil software hangs now expect case "
    "services".split()
)
"""Tables that say nothing of PCI functions, nor of the files that these and the kernel bring."""


@functools.lru_cache(maxsize=32)
def _base(name: str, description: bytes) -> _Base:
    """Return what a description without the tables of _APART, as JSON, makes of a machine."""
    d: dict[str, Any] = msgspec.json.decode(description)
    pci = d.get("pci", {})
    roots = parse_tree(pci.get("tree", ""), pci.get("parts", {}), name)
    fs = functions(roots)
    _hang_below(roots, fs)
    by_address = {f.address: f for f in fs}
    for label, told in d.get("patch", {}).items():
        for f in _labelled(by_address, label, name):
            f.options.update({k: str(v) for k, v in told.items()})
            for k in ("max",):
                f.max = None if k in told else f.max
    negotiate(fs)
    for f in fs:
        if f.now is None and f.max is not None:
            f.now = f.max
    seen = [f for f in fs if f.options.get("hidden") != "1"]
    tree = Tree()
    tree.put("/sys/devices", Dir())
    system_files.write(tree, d, name)
    if not pci.get("absent"):
        pci_files.write(tree, roots, fs, d, system_files.numa_cpus(d))
    net_files.write(tree, seen, d, name)
    commands = nvidia_files.write(tree, Nvml(seen, d, name, d.get("numa", [])), fs, d)
    return _Base(roots=roots, functions=by_address, seen=seen, tree=tree, commands=commands)


def _hang_below(roots: list[Root], fs: list[Function]) -> None:
    """Put a root with `under=ADDRESS` (the buses of an Intel VMD) below that function's folder."""
    for root in roots:
        if "under" in root.options:
            root.options["below"] = next(f.path for f in fs if f.address == root.options["under"])


def _labelled(by_address: Mapping[str, Function], label: str, name: str) -> list[Function]:
    fs = list(by_address.values())
    what, _, rest = label.rpartition(" ")
    if what == "above":
        parent = _labelled(by_address, rest, name)[0].parent
        return [parent] if parent else []
    if what == "path":
        out, f = list[Function](), _labelled(by_address, rest, name)[0].parent
        while f:
            out.append(f)
            f = f.parent
        return out
    if what == "all":
        kinds = [f for f in fs if rest in (f.kind, f.role)]
        if kinds:
            return kinds
    found = dict(net_files.rdma_functions(fs))
    gpus = [f for f in fs if f.kind == "gpu"]
    if rest.startswith("GPU") and rest[3:].isdigit() and int(rest[3:]) < len(gpus):
        return [gpus[int(rest[3:])]]
    hit = found.get(rest) or by_address.get(rest)
    if hit is None:
        raise DescriptionError(f"{name}: patch: {label!r} is no GPU, RDMA device or address of this machine")
    return [hit]


def _software(tree: Tree, told: Mapping[str, Any]) -> None:
    """Write `*.dist-info` folders: package -> version, in the first folder of sys.path."""
    at = told.get("site_packages", "/usr/lib/python3/dist-packages")
    tree.put(at, Dir())
    for package, version in told.get("packages", {}).items():
        folder = f"{at}/{package}-{version}.dist-info"
        tree.put(f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}")


_VENDORS = {
    "1000": "Broadcom / LSI",
    "1002": "Advanced Micro Devices, Inc. [AMD/ATI]",
    "1014": "IBM",
    "1022": "Advanced Micro Devices, Inc. [AMD]",
    "10b5": "PLX Technology, Inc.",
    "10de": "NVIDIA Corporation",
    "15b3": "Mellanox Technologies",
    "8086": "Intel Corporation",
}


@functools.cache
def _pci_ids() -> str:
    """Return a small pci.ids with the vendors and the named products of products.toml."""
    lines = []
    for vendor, name in sorted(_VENDORS.items()):
        lines.append(f"{vendor}  {name}")
        own = {p["id"][5:]: p["name"] for p in products().values() if "name" in p and p["id"].startswith(vendor)}
        lines += [f"\t{device}  {text}" for device, text in sorted(own.items())]
    return "\n".join(lines)


def _files(tree: Tree, told: Mapping[str, Any], name: str) -> None:
    for written, value in told.items():
        path = tree.real(written)
        if isinstance(value, str):
            tree.put(path, value)
            continue
        entry: Entry
        if value.get("remove"):
            try:
                tree.remove(path)  # may hold `*`
            except KeyError as e:
                raise DescriptionError(f"{name}: files: {e.args[0]}") from None
            continue
        if "link" in value:
            entry = Link(value["link"])
        elif "error" in value:
            entry = Error(value["error"])
        elif "hex" in value:
            entry = File(bytes.fromhex(value["hex"]))
        elif value.get("folder"):
            entry = Dir()
        else:
            entry = File(value.get("text", "").encode(), **{k: v for k, v in value.items() if k != "text"})
        tree.put(path, entry)


def expected_classes(expect: Mapping[str, Any], gpus: int, pcie: bool = False) -> dict[tuple[str, str], str]:
    """Return the pairs of an `[expect]` table: `gpus` is one class for all, or class -> pairs with `rest`."""
    told = expect.get("pcie_gpus" if pcie else "gpus")
    out: dict[tuple[str, str], str] = {}
    unknown = set(expect.get("unknown", []))
    if told:
        table = {"rest": told} if isinstance(told, str) else dict(told)
        rest = table.pop("rest", None)
        by_pair = {pair: c for c, pairs in table.items() for pair in pairs.split()}
        for i in range(gpus):
            for j in range(i + 1, gpus):
                c = by_pair.pop(f"{i}-{j}", rest)
                if c is not None:
                    out[f"GPU{i}", f"GPU{j}"] = c
        if by_pair:
            raise DescriptionError(f"expect: no such pair: {next(iter(by_pair))}")
    for nic, row in expect.get("nics", {}).items():
        cells = row.split()
        if len(cells) != gpus:
            raise DescriptionError(f"expect: {nic} has {len(cells)} cells for {gpus} GPUs")
        out |= {(f"GPU{i}", nic): c for i, c in enumerate(cells) if c != "-"}
    return {pair: c for pair, c in out.items() if not unknown & set(pair)}

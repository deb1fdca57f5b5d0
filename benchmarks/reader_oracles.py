"""Real outputs that others recorded, read by topocheck and by a few lines of other code; prints a table in Markdown.

    python benchmarks/reader_oracles.py FOLDER

FOLDER holds a folder for each kind of output (`lspci`, `ib`, `smi_q`, `hwloc_xml`, ...). A fact is one value of one
device. The other code shares nothing with the readers: regular expressions on the text, ElementTree on XML, lstopo for
XML of hwloc, tarfile for trees of /sys. A fact is wrong where both have it and differ, and where topocheck has a device
that the text does not hold. Exits with 1 where one is wrong.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from topocheck.host.base import Host, RecordedBackend
from topocheck.model.base import InputError, Missing
from topocheck.model.node import Node
from topocheck.pipeline import build_report
from topocheck.readers.files import read_data

Facts = dict[tuple[str, str], Any]


def told(value: Any) -> bool:
    """Tell whether a value of a fact is known."""
    return not isinstance(value, Missing) and value is not None


def ours(node: Node, matrix: Facts) -> Facts:
    """Return the facts of a node that any of the kinds here can hold."""
    out: Facts = dict(matrix)
    for d in node.pci.devices if told(node.pci.devices) else ():
        names = {"vendor": d.vendor_id, "device": d.device_id, "class": d.class_code, "driver": d.driver,
                 "node": d.numa_node, "speed": d.current_speed_gt_s, "width": d.current_width_lanes,
                 "acs": d.acs_control_word, "parent": d.chain[-2] if len(d.chain) > 1 else None}  # fmt: skip
        out |= {(d.address, k): v for k, v in names.items() if told(v)}
        if told(d.class_code):
            out[d.address, "class"] = d.class_code >> 8
    for g in node.nvml.gpus if told(node.nvml.gpus) else ():
        names = {"name": g.name, "uuid": g.uuid, "bus": g.address, "gen": g.pcie_gen_current,
                 "width": g.pcie_width_current, "gen max": g.pcie_gen_max, "memory": mib(g.memory_total_bytes),
                 "bar1": mib(g.bar1_total_bytes),
                 "minor": g.minor, "driver": node.nvml.driver_version}  # fmt: skip
        known = {k: v for k, v in names.items() if told(v)}
        if set(known) - {"driver"}:  # one that is named in the text, and not only counted
            out |= {(f"GPU{g.index}", k): v for k, v in known.items()}
        out |= {(f"GPU{g.index}", f"link {k.link}"): k.speed_mb_s for k in g.nvlinks if told(k.speed_mb_s)}
    for r in node.net.rdma if told(node.net.rdma) else ():
        out |= {(r.name, k): v for k, v in (("guid", r.node_guid), ("firmware", r.firmware)) if told(v)}
        for p in r.ports:
            names = {"state": p.state, "rate": p.rate_gbit_s, "layer": p.link_layer, "lid": p.lid}
            out |= {(f"{r.name}/{p.port}", k): v for k, v in names.items() if told(v)}
    for n in node.numa.nodes if told(node.numa.nodes) else ():
        out |= {(f"node{n.node}", k): v for k, v in (("cpus", cpus(n.cpulist)), ("distances", n.distances)) if told(v)}
    return out


def mib(size: Any) -> Any:
    """Return a size in MiB."""
    return size >> 20 if told(size) else None


def cpus(text: Any) -> Any:
    """Return a list of CPUs as numbers."""
    if not isinstance(text, str):
        return None
    parts = [p.split("-") for p in text.split(",") if p]
    return tuple(sorted(n for p in parts for n in range(int(p[0]), int(p[-1]) + 1)))


def of_lspci(text: str) -> Facts:
    """Read blocks of `lspci -v` and lines of `lspci -nn`."""
    out: Facts = {}
    acs = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
    for block in re.split(r"\n(?=(?:[0-9a-f]{4,}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] )", "\n" + text):
        if not (m := re.match(r"\s*((?:[0-9a-f]{4,}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (.*)", block)):
            continue
        address = m[1] if m[1].count(":") == 2 else f"0000:{m[1]}"
        if n := re.search(r"\[([0-9a-f]{4})\]: .*\[([0-9a-f]{4}):([0-9a-f]{4})\]", m[2]):
            values = (("class", n[1]), ("vendor", n[2]), ("device", n[3]))
            out |= {(address, k): int(v, 16) for k, v in values}
        if n := re.search(r"LnkSta:\tSpeed ([0-9.]+)GT/s.*?Width x([0-9]+)", block):
            out[address, "speed"], out[address, "width"] = float(n[1]), int(n[2])
        if n := re.search(r"Kernel driver in use: (\S+)", block):
            out[address, "driver"] = n[1]
        if n := re.search(r"NUMA node: ([0-9]+)", block):
            out[address, "node"] = int(n[1])
        if n := re.search(r"ACSCtl:\t(.*)", block):
            out[address, "acs"] = sum(1 << i for i, name in enumerate(acs) if f"{name}+" in n[1])
        out.setdefault((address, "listed"), True)
    return out


def of_tree(text: str) -> Facts:
    """Read `lspci -t` by the columns of its drawing."""
    out: Facts = {}
    above: list[tuple[int, str, str]] = []  # (column, bus, what it hangs on)
    for line in text.split("\n"):
        last = ""
        for m in re.finditer(
            r"\[([0-9a-f]{4}):([0-9a-f]{2})\]|\[([0-9a-f]{2})(?:-[0-9a-f]{2})?\]|(?<![\w.:])([0-9a-f]{2}\.[0-7])(?![\w.])",
            line,
        ):
            if "  " in line[: m.start()].strip(" |-+\\[]"):
                break  # in the name of a device
            if m[1]:
                above = [(m.start(), f"{m[1]}:{m[2]}", f"pci{m[1]}:{m[2]}")]
            elif m[3] and last:
                domain = above[-1][1][:4] if above else "0000"
                above.append((m.start(), f"{domain}:{m[3]}", last))
            elif m[4] and above:
                while above[-1][0] > m.start():
                    above.pop()
                last = f"{above[-1][1]}:{m[4]}"
                out[last, "parent"] = above[-1][2]
                if line[m.end() : m.end() + 2] == "  ":
                    break
    return out


def of_query(text: str) -> Facts:
    """Read `nvidia-smi -q` block by block."""
    out: Facts = {}
    driver = re.search(r"^Driver Version\s+: (\S+)", text, re.M)
    blocks = re.split(r"^GPU (?=[0-9A-F]{8}:)", text, flags=re.M)[1:]
    fields = {"name": r"Product Name\s+: (.*)", "uuid": r"GPU UUID\s+: (\S+)", "minor": r"Minor Number\s+: ([0-9]+)",
              "gen": r"PCIe Generation\n(?:\s+(?:Max|Device .*|Host Max).*\n)*?\s+Current\s+: ([0-9]+)",
              "gen max": r"PCIe Generation\n\s+Max\s+: ([0-9]+)",
              "width": r"Link Width\n(?:.*\n)?\s+Current\s+: ([0-9]+)x",
              "memory": r"FB Memory Usage\n\s+Total\s+: ([0-9]+) MiB",
              "bar1": r"BAR1 Memory Usage\n\s+Total\s+: ([0-9]+) MiB"}  # fmt: skip
    for i, block in enumerate(blocks):
        out[f"GPU{i}", "bus"] = block.split("\n")[0].strip().lower()[4:]
        if driver:
            out[f"GPU{i}", "driver"] = driver[1]
        for name, pattern in fields.items():
            if m := re.search(pattern, block):
                out[f"GPU{i}", name] = int(m[1]) if m[1].strip().isdigit() else m[1].strip()
    return out


def of_nvlink(text: str) -> Facts:
    """Read `nvidia-smi nvlink -s`."""
    out: Facts = {}
    gpu = ""
    for line in text.split("\n"):
        if m := re.match(r"\s*GPU ([0-9]+): (.*?)(?: \(UUID: (.*)\))?$", line.rstrip()):
            gpu = f"GPU{m[1]}"
            out[gpu, "name"] = m[2]
            if m[3]:
                out[gpu, "uuid"] = m[3]
        elif m := re.search(r"Link ([0-9]+): ([0-9.]+) GB/s", line):
            out[gpu, f"link {m[1]}"] = round(float(m[2]) * 1000)
    return out


def of_ib(text: str) -> Facts:
    """Read ibstat, ibv_devinfo, rdma link and ibdev2netdev."""
    out: Facts = {}
    device = port = ""
    for line in text.split("\n"):
        if m := re.search(r"CA '(.*)'|hca_id:\s*(\S+)", line):
            device, port = m[1] or m[2], ""
        elif m := re.search(r"Port ([0-9]+):|\bport:\s+([0-9]+)", line):
            port = f"{device}/{m[1] or m[2]}"
        elif m := re.search(r"link (\S+?/[0-9]+) .*? state (\w+)", line):
            out[m[1], "state"] = m[2]
        elif m := re.search(r"(\w+) port ([0-9]+) ==> ", line):
            out[m[1], "listed"] = True
        elif m := re.search(r"(?:Node GUID: 0x|node_guid:\s+)([0-9a-f:]+)", line):
            digits = m[1].replace(":", "")
            out[device, "guid"] = ":".join(digits[i : i + 4] for i in range(0, 16, 4))
        elif m := re.search(r"(?:Firmware version|fw_ver):\s+(\S+)", line):
            out[device, "firmware"] = m[1]
        elif port and (m := re.search(r"\bState: (\w+)|\bstate:\s+PORT_(\w+)", line)):
            out[port, "state"] = {"INITIALIZING": "INIT"}.get((m[1] or m[2]).upper(), (m[1] or m[2]).upper())
        elif port and (m := re.search(r"Rate: ([0-9]+)", line)):
            out[port, "rate"] = float(m[1])
        elif port and (m := re.search(r"(?:Base lid:|port_lid:)\s+([0-9]+)", line)):
            out[port, "lid"] = int(m[1])
        elif port and (m := re.search(r"(?:Link layer|link_layer):\s+(\w+)", line)):
            out[port, "layer"] = m[1]
    return out


def of_numactl(text: str) -> Facts:
    """Read `numactl -H`."""
    out: Facts = {}
    for m in re.finditer(r"^node ([0-9]+) cpus:(.*)$", text, re.M):
        out[f"node{m[1]}", "cpus"] = tuple(sorted(map(int, m[2].split())))
    for m in re.finditer(r"^ +([0-9]+): +([0-9 ]+)$", text, re.M):
        out[f"node{m[1]}", "distances"] = tuple(map(int, m[2].split()))
    return out


def of_dmesg(text: str) -> Facts:
    """Read where the kernel found functions, and what groups and nodes it gave."""
    out: Facts = {}
    for m in re.finditer(r"pci ([0-9a-f:.]+): \[([0-9a-f]{4}):([0-9a-f]{4})\] type .. class 0x([0-9a-f]{4})", text):
        out |= {(m[1], k): int(v, 16) for k, v in (("vendor", m[2]), ("device", m[3]), ("class", m[4]))}
    return out


def of_lscpu(text: str) -> Facts:
    """Read the nodes of `lscpu`."""
    return {(f"node{m[1]}", "cpus"): cpus(m[2]) for m in re.finditer(r"NUMA node([0-9]+) CPU\(s\):\s+(\S+)", text)}


def of_hwloc(text: str) -> Facts:
    """Let lstopo read the file and write it again."""
    done = subprocess.run(["lstopo-no-graphics", "-i", "/dev/stdin", "--if", "xml", "--of", "xml"], input=text.encode(),
                          capture_output=True, check=True)  # fmt: skip
    out: Facts = {}
    _walk(ElementTree.fromstring(done.stdout.decode()), "", out)
    return out


def _walk(e: ElementTree.Element, above: str, out: Facts) -> None:
    if (address := e.get("pci_busid")) and (
        m := re.match(r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\]", e.get("pci_type", ""))
    ):
        address = address if address.count(":") == 2 else f"0000:{address}"
        out |= {(address, k): int(v, 16) for k, v in (("class", m[1]), ("vendor", m[2]), ("device", m[3]))}
        if above:
            out[address, "parent"] = above
        above = address
    for child in e:
        _walk(child, above, out)


def of_nccl(text: str) -> Facts:
    """Read NCCL's XML; a file that ends early as far as it goes."""
    parser = ElementTree.XMLPullParser(["start"])
    parser.feed(text[max(text.find("<system"), 0) :])
    out: Facts = {}
    node = None
    for _, e in parser.read_events():
        if e.tag == "cpu":
            node = e.get("numaid")
        elif e.tag == "pci":
            address = e.get("busid", "").lower()
            for name, shift in (("class", 8), ("vendor", 0), ("device", 0)):
                if re.fullmatch(r"0x[0-9a-f]+", e.get(name, "")):
                    out[address, name] = int(e.get(name, ""), 16) >> shift
            if node and node.isdigit():
                out[address, "node"] = int(node)
    return out


def of_sysfs(data: bytes) -> Facts:
    """Read a tree of /sys in a tar archive."""
    out: Facts = {}
    names = {"vendor": 16, "device": 16, "numa_node": 10}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            m = re.search(r"sys/(?:.*/)?([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])/(\w+)$", member.name)
            ib = re.search(r"sys/class/infiniband/(\w+)/ports/([0-9]+)/(state|rate|link_layer)$", member.name)
            if not member.isreg() or not (m or ib):
                continue
            file = archive.extractfile(member)
            value = file.read().decode("utf-8", "replace").strip() if file else ""
            if ib:
                key = {"state": "state", "rate": "rate", "link_layer": "layer"}[ib[3]]
                words = {"state": value.rpartition(" ")[2], "layer": value}
                out[f"{ib[1]}/{ib[2]}", key] = float(value.split()[0]) if key == "rate" else words[key]
            elif m and m[2] in names and not value.startswith("-"):
                out[m[1], "node" if m[2] == "numa_node" else m[2]] = int(value, names[m[2]])
            elif m and m[2] == "class":
                out[m[1], "class"] = int(value, 16) >> 8
            elif m and m[2] == "current_link_width" and value not in ("0", "63", "255"):
                out[m[1], "width"] = int(value)
    return out


def of_matrix(text: str) -> Facts:
    """Read the classes of pairs of GPUs from the plainest rows; wrapped and run-together ones have no other reader."""
    plain = re.sub(r"\x1b?\[[0-9;]+m", "", text)
    rows = [r.split() for r in plain.split("\n") if re.match(r"\s*GPU[0-9]+\s+\S", r)]
    rows = [r for r in rows if not re.match(r"GPU[0-9]", r[1])]
    count = len(rows)
    if count != len({r[0] for r in rows}) or any(len(r) <= count or r[1 + i] != "X" for i, r in enumerate(rows)):
        return {}
    return {
        (r[0], rows[j][0]): r[1 + j].replace("SOC", "SYS") for r in rows for j in range(count) if r[0] != rows[j][0]
    }


def of_p2p(text: str) -> Facts:
    """Read the codes of tables whose command stands above them: without it they may be of reads, writes, ..."""
    out: Facts = {}
    kind = ""
    for line in text.split("\n"):
        if m := re.search(r"topo -p2p (\w)", line):
            kind = m[1]
        elif kind and (m := re.match(r"\s*(GPU[0-9]+)\s+((?:X|OK|[A-Z]{1,3})(?:\s+(?:X|OK|[A-Z]{1,3}))*)\s*$", line)):
            out |= {(f"{m[1]}-GPU{i}", kind): c for i, c in enumerate(m[2].split()) if c != "X"}
    return out


def p2p(answers: dict[str, Any]) -> Facts:
    """Return NVML's P2P status of each pair, by the letter and code of nvidia-smi (nvml.h, nvmlGpuP2PCapsIndex)."""
    codes = dict(enumerate(("OK", "CNS", "GNS", "TNS", "DR", "NS")))
    asked = [(q.split("|")[1:], a) for q, a in answers.items() if q.startswith("nvml:DeviceGetP2PStatus|")]
    return {(f"GPU{q[0]}-GPU{q[1]}", "rwnap"[int(q[2])]): codes.get(a) for q, a in asked}


def of_gdscheck(text: str) -> Facts:
    """Read the lines of GPUs."""
    return {
        (f"GPU{m[1]}", k): v
        for m in re.finditer(r"GPU index ([0-9]+) (.*?) bar:1 bar size \(MiB\):([0-9]+)", text)
        for k, v in (("name", m[2]), ("bar1", int(m[3])))
    }


def of_table(text: str) -> Facts:
    """Read the rows of `nvidia-smi`."""
    driver = re.search(r"Driver Version: (\S+)", text)
    out: Facts = {}
    for m in re.finditer(r"\|\s+([0-9]+)\s+\S.*?([0-9A-F]{8}):([0-9A-F:.]{7}).*\n\|.*?/\s*([0-9]+)MiB", text):
        out |= {(f"GPU{m[1]}", "bus"): f"{m[2][4:]}:{m[3]}".lower(), (f"GPU{m[1]}", "memory"): int(m[4])}
        if driver:
            out[f"GPU{m[1]}", "driver"] = driver[1]
    return out


KINDS: tuple[tuple[str, str, Callable[[Any], Facts], str], ...] = (
    ("lspci", "*.vvv*.txt", of_lspci, "lspci -vvv: its own numbers"),
    ("lspci", "*.nn.txt", of_lspci, "lspci -nn: its own numbers"),
    ("lspci", "*.tv.txt", of_tree, "lspci -tv: columns of the drawing"),
    ("lspci", "*dmesg*.txt", of_dmesg, "dmesg: its own numbers"),
    ("lspci", "*lscpu.txt", of_lscpu, "lscpu: its own lists"),
    ("lspci", "*numactl*.txt", of_numactl, "numactl -H: its own lists"),
    ("numactl", "*.txt", of_numactl, "numactl -H: its own lists"),
    ("smi_q", "*.txt", of_query, "nvidia-smi -q: block by block"),
    ("smi_plain", "*.txt", of_table, "nvidia-smi: rows of the table"),
    ("smi_topo", "*.txt", of_matrix, "nvidia-smi topo -m: cells of plain rows"),
    ("smi_p2p", "*.txt", of_p2p, "nvidia-smi topo -p2p: its own cells"),
    ("nvlink", "*.txt", of_nvlink, "nvidia-smi nvlink -s: its own lines"),
    ("ib", "*.txt", of_ib, "ibstat, ibv_devinfo, rdma link, ibdev2netdev: their own lines"),
    ("hwloc_xml", "*.xml", of_hwloc, "hwloc XML: written again by lstopo"),
    ("nccl_topo", "*.xml", of_nccl, "NCCL's XML: ElementTree"),
    ("gdscheck", "*.txt", of_gdscheck, "gdscheck -p: its own lines"),
    ("sysfs", "*.tar.gz", of_sysfs, "trees of /sys: tarfile"),
    ("sysfs_derived", "*.tar.gz", of_sysfs, "trees of /sys: tarfile"),
    ("machines", "*.tar.gz", of_sysfs, "a recorded machine: tarfile"),
)


def compared(file: Path, oracle: Callable[[Any], Facts]) -> tuple[int, list[str], int]:
    """Return how many facts are right, which are wrong, and how many topocheck does not take."""
    data = file.read_bytes()
    want = oracle(data if file.suffix == ".gz" else data.decode("utf-8", "replace"))
    try:
        answers = read_data(file.name, data).answers
    except InputError as e:
        return 0, [] if not want else [f"{file.name}: {e}"], len(want)
    report = build_report(Host(RecordedBackend(answers), file.name))
    matrix = report.node.smi_topo.matrix
    rows = [] if matrix is None else [r for r in matrix.rows if r.startswith("GPU")]
    # A text of P2P tables alone names GPUs and no class.
    pairs = [(a, b, matrix.class_of(a, b)) for a in rows for b in rows if matrix is not None and a != b]
    cells = {(a, b): word for a, b, word in pairs if isinstance(word, str)}
    got = ours(report.node, cells) | p2p(answers)
    wrong = [f"{file.name}: {k}: {got[k]!r} for {v!r}" for k, v in want.items() if k in got and got[k] != v]
    devices = {k[0] for k in want}
    if file.suffix != ".gz" and want:  # a recorded machine has more in it than its tree
        unlisted = {k[0] for k in got} - devices
        wrong += [f"{file.name}: {a} is not in it" for a in unlisted if re.search(r":..\.|^GPU", a)]
    told_by_both = [k for k in want if k in got]
    named = {k[0].partition("/")[0] for k in got}
    named |= {d.name for d in report.node.net.rdma} if told(report.node.net.rdma) else set()
    listed = [k for k in want if k[1] == "listed" and k[0] in named]
    right = len(told_by_both) + len(listed) - len([w for w in wrong if " for " in w])
    return right, wrong, len(want) - len(told_by_both) - len(listed)


def main() -> int:
    """Print the table."""
    folder = Path(sys.argv[1])
    rows: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    every: list[str] = []
    for kind, pattern, oracle, shown in KINDS:
        for file in sorted((folder / kind).glob(pattern)):
            if file.name == "INDEX.md" or not file.stat().st_size:
                continue
            right, wrong, left = compared(file, oracle)
            every += wrong
            rows[shown] = [x + y for x, y in zip(rows[shown], (1, right, len(wrong), left), strict=True)]
    print("| output: read beside | files | facts right | wrong | not taken |\n| --- | --- | --- | --- | --- |")
    for shown, row in rows.items():
        print(f"| {shown} | {' | '.join(map(str, row))} |")
    print(f"| all | {' | '.join(str(sum(r[i] for r in rows.values())) for i in range(4))} |")
    print("\n".join(every[:60]), file=sys.stderr)
    return 1 if every else 0


if __name__ == "__main__":
    sys.exit(main())

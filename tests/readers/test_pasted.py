"""Several outputs in one file, as they come out of terminals, tickets and collecting scripts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.machines.builder import cached
from tests.readers import texts, texts_network
from tests.readers.facts import read, wrong
from tests.readers.test_files import LSPCI
from topocheck.host.base import Host, RecordedBackend
from topocheck.model.base import Missing, Reason, known
from topocheck.pipeline import build_report, read_node
from topocheck.readers.files import read_data
from topocheck.readers.headings import heading_of, is_selection
from topocheck.readers.sections import decoded, sections

NODE = read_node(cached("hgx_h100_cx7").host())
OUTPUTS = {
    "nvidia-smi -q": texts.smi_query(NODE.nvml),
    "nvidia-smi nvlink -s": texts.smi_nvlink(NODE.nvml),
    "numactl -H": texts.numactl(NODE.numa),
    "ibstat": texts.ibstat(NODE.net),
    "ip addr": texts_network.ip_addr(NODE.net),
    "lspci -vvv": LSPCI,
}
PROMPTS = (
    "$ {}",
    "# {}",
    "root@gpu-01:~# {}",
    "[me@gpu-01 ~]$ {}",
    "(base) me@gpu-01:/data/x$ {}",
    "(base) [me@gpu-01 ~]$ {}",
    "gpu-01:~# sudo {}",
    "> {}",
    "ᐅ {}",
    "+ {}",
    "bash-5.1# {}",
    "===== {} =====",
    "## {}",
    "--- {} ---",
    "{}",
    "/usr/bin/{}",
    "root@gpu-01:/# LANG=C {}",
    "Command: {}",
    "`{}`:",
)
_OF_LINKS = ("version", "remote_type", "remote_address", "errors", "capabilities")
AREAS = (
    ("nvml", ("memory_total_bytes", "memory_used_bytes", "p2p", *_OF_LINKS, "error", "nvml_version")),
    ("numa", ("memory_total_bytes", "memory_free_bytes")),
    ("net", ("rate_text", "flags", "ip_netmasks")),
)


def _same_facts(text: str | bytes) -> None:
    got = read(text)
    for area, rounded in AREAS:
        assert wrong(getattr(got, area), getattr(NODE, area), area, rounded) == []
    assert known(got.nvml.gpus)
    assert len(got.nvml.gpus) == 8
    assert known(got.net.rdma)
    assert known(NODE.net.rdma)
    assert [d.name for d in got.net.rdma] == [d.name for d in NODE.net.rdma]
    assert known(got.pci.devices)
    assert [d.address for d in got.pci.devices] == ["0000:00:00.0", "0000:00:01.0", "0000:01:00.0"]
    assert got.made_from is not None
    assert got.made_from.differ == ()


@given(st.permutations(list(OUTPUTS)), st.lists(st.sampled_from(PROMPTS), min_size=6, max_size=6), st.integers(0, 3))
def test_outputs_behind_prompts(order: list[str], prompts: list[str], blank: int) -> None:
    """In any order, behind any prompt or banner."""
    parts = [f"{p.format(name)}\n{OUTPUTS[name]}\n" + "\n" * blank for p, name in zip(prompts, order, strict=True)]
    _same_facts("".join(parts))


WHOLE = "".join(f"$ {name}\n{text}\n" for name, text in OUTPUTS.items())


@pytest.mark.parametrize(
    "data",
    [
        WHOLE.replace("\n", "\r\n").encode(),
        WHOLE.replace("\n", "\r\r\n").encode(),
        WHOLE.encode("utf-8-sig"),
        WHOLE.encode("utf-16"),
        WHOLE.encode("utf-16-le"),
        "\n".join(f"> {x}" for x in WHOLE.split("\n")).encode(),
        "\n".join(f"    {x}" for x in WHOLE.split("\n")).encode(),
        WHOLE.replace("\t", "    ").encode(),
        WHOLE.replace("CA '", "CA \u2018").replace("'\n\tCA type", "\u2019\n\tCA type").encode(),
        WHOLE.replace(" ", "\u00a0").encode(),
        "".join(f"**{name}**\n\n```bash\n{text}\n```\n" for name, text in OUTPUTS.items()).encode(),
        "".join(f"\x1b[01;32mme@n\x1b[00m:\x1b[01;34m~\x1b[00m$ {n}\n{t}\n" for n, t in OUTPUTS.items()).encode(),
    ],
    ids=[
        "CRLF",
        "CRCRLF",
        "BOM",
        "UTF-16",
        "UTF-16 bare",
        "quoted",
        "indented",
        "blanks",
        "quotes",
        "nbsp",
        "fences",
        "colours",
    ],
)
def test_however_it_was_copied(data: bytes) -> None:
    _same_facts(data)


def test_a_part_says_where_it_stands() -> None:
    text = f"hello\n\n$ ibstat\n{OUTPUTS['ibstat']}\n$ numactl -H\n{OUTPUTS['numactl -H']}\n"
    found = {p.heading: p for p in sections("x", text)}
    assert set(found) == {"", "ibstat", "numactl -H"}
    assert text.split("\n")[found["numactl -H"].first_line - 1] == "$ numactl -H"
    answers = read_data("x", text.encode()).answers
    places = answers["sources:"]["places"]  # type: ignore[index, call-overload]
    line = next(n for n, x in enumerate(text.split("\n"), 1) if x.startswith("node 1 cpus"))
    assert places["read:/sys/devices/system/node/node1/cpulist"] == f"x:{line}"


@pytest.mark.parametrize(
    "line",
    [
        "GPU0\t X \tNV18",
        "\tLnkSta:\tSpeed 16GT/s, Width x8 (downgraded)",
        "CA 'mlx5_0'",
        " --rdma library : Not Loaded",
        "01:00.0 3D controller: NVIDIA Corporation Device 2330",
        "node 0 cpus: 0 1 2",
        "PATH=/usr/bin:/bin",
        "+-00.0-[01]--",
        "[    1.0] Linux version 6.8.0 (buildd@lcy02-amd64-026) (gcc) #31-Ubuntu SMP",
        "2: eth0@if3: <BROADCAST,UP> mtu 1500",
        "    inet 192.0.2.7/24 scope global eth0",
        "|   0  NVIDIA H100   On | 00000000:18:00.0 Off |",
        "",
    ],
)
def test_a_line_of_an_output_is_no_heading(line: str) -> None:
    assert heading_of(line) is None


def test_a_selection_of_lspci_is_not_the_whole_machine() -> None:
    """`lspci -d 10de:` of a guest lists functions of bus 0, and no bridge: what is above them is not known."""
    text = "# lspci -nn -d 10de:\n00:05.0 3D controller [0302]: NVIDIA Corporation GH100 [10de:2330] (rev a1)\n"
    text += "00:06.0 3D controller [0302]: NVIDIA Corporation GH100 [10de:2330] (rev a1)\n"
    node = read(text)
    assert node.made_from is not None
    assert node.made_from.selection
    assert is_selection("lspci -vvv -s 01:00.0")
    assert is_selection("sudo lspci -vvv | grep -i acs")
    assert not is_selection("lspci -nnDvvvxxxx")


def test_a_list_without_gpus_that_is_not_whole_finds_no_gpu_missing() -> None:
    text = "$ lspci -s 02:00.0\n02:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]\n"
    judged = build_report(Host(RecordedBackend(read_data("x", text.encode()).answers)))
    assert "driver.no-gpu" not in {f.id for f in judged.findings}


def test_files_that_were_quoted() -> None:
    """`cat`, `tail -n +1` and `grep .` of files of the kernel are these files."""
    text = (
        "$ cat /sys/bus/pci/devices/0000:01:00.0/numa_node\n1\n"
        "$ tail -n +1 /sys/bus/pci/devices/0000:01:00.0/*_link_*\n"
        "==> /sys/bus/pci/devices/0000:01:00.0/current_link_width <==\n8\n\n"
        "==> /sys/bus/pci/devices/0000:01:00.0/max_link_width <==\n16\n"
        "$ grep . /sys/bus/pci/devices/0000:01:00.0/*\n/sys/bus/pci/devices/0000:01:00.0/vendor:0x10de\n"
        "$ cat /proc/driver/nvidia/gpus/x\ncat: /proc/driver/nvidia/gpus/x: No such file or directory\n"
    )
    node = read(text)
    assert known(node.pci.devices)
    (d,) = node.pci.devices
    assert (d.numa_node, d.current_width_lanes, d.max_width_lanes, d.vendor_id) == (1, 8, 16, 0x10DE)
    assert d.chain == ()
    assert node.made_from is not None
    assert node.made_from.places["read:/sys/bus/pci/devices/0000:01:00.0/vendor"] == "text:10"


def test_of_a_log_of_several_starts_the_last_counts() -> None:
    start = "Nov 1{} 10:00:00 n kernel: [    0.000000] Linux version 6.{}.0-1 (x@y) (gcc) #1 SMP\n"
    log = start.format(0, 5) + "Nov 10 11:00:00 n kernel: [ 9.0] NVRM: Xid (PCI:0000:01:00): 79, x\n"
    log += start.format(1, 8) + "Nov 11 11:00:00 n kernel: [ 9.0] NVRM: Xid (PCI:0000:01:00): 31, x\n"
    system = read(log).system
    assert (system.kernel_release, system.kernel_log) == ("6.8.0-1", ("NVRM: Xid (PCI:0000:01:00): 31",))


def test_a_line_of_the_log_without_its_stamp() -> None:
    assert read("NVRM: Xid (PCI:0000:06:00): 79, GPU has fallen off the bus.\n").system.kernel_log == (
        "NVRM: Xid (PCI:0000:06:00): 79",
    )


def test_matrix_beside_other_outputs_is_judged() -> None:
    """A matrix and ibstat in one ticket: nothing else names the GPUs, and the matrix is shown and judged."""
    rows = ("\t X \tNV18\tNODE\tNV18", "\tNV18\t X \tNODE\tNV18", "\tNODE\tNODE\t X \tNODE", "\tNV18\tNV18\tNODE\t X ")
    matrix = "".join(f"GPU{i}{row}\n" for i, row in enumerate(rows))
    head = "\tGPU0\tGPU1\tGPU2\tGPU3\n"
    text = f"$ nvidia-smi topo -m\n{head}{matrix}\n$ ibstat\n{OUTPUTS['ibstat']}"
    judged = build_report(Host(RecordedBackend(read_data("x", text.encode()).answers)))
    assert [g.label for g in judged.topology.gpus] == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert "nvlink.links-down" in {f.id for f in judged.findings}
    path = judged.topology.find_path("GPU0", "GPU1")
    assert path is not None
    assert (path.class_, path.theoretical_gb_s) == ("NV18", Missing(Reason.NOT_RECORDED, "the matrix does not say"))


def test_pcie_matrix_alone_fills_the_classes_that_nothing_else_tells() -> None:
    node = "GPU0\t X \tPIX\t0-31\t0\nGPU1\tPIX\t X \t0-31\t0\n"
    text = f"$ nvidia-smi topo -mp\n\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\n{node}\n$ nvidia-smi -L\n"
    text += "".join(f"GPU {i}: NVIDIA H100 (UUID: GPU-0000000{i}-0000-0000-0000-000000000000)\n" for i in range(2))
    matrix = read(text).smi_topo.matrix
    assert matrix is not None
    assert (matrix.kind, matrix.class_of("GPU0", "GPU1")) == ("mp", "PIX")


@given(st.binary(max_size=400))
def test_any_bytes_are_a_text_or_one_line_of_error(data: bytes) -> None:
    text = decoded(data)
    assert "".join(p.text for p in sections("x", text)).replace("\n", "") is not None

"""NCCL on described machines, through the real probes and topology: what the rules give for each."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.topology.described import cached, read
from topocheck.gpudirect import judge
from topocheck.model.base import Missing
from topocheck.nccl.predict.predict import predict
from topocheck.nccl.predict.report import host_input, view
from topocheck.nccl.topofile.compare import compare
from topocheck.nccl.topofile.file import judge_file
from topocheck.nccl.topofile.merge import merge
from topocheck.nccl.topofile.rules import check_topology
from topocheck.nccl.topofile.write import cpumap, family_in_xml, kept, write_topology
from topocheck.nccl.topofile.xml import Element, parse_topology, write
from topocheck.topology.build import build

V = (2, 28, 9)


def predicted(name: str, version=V):
    node = cached(name)
    return predict((host_input(node, build(node), version),), version)


def test_the_two_h100_machine_as_nccl_dumped_it():
    """The content of NCCL 2.28.9's own dump on that machine, without host hash and maxconn, which no file gives."""
    node = cached("h100_x2_vm")
    root = write_topology(node, build(node), V)
    (cpu,) = root.children
    assert [cpu.get(k) for k in ("numaid", "arch", "vendor", "familyid", "modelid")] == [
        "-1",
        "x86_64",
        "GenuineIntel",
        "6",
        "207",
    ]
    pcis = list(cpu.having("pci"))
    assert [p.get("busid") for p in pcis] == ["0000:00:06.0", "0000:00:07.0"]
    for i, p in enumerate(pcis):
        # No port above: its width counts 0, and the lower of the two is taken.
        assert (p.get("class"), p.get("link_speed"), p.get("link_width")) == ("0x030200", "32.0 GT/s PCIe", "0")
        (g,) = p.children
        assert [g.get(k) for k in ("dev", "sm", "rank", "gdr")] == [str(i), "90", str(i), "1"]
        assert g.children[0].attributes == (("target", "fffffff:ff:ff.0"), ("count", "18"), ("tclass", "0x068000"))
    (nic,) = cpu.having("nic")
    (net,) = nic.children
    assert [net.get(k) for k in ("name", "dev", "speed", "port", "guid", "gdr")] == [
        "eth0",
        "0",
        "10000",
        "0",
        "0x0",
        "0",
    ]


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("dgx1v", {"NVL": 32, "NVB": 24}),
        ("dgx_a100", {"NVL": 56}),
        ("hgx_h100_cx7", {"NVL": 56}),
        ("gh200", {"NVL": 12}),
    ],
)
def test_paths_between_gpus(name, paths):
    assert Counter(p.path for p in predicted(name).pairs) == paths


def test_dgx1v_relays():
    p = predicted("dgx1v")
    assert {x.transport for x in p.pairs if x.path == "NVB"} == {"P2P/indirect"}
    assert all(x.through is not None for x in p.pairs if x.path == "NVB")


def test_hgx_h100():
    p = predicted("hgx_h100_cx7")
    assert p.nvls is True
    own = [n for n in p.nics if n.local]
    assert {n.path for n in own} == {"PIX"}
    assert len(own) == 8
    assert all(n.gdr_send is True and n.gdr_receive is True for n in own)
    assert {n.path for n in p.nics if n.proxy_rank is not None} == {"PXN"}


def test_rtx4090_is_refused_in_every_version():
    for version in ((2, 12, 12), (2, 22, 3), (2, 23, 4), V, (2, 30, 7)):
        node = cached("rtx4090_x8")
        host = host_input(node, build(node), version, settings={"NCCL_P2P_LEVEL": "SYS"})
        p = predict((host,), version)
        assert {str(x.transport).split("/")[0] for x in p.pairs} == {"SHM"}
        assert p.fatal == ""


@pytest.mark.parametrize(
    "name", ["dgx1v", "dgx_a100", "hgx_h100_cx7", "gh200", "l40s_x8", "h100_x2_vm", "azure_ndv4_vm", "power9_ac922"]
)
def test_what_is_written_nccl_could_read(name):
    node = cached(name)
    for restricted in (False, True):
        root = write_topology(node, build(node), V, restricted=restricted)
        document = parse_topology(write(root))
        assert document.remarks == ()
        assert not [r for r in check_topology(document.root, V) if r.fatal]
        assert document.root.content() == root.content()
        assert ("gpu" in {e.name for e in root.walk()}) is not restricted


@pytest.mark.parametrize("name", ["dgx1v", "hgx_h100_cx7", "l40s_x8", "gh200"])
def test_a_file_of_the_machine_agrees_with_it(name):
    node = cached(name)
    machine = write_topology(node, build(node), V)
    assert compare(machine, machine) == ()
    restricted = write_topology(node, build(node), V, restricted=True)
    assert [d for d in compare(restricted, machine) if d.kind not in ("missing",)] == []


def test_differences_are_named():
    node = cached("hgx_h100_cx7")
    machine = write_topology(node, build(node), V)
    text = write(machine)
    first = next(e for e in machine.walk() if any(e.having("gpu")))
    bus = first.get("busid") or ""
    head = text[text.index(f'busid="{bus}"') :].split(">")[0]
    slow = head.replace("32.0 GT/s PCIe", "16.0 GT/s PCIe").replace('link_width="16"', 'link_width="8"')
    changed = text.replace(head, slow).replace(
        'name="mlx5_0" dev="0" latency="0" speed="400000"', 'name="mlx5_0" dev="0" latency="0" speed="100000"'
    )
    changed = changed.replace('sm="90" rank="1" gdr="1"', 'sm="90" rank="1" gdr="0"')
    found = {(d.kind, d.subject) for d in compare(parse_topology(changed).root, machine)}
    assert ("speed", bus) in found
    assert ("width", bus) in found
    assert ("speed", "mlx5_0") in found
    assert any(k == "gdr" for k, _ in found)
    moved = text.replace('numaid="0"', 'numaid="7"')
    assert any(d.kind == "numa" for d in compare(parse_topology(moved).root, machine))
    other = text.replace(bus, "0000:fe:00.0")
    kinds = {(d.kind, d.subject) for d in compare(parse_topology(other).root, machine)}
    assert ("missing", bus) in kinds
    assert ("extra", "0000:fe:00.0") in kinds


def test_kept_walks_two_steps_at_a_time():
    chain = ("pci0000:3a", "0000:3a:00.0", "0000:3b:00.0", "0000:3c:04.0", "0000:3d:00.0")
    assert kept(chain) == ("0000:3b:00.0", "0000:3d:00.0")  # root port and downstream port are left out
    assert kept(("pci0000:00", "0000:00:06.0")) == ("0000:00:06.0",)
    assert kept(("pci0000:00", "0000:00:01.0", "0000:01:00.0")) == ("0000:01:00.0",)
    # A domain of five digits is no bus address of 12 characters: NCCL stops there.
    assert kept(("pci10000:e0", "10000:e0:06.0", "10000:e1:00.0")) == ("10000:e1:00.0",)


def test_cpu_masks_as_the_kernel_writes_them():
    assert cpumap("0-15", 32) == "0000ffff"
    assert cpumap("24-47", 96) == "00000000,0000ffff,ff000000"
    assert cpumap("", 8) == "00000000"


def test_family_as_nccl_writes_it():
    families = (6, 15, 23, 25, 26)
    assert [family_in_xml(f, (2, 30, 7)) for f in families] == [6, 15, 143, 175, 191]
    assert [family_in_xml(f, (2, 31, 2)) for f in families] == list(families)


def test_a_gpu_link_is_read_from_nvml_from_2_30_7():
    node = read("hgx_h100_cx7", nvml={"DeviceGetCurrPcieLinkGeneration|0": 1})
    topology = build(node)
    old, new = (write_topology(node, topology, v) for v in ((2, 30, 4), (2, 30, 7)))
    speeds = [
        next(e.get("link_speed") for e in root.walk() if any(g.get("dev") == "0" for g in e.having("gpu")))
        for root in (old, new)
    ]
    assert speeds == ["32.0 GT/s PCIe", "2.5 GT/s PCIe"]


def test_a_resting_gpu_is_planned_at_the_speed_it_works_at():
    # Eight RTX 4090 (PCIe gen 4), all in P8 with their links at gen 1.
    node = cached("rtx4090_x8")
    assert node.nvml.gpus[0].pcie_gen_current == 1
    root = write_topology(node, build(node), (2, 30, 7))
    cards = [e for e in root.walk() if any(c.name == "gpu" for c in e.children)]
    speeds = {e.get("link_speed") for e in cards}
    assert speeds == {"16.0 GT/s PCIe"}


def test_ib_disable_takes_the_sockets():
    node = cached("hgx_h100_cx7")
    root = write_topology(node, build(node), V, {"NCCL_IB_DISABLE": "1"})
    nets = [e for e in root.walk() if e.name == "net"]
    assert nets
    assert not any((e.get("name") or "").startswith("mlx5") for e in nets)
    assert all(e.get("gdr") == "0" for e in nets)


def test_hca_list_is_a_prefix_unless_exact():
    node = cached("hgx_h100_cx7")

    def names(value: str) -> list[str]:
        root = write_topology(node, build(node), V, {"NCCL_IB_HCA": value})
        return sorted(e.get("name") or "" for e in root.walk() if e.name == "net")

    every = names("")
    assert names("mlx5_1") == [n for n in every if n.startswith("mlx5_1")]
    assert names("mlx5") == every
    assert not set(names("=mlx5")) & set(every)  # no HCA has just this name, so TCP is left
    assert names("=mlx5_1") == ["mlx5_1"]
    assert "mlx5_1" not in names("^=mlx5_1")


@pytest.mark.parametrize(
    "name", ["mig_node", "gpu_lost", "driver_not_loaded", "no_pci", "laptop", "mi300x_x8", "hgx_h100_cx7"]
)
def test_the_view_covers_every_gpu_pair(name):
    node = cached(name)
    topology = build(node)
    v = view(node, topology, judge(node, topology))
    pairs = {(p.from_, p.to) for p in v.pairs}
    for a in topology.gpus:
        for b in topology.gpus:
            assert a.address == b.address or (a.address, b.address) in pairs


def test_mig_and_lost_gpus_say_why():
    node = cached("mig_node")
    topology = build(node)
    v = view(node, topology, judge(node, topology))
    assert any(isinstance(p.transport, Missing) and "MIG" in p.transport.detail for p in v.pairs)
    assert v.fatal == ""


def test_a_file_for_a_virtual_machine_is_laid_over_it():
    """The two H100s hang flat on one bridge; a file of cpu and pci levels puts them under one invented switch."""
    node = cached("h100_x2_vm")
    topology = build(node)
    gpus = "".join(f'<pci busid="0000:00:0{n}.0" class="0x030200"/>' for n in (6, 7))
    switch = f'<pci busid="ffff:ff:01.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">{gpus}</pci>'
    gone = '<pci busid="0000:99:00.0" class="0x020700"/>'
    file = judge_file("vm.xml", f'<system version="1"><cpu numaid="0">{switch}{gone}</cpu></system>', V)
    host = host_input(node, topology, V, file=file)
    merged = host.topology
    assert [e.get("busid") for e in merged.walk() if e.name == "pci"] == [
        "ffff:ff:01.0",
        "0000:00:06.0",
        "0000:00:07.0",
    ]
    assert [e.get("sm") for e in merged.walk() if e.name == "gpu"] == ["90", "90"]
    assert [e.get("count") for e in merged.walk() if e.name == "nvlink"] == ["18", "18"]
    assert next(merged.having("cpu")).get("vendor") == "GenuineIntel"
    # NVLink is found out although the file is silent on it; without it the two would be PIX.
    assert predict((host,), V).pair(0, 1).path == "NVL"
    hidden = gpus.replace("/>", '><gpu><nvlink target="ffff:ff:1e.0" count="1" tclass="0x030200"/></gpu></pci>')
    text = f'<system version="1"><cpu numaid="0">{switch.replace(gpus, hidden)}</cpu></system>'
    without = predict((host_input(node, topology, V, file=judge_file("vm.xml", text, V)),), V)
    assert without.pair(0, 1).path == "PIX"


@pytest.mark.parametrize(
    "name", ["hgx_h100_cx7", "gb200_tray", "rtx4090_x8", "dgx_a100", "h100_x2_vm", "cloud_vm_17nic"]
)
def test_a_silent_file_changes_nothing(name):
    """NCCL walks up from each device and takes the switches on the way, of which siblings share one (xml.cc)."""
    node = cached(name)
    topology = build(node)
    machine = write_topology(node, topology, V)
    host = host_input(node, topology, V, file=judge_file("e.xml", '<system version="1"></system>', V))
    assert host.topology.content() == machine.content()
    assert "e.xml does not name" in " ".join(host.notes)
    itself = host_input(node, topology, V, file=judge_file("own.xml", write(machine), V))
    assert itself.topology.content() == machine.content()
    assert itself.notes == ()


def test_a_device_the_file_leaves_out_joins_the_switch_the_file_names():
    """The first H100 of the HGX board and its NIC share a switch: with the NIC cut from the file they still do."""
    node = cached("hgx_h100_cx7")
    topology = build(node)
    machine = write_topology(node, topology, V)

    def without(e):
        kept = tuple(without(c) for c in e.children if c.name != "pci" or not any(c.having("nic")))
        return Element(name=e.name, attributes=e.attributes, children=kept)

    file = judge_file("cut.xml", write(without(machine)), V)
    assert not any(e.name == "net" for e in file.root.walk())
    host = host_input(node, topology, V, file=file)
    assert host.topology.content() == machine.content()
    assert predict((host,), V).nics == predict((host_input(node, topology, V),), V).nics


def test_a_network_device_stays_where_the_file_puts_it():
    """ncclTopoFillNet looks for the name in the whole file before it looks at the machine (src/graph/xml.cc)."""
    node = cached("hgx_h100_cx7")
    topology = build(node)
    machine = write_topology(node, topology, V)
    far = '<cpu numaid="7"><pci busid="0000:99:00.0" class="0x020700"><nic><net name="mlx5_0"/></nic></pci></cpu>'
    file = judge_file("far.xml", f'<system version="1">{far}</system>', V)
    host = host_input(node, topology, V, file=file)
    (holder,) = [e for e in host.topology.walk() if e.get("busid") == "0000:99:00.0"]
    (net,) = [n for e in host.topology.walk() for n in e.having("net") if n.get("name") == "mlx5_0"]
    assert net in next(holder.having("nic")).children
    assert net.get("speed") == "400000"  # found out, as the file does not say
    # It was PIX to the first GPU; from another CPU it is SYS.
    near = next(n for n in predict((host_input(node, topology, V),), V).nics if (n.rank, n.nic) == (0, "mlx5_0"))
    away = next(n for n in predict((host,), V).nics if (n.rank, n.nic) == (0, "mlx5_0"))
    assert (near.path, away.path) == ("PIX", "SYS")
    (place,) = [d for d in compare(file.root, machine) if d.kind == "place"]
    assert (place.subject, place.file, place.machine) == ("mlx5_0", "0000:99:00.0", "0000:19:00.0")
    assert not [d for d in compare(file.root, machine) if d.subject in ("0000:99:00.0", "0000:19:00.0")]
    assert "17 of the 18" in " ".join(host.notes)


def test_an_address_in_capitals_is_another_one():
    """NCCL compares addresses with strcmp and writes its own in small letters (xmlFindTagKv, int64ToBusId)."""
    node = cached("h100_x2_vm")
    topology = build(node)
    gpu = '<pci busid="0000:{}:06.0" class="0x030200" link_width="4"/>'
    told = {}
    for bus in ("0a", "0A"):
        capital = parse_topology(f'<system version="1"><cpu numaid="0">{gpu.format(bus)}</cpu></system>').root
        told[bus] = " ".join(r.text for r in check_topology(capital, V))
    assert "small letters" not in told["0a"]
    assert "busid 0000:0A:06.0: NCCL writes addresses in small letters" in told["0A"]
    machine = write_topology(node, topology, V)
    assert merge(_renamed(machine, str.upper), machine).content() == machine.content()
    assert {d.kind for d in compare(_renamed(machine, str.upper), machine)} == set()
    node = cached("hgx_h100_cx7")
    machine = write_topology(node, build(node), V)
    slow = _renamed(machine, str.upper)
    assert {d.subject for d in compare(slow, machine) if d.kind == "missing"} >= {"0000:3a:00.0", "0000:4b:00.0"}


def _renamed(e, change):
    attributes = tuple((k, change(v) if k == "busid" else v) for k, v in e.attributes)
    return Element(name=e.name, attributes=attributes, children=tuple(_renamed(c, change) for c in e.children))

"""The description language: what it builds, and how it complains."""

from __future__ import annotations

import pytest

from tests.machines.builder import build, cached, case_names, machine, names
from tests.machines.description import DescriptionError, Link, functions, negotiate, parse_tree
from tests.machines.gpus import common_class
from topocheck.host.base import HostError
from topocheck.model.base import Reason, State


@pytest.mark.parametrize("name", [*names(), *case_names()])
def test_wiring_gives_the_classes_of_the_public_capture(name: str) -> None:
    """The tree and the NVLinks we described give, by the legend's own definitions, what the capture shows."""
    m = cached(name)
    gpus = {f"GPU{i}": f for i, f in enumerate(f for f in m.functions.values() if f.kind == "gpu")}
    by_function = {id(g.function): g for g in m.backend.nvml.gpus}
    for pcie in (False, True):
        for (a, b), want in m.classes_expected(pcie).items():
            fa, fb = m.label(a), m.label(b)
            got = common_class(fa, fb)
            if not pcie and b in gpus:
                ga, gb = by_function[id(fa)], by_function[id(fb)]
                if m.backend.nvml.joined(ga, gb):
                    links = [p for p in ga.links if p and (p.kind == "switch" or p.address == fb.address)]
                    got = f"NV{len(links)}"
            assert got == want, (name, a, b)


@pytest.mark.parametrize("name", [*names(), *case_names()])
def test_every_machine_says_where_it_is_from(name: str) -> None:
    """Expected values come from a named public source, or the machine is marked invented."""
    d = cached(name).description
    expect = d.get("expect", {})
    assert expect.get("source") or d["machine"].get("invented") is True or d["case"]["source"]
    assert d["machine"]["title"]
    if name in case_names():
        assert d["case"]["state"] in {s.value for s in State} | {"not_applicable"}
        assert d["case"]["right"]


def test_buses_are_numbered_depth_first() -> None:
    """As firmware numbers them: a bridge's secondary bus is the next free one, its subordinate the last below."""
    roots = parse_tree(
        """
root 0000:10 node=0
  rp 01.0
    up pex890xx
      2* down 5x16
        nvme
  rp 02.0
    nvme
""",
        {},
        "t",
    )
    got = {f.address: (f.secondary, f.subordinate) for f in functions(roots) if f.is_bridge}
    assert got == {
        "0000:10:01.0": (0x11, 0x14),
        "0000:11:00.0": (0x12, 0x14),
        "0000:12:00.0": (0x13, 0x13),
        "0000:12:01.0": (0x14, 0x14),
        "0000:10:02.0": (0x15, 0x15),
    }


def test_a_link_runs_at_what_both_ends_can_do() -> None:
    """A generation 4 x16 card in a generation 3 x8 slot runs at 3 x8, and both ends say so."""
    roots = parse_tree("root 0000:00 node=0\n  rp 01.0 3x8\n    a100_sxm4\n", {}, "t")
    fs = functions(roots)
    negotiate(fs)
    assert [f.now for f in fs] == [Link(3, 8), Link(3, 8)]
    assert fs[1].max == Link(4, 16)


def test_a_patch_makes_one_fault() -> None:
    """A variant differs from its healthy machine in the named function and the other end of its link only."""
    m, healthy = machine("hgx_h100_cx7", patch={"GPU3": {"now": "5x8"}}), cached("hgx_h100_cx7")
    at = f"/sys/bus/pci/devices/{m.label('GPU3').address}"
    assert m.tree.text(f"{at}/current_link_width") == "8"
    assert m.host().nvml("DeviceGetCurrPcieLinkWidth", 3) == 8
    changed = {p for p, e in m.tree.entries.items() if healthy.tree.entries.get(p) != e}
    parent = m.label("GPU3").parent
    assert parent is not None
    assert {p.rsplit("/", 1)[0] for p in changed} == {m.label("GPU3").path, parent.path}


def test_config_space_is_cut_without_root() -> None:
    """An ordinary user reads 64 bytes of it, while `stat` still tells 4096."""
    m = machine("hgx_h100_cx7", system={"root": False})
    path = f"/sys/bus/pci/devices/{m.label('GPU0').address}/config"
    assert len(m.host().read_bytes(path)) == 64
    assert m.host().stat(path).size_bytes == 4096


def test_a_lost_gpu_reads_all_ones_and_nvml_says_so() -> None:
    """Config space of a device off the bus reads as ones; NVML answers GPU_IS_LOST for it alone."""
    m = machine("hgx_h100_cx7", patch={"GPU5": {"lost": "1"}})
    host = m.host()
    at = f"/sys/bus/pci/devices/{m.label('GPU5').address}"
    assert set(host.read_bytes(f"{at}/config")) == {0xFF}
    assert m.tree.text(f"{at}/current_link_width") == "63"
    with pytest.raises(HostError) as e:
        host.nvml("DeviceGetName", 5)
    assert (e.value.reason, e.value.detail) == (Reason.UNSUPPORTED, "NVMLError_GpuIsLost")
    assert host.nvml("DeviceGetName", 4) == "NVIDIA H100 80GB HBM3"


def test_questions_without_answer_fail_as_on_a_live_machine() -> None:
    """Absent, denied and unreadable are three different things."""
    m = machine(
        "hgx_h100_cx7",
        files={"/sys/a": {"error": "EACCES"}, "/sys/b": {"error": "EINVAL"}, "/sys/l": {"link": "/sys/l"}},
    )
    host = m.host()
    got = []
    for path in ("/sys/none", "/sys/a", "/sys/b", "/sys/l"):
        with pytest.raises(HostError) as e:
            host.read_text(path)
        got.append((e.value.reason, e.value.detail))
    assert got == [
        (Reason.ABSENT, "ENOENT"),
        (Reason.DENIED, "EACCES"),
        (Reason.UNSUPPORTED, "EINVAL"),
        (Reason.UNSUPPORTED, "ELOOP"),
    ]
    with pytest.raises(HostError, match="no such program"):
        host.run(["no-such-program"])


def test_files_are_put_behind_links() -> None:
    """A file named through a link of sysfs lands where the link points, and the link stays."""
    at = "/sys/class/infiniband/mlx5_0"
    m = machine("hgx_h100_cx7", files={f"{at}/ports/1/state": "1: DOWN", f"{at}/new": "x"})
    assert m.host().readlink(at) == cached("hgx_h100_cx7").host().readlink(at)
    assert m.tree.text(f"{m.label('mlx5_0').path}/infiniband/mlx5_0/ports/1/state") == "1: DOWN"
    assert m.tree.text(f"{at}/new") == "x"
    changed = {p for p, e in m.tree.entries.items() if cached("hgx_h100_cx7").tree.entries.get(p) != e}
    assert len(changed) == 2


def test_environment_and_kernel_options_are_filtered() -> None:
    """What topocheck may not look at is not seen on a described machine either."""
    host = machine("hgx_h100_cx7", environment={"NCCL_DEBUG": "INFO", "SECRET": "x"}).host()
    assert host.environ() == {"NCCL_DEBUG": "INFO"}
    assert host.kernel_options() == ["iommu=pt"]


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        ("rp 01.0 5x16", "stands below no root"),
        ("root 0000:1", "a root needs an address"),
        ("root 0000:00\n  rp 01.0 9x16", "neither a product, a link"),
        ("root 0000:00\n  warp_drive", "neither a port, a part nor a product"),
        ("root 0000:00\n  nvme\n    nvme", "which is no port"),
        ("root 0000:00\n  rp 01.0 5x16\n  rp 01.0 5x16", "taken twice"),
        ("root 0000:00\n  rp 05:01.0 5x16", "cannot stand on bus 00"),
    ],
)
def test_a_wrong_tree_is_told_in_one_line(tree: str, says: str) -> None:
    """The message names the machine and what was wrong in it."""
    with pytest.raises(DescriptionError, match=says) as e:
        parse_tree(tree, {}, "mine")
    assert str(e.value).startswith("mine")


@pytest.mark.parametrize(
    ("d", "says"),
    [
        ({"gpuz": {}}, "unknown table 'gpuz'"),
        ({"patch": {"GPU9": {"now": "1x1"}}}, "is no GPU, RDMA device or address"),
        ({"files": {"/nowhere": {"remove": True}}}, "no entry matches"),
    ],
)
def test_a_wrong_description_is_told_in_one_line(d: dict[str, object], says: str) -> None:
    """Unknown tables and names that match nothing are errors: a fault that is not planted proves nothing."""
    with pytest.raises(DescriptionError, match=says):
        build(d, "mine")


def test_an_unknown_machine_is_told() -> None:
    """The name of a description that is not there is an error of ours, not of Python's."""
    with pytest.raises(DescriptionError, match=r"there is no nowhere\.toml"):
        machine("nowhere")

"""Configuration files: their form by the manuals' grammar, and the facts in them by the descriptions."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.placement.machines import cached, look
from topocheck.model.hostlist import compress_hostlist, expand_hostlist
from topocheck.placement.blocks import NodePlace, blocks, tree
from topocheck.placement.gres import gres
from topocheck.placement.launch import rankfile_lines
from topocheck.placement.nccl_env import suggestions
from topocheck.placement.plan import plan
from topocheck.render import emit

_GRES = re.compile(
    r"NodeName=\S+ Name=gpu Type=[a-z0-9_]+ File=/dev/nvidia\d+( Cores=[\d,-]+)?( Links=-?\d+(,-?\d+)*)?"
)


def test_hostlist_short_forms() -> None:
    assert compress_hostlist(["n3", "n1", "n2"]) == "n[1-3]"
    assert compress_hostlist(["gpu08", "gpu09", "gpu10", "login"]) == "gpu[08-10],login"
    assert compress_hostlist(["n1", "n01"]) == "n01,n1"
    assert compress_hostlist(["a1b"]) == "a1b"


@given(st.lists(st.from_regex(r"[a-z]{1,4}[0-9]{0,4}", fullmatch=True), max_size=30))
def test_hostlist_expands_to_what_went_in(names: list[str]) -> None:
    assert sorted(expand_hostlist(compress_hostlist(names))) == sorted(set(names))


def test_gres_lines_of_an_hgx_node() -> None:
    text = emit.gres_conf([gres(*cached("hgx_h100_cx7"))], "a test")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(lines) == 8
    assert all(_GRES.fullmatch(line) for line in lines)
    # GPU5 is the second of socket 1 (cores 48-95); 18 NVLinks to each of the others through switches.
    assert lines[5].endswith("File=/dev/nvidia5 Cores=48-95 Links=18,18,18,18,18,-1,18,18")
    assert "Gres=gpu:nvidia_h100_80gb_hbm3:8" in text
    assert text.startswith("#")
    assert "NVML" in text.splitlines()[1]


def test_gres_of_cards_without_nvlinks_has_no_links() -> None:
    assert "Links" not in emit.gres_conf([gres(*cached("rtx4090_x8"))], "a test").replace("NVLinks", "")


def test_gres_leaves_out_lost_and_partitioned_gpus_and_says_so() -> None:
    lost = gres(*cached("gpu_lost"))
    assert len(lost.lines) == 7
    assert "lost" in " ".join(lost.notes)
    assert all(len(x.links) == 7 and x.links.count(-1) == 1 for x in lost.lines)
    mig = gres(*cached("mig_node"))
    assert "MIG" in " ".join(mig.notes)


def test_gres_of_a_node_without_driver_is_only_comments() -> None:
    text = emit.gres_conf([gres(*cached("driver_not_loaded"))], "a test")
    assert all(line.startswith("#") or not line for line in text.splitlines())


def test_equal_nodes_share_their_lines() -> None:
    nodes = [gres(*look("dgx_a100", system={"hostname": f"gpu{i:02d}"})) for i in (1, 2)]
    lines = [x for x in emit.gres_conf(nodes, "a test").splitlines() if x.startswith("NodeName")]
    assert len(lines) == 8
    assert lines[0].startswith("NodeName=gpu[01-02] ")


def _rack(racks: int, trays: int) -> list[NodePlace]:
    return [NodePlace(name=f"r{r}n{t:02d}", domain=f"uuid{r}.0") for r in range(racks) for t in range(trays)]


def test_blocks_are_nvlink_domains() -> None:
    b = blocks(_rack(3, 18))
    assert [len(x.nodes) for x in b.blocks] == [18, 18, 18]
    # 3 blocks of 18: planned alone or two together; four together would be 72, more than the 54 there are.
    assert b.sizes == (18, 36)
    text = emit.topology_conf(tree(_rack(3, 18)), b, "a test")
    assert "BlockName=nvl2 Nodes=r1n[00-17]" in text
    assert text.rstrip().endswith("BlockSizes=18,36")


def test_a_short_block_gives_the_base_size() -> None:
    b = blocks([*_rack(1, 18), *(NodePlace(name=f"x{t}", domain="other.0") for t in range(16)), NodePlace(name="cpu1")])
    assert b.sizes == (16, 32)
    assert "cpu1" in " ".join(b.notes)
    assert "nvl1 has 18" in " ".join(b.notes)


def test_tree_by_networks_and_without_any_fact() -> None:
    def at(rack: int, i: int) -> NodePlace:
        return NodePlace(name=f"n{rack}{i}", ipv4=(10 << 24) + (100 << 16) + (rack << 8) + i)

    two = tree([at(r, i) for r in (1, 2) for i in range(4)])
    assert [x.nodes for x in two.leaves] == [("n10", "n11", "n12", "n13"), ("n20", "n21", "n22", "n23")]
    assert [(a.name, a.children) for a in two.above] == [("core", ("leaf1", "leaf2"))]
    one = tree([NodePlace(name="a"), NodePlace(name="b")])
    assert [x.nodes for x in one.leaves] == [("a", "b")]
    assert one.above == ()
    text = emit.topology_conf(two, None, "a test")
    assert "SwitchName=core Switches=leaf[1-2]" in text
    assert "SwitchName=leaf2 Nodes=n[20-23]" in text


def test_topology_yaml_follows_the_documented_grammar() -> None:
    """Slurm's topology.yaml(5): a list of entries with `topology`, `cluster_default` and one of tree, block...

    Read by a reader of the few forms used, so that no YAML library is needed.
    """
    text = emit.topology_yaml(tree(_rack(2, 18)), blocks(_rack(2, 18)), "a test")
    shape = [re.sub(r'"[^"]*"', "TEXT", line) for line in text.splitlines() if "#" not in line]
    assert shape == [
        "- topology: fabric",
        "  cluster_default: true",
        "  tree:",
        "    switches:",
        "      - switch: TEXT",
        "        children: TEXT",
        *["      - switch: TEXT", "        nodes: TEXT"] * 2,
        "- topology: nvl",
        "  cluster_default: false",
        "  block:",
        "    block_sizes: [18, 36]",
        "    blocks:",
        *["      - block: TEXT", "        nodes: TEXT"] * 2,
    ]


def test_hcas_are_the_fast_ones_beside_the_gpus() -> None:
    hca, interface = suggestions(*cached("hgx_h100_cx7"))
    # Eight 400 Gb/s ports beside the GPUs; the two 100 Gb/s ports for storage are left out and named.
    assert hca.value == "=" + ",".join(f"mlx5_{i}:1" for i in range(8))
    assert "mlx5_8:1" in hca.why[1]
    assert interface.value in ("=eno1", "=ens7f0np0", "=ens8f0np0")
    text = emit.nccl_env((hca, interface), "a test")
    assert f"\nNCCL_IB_HCA=={hca.value[1:]}\n" in text


def test_a_lost_gpu_does_not_take_its_nic_from_the_others() -> None:
    """mlx5_5 stands beside GPU5, which is lost: nobody can tell, and it has the rate and link layer of the others."""
    hca, interface = suggestions(*cached("gpu_lost"))
    healthy, its_interface = suggestions(*cached("hgx_h100_cx7"))
    assert hca.value == healthy.value
    assert "taken as well: mlx5_5:1" in hca.why[1]
    assert "nearest to GPU5 is not known" in hca.why[1]
    assert interface.value == its_interface.value


def test_nics_whose_place_nobody_knows_are_not_called_near() -> None:
    hca, _ = suggestions(*cached("gb200_tray"))
    assert hca.why[0].startswith("4 active ports of the fastest rate, 400 Gb/s")
    assert "nearest to GPU0, GPU1, GPU2, GPU3 is not known: the NUMA node of mlx5_0 is not known" in hca.why[1]


def test_a_down_port_is_no_data_port() -> None:
    hca, _ = suggestions(*look("hgx_h100_cx7", patch={"mlx5_3": {"state": "DOWN/Polling"}}))
    assert "mlx5_3:1" not in hca.value.split(",")
    assert "mlx5_3:1 (DOWN" in hca.why[1]


def test_nothing_to_suggest_says_so() -> None:
    hca, _ = suggestions(*cached("laptop"))
    assert hca.value == ""
    assert "# NCCL_IB_HCA: nothing to suggest" in emit.nccl_env((hca,), "a test")


def test_numactl_script_runs_the_command(tmp_path: Path) -> None:
    text = emit.numactl_script(plan(*cached("hgx_h100_cx7")), "a test\nwith a line feed")
    fake = tmp_path / "numactl"
    fake.write_text('#!/bin/sh\necho "$@"\n')
    fake.chmod(0o755)
    script = tmp_path / "numactl.sh"
    script.write_text(text)
    for variable in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID"):
        done = subprocess.run(
            ["/bin/sh", str(script), "train", "a b"],
            env={"PATH": f"{tmp_path}:/usr/bin:/bin", variable: "5"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "--physcpubind=60-71,156-167 --membind=1 train a b\n"
    alone = subprocess.run(["/bin/sh", str(script), "train"], env={"PATH": "/bin"}, capture_output=True, check=False)
    assert alone.returncode == 2


def test_rankfile_has_its_comment() -> None:
    text = emit.rankfile(rankfile_lines(plan(*cached("hgx_h100_cx7")), ("a",)), "a test")
    assert text.startswith("# ")
    body = [x for x in text.splitlines() if not x.startswith("#")]
    assert all(re.fullmatch(r"rank \d+=a slot=\d+:\d+(-\d+)?", x) for x in body)


@pytest.mark.parametrize("at_end", [False, True])
def test_xml_comment_cannot_end_early(at_end: bool) -> None:
    from xml.etree import ElementTree

    text = emit.xml_comment('<?xml version="1.0"?>\n<system version="1"/>\n', "facts --> <x>", "a--b", at_end=at_end)
    assert ElementTree.fromstring(text).tag == "system"

"""`topocheck emit` and `topocheck placement` on recordings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.cli.commands import run
from tests.cli.test_fleet import report
from tests.compare.facts import device, gpu
from tests.conftest import require_program
from tests.support.slurm import free_ports
from tests.support.snapshots import write_snapshot
from tests.support.waiting import PATIENCE_S
from topocheck.cli.emit import emit
from topocheck.cli.placement import placement


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_snapshot(tmp_path_factory.mktemp("emit") / "hgx.snapshot", "hgx_h100_cx7")


def test_recordings_of_no_rank_are_not_dropped_in_silence(recording: Path) -> None:
    ran = run(placement, "--from", recording, "--from", recording)
    assert ran.code == 2
    assert "of no rank" in ran.error


@pytest.mark.parametrize("kind", ["rankfile", "numactl"])
def test_nothing_to_place_is_said_in_one_way(tmp_path: Path, kind: str) -> None:
    ran = run(emit, kind, write_snapshot(tmp_path / "bare", "no_pci"))
    assert (ran.code, ran.out) == (2, "")
    assert "nothing to place" in ran.error


def test_a_gpu_split_by_mig_is_told(tmp_path: Path) -> None:
    assert "GPU0 is split by MIG" in run(placement, "--from", write_snapshot(tmp_path / "mig", "mig_node")).out


def test_no_gres_conf_of_a_node_without_gpus(tmp_path: Path) -> None:
    ran = run(emit, "gres-conf", write_snapshot(tmp_path / "bare", "no_pci"))
    assert (ran.code, ran.out) == (2, "")
    assert "no GPU to write a line for" in ran.error


@pytest.mark.parametrize("kind", ["gres-conf", "nccl-env", "rankfile", "numactl", "nccl-topo"])
def test_each_file_says_from_which_facts(recording: Path, kind: str) -> None:
    ran = run(emit, kind, recording)
    assert ran.code == 0
    head = ran.out.splitlines()[:4]
    assert any("hgx.snapshot" in line and (line.startswith(("#", "<!--"))) for line in head), head


def test_replaced_host_names_are_told(recording: Path) -> None:
    replaced = Path(__file__).parents[1] / "recordings" / "h100_x2_vm.snap"
    for kind in ("gres-conf", "rankfile"):
        assert "put the real ones" in run(emit, kind, replaced).out
        assert "put the real ones" not in run(emit, kind, recording).out
    assert "put the real ones" not in run(emit, "rankfile", replaced, "--nodes", "gpu1").out


def test_rankfile_of_several_hosts(recording: Path) -> None:
    lines = run(emit, "rankfile", recording, "--nodes", "gpu[1-2]", "--ranks-per-node", 4).out.splitlines()
    assert [x for x in lines if x.startswith("rank ")][4].startswith("rank 4=gpu2 ")


def test_output_to_a_file(recording: Path, tmp_path: Path) -> None:
    assert run(emit, "numactl", "--from", recording, "-o", tmp_path / "n.sh").out == ""
    assert (tmp_path / "n.sh").read_text().startswith("#!/bin/sh\n")


def test_nccl_topo_is_xml(recording: Path) -> None:
    root = ElementTree.fromstring(run(emit, "nccl-topo", recording).out)
    assert root.tag == "system"
    assert len(root.findall(".//gpu")) == 8


def _trays(folder: Path, domains: int, each: int) -> None:
    for d in range(domains):
        for i in range(each):
            uuid = f"0000000{d + 1}-0000-0000-0000-000000000000"
            card = gpu("0008:01:00.0", fabric_cluster_uuid=uuid, fabric_clique=7, fabric_status="Success")
            report(folder / f"t{d}{i}.json", f"tray{d}{i}", gpus=[card], pci=[device("0008:01:00.0")])


def test_blocks_from_reports(tmp_path: Path) -> None:
    _trays(tmp_path, 2, 3)
    text = run(emit, "topology-block", tmp_path).out
    assert "BlockName=nvl1 Nodes=tray[00-02]" in text
    assert "BlockName=nvl2 Nodes=tray[10-12]" in text
    assert text.rstrip().endswith("BlockSizes=3,6")
    assert "SwitchName=core Switches=leaf[1-2]" in run(emit, "topology-conf", tmp_path).out
    assert "block_sizes: [3, 6]" in run(emit, "topology-yaml", tmp_path).out


def test_blocks_without_domains_are_refused(tmp_path: Path) -> None:
    report(tmp_path / "a.json", "a")
    ran = run(emit, "topology-block", tmp_path)
    assert ran.code == 2
    assert "topology-conf" in ran.error


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("nonsense",), "KIND"),
        (("topology-conf",), "needs reports"),
        (("hwloc-xml", "x.snapshot"), "snapshot lacks"),
        (("gres-conf", "nowhere.snapshot"), "nowhere.snapshot"),
    ],
)
def test_wrong_usage(args: tuple[str, ...], expected: str) -> None:
    ran = run(emit, *args)
    assert ran.code == 2
    assert expected in ran.error


def test_an_unreadable_report_stops_a_topology(tmp_path: Path) -> None:
    _trays(tmp_path, 1, 2)
    (tmp_path / "x.json").write_text("x")
    assert "x.json" in run(emit, "topology-conf", tmp_path).error


def test_two_nodes_of_one_name_stop_a_topology(tmp_path: Path) -> None:
    report(tmp_path / "a.json", "same")
    report(tmp_path / "b.json", "same")
    assert "unique" in run(emit, "topology-conf", tmp_path).error


@pytest.mark.service
def test_replaced_identifiers_and_nameless_nodes_stop_a_topology(tmp_path: Path) -> None:
    replaced = Path(__file__).parents[1] / "recordings" / "h100_x2_vm.snap"
    ran = run(emit, "topology-conf", replaced)
    assert (ran.code, ran.out) == (2, "")
    assert "--keep-identifiers" in ran.error
    report(tmp_path / "a.json", "a", host={"hostname": None})
    ran = run(emit, "topology-conf", tmp_path / "a.json")
    assert ran.code == 2
    assert "no host name" in ran.error


def test_hwloc_reads_its_xml_back(tmp_path: Path) -> None:
    import subprocess

    require_program("lstopo-no-graphics")
    assert run(emit, "hwloc-xml", "-o", tmp_path / "h.xml").code == 0
    said = subprocess.run(
        ["lstopo-no-graphics", "--input", str(tmp_path / "h.xml"), "--of", "console"], capture_output=True, check=True
    )
    assert said.stdout.startswith(b"Machine")


def test_placement_of_a_job_from_recordings(tmp_path: Path) -> None:
    def rank(i: int, **environment: Any) -> Path:
        told = {"RANK": str(i), "WORLD_SIZE": "2", "LOCAL_RANK": str(i), **environment}
        return write_snapshot(tmp_path / f"{i}.snapshot", "dgx_a100", environment=told)

    files = [x for i in range(2) for x in ("--from", rank(i, CUDA_VISIBLE_DEVICES="0"))]
    ran = run(placement, *files, "--format", "json")
    assert ran.code == 1
    found = json.loads(ran.out)
    assert [r["rank"] for r in found["ranks"]] == [0, 1]
    assert found["problems"][0]["ranks"] == [0, 1]
    assert len(found["plan"]["bindings"]) == 8
    text = run(placement, *files, "--launcher", "srun").out
    assert "2 ranks on GPU0" in text
    assert "--cpu-bind=mask_cpu:" in text
    assert "torchrun" not in text


def test_a_rank_that_was_recorded_twice_is_refused(tmp_path: Path) -> None:
    told = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    recorded = write_snapshot(tmp_path / "3", "dgx_a100", environment=told)
    ran = run(placement, "--from", recorded, "--from", recorded)
    assert (ran.code, ran.out) == (2, "")
    assert "are of rank 3: expected one of each rank" in ran.error


def test_placement_of_ranks_without_gpus_points_to_no_suggestion(tmp_path: Path) -> None:
    files: list[object] = []
    for i in range(2):
        told = {"RANK": str(i), "WORLD_SIZE": "2", "LOCAL_RANK": str(i)}
        files += ["--from", write_snapshot(tmp_path / f"{i}", "no_pci", environment=told, process={"cpus": "0"})]
    ran = run(placement, *files)
    assert ran.code == 1
    assert "2 ranks share CPUs 0" in ran.out
    assert "fix: bind each to its own CPUs\n" in ran.out
    assert "nothing to place" in ran.out


def test_placement_outside_a_job_shows_the_plan(recording: Path) -> None:
    ran = run(placement, "--from", recording)
    assert ran.code == 0
    assert "the recommended layout" in ran.out
    assert "60-71,156-167" in ran.out


@pytest.mark.torch
def test_rank_0_of_a_job_shows_all_ranks() -> None:
    import os
    import subprocess
    import sys

    pytest.importorskip("torch")
    code = (
        "import sys, typer; from topocheck.cli.placement import placement; "
        "app = typer.Typer(); app.command()(placement); app(['--format', 'json'])"
    )
    [port] = free_ports(1)
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "OMPI", "PMI"))}
    common = {**keep, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**common, "RANK": str(i), "LOCAL_RANK": str(i), "SLURMD_NODENAME": f"node{i}"},
            stdout=subprocess.PIPE,
        )
        for i in range(2)
    ]
    said = [r.communicate(timeout=PATIENCE_S)[0] for r in ranks]
    found = json.loads(said[0])["ranks"]
    assert [(r["rank"], r["node"]) for r in found] == [(0, "node0"), (1, "node1")]
    assert said[1] == b""

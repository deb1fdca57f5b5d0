"""The generated gres.conf and tree topology in a real Slurm."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.placement.machines import look
from tests.support import slurm
from topocheck.placement.blocks import NodePlace, tree
from topocheck.placement.gres import gres
from topocheck.render import emit

pytestmark = pytest.mark.service

NODES = ("n1", "n2")
GRES = "gpu:nvidia_h100_80gb_hbm3:8"
SOURCE = "a file\nNodeName=n1 Name=gpu File=/dev/null\nSwitchName=planted Nodes=n1\\"
"""What a file was made from, or an NVLink domain, as somebody calls it who would have lines of their own there."""


def test_slurm_takes_gres_and_topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """slurmd reads cores and links as meant, slurmctld shows the switches, and a job gets its GPUs."""
    machines = [gres(*look("hgx_h100_cx7", system={"hostname": name})) for name in NODES]
    devices = tmp_path / "dev"
    devices.mkdir()
    for i in range(8):
        os.mknod(devices / f"nvidia{i}", stat.S_IFCHR | 0o666, os.makedev(195, i))
    text = emit.gres_conf(machines, SOURCE)
    assert f"NodeName=n[1-2] Gres={GRES}" in text
    (tmp_path / "gres.conf").write_text(text.replace("/dev/", f"{devices}/"))
    # Two leaves, so that there is a tree to be read.
    found = tree([NodePlace(name="n1", domain="a.0"), NodePlace(name="n2", domain=f"b.0 {SOURCE}")])
    (tmp_path / "topology.conf").write_text(emit.topology_conf(found, None, SOURCE))
    written = slurm._conf

    def conf(*args: object) -> str:
        # A node of two sockets with 48 cores of two threads, whatever this machine has.
        wiring = f"Sockets=2 CoresPerSocket=48 ThreadsPerCore=2 Gres={GRES}"
        return written(*args).replace("CPUs=1", wiring)  # type: ignore[arg-type]

    monkeypatch.setattr(slurm, "_conf", conf)
    settings = {
        "GresTypes": "gpu",
        "TopologyPlugin": "topology/tree",
        "SlurmdParameters": "config_overrides",
        "SlurmdDebug": "debug2",
    }
    with slurm.slurm_cluster(tmp_path, settings, NODES) as cluster:
        seen = cluster.run("scontrol", "show", "node", "-o", "-d", "n1").stdout
        assert f"Gres={GRES}(S:0-1)" in seen
        switches = cluster.run("scontrol", "show", "topology").stdout
        assert "SwitchName=core Level=1" in switches
        assert "SwitchName=leaf2 Level=0" in switches
        assert "planted" not in switches
        job = cluster.run("srun", "-N1", "-n1", "--gres=gpu:2", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
        assert job.stdout.strip() == "0,1", job.stderr
        # slurmd prints on standard error what it read: device 5 is the second of socket 1.
        read = cluster.run("slurmd", "-N", "n1", "-G")
        gpus = [x for x in (read.stdout + read.stderr).splitlines() if "Gres Name=gpu" in x]
        assert len(gpus) == 8, read.stderr
        assert "Cores=48-95" in gpus[5]
        assert "Links=18,18,18,18,18,-1,18,18" in gpus[5]
        for name in ("n1.log", "slurmctld.log"):
            # The folder's own name may hold the words looked for.
            log = (tmp_path / name).read_text().replace(str(tmp_path), "")
            errors = [x for x in log.splitlines() if "error:" in x]
            assert [x for x in errors if any(w in x.lower() for w in ("gres", "gpu", "nvidia", "topolog"))] == []

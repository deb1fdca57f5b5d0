"""Slurm's topology from a dump of the fabric: leaves and what is above them; a real Slurm reads it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.cli.commands import run
from tests.support import slurm
from tests.support.fabric_faults import on_a_spine, swap_rails, wrong_pod
from tests.support.fabrics import Made, dragonfly, fat_tree, rail_pods, three_tiers
from topocheck.cli.emit import emit
from topocheck.fabric.read import parse
from topocheck.fabric.tiers import tiers_of
from topocheck.model.base import InputError
from topocheck.placement.fabric_tree import fabric_tree, plain_name

SWITCH = {
    "type": "object",
    "properties": {
        "switch": {"type": "string", "minLength": 1, "maxLength": 64},
        "children": {"type": "string"},
        "nodes": {"type": "string"},
    },
    "required": ["switch"],
    "additionalProperties": False,
}
GRAMMAR = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "topology": {"type": "string"},
            "cluster_default": {"type": "boolean"},
            "tree": {
                "type": "object",
                "properties": {"switches": {"type": "array", "items": SWITCH}},
                "required": ["switches"],
                "additionalProperties": False,
            },
        },
        "required": ["topology", "tree"],
        "additionalProperties": False,
    },
}
"""The part of topology.yaml(5), "Tree definitions", as JSON Schema."""


def made_tree(made: Made) -> dict[str, tuple[str, ...]]:
    """Return switch -> nodes or switches below it."""
    found = fabric_tree(tiers_of(parse(made.text().encode(), "dump")))
    return {x.name: x.nodes for x in found.leaves} | {x.name: x.children for x in found.above}


def test_a_fat_tree() -> None:
    assert made_tree(fat_tree(2, 2, 4)) == {
        "leaf-0": ("cn0000", "cn0001"), "leaf-1": ("cn0002", "cn0003"), "spine1": ("leaf-0", "leaf-1")
    }  # fmt: skip


def test_rails_share_a_leaf_of_the_file() -> None:
    assert made_tree(rail_pods(2, 2, 4, 4)) == {
        "leaf1": ("gpu0000", "gpu0001"), "leaf2": ("gpu0002", "gpu0003"), "spine1": ("leaf1", "leaf2")
    }  # fmt: skip


def test_three_tiers() -> None:
    assert made_tree(three_tiers(2, 2, 1, 2, 2)) == {
        "leaf-0-0": ("cn0000",), "leaf-0-1": ("cn0001",), "leaf-1-0": ("cn0002",), "leaf-1-1": ("cn0003",),
        "spine1": ("leaf-0-0", "leaf-0-1"), "spine2": ("leaf-1-0", "leaf-1-1"), "spine3": ("spine1", "spine2"),
    }  # fmt: skip


def test_a_dragonfly_has_groups() -> None:
    found = made_tree(dragonfly(4, 4, 1))
    assert {n: found[n] for n in found if n.startswith("group")} == {
        f"group{g + 1}": tuple(f"router-{g}-{r}" for r in range(4)) for g in range(4)
    }
    assert found["core"] == ("group1", "group2", "group3", "group4")


@pytest.mark.parametrize("plant", [swap_rails, wrong_pod, on_a_spine])
@pytest.mark.parametrize("seed", range(4))
def test_an_odd_cable_moves_no_node(plant, seed: int) -> None:  # type: ignore[no-untyped-def]
    healthy = rail_pods(4, 8, 4, 4)
    made = healthy.copy()
    assert plant(made, Random(seed)) is not None
    assert made_tree(made) == made_tree(healthy)


def test_planes_that_do_not_meet_have_no_common_switch() -> None:
    made = fat_tree(2, 2, 0)
    found = fabric_tree(tiers_of(parse(made.text().encode(), "dump")))
    assert found.above == ()
    assert any("no link of the dump joins" in n for n in found.notes)


def test_only_nodes_that_slurm_knows() -> None:
    tiers = tiers_of(parse(fat_tree(2, 2, 4).text().encode(), "dump"))
    assert [x.nodes for x in fabric_tree(tiers, {"cn0000", "cn0003"}).leaves] == [("cn0000",), ("cn0003",)]
    with pytest.raises(InputError, match="cn0009 is not in the dump"):
        fabric_tree(tiers, {"cn0000", "cn0009"})


@pytest.mark.parametrize(
    ("label", "name"),
    [("MF0;A09-P1-IBLEAF-01-01:MQM9701/U1", "A09-P1-IBLEAF-01-01"), ("leaf-1", "leaf-1"), ("a;b", "b")],
)
def test_names_of_managed_switches(label: str, name: str) -> None:
    assert plain_name(label) == name


def test_a_name_that_would_be_a_line_of_its_own_is_not_used(tmp_path: Path) -> None:
    text = fat_tree(2, 2, 1).text().replace("leaf-1", "x Nodes=cn[0-9]").replace("leaf-0", "MF0;top:Q/U1")
    (tmp_path / "f").write_text(text)
    out = run(emit, "topology-conf", "--fabric", tmp_path / "f").out
    lines = [x for x in out.splitlines() if not x.startswith("#")]
    assert lines == [
        "SwitchName=spine-0 Switches=leaf1,top",
        "SwitchName=top Nodes=cn[0000-0001]",
        "SwitchName=leaf1 Nodes=cn[0002-0003]",
    ]


def test_topology_yaml_is_of_the_manual_s_grammar(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    from jsonschema import Draft202012Validator

    (tmp_path / "f").write_text(three_tiers(2, 2, 2, 2, 2).text())
    out = run(emit, "topology-yaml", "--fabric", tmp_path / "f").out
    Draft202012Validator(GRAMMAR).validate(yaml.safe_load(out))
    # What was written is read back as the same tree.
    conf = run(emit, "topology-conf", "--fabric", tmp_path / "f").out
    (a, b) = (parse(t.encode(), "f") for t in (out, conf))
    assert {(x.a, x.b) for x in a.links} == {(x.a, x.b) for x in b.links}


def test_other_kinds_take_no_fabric(tmp_path: Path) -> None:
    (tmp_path / "f").write_text(fat_tree(1, 2, 0).text())
    assert run(emit, "gres-conf", "--fabric", tmp_path / "f").code == 2


@pytest.mark.service
def test_slurm_takes_it(tmp_path: Path) -> None:
    """slurmctld and two slurmd show the levels that were written, and a job for one leaf gets nodes of one leaf."""
    made = three_tiers(2, 1, 1, 1, 1)
    (tmp_path / "dump").write_text(made.text())
    text = run(emit, "topology-conf", "--fabric", tmp_path / "dump").out
    (tmp_path / "topology.conf").write_text(text)
    nodes = ("cn0000", "cn0001")
    with slurm.slurm_cluster(tmp_path, {"TopologyPlugin": "topology/tree"}, nodes) as cluster:
        seen = cluster.run("scontrol", "show", "topology").stdout
        levels = {line.split()[0]: line.split()[1] for line in seen.splitlines()}
        assert levels == {
            "SwitchName=leaf-0-0": "Level=0", "SwitchName=leaf-1-0": "Level=0", "SwitchName=spine-0-0": "Level=1",
            "SwitchName=spine-1-0": "Level=1", "SwitchName=core-0-0": "Level=2",
        }  # fmt: skip
        # What Slurm shows is read as the fabric that it was made from.
        tiers = tiers_of(parse(seen.encode(), "scontrol"))
        assert {x.id: x.nodes for x in tiers.leaves.values()} == {"leaf-0-0": 1, "leaf-1-0": 1}
        job = cluster.run("srun", "-N2", "-n2", "hostname")
        assert job.returncode == 0, job.stderr
        log = (tmp_path / "slurmctld.log").read_text().replace(str(tmp_path), "")
        assert [x for x in log.splitlines() if "error:" in x and "opolog" in x] == []

"""Sources next to each other: Slurm's file and a dump, several subnet managers, bonds of nodes, unequal planes."""

from __future__ import annotations

import json

import pytest

from tests.support import fabric_writers as write
from tests.support.fabrics import Made, fat_tree, rail_pods
from topocheck.checks.fabric.run import JudgedFabric, judge_fabric, judge_joined
from topocheck.fabric.join import NodeBond, NodePort
from topocheck.fabric.merge import merge
from topocheck.fabric.read import parse, parse_all
from topocheck.fabric.tiers import tiers_of
from topocheck.model.base import Finding, State
from topocheck.model.fabric import Fabric, Protocol


def read(*texts: str) -> Fabric:
    return merge(parse_all((t.encode(), f"dump{i}") for i, t in enumerate(texts)))


def bad(fabric: Fabric) -> list[Finding]:
    return [f for f in judge_fabric(tiers_of(fabric)).findings if f.state is not State.NOTE]


MADE = fat_tree(4, 4, 2)
PLAN = "SwitchName=core Switches=leaf-[0-3]\n" + "".join(
    f"SwitchName=leaf-{i} Nodes=cn[{4 * i:04d}-{4 * i + 3:04d}]\n" for i in range(4)
)


def test_slurm_s_file_that_agrees_with_the_cables() -> None:
    for order in ((MADE.text(), PLAN), (PLAN, MADE.text())):
        fabric = read(*order)
        assert (len(fabric.devices), len(fabric.links)) == (len(MADE.devices), len(MADE.links))
        assert len(fabric.planned) == 4
        assert bad(fabric) == []


def test_a_node_that_slurm_has_below_another_leaf() -> None:
    plan = PLAN.replace("cn[0000-0003]", "cn[0001-0003]").replace("cn[0004-0007]", "cn[0000,0004-0007]")
    (found,) = bad(read(MADE.text(), plan))
    assert (found.id, found.subject) == ("fabric.slurm-differs", "Slurm switch leaf-1")
    assert found.title == "cn0000 on leaf-0; 4 of 5 nodes of this switch are on leaf-1"
    assert found.evidence[0].source == "dump1:3"


def test_a_node_that_slurm_s_file_lacks() -> None:
    (found,) = bad(read(MADE.text(), PLAN.replace("cn[0012-0015]", "cn[0012-0014]")))
    assert "cn0015: in the dump and in no switch of the file" in found.title


def test_slurm_s_names_with_no_relation_to_the_leaves() -> None:
    plan = "SwitchName=all Nodes=cn[0000-0015]\n"
    (found,) = bad(read(MADE.text(), plan))
    assert "its 16 nodes are on 4 different leaves: leaf-0, leaf-1, leaf-2, ..." in found.title


def test_blocks_and_nvlink_domains() -> None:
    """17 nodes of a block are in one domain, one in another."""
    plan = "BlockName=b1 Nodes=cn[0000-0007]\nBlockName=b2 Nodes=cn[0008-0015]\nBlockSizes=8\n"
    names = [f"cn{i:04d}" for i in range(16)]
    right = {n: "rack-a.1" if i < 8 else "rack-b.1" for i, n in enumerate(names)}
    fabric = read(MADE.text(), plan)

    def found(domains: dict[str, str]) -> list[str]:
        judged = judge_joined(fabric, [], domains=domains)
        return [f"{f.subject}: {f.title}" for f in judged.result.findings if f.id == "fabric.slurm-differs"]

    assert found(right) == []
    alone = judge_joined(read(plan), [], domains=right | {"cn0009": "rack-a.1"})
    assert [f.subject for f in alone.result.findings if f.id == "fabric.slurm-differs"] == ["Slurm block b2"]
    assert found(right | {"cn0003": "rack-b.1"}) == [
        "Slurm block b1: cn0003 on rack-b.1; 7 of 8 nodes of this block are on rack-a.1"
    ]


def test_two_masters_on_one_subnet() -> None:
    second = write.SMINFO.replace("lid 1 sm guid 0x1", "lid 2 sm guid 0x2")
    (found,) = bad(read(MADE.text(), write.SMINFO + second))
    assert (found.id, found.state) == ("fabric.subnet-manager", State.FAIL)
    assert "2 subnet managers are master on 1 subnet" in found.title
    standby = second.replace("state 3 SMINFO_MASTER", "state 2 SMINFO_STANDBY")
    assert bad(read(MADE.text(), write.SMINFO + standby)) == []
    # Two planes are two subnets, each with a master of its own.
    assert bad(read(rail_pods(1, 8, 2, 0).text(), write.SMINFO + second)) == []


def test_no_master() -> None:
    text = write.SMINFO.replace("state 3 SMINFO_MASTER", "state 2 SMINFO_STANDBY")
    (found,) = bad(read(MADE.text(), text))
    assert "none of 1 subnet managers is master: STANDBY" in found.title


def planes(*spines: int) -> Made:
    """Planes of four leaves each, with so many spines; node n has adapter p on plane p."""
    made = Made()
    for p, n in enumerate(spines):
        for s in range(n):
            made.devices[f"spine{p}.{s}"] = ("S", f"spine-{p}-{s}", 65)
        for i in range(4):
            made.devices[f"leaf{p}.{i}"] = ("S", f"leaf-{p}-{i}", 65)
            made.links += [(f"leaf{p}.{i}", 33 + s, f"spine{p}.{s}", 1 + i, "4xNDR") for s in range(n)]
            for k in range(8):
                made.devices[f"n{p}.{i}.{k}"] = ("H", f"gpu{8 * i + k:03d} mlx5_{p}", 1)
                made.links.append((f"n{p}.{i}.{k}", 1, f"leaf{p}.{i}", 1 + k, "4xNDR"))
    return made


def test_a_plane_with_a_spine_less() -> None:
    (found,) = bad(read(planes(4, 4, 3, 4).text()))
    assert (found.id, found.state) == ("fabric.unequal-planes", State.WARN)
    assert "4 + 3 switches by tier and 12 links" in found.title
    assert "3 of 4 planes have 4 + 4 switches by tier and 16 links" in found.title
    assert bad(read(planes(4, 4).text())) == []
    assert [f.id for f in bad(read(planes(4, 3).text()))] == ["fabric.unequal-planes"]


def heard(node: str, interface: str, switch: str, port: str, group: int = 0) -> str:
    there = {"id": {"type": "ifname", "value": port}} | ({"aggregation": str(group)} if group else {})
    return json.dumps(
        {
            "lldp": {
                "interface": [
                    {interface: {"via": "LLDP", "chassis": {switch: {"id": {"type": "local", "value": switch}}},
                                 "port": there}}
                ]
            }
        }
    )  # fmt: skip


def bonded(where: dict[int, tuple[str, str]], groups: dict[tuple[int, int], int] | None = None) -> JudgedFabric:
    """Eight nodes with a bond of two; members on leaf-a and leaf-b unless `where` says otherwise."""
    texts, ports, bonds = [], [], []
    for n in range(8):
        node = f"gpu{n}"
        for m, switch in enumerate(where.get(n, ("leaf-a", "leaf-b"))):
            group = (groups or {}).get((n, m), 7 if groups else 0)
            texts.append(parse(heard(node, f"eth{m}", switch, f"Ethernet{n + 1}{m}", group).encode(), f"{node}.json"))
        ports.append(NodePort(node=node, adapter="mlx5_bond_0", port=1, interfaces=("eth0", "eth1"),
                              protocol=Protocol.ETHERNET))  # fmt: skip
        bonds.append(NodeBond(node=node, name="bond0", mode="802.3ad", members=("eth0", "eth1")))
    return judge_joined(merge(texts), ports, bonds=bonds)


def found(judged: JudgedFabric) -> list[tuple[str, str, str]]:
    return [(f.id, f.subject, f.title) for f in judged.result.findings if f.state is not State.NOTE]


def test_bonds_over_two_switches_are_noted() -> None:
    judged = bonded({})
    assert found(judged) == []
    (note,) = [f for f in judged.result.findings if f.id == "fabric.bond"]
    assert note.title == ("8 of 8 bonds have members on several switches, such as gpu0 bond0 on leaf-a and leaf-b")


def test_a_bond_on_switches_that_are_no_pair() -> None:
    named = [f for f in found(bonded({3: ("leaf-a", "leaf-c")})) if f[0] == "fabric.bond"]
    assert named == [
        ("fabric.bond", "gpu3 bond0",
         "eth0 on leaf-a port Ethernet40, eth1 on leaf-c port Ethernet41; 7 of 8 bonds of this name there are on "
         "leaf-a and leaf-b")
    ]  # fmt: skip


def test_a_member_outside_of_the_aggregation() -> None:
    ((_, subject, title),) = found(bonded({}, {(5, 1): 0}))
    assert subject == "gpu5 bond0"
    assert title == (
        "leaf-b port Ethernet61 (eth1) is in no link aggregation of its switch; leaf-a port Ethernet60 (eth0) is"
    )


@pytest.mark.parametrize("name", ["gpu1/08:c0:eb:2e:c4:d5"])
def test_a_mac_joins_the_adapter_that_has_it(name: str) -> None:
    table = (
        "LocalPort  Speed  Mode     RemoteHost  RemotePort\n"
        "---------  -----  -------  ----------  -----------------\n"
        "swp1       100G   Default  gpu1        08:c0:eb:2e:c4:d5\n"
    )
    port = NodePort(node="gpu1", adapter="mlx5_2", port=1, guids=("08c0eb03002ec4d5",), protocol=Protocol.ETHERNET)
    judged = judge_joined(parse(table.encode(), "leaf-1.txt"), [port])
    assert judged.joined is not None
    assert judged.joined.fabric.devices[name].name == "gpu1 mlx5_2"


@pytest.mark.parametrize("text", ['{"lldp": {}}', "---\nLLDP neighbors:\n---\n", '{"lldp": [{}]}'])
def test_a_node_that_hears_nothing_is_named(text: str) -> None:
    """What lldpctl prints where nothing was heard, next to nodes that hear their switch."""
    fabrics = [parse(heard(f"n{i}", "eth0", "leaf-a", f"Ethernet{i}").encode(), f"gpu{i}.json") for i in range(4)]
    (only,) = bad(merge([*fabrics, parse(text.encode(), "gpu4.json")]))
    assert (only.id, only.subject) == ("fabric.node-not-joined", "gpu4")
    assert "hears no neighbour by LLDP" in only.title


TOPOCONF = """\
%YAML 1.1
---
- topology: fabric
  cluster_default: true
  block: {}
  flat: {}
  ring: {}
  tree:
    switches:
    - switch: spine
      children: leaf[1-2]
      nodes:
    - switch: leaf1
      children:
      nodes: n[1-4]
    - switch: leaf2
      children:
      nodes: n[5-8]
...
"""
"""Of the form that scontrol of Slurm 26.11 prints."""


def test_slurm_s_show_topoconf() -> None:
    pytest.importorskip("yaml")
    tiers = tiers_of(read(TOPOCONF))
    assert {i: x.nodes for i, x in tiers.leaves.items()} == {"leaf1": 4, "leaf2": 4}
    swapped = TOPOCONF.replace("  tree:\n    switches:", "  tree: {}\n- topology: other\n  tree:\n    switches:")
    assert len(tiers_of(read(swapped)).leaves) == 2

"""A dump of the fabric beside recordings of its nodes: joined by GUID, or by host and interface."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from tests.cli.commands import run
from tests.compare.facts import lean, nic
from tests.fabric.test_formats import LLDPCTL
from tests.support.fabrics import Made, rail_pods
from topocheck.checks.fabric.run import JudgedFabric, judge_joined
from topocheck.cli.fabric_join import node_ports
from topocheck.cli.fleet import fleet
from topocheck.compare.facts import node_facts
from topocheck.compare.store import Collection
from topocheck.fabric.join import NodePort
from topocheck.fabric.read import parse
from topocheck.model.base import State
from topocheck.model.fabric import Protocol
from topocheck.render.fabric import fabric_section, joined_tree
from topocheck.render.page import Page, Style


def guid(made: Made, name: str) -> str:
    return f"{list(made.devices).index(name) + 1:016x}"


def recorded(made: Made) -> list[NodePort]:
    """What the nodes of a generated fabric record of their adapters."""
    return [
        NodePort(node=node, adapter=adapter, port=1, guids=(guid(made, name),), protocol=Protocol.INFINIBAND)
        for name, (kind, description, _) in made.devices.items()
        if kind == "H"
        for node, adapter in [description.split(" ")]
    ]


def joined(made: Made, ports: list[NodePort]) -> JudgedFabric:
    return judge_joined(parse(made.text().encode(), "dump"), ports)


def bad(judged: JudgedFabric) -> list[tuple[str, str, str]]:
    return [(f.id, f.subject, f.title) for f in judged.result.findings if f.state is not State.NOTE]


def test_every_port_is_found_and_nothing_is_wrong() -> None:
    made = rail_pods(2, 4, 4, 4)
    judged = joined(made, recorded(made))
    assert judged.joined is not None
    assert (judged.joined.ports, judged.joined.nodes, judged.joined.unrecorded) == (32, 8, ())
    assert bad(judged) == []


def test_adapters_that_announce_no_host_are_judged_by_their_guid() -> None:
    made = rail_pods(2, 8, 4, 4)
    ports = recorded(made)
    for name, (kind, _, n) in made.devices.items():
        if kind == "H":
            made.devices[name] = (kind, "MT4129 ConnectX7   Mellanox Technologies", n)
    i, j = (next(k for k, x in enumerate(made.links) if x[0] == name) for name in ("n0.2.0", "n0.2.1"))
    a, b = made.links[i], made.links[j]
    made.links[i], made.links[j] = (*a[:2], *b[2:]), (*b[:2], *a[2:])
    assert {(i, s) for i, s, _ in bad(joined(made, ports))} == {
        ("fabric.odd-cable", "gpu0002 mlx5_0"), ("fabric.odd-cable", "gpu0002 mlx5_1")
    }  # fmt: skip
    assert bad(joined(made, [])) == []


def test_an_adapter_that_announces_another_host_is_named() -> None:
    made = rail_pods(1, 4, 4, 1)
    ports = recorded(made)
    made.devices["n0.1.2"] = ("H", "gpu0900 mlx5_2", 1)
    assert bad(joined(made, ports)) == [("fabric.wrong-name", "gpu0001 mlx5_2", "announces itself as gpu0900 mlx5_2")]


def test_domains_of_hosts_make_no_difference() -> None:
    made = rail_pods(1, 4, 4, 1)
    ports = [msgspec.structs.replace(p, node=f"{p.node}.example.org") for p in recorded(made)]
    judged = joined(made, ports)
    assert bad(judged) == []
    assert judged.joined is not None
    assert judged.joined.unrecorded == ()


def test_an_active_port_that_is_not_in_the_dump_is_named() -> None:
    made = rail_pods(1, 4, 4, 1)
    other = NodePort(node="gpu0001", adapter="mlx5_8", port=1, guids=("f" * 16,), protocol=Protocol.INFINIBAND)
    down = msgspec.structs.replace(other, adapter="mlx5_9", protocol=None)
    roce = msgspec.structs.replace(other, adapter="mlx5_10", protocol=Protocol.ETHERNET)
    found = bad(joined(made, [*recorded(made), other, down, roce]))
    assert found == [("fabric.not-in-dump", "gpu0001 mlx5_8", "port 1 is active and not in the dump")]


def test_recordings_of_another_cluster_say_nothing() -> None:
    other = NodePort(node="x", adapter="mlx5_8", port=1, guids=("f" * 16,), protocol=Protocol.INFINIBAND)
    judged = joined(rail_pods(1, 4, 4, 1), [other])
    assert bad(judged) == []
    assert judged.joined is not None
    assert judged.joined.unrecorded == ("gpu0000", "gpu0001", "gpu0002", "gpu0003")


def test_a_guid_that_two_nodes_record_joins_nothing() -> None:
    made = rail_pods(1, 4, 4, 1)
    ports = recorded(made)
    copied = [msgspec.structs.replace(p, node="copy") for p in ports if p.node == "gpu0001"]
    judged = joined(made, [*ports, *copied])
    assert judged.joined is not None
    assert judged.joined.nodes == 3


def test_ethernet_joins_by_host_and_interface() -> None:
    ports = [NodePort(node="gpu01", adapter="mlx5_0", port=1, interfaces=("eth0",), protocol=Protocol.ETHERNET)]
    judged = judge_joined(parse(json.dumps(LLDPCTL).encode(), "gpu01.json"), ports)
    (first, second) = judged.tiers.attachments
    assert {(a.adapter, a.leaf.device) for a in (first, second)} == {
        ("mlx5_0", "00:00:00:00:00:0a"), ("eth1", "00:00:00:00:00:0b")
    }  # fmt: skip


GUID = "e8:eb:d3:03:00:9c:11:20"


def node(name: str, last: str, **parts: object) -> dict[str, object]:
    """A node with one NIC; `last` ends its GUIDs."""
    made = nic("0000:3b:00.0", "mlx5_0", (f"fe80:0000:0000:0000:0000:0000:0000:{last}",), link_layer="InfiniBand")
    return {
        "host": {"hostname": name, "dmi_product": "Server"},
        "nics": [{**made, "node_guid": f"0000:0000:0000:{last}"}],
    }


def test_ports_of_a_report() -> None:
    collection = Collection()
    collection.add(node_facts(lean(**node("a", "00ab"))))
    (port,) = node_ports(collection.names()[0], collection.entries[0])
    assert (port.node, port.adapter, port.port, port.protocol) == ("a", "mlx5_0", 1, Protocol.INFINIBAND)
    assert port.guids == ("00000000000000ab",)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dump of 4 nodes with one NIC each on one leaf, and reports of them; the dump's second node has another name."""
    made = rail_pods(1, 4, 1, 0)
    names = list(made.devices)
    for i in range(4):
        last = f"{names.index(f'n0.{i}.0') + 1:04x}"
        (tmp_path / f"{i}.json").write_bytes(msgspec.json.encode(lean(**node(f"gpu{i:04d}", last))))
    made.devices["n0.1.0"] = ("H", "old-name mlx5_0", 1)
    (tmp_path / "fabric.txt").write_text(made.text())
    return tmp_path


def test_fleet_names_the_switch_port_of_each_nic(folder: Path) -> None:
    argv = [*sorted(folder.glob("*.json")), "--fabric", folder / "fabric.txt", "--width", "160"]
    ran = run(fleet, *argv)
    assert ran.code == 0
    assert "4 recorded ports of 4 nodes found in it" in ran.out
    assert "fabric.wrong-name  gpu0001 mlx5_0" in ran.out
    assert re.search(r"mlx5_0\s+leaf-0-0\s+4\s+gpu\[0000-0003\]", ran.out)
    assert run(fleet, *argv, "--strict").code == 1
    tree = json.loads(run(fleet, *argv, "--format", "json").out)
    assert [(a["node"], a["leaf_port"]) for a in tree["fabric"]["adapters"]] == [
        (f"gpu{i:04d}", str(i + 1)) for i in range(4)
    ]
    assert "fabric" not in json.loads(run(fleet, *argv[:4], "--format", "json").out)


def test_the_page_shows_a_picture_with_names_escaped(folder: Path) -> None:
    pytest.importorskip("jinja2")
    text = (folder / "fabric.txt").read_text().replace("leaf-0-0", "<script>x</script>")
    (folder / "fabric.txt").write_text(text)
    page = run(fleet, *sorted(folder.glob("*.json")), "--fabric", folder / "fabric.txt", "--format", "html").out
    assert "<svg" in page
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_a_dump_that_cannot_be_read_is_refused(folder: Path) -> None:
    (folder / "bad").write_text("nothing")
    ran = run(fleet, *sorted(folder.glob("*.json")), "--fabric", folder / "bad")
    assert ran.code == 2
    assert "not a dump of a fabric" in ran.error


def test_nvlink_domains_are_shown_with_the_leaves_of_their_nodes() -> None:
    made = rail_pods(2, 4, 2, 2)
    domains = {f"gpu{i:04d}": f"rack-{'a' if i < 4 else 'b'}.1" for i in range(8)}
    judged = judge_joined(parse(made.text().encode(), "dump"), recorded(made), domains=domains)
    tree = joined_tree(judged)
    assert tree is not None
    first, second = tree["joined"]["nvlink_domains"]
    assert first == {
        "domain": "rack-a.1", "nodes": [f"gpu{i:04d}" for i in range(4)], "leaves": ["leaf-0-0", "leaf-0-1"]
    }  # fmt: skip
    assert second["leaves"] == ["leaf-1-0", "leaf-1-1"]
    page = Page(Style(width=100))
    fabric_section(judged, page, limit=8)
    assert "rack-b.1       gpu[0004-0007]  leaf-1-0, leaf-1-1" in page.render()

"""Rails by network."""

from __future__ import annotations

from tests.compare.facts import mapped, named, nic
from topocheck.compare.outliers import judge
from topocheck.compare.store import Collection
from topocheck.compare.types import Fleet, NodeFacts

ADDRESSES = ("0000:19:00.0", "0000:3b:00.0", "0000:5c:00.0")


def _node(name: str, *ips: tuple[int, int, int, int]) -> NodeFacts:
    nics = [nic(a, f"mlx5_{i}", (mapped(*ip),)) for i, (a, ip) in enumerate(zip(ADDRESSES, ips, strict=False))]
    return named(name, nics=nics)


def _fleet(*nodes: NodeFacts) -> Fleet:
    collection = Collection()
    for n in nodes:
        collection.add(n)
    return judge(collection)


def test_rails_in_the_third_number() -> None:
    fleet = _fleet(*(_node(f"n{h}", (10, 0, 1, h), (10, 0, 2, h), (10, 0, 3, h)) for h in range(1, 5)))
    assert [(r.label, r.network, r.nodes) for r in fleet.rails] == [
        ("mlx5_0", "10.0.1.0/24", 4),
        ("mlx5_1", "10.0.2.0/24", 4),
        ("mlx5_2", "10.0.3.0/24", 4),
    ]
    assert fleet.outliers == ()


def test_swapped_cables() -> None:
    good = [_node(f"n{h}", (10, 1, 0, h), (10, 2, 0, h)) for h in range(1, 5)]
    fleet = _fleet(*good, _node("bad", (10, 2, 0, 9), (10, 1, 0, 9)))
    assert [o.name for o in fleet.outliers] == ["bad"]
    assert [(d.value, d.majority) for d in fleet.outliers[0].differences] == [
        ("10.2.0.0/16 (usual at mlx5_1 0000:3b:00.0)", "10.1.0.0/16"),
        ("10.1.0.0/16 (usual at mlx5_0 0000:19:00.0)", "10.2.0.0/16"),
    ]


def test_one_flat_network_tells_nothing() -> None:
    fleet = _fleet(*(_node(f"n{h}", (10, 0, 0, 2 * h), (10, 0, 0, 2 * h + 1)) for h in range(1, 9)))
    assert fleet.rails == ()
    assert fleet.outliers == ()


def test_racks_with_networks_of_their_own_are_not_accused() -> None:
    # Two racks: rail r of rack k is 10.r.k.0/24; the widest prefix that tells the rails apart holds for both.
    nodes = [_node(f"r{k}n{h}", (10, 1, k, h), (10, 2, k, h)) for k in (1, 2) for h in range(1, 5)]
    fleet = _fleet(*nodes)
    assert [r.network for r in fleet.rails] == ["10.1.0.0/16", "10.2.0.0/16"]
    assert fleet.outliers == ()


def test_infiniband_subnets() -> None:
    def node(name: str, *prefixes: str) -> NodeFacts:
        nics = [
            nic(a, f"mlx5_{i}", (f"{p}:0000:0000:0000:0001",), link_layer="InfiniBand")
            for i, (a, p) in enumerate(zip(ADDRESSES, prefixes, strict=False))
        ]
        return named(name, nics=nics)

    one, two = "fec0:0000:0000:0001", "fec0:0000:0000:0002"
    fleet = _fleet(*(node(f"n{i}", one, two) for i in range(4)), node("bad", two, one))
    assert [r.network for r in fleet.rails] == ["fec0000000000001", "fec0000000000002"]
    assert [o.name for o in fleet.outliers] == ["bad"]


def test_the_default_prefix_tells_nothing() -> None:
    gids = ("fe80:0000:0000:0000:0000:0000:0000:0001",)
    nodes = [named(f"n{i}", nics=[nic(a, f"m{k}", gids) for k, a in enumerate(ADDRESSES)]) for i in range(4)]
    assert _fleet(*nodes).rails == ()


def test_a_missing_nic_does_not_shift_the_rails() -> None:
    ips = [(10, 1, 0), (10, 2, 0), (10, 3, 0)]
    good = [_node(f"n{h}", *((a, b, c, h) for a, b, c in ips)) for h in range(1, 5)]
    rest = [nic(ADDRESSES[i], f"mlx5_{i}", (mapped(*ips[i], 9),)) for i in (0, 2)]
    fleet = _fleet(*good, named("bad", nics=rest))
    assert [o.name for o in fleet.outliers] == ["bad"]
    assert "network" not in [d.field for d in fleet.outliers[0].differences]

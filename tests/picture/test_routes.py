"""Which links the path of a pair takes in the drawing."""

from __future__ import annotations

from tests.machines.builder import machine
from tests.picture.drawn import drawn, of, part
from topocheck.picture.routes import Route, Routes
from topocheck.picture.types import Scene
from topocheck.topology.types import Topology


def route(made: tuple[object, Topology, Scene], one: str, other: str) -> Route:
    _, topology, scene = made
    path = next(p for p in topology.paths if (p.from_label, p.to_label) == (one, other))
    return Routes(scene).route(path)


def test_below_one_switch() -> None:
    scene = drawn("hgx_h100_cx7")[2]
    found = route(drawn("hgx_h100_cx7"), "GPU0", "mlx5_0")
    gpu, nic = part(scene, "GPU0"), part(scene, "mlx5_0")
    switch = next(p for p in scene.parts() if gpu in p.children)
    assert set(found.boxes) == {gpu.id, nic.id, switch.id}
    assert set(found.links) == {gpu.link.id, nic.link.id}
    assert found.narrowest in found.links


def test_over_nvswitch() -> None:
    scene = drawn("hgx_h100_cx7")[2]
    found = route(drawn("hgx_h100_cx7"), "GPU0", "GPU5")
    ends = [part(scene, t) for t in ("GPU0", "GPU5")]
    assert set(found.boxes) == {*(p.id for p in ends), scene.fabrics[0].id}
    assert set(found.links) == {p.outward.id for p in ends if p.outward is not None}


def test_the_narrowest_hop_across_sockets() -> None:
    half = of(machine("hgx_h100_cx7", patch={"GPU3": {"now": "5x8"}}).host())
    scene = half[2]
    found = route(half, "GPU3", "mlx5_7")
    assert found.narrowest == part(scene, "GPU3").link.id
    assert scene.between is not None
    assert {scene.between.id, *(d.tap.id for d in scene.domains if d.tap is not None)} <= set(found.links)
    assert {"d0cpu", "d1cpu"} <= set(found.boxes)


def test_between_two_gpus_that_a_bridge_joins() -> None:
    made = drawn("rtx3090_x2_bridge")
    pair = made[2].fabrics[0].pairs[0]
    assert route(made, "GPU0", "GPU1").links == (pair.link.id,)


def test_over_c2c_to_a_nic() -> None:
    made = drawn("gb200_tray")
    found = route(made, "GPU0", "mlx5_0")
    assert part(made[2], "GPU0").link.id in found.links
    assert found.narrowest == part(made[2], "mlx5_0").link.id  # 63 GB/s of PCIe against 447 GB/s of C2C


def test_what_is_drawn_of_a_path_exists() -> None:
    for name in ("hgx_h100_cx7", "dgx1v", "gb200_tray", "azure_ndv4_vm", "64 GPUs, 128 HCAs"):
        _, topology, scene = drawn(name)
        boxes = {p.id for p in scene.parts()} | {f.id for f in scene.fabrics} | {f"{d.id}cpu" for d in scene.domains}
        links = {k.id for k in scene.links()}
        routes = Routes(scene)
        for path in topology.paths[::7]:
            found = routes.route(path)
            assert set(found.boxes) <= boxes
            assert set(found.links) <= links
            assert found.narrowest in {"", *links}


def test_a_lost_gpu_has_no_route() -> None:
    _, topology, _ = drawn("gpu_lost")
    gone = next(g.label for g in topology.gpus if not g.on_bus)
    other = next(g.label for g in topology.gpus if g.on_bus)
    assert route(drawn("gpu_lost"), gone, other) == Route()

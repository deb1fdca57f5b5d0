"""The GPUs of a described machine, the far ends of their NVLinks, and how near two functions are."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from tests.machines.description import DescriptionError, Function


class Peer(msgspec.Struct, frozen=True):
    """The far end of one NVLink: gpu, switch or ibmnpu; its address; None where the link is down."""

    kind: str
    address: str


class Gpu(msgspec.Struct, kw_only=True):
    """One GPU with what the description told of it."""

    index: int
    function: Function
    told: dict[str, Any]
    uuid: str
    links: list[Peer | None]


def gpus(fs: list[Function], d: dict[str, Any], name: str) -> list[Gpu]:
    """Return the GPUs that NVML knows: NVIDIA's, on the nvidia driver, in order of address."""
    found = [f for f in fs if f.kind == "gpu" and f.options.get("driver", f.product.get("driver")) == "nvidia"]
    out = []
    for i, f in enumerate(found):
        told = {**f.product, **d.get("gpus", {}), **d.get("gpu", {}).get(str(i), {})}
        own = told.get("uuid", f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{name}/{i}')}")
        out.append(Gpu(index=i, function=f, told=told, uuid=own, links=[]))
    _links(out, fs, d.get("nvlink", {}), name)
    return out


def _links(all_gpus: list[Gpu], fs: list[Function], told: dict[str, Any], name: str) -> None:
    """Fill the links: `switch = N` per GPU, `pairs = {"0-1" = 2}`, `npu = N` to a POWER9; the rest is down."""
    switches = [f.address for f in fs if f.kind == "nvswitch"]
    masked = told.get("masked", False)
    for g in all_gpus:
        n = int(g.told.get("switch_links", told.get("switch", 0)))
        for i in range(n):
            far = "FFFFFFFF:FF:FF.0" if masked or not switches else switches[i % len(switches)]
            g.links.append(Peer("switch", far))
    for pair, count in told.get("pairs", {}).items():
        a, b = (int(x) for x in pair.split("-"))
        if max(a, b) >= len(all_gpus):
            raise DescriptionError(f"{name}: nvlink.pairs: {pair!r} names a GPU that is not there")
        for here, there in ((a, b), (b, a)):
            far = all_gpus[there].function.address
            all_gpus[here].links += [Peer("gpu", far)] * int(count)
    for g in all_gpus:
        for _ in range(int(told.get("npu", 0))):
            g.links.append(Peer("ibmnpu", "0004:00:00.0"))
        total = int(g.told.get("nvlinks", 0))
        if len(g.links) > total:
            raise DescriptionError(f"{name}: GPU{g.index} has {len(g.links)} links of {total}")
        g.links += [None] * (total - len(g.links))
        for down in g.told.get("links_down", []):
            g.links[int(down)] = None


def common_class(a: Function, b: Function) -> str:
    """Return the class of two functions by the definitions of `nvidia-smi topo`'s legend."""
    above_a, above_b = _above(a), _above(b)
    shared = [f for f in above_a if any(f is g for g in above_b)]
    if shared:
        # Bridges crossed on the way between the two: below the nearest shared one, and itself.
        nearest = shared[0]
        crossed = [*above_a[: above_a.index(nearest)], *above_b[: above_b.index(nearest)]]
        switches = {id(f) for f in (*crossed, nearest) if f.role == "upstream"}
        return "PIX" if len(switches) <= 1 else "PXB"
    if a.root is b.root:
        return "PHB"
    return "NODE" if a.node == b.node and a.node >= 0 else "SYS"


def _above(f: Function) -> list[Function]:
    out = []
    while f.parent is not None:
        f = f.parent
        out.append(f)
    return out

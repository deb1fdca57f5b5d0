"""What is known of GPU products, PCI vendors and switches, by id or by name. No other code knows a name."""

from __future__ import annotations

import functools
import re

import msgspec

from topocheck.knowledge.tables import rows


class Product(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of GPU board.

    Attributes:
        form_factor: SXM, PCIe, OAM or superchip.
        nvlink_links: links wired on the board; None where it depends on a bridge or is not known.
        p2p_pcie: whether the stock driver offers peer access over PCIe; None where it depends on the host.
        fabric: whether it works only behind NVSwitch; None where boards of both kinds exist.
        c2c_gb_s: rate of its link to the CPU, one direction; None where unknown or there is none.
    """

    name: str
    form_factor: str
    nvlink_version: int | None
    nvlink_links: int | None
    p2p_pcie: bool | None
    gpudirect_rdma: bool
    fabric: bool | None
    multi_node_fabric: bool
    c2c: bool
    c2c_gb_s: float | None
    source: str


def _yes(text: str) -> bool | None:
    return {"yes": True, "no": False}.get(text)


@functools.cache
def _products() -> tuple[tuple[str, frozenset[int], Product], ...]:
    return tuple(
        (
            r["name_pattern"],
            frozenset(int(x, 16) for x in r["device_ids"].split(",") if x),
            Product(
                name=r["product"],
                form_factor=r["form_factor"],
                nvlink_version=int(r["nvlink_version"]) if r["nvlink_version"] else None,
                nvlink_links=int(r["nvlink_links"]) if r["nvlink_links"] else None,
                p2p_pcie=_yes(r["p2p_pcie"]),
                gpudirect_rdma=r["gpudirect_rdma"] == "yes",
                fabric=_yes(r["fabric"]),
                multi_node_fabric=r["multi_node_fabric"] == "yes",
                c2c=r["c2c"] == "yes",
                c2c_gb_s=float(r["c2c_gb_s"]) if r["c2c_gb_s"] else None,
                source=r["source"],
            ),
        )
        for r in rows("products")
    )


@functools.cache
def find_product(name: str | None, device_id: int | None = None) -> Product | None:
    """Return the product by NVML's name, else by PCI device id; None where neither is known.

    The name comes first: a PCIe card may share its chip's name with a module, so patterns tell the boards apart,
    and a name no pattern fits is not matched to the nearest one.
    """
    for pattern, _, product in _products():
        if name and re.search(pattern, name):
            return product
    if name:
        return None
    return next((p for _, ids, p in _products() if device_id in ids), None)


@functools.cache
def vendor_name(vendor_id: int) -> str | None:
    """Return the maker's name for a PCI vendor id that makes GPUs or accelerators."""
    return next((r["name"] for r in rows("pci_vendors") if int(r["vendor"], 16) == vendor_id), None)


@functools.cache
def switch_kind(vendor: int, device: int, subsystem_device: int | None = None) -> str | None:
    """Return `emulated`, `two_level`, `two_level_outer`, `two_level_inner`, or None for an ordinary function."""
    sub = "" if subsystem_device is None else f"{subsystem_device:04x}"
    for r in rows("switches"):
        if r["vendor"] != f"{vendor:04x}" or (r["device"] and r["device"] != f"{device:04x}"):
            continue
        if r["subsystem_device"] and not re.fullmatch(r["subsystem_device"], sub):
            continue
        return r["kind"]
    return None


class Efficiency(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of the theory a healthy machine reaches. `fail_below` None: never a failure by itself."""

    kind: str
    variant: str
    theory: str
    pass_at_least: float
    fail_below: float | None
    seen: str
    source: str


@functools.cache
def efficiency(kind: str, variant: str) -> Efficiency | None:
    """Return the row of `data/efficiencies.tsv` for a kind of test and a variant (`p2p`, `nvlink4`), or None."""
    for r in rows("efficiencies"):
        if r["kind"] == kind and r["variant"] in (variant, "any"):
            return Efficiency(
                kind=kind,
                variant=r["variant"],
                theory=r["theory"],
                pass_at_least=float(r["pass_at_least"]),
                fail_below=float(r["fail_below"]) if r["fail_below"] else None,
                seen=r["seen"],
                source=r["source"],
            )
    return None


def expected_bandwidth(product: str) -> tuple[dict[str, str], ...]:
    """Return the public measurements for a product's boards (`data/expected_bandwidth.tsv`), as text cells."""
    return tuple(r for r in rows("expected_bandwidth") if r["product"] == product)


@functools.cache
def p2p_code(code: str) -> tuple[str, str] | None:
    """Return (meaning, what to do) of NVML's P2P code as nvidia-smi prints it (`GNS`), or None."""
    return next(((r["meaning"], r["fix"]) for r in rows("p2p_codes") if r["code"] == code), None)


@functools.cache
def dmabuf_kernel(driver: str) -> tuple[int, int] | None:
    """Return the kernel since which a NIC's PCI driver registers DMA-BUF memory, or None for a driver not known to."""
    for r in rows("dmabuf_drivers"):
        if r["driver"] == driver:
            major, minor = r["since_kernel"].split(".")
            return int(major), int(minor)
    return None

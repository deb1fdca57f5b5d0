"""What is known of GPU products, PCI vendors and switches, by id or by name. No other code knows a name."""

import functools
import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from topocheck.knowledge.tables import Hex4, HexList, HexMask, Kernel, Pattern, Source, Table, YesNo

FormFactor = Literal["SXM", "PCIe", "OAM", "superchip"]
SwitchKind = Literal["emulated", "two_level", "two_level_outer", "two_level_inner"]
TWO_LEVEL: frozenset[SwitchKind | None] = frozenset({"two_level", "two_level_outer", "two_level_inner"})
"""Kinds that are a part of a switch of two levels."""


class Product(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of GPU board.

    Attributes:
        name_pattern: what is found in NVML's name.
        device_ids: PCI device ids that serve where there is no name.
        nvlink_links: NVLinks on the board; None where it depends on a bridge or is not known.
        p2p_pcie: whether the stock driver offers peer access over PCIe; None where it depends on the host.
        fabric: whether it works only behind NVSwitch; None where boards of both kinds exist.
        c2c_gb_s: rate of its link to the CPU, one direction; None where unknown or there is none.
    """

    name: str
    name_pattern: Pattern
    device_ids: HexList = frozenset()
    form_factor: FormFactor
    nvlink_version: Annotated[int, Meta(ge=1, le=6)] | None = None
    nvlink_links: Annotated[int, Meta(ge=0, le=72)] | None = None
    p2p_pcie: YesNo | None = None
    gpudirect_rdma: YesNo
    fabric: YesNo | None = None
    multi_node_fabric: YesNo
    c2c: YesNo
    c2c_gb_s: Annotated[float, Meta(gt=0, le=10000)] | None = None
    source: Source

    @property
    def hides_switches(self) -> bool:
        """Whether its NVSwitches are no PCI devices: NVLink 5 on one baseboard (HGX B200, B300)."""
        return self.fabric is True and not self.multi_node_fabric and (self.nvlink_version or 0) >= 5


_PRODUCTS = Table("products", Product, key=("name",), late=("name_pattern",))


@functools.cache
def find_product(name: str | None, device_id: int | None = None) -> Product | None:
    """Return the product by NVML's name, else by PCI device id; None where neither is known.

    The name comes first: a PCIe card may share its chip's name with a module, so patterns tell the boards apart,
    and a name no pattern fits is not matched to the nearest one.
    """
    if name:
        return _PRODUCTS.first_found("name_pattern", name)
    return next((p for p in _PRODUCTS.rows() if device_id in p.device_ids), None)


class PciVendor(msgspec.Struct, frozen=True):
    """A maker of GPUs or accelerators, by its PCI vendor id."""

    vendor: Hex4
    name: str
    source: Source


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """PCI bridges and functions that are not what they seem, by their ids; None fits all.

    `subsystem_device` has a dot where any digit fits.
    """

    vendor: Hex4
    device: Hex4 | None = None
    subsystem_vendor: Hex4 | None = None
    subsystem_device: HexMask | None = None
    kind: SwitchKind
    name: str
    source: Source


_VENDORS = Table("pci_vendors", PciVendor, key=("vendor",))
_SWITCHES = Table("switches", Switch, key=("vendor", "device", "subsystem_vendor", "subsystem_device"))


@functools.cache
def vendor_name(vendor_id: int) -> str | None:
    """Return the maker's name for a PCI vendor id that makes GPUs or accelerators."""
    wanted = f"{vendor_id:04x}"
    return next((r.name for r in _VENDORS.rows() if r.vendor == wanted), None)


def switches() -> tuple[Switch, ...]:
    """Return all rows of `data/switches.tsv`."""
    return _SWITCHES.rows()


@functools.cache
def switch_kind(vendor: int, device: int, subsystem_device: int | None = None) -> SwitchKind | None:
    """Return what a PCI function is if it is no ordinary one, else None."""
    sub = "" if subsystem_device is None else f"{subsystem_device:04x}"
    for r in switches():
        if r.vendor != f"{vendor:04x}" or r.device not in (None, f"{device:04x}"):
            continue
        if r.subsystem_device is None or re.fullmatch(r.subsystem_device, sub):
            return r.kind
    return None


EfficiencyKind = Literal[
    "host_copy",
    "host_copy_bidirectional",
    "p2p",
    "p2p_bidirectional",
    "p2p_sm",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "rdma_write",
    "local_copy",
]
EfficiencyVariant = Literal[
    "any",
    "other",
    "off",
    "c2c",
    "multi_node",
    "pcie",
    "pcie3",
    "pcie4",
    "pcie5",
    "pcie_cpu",
    "pcie_switch",
    "nvlink",
    "nvlink1",
    "nvlink2",
    "nvlink3",
    "nvlink4",
    "nvlink5",
    "ring2",
    "ring4",
    "ring8",
    "nvls8_hopper",
    "nvls8_blackwell",
]
Share = Annotated[float, Meta(gt=0, lt=1.2)]


class Efficiency(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of the theory a healthy machine reaches. `fail_below` None: never a failure by itself.

    `variant` is the link, the number of ranks, or `any`; `seen` the share or rate in public figures.
    """

    kind: EfficiencyKind
    variant: EfficiencyVariant
    theory: str
    pass_at_least: Share
    fail_below: Share | None = None
    seen: str | None = None
    source: Source

    def __post_init__(self) -> None:
        if self.fail_below is not None and self.fail_below >= self.pass_at_least:
            raise ValueError(f"fail_below {self.fail_below:g} is not below pass_at_least {self.pass_at_least:g}")


_EFFICIENCIES = Table("efficiencies", Efficiency, key=("kind", "variant"))


@functools.cache
def efficiency(kind: str, variant: str) -> Efficiency | None:
    """Return the row of `data/efficiencies.tsv` for a kind of test and a variant (`p2p`, `nvlink4`), or None."""
    return next((r for r in _EFFICIENCIES.rows() if r.kind == kind and r.variant in (variant, "any")), None)


class P2pCode(msgspec.Struct, frozen=True):
    """An answer of NVML about peer access, as nvidia-smi topo -p2p prints it."""

    code: Literal["CNS", "GNS", "TNS", "DR", "NS", "U"]
    meaning: str
    fix: str
    source: Source
    in_guest: str | None = None
    """What to do in a guest, where that is another thing."""


class DmabufDriver(msgspec.Struct, frozen=True):
    """A NIC's PCI driver whose RDMA half (`module`) registers DMA-BUF memory since a kernel."""

    driver: str
    since_kernel: Kernel
    module: str
    source: Source


class Bridge(msgspec.Struct, frozen=True):
    """The NVLink bridges that a card takes: links of one bridge, and how many bridges it takes."""

    name_pattern: Pattern
    links_per_bridge: Annotated[int, Meta(ge=1, le=18)]
    bridges: Annotated[int, Meta(ge=1, le=4)]
    source: Source

    @property
    def links(self) -> int:
        """Links of the card with all its bridges."""
        return self.links_per_bridge * self.bridges


class NicPort(msgspec.Struct, frozen=True):
    """The highest rate of one port of a NIC chip, Gb/s; boards with less exist."""

    vendor: Hex4
    device: Hex4
    name: str
    max_gbit_s: Annotated[float, Meta(gt=0, le=10000)]
    source: Source


_BRIDGES = Table("nvlink_bridges", Bridge, key=("name_pattern",), late=("name_pattern",))
_NIC_PORTS = Table("nic_ports", NicPort, key=("vendor", "device"))


@functools.cache
def find_bridge(name: str) -> Bridge | None:
    """Return the bridges that a card of this name (NVML's) takes, or None."""
    return _BRIDGES.first_found("name_pattern", name)


@functools.cache
def nic_port(vendor: int, device: int) -> NicPort | None:
    """Return what one port of a NIC chip can do at most, by its PCI ids, or None for one not known."""
    return next((r for r in _NIC_PORTS.rows() if (r.vendor, r.device) == (f"{vendor:04x}", f"{device:04x}")), None)


_P2P_CODES = Table("p2p_codes", P2pCode, key=("code",))
_DMABUF_DRIVERS = Table("dmabuf_drivers", DmabufDriver, key=("driver",))


@functools.cache
def p2p_code(code: str, guest: bool | None = False) -> tuple[str, str] | None:
    """Return (meaning, what to do) of NVML's P2P code as nvidia-smi prints it (`GNS`), or None.

    `guest`: whether the machine is a guest; None where that is not known, so that both are said.
    """
    row = next((r for r in _P2P_CODES.rows() if r.code == code), None)
    if row is None:
        return None
    if guest is None and row.in_guest:
        return row.meaning, f"{row.fix}; {row.in_guest}"
    return row.meaning, row.in_guest if guest and row.in_guest else row.fix


@functools.cache
def dmabuf_kernel(driver: str) -> tuple[int, int] | None:
    """Return the kernel since which a NIC's PCI driver registers DMA-BUF memory, or None for a driver not known to."""
    return next((r.since_kernel for r in _DMABUF_DRIVERS.rows() if r.driver == driver), None)


@functools.cache
def rdma_half(driver: str) -> str | None:
    """Return the kernel module that makes RDMA devices of the NICs of a PCI driver (`mlx5_ib`), or None."""
    return next((r.module for r in _DMABUF_DRIVERS.rows() if r.driver == driver), None)

"""The kernel's command line, word by word: what it knows, what it ignores, what a later word takes back.

Words from Documentation/admin-guide/kernel-parameters.txt (Linux 6.14) and the parsers: `pci_setup` in
drivers/pci/pci.c with `pcibios_setup` in arch/x86/pci/common.c, `iommu_setup` in arch/x86/kernel/pci-dma.c,
`intel_iommu_setup` and `parse_amd_iommu_options` in drivers/iommu.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

import msgspec

WORDS = {
    "pci": frozenset(
        """
        earlydump off bios nobios conf1 conf2 noaer nodomains nommconf check_enable_amd_mmconf nomsi noioapicquirk
        ioapicreroute noioapicreroute biosirq rom norom nobar irqmask pirqaddr lastbus assign-busses usepirqmask nocrs
        use_crs use_e820 no_e820 routeirq skip_isa_align noearly bfsort nobfsort pcie_bus_tune_off pcie_bus_safe
        pcie_bus_perf pcie_bus_peer2peer cbiosize cbmemsize resource_alignment ecrc hpiosize hpmemsize hpmmiosize
        hpmmioprefsize hpbussize realloc noari noats pcie_scan_all big_root_window disable_acs_redir config_acs firmware
        """.split()
    ),
    "iommu": frozenset(
        """
        off force noforce biomerge panic nopanic merge nomerge soft pt nopt forcesac allowdac nodac usedac fullflush
        memaper noagp noaperture noforce calgary group_mf nobypass on
        """.split()
    ),
    "intel_iommu": frozenset("on off igfx_off forcedac strict sp_off sm_on sm_off tboot_noforce ecs_off".split()),
    "amd_iommu": frozenset(
        "fullflush off force_isolation force_enable pgtbl_v1 pgtbl_v2 irtcachedis nohugepages v2_pgsizes_only".split()
    ),
}
"""Option -> words that the kernel's parser knows. `pci=` and the others take several with commas between."""

X86 = ("x86_64", "i686")
_X86_ONLY = frozenset({"iommu", "intel_iommu", "amd_iommu"})
"""Options that x86 alone parses; Power parses some words of `iommu=` (arch/powerpc/kernel/iommu.c)."""


def pass_through(machine: str | None) -> str:
    """Return the option with which the IOMMU passes DMA through, by `uname -m`: `iommu=pt` is parsed on x86 alone."""
    if machine is None:
        return "iommu=pt (on Arm iommu.passthrough=1)"
    return "iommu=pt" if machine in X86 else "iommu.passthrough=1"


def _not_here(name: str, machine: str | None) -> bool:
    """Tell whether the kernel of an architecture does not parse an option at all."""
    if machine is None or machine in X86:
        return False
    return name in _X86_ONLY and not (name == "iommu" and machine.startswith("ppc"))


_LAST_COUNTS = ("disable_acs_redir", "config_acs", "resource_alignment")
"""Words of `pci=` that keep one text: one that is given again replaces it (drivers/pci/pci.c)."""


class Trouble(enum.StrEnum):
    """What is the matter with a word."""

    UNKNOWN = "unknown"
    REPLACED = "replaced"
    TAKEN_BACK = "taken back"


class Doubt(msgspec.Struct, frozen=True):
    """A word that does not do what it seems to: the option as written, the word, what is wrong, the later word."""

    option: str
    word: str
    trouble: Trouble
    later: str = ""


def split(options: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (option as written, its name, one word of its value): `pci=realloc,noats` gives two."""
    for option in options:
        name, _, value = option.partition("=")
        # A list of devices after disable_acs_redir= or config_acs= has no commas of its own; its devices have `;`.
        for word in value.split(",") if name in WORDS else ():
            yield option, name, word


def doubts(options: Iterable[str], machine: str | None = None) -> tuple[Doubt, ...]:
    """Return the words that the kernel ignores, replaces by a later one, or takes back.

    Args:
        options: of the command line.
        machine: `uname -m`; None where it is not known, which is judged as x86.
    """
    options = list(options)
    out: list[Doubt] = []
    given: dict[tuple[str, str], tuple[str, str]] = {}
    for option, name, word in split(options):
        head = word.partition("=")[0]
        if head and (head not in WORDS[name] or _not_here(name, machine)):
            out.append(Doubt(option, word, Trouble.UNKNOWN))
        before = given.get((name, head))
        if name == "pci" and head in _LAST_COUNTS and before is not None and before[1] != word:
            out.append(Doubt(before[0], before[1], Trouble.REPLACED, option))
        given[name, head] = (option, word)
    heard = [o for o in options if not _not_here(o.partition("=")[0], machine)]
    settings = [(o, x) for o in heard if (x := _translation(o)) is not None]
    out += [
        Doubt(option, option.partition("=")[2], Trouble.TAKEN_BACK, settings[-1][0])
        for option, value in settings[:-1]
        if value != settings[-1][1]
    ]
    return tuple(out)


def _translation(option: str) -> str | None:
    """Return what an option says of the IOMMU's default domain: `identity`, `translated`; None for other options."""
    words = set(option.partition("=")[2].split(","))
    if option.startswith("iommu.passthrough="):
        return "identity" if words & {"1", "y", "on", "Y"} else "translated"
    if option.startswith("iommu="):
        return "identity" if "pt" in words else "translated" if "nopt" in words else None
    return None


def iommu_mode(options: Iterable[str], machine: str | None = None) -> tuple[str, str] | None:
    """Return (`off`, `identity` or `translated`, the option that says so), a later option over an earlier one.

    `machine` is `uname -m`, as some options are parsed on one architecture alone.

    None where the options leave it to the kernel's build and firmware.
    """
    switched: dict[str, tuple[str, bool]] = {}
    mode: tuple[str, str] | None = None
    for option in options:
        name, _, value = option.partition("=")
        if _not_here(name, machine):
            continue
        words = value.split(",")
        if name in ("iommu", "intel_iommu", "amd_iommu") and ("off" in words or "on" in words or "force" in words):
            switched[name] = (option, "off" in words)
        found = _translation(option)
        mode = (found, option) if found is not None else mode
    off = next((option for option, is_off in switched.values() if is_off), None)
    return ("off", off) if off is not None else mode

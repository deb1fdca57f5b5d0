"""Answers about PCI functions, in the form that sysfs has."""

from __future__ import annotations

from topocheck.readers.base import Answers

DEVICES = "/sys/bus/pci/devices"


def file(found: Answers, line: int, address: str, name: str, text: str) -> None:
    """Take down what a file of a function says."""
    found.file(line, f"{DEVICES}/{address}/{name}", text)


def speed_text(gt_s: float) -> str:
    """Return a link speed as the kernel writes it (`pci_speed_string` in Linux drivers/pci/probe.c)."""
    return f"{gt_s:.1f} GT/s PCIe"


def link(found: Answers, line: int, address: str, which: str, gt_s: float | None, lanes: int | None) -> None:
    """Take down one side of a link; `which` is `current` or `max`."""
    if gt_s is not None:
        file(found, line, address, f"{which}_link_speed", speed_text(gt_s))
    if lanes is not None:
        file(found, line, address, f"{which}_link_width", str(lanes))


def no_link(found: Answers, line: int, address: str) -> None:
    """Take down that a function has no link of PCI Express."""
    found.absent(line, "read", f"{DEVICES}/{address}/max_link_speed")


def driver(found: Answers, line: int, address: str, name: str | None) -> None:
    """Take down which driver has a function; None: no one has it."""
    path = f"{DEVICES}/{address}/driver"
    if name is None:
        found.absent(line, "readlink", path)
    else:
        found.put(line, f"../../../../bus/pci/drivers/{name}", "readlink", path)


def place(found: Answers, line: int, address: str, path: str) -> None:
    """Take down where a function is: its path below /sys/devices."""
    found.put(line, path, "realpath", f"{DEVICES}/{address}")

"""What enters of the kernel's log: messages about GPUs, NICs and ports, and nothing else of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topocheck.host.live.kmsg import message, of_interest, read_kmsg
from topocheck.model.kernel_log import lost, nic_trouble, no_space, xid

BDF = "0000:3b:00.0"


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        # Linux drivers/pci/setup-res.c and setup-bus.c, before and after 6.8
        (f"pci {BDF}: BAR 1: no space for [mem size 0x800000000 64bit pref]",
         f"pci {BDF}: BAR 1: no space for [mem size 0x800000000 64bit pref]"),
        ("pcieport 0000:00:1d.4: BAR 15: no space for [mem size 0xc00000000 64bit pref]",
         "pcieport 0000:00:1d.4: BAR 15: no space for [mem size 0xc00000000 64bit pref]"),
        ("pcieport 0000:00:1d.4: bridge window [mem size 0xc00000000 64bit pref]: can't assign; no space",
         "pcieport 0000:00:1d.4: bridge window [mem size 0xc00000000 64bit pref]: can't assign; no space"),
        ("pci 0000:01:00.0: BAR 1 [mem size 0x10000000 64bit pref]: can't assign; no space",
         "pci 0000:01:00.0: BAR 1 [mem size 0x10000000 64bit pref]: can't assign; no space"),
        # the GPU's own identifier, which nothing asks for
        ("NVRM: GPU at PCI:0000:47:00: GPU-12345678-1234-1234-1234-123456789abc", None),
        # what follows an Xid's number names a process
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=train.py, GPU has fallen off the bus.",
         "NVRM: Xid (PCI:0000:3b:00): 79"),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python3, Ch 00000008", "NVRM: Xid (PCI:0000:3b:00): 31"),
        ("audit: type=1400 apparmor=DENIED profile=secret", None),
        ("usb 1-1: SerialNumber: ABCDEF0123456789", None),
        ("NVRM: loading NVIDIA UNIX x86_64 Kernel Module", None),
        # several lines in one record, as /dev/kmsg writes them (open-gpu-kernel-modules, kernel-open/nvidia/nv-pci.c)
        (f"NVRM: The NVIDIA GPU {BDF} (PCI ID: 10de:1db5)\\x0aNVRM: installed in this system is not supported by open"
         "\\x0aNVRM: nvidia.ko because it does not include the required GPU\\x0aNVRM: System Processor (GSP).",
         f"NVRM: The NVIDIA GPU {BDF} (PCI ID: 10de:1db5) installed in this system is not supported by open nvidia.ko"),
        ("NVRM: The NVIDIA Tesla K80 GPU installed in this system is\\x0aNVRM:  supported through the NVIDIA 470.xx "
         "Legacy drivers. Please",
         "NVRM: The NVIDIA Tesla K80 GPU installed in this system is supported through the NVIDIA 470.xx Legacy"),
        ("NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\\x0aNVRM: BAR1 is 0M @ 0x0 "
         f"(PCI:{BDF})",
         f"NVRM: This PCI I/O region assigned to your NVIDIA device is invalid: BAR1 is 0M @ 0x0 (PCI:{BDF})"),
        (f"NVRM: The NVIDIA GPU {BDF}\\x0aNVRM: (PCI ID: 10de:1db5) installed in this system has\\x0aNVRM: fallen off "
         "the bus and is not responding to commands.",
         f"NVRM: The NVIDIA GPU {BDF} (PCI ID: 10de:1db5) installed in this system has fallen off the bus"),
        (f"NVRM: GPU {BDF}: GPU has fallen off the bus.", f"NVRM: GPU {BDF}: GPU has fallen off the bus"),
        (f"NVRM: GPU at {BDF} has fallen off the bus.", f"NVRM: GPU at {BDF} has fallen off the bus"),
        ("nvidia: Loading of unsigned module is rejected", "Loading of unsigned module is rejected"),
        ("Loading of secrets is rejected", None),
    ],
)  # fmt: skip
def test_lines(line: str, kept: str | None) -> None:
    assert of_interest(line) == kept
    if kept is not None:
        assert of_interest(kept) == kept, "what is kept is kept again, as a snapshot is saved anew"


@given(st.text(max_size=300))
def test_any_line_is_read(line: str) -> None:
    found = of_interest(line)
    assert found is None or of_interest(found) == found
    xid(line), no_space(line), nic_trouble(line)


def test_a_record_and_its_message() -> None:
    record = "3,1543,9876543,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0"
    assert message(record) == "NVRM: Xid (PCI:0000:3b:00): 79, pid=1"
    assert message("a line of a captured log; with a mark") == "a line of a captured log; with a mark"


def test_a_gpu_off_the_bus_is_so_with_and_without_an_xid() -> None:
    for line in (
        "NVRM: Xid (PCI:0000:3b:00): 79",
        "NVRM: The NVIDIA GPU 0000:3b:00.0 (PCI ID: 10de:1db5) installed in this system has fallen off the bus",
        "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus",
        "NVRM: GPU at 0000:3b:00.0 has fallen off the bus",
    ):
        assert lost(line) == "0000:3b:00", line
    assert lost("NVRM: Xid (PCI:0000:3b:00): 31") is None
    assert lost("NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x23:0x65:1438)") is None


def test_numbers_and_addresses() -> None:
    assert xid("NVRM: Xid (PCI:0000:3b:00): 79, pid=1") == ("0000:3b:00", 79)
    assert xid("NVRM: Xid") is None
    assert no_space("pcieport 0000:00:1d.4: BAR 15: no space for [mem size 0x1]") == "0000:00:1d.4"
    assert no_space("pci 0000:01:00.0: BAR 1 [mem size 0x1]: can't assign; no space") == "0000:01:00.0"
    assert no_space("pcieport 0000:00:1d.4: bridge window [mem 0x1-0x2]: assigned") is None


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (f"mlx5_core {BDF}: poll_health:812:(pid 0): Fatal error 1 detected", "health"),
        (f"mlx5_core {BDF}: health_care:151:(pid 9): handling bad device here", "health"),
        (f"mlx5_core {BDF}: mlx5_pcie_event:301:(pid 9): Detected insufficient power on the PCIe slot (27W).", "power"),
        (
            f"mlx5_core {BDF}: Port module event[error]: module 0, Cable error, Bus stuck (I2C or data shorted)",
            "module",
        ),
        (f"mlx5_core {BDF}: wait_func:1195:(pid 9): ENABLE_HCA(0x104) timeout. Will cause a leak", "command"),
        (f"bnxt_en {BDF} ens1f0np0: Firmware fatal reset event, data1: 0x1", "health"),
        (f"bnxt_en {BDF} ens1f0np0: Error (timeout: 500) msg {{0x20 0x1}} len:0", "command"),
        (f"mlx5_core {BDF}: Port module event: module 0, Cable plugged", None),
    ],
)
def test_what_drivers_of_nics_report(line: str, kind: str | None) -> None:
    kept = of_interest(line)
    assert (nic_trouble(kept) if kept is not None else None) == ((BDF, kind) if kind else None)


def test_a_log_that_ends_is_read(tmp_path: Path) -> None:
    """A captured log: one read may hold many records, of which the first line counts."""
    log = tmp_path / "kmsg"
    log.write_text("6,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79, name=x\n")
    assert read_kmsg(str(log)) == ["NVRM: Xid (PCI:0000:3b:00): 79"]


def test_a_pipe_without_a_writer_holds_nobody(tmp_path: Path) -> None:
    """Opened without waiting, as /dev/kmsg must be: a read at its end says EAGAIN."""
    fifo = tmp_path / "kmsg"
    os.mkfifo(fifo)
    assert read_kmsg(str(fifo)) == []

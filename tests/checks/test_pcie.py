"""PCIe checks on described machines with one planted fault, and on their healthy look-alikes."""

from __future__ import annotations

import pytest

from tests.checks.support import Row, assert_row, findings, healthy, variant
from topocheck.checks.shared.common import share
from topocheck.model.base import State

F, W, N, U = State.FAIL, State.WARN, State.NOTE, State.UNKNOWN
HGX = "hgx_h100_cx7"
GPU3 = "0000:5c:00.0 GPU3"
SWITCH3 = "0000:5a:00.0"
"""Upstream port of the switch above GPU3 and mlx5_3: bus 59 is the root, the first bridge leads to 5a."""

ROWS = [
    Row(id="pcie.link-width", machine=HGX, change={"patch": {"GPU3": {"now": "5x8"}}}, state=F, subject=GPU3,
        says=("x8", "x16", "half", "0000:5c:00.0", "power-cycle")),
    Row(id="pcie.link-width", machine=HGX, change={"patch": {SWITCH3: {"now": "5x4"}}}, state=F,
        subject=f"{SWITCH3} (switch)", says=("GPU3, mlx5_3", "a quarter of")),
    Row(id="pcie.link-width", machine="h100_x2_vm", change={"patch": {"GPU0": {"now": "5x8"}}}, state=U,
        says=("other end",)),
    Row(id="pcie.link-width", machine="rtx3090_x2_bridge"),
    Row(id="pcie.link-width", machine="gh200"),
    Row(id="pcie.link-width", machine="gb10"),
    Row(id="pcie.link-width", machine="no_pci", applies=False),
    Row(id="pcie.link-speed", machine=HGX, change={"patch": {"GPU3": {"now": "3x16"}}, "gpu": {"3": {"pstate": 0}}},
        state=F, subject=GPU3, says=("gen 3", "gen 5", "a quarter of")),
    # Siblings at work: the one without work may slow its link.
    Row(id="pcie.link-speed", machine=HGX,
        change={"patch": {"GPU3": {"now": "1x16"}},
                "gpu": {"3": {"pstate": 8}, **{str(i): {"utilization": 97} for i in range(8) if i != 3}}},
        state=N, subject="node", says=("idle", "not judged", "GPU3")),
    # Siblings without work keep theirs fast: 1 of 8 at 0.25 of 3.94 GB/s a lane (8b/10b, 128b/130b), a sixteenth.
    Row(id="pcie.link-speed", machine=HGX, change={"patch": {"GPU3": {"now": "1x16"}}},
        state=W, subject=GPU3, says=("gen 1", "7 of its model", "gen 5", "a sixteenth of", "topocheck bw")),
    Row(id="pcie.link-speed", machine=HGX, change={"patch": {"GPU3": {"now": "1x16"}, "GPU4": {"now": "1x16"}}},
        state=N, subject="node", says=("GPU3, GPU4",)),
    Row(id="pcie.link-speed", machine="l40s_x8", state=N, subject="node", says=("idle",)),
    # An upstream port at gen 1 above devices at gen 5 does not rest.
    Row(id="pcie.link-speed", machine=HGX, change={"patch": {SWITCH3: {"now": "1x16"}}}, state=F,
        subject=f"{SWITCH3} (switch)", says=("gen 1",)),
    Row(id="pcie.link-speed", machine=HGX,
        change={"patch": {SWITCH3: {"now": "1x16"}, "GPU3": {"now": "1x16"}, "mlx5_3": {"now": "1x16"}},
                "gpu": {str(i): {"utilization": 97} for i in range(8) if i != 3}},
        state=N, subject="node", says=("GPU3",)),
    Row(id="pcie.link-speed", machine=HGX, change={"patch": {SWITCH3: {"now": "4x16"}}}, state=F,
        subject=f"{SWITCH3} (switch)", says=("gen 4", "half")),
    # The outer level of such a switch says 5.0 GT/s x16 on machines that copy at gen 5 rates.
    Row(id="pcie.link-speed", machine=HGX, change={"patch": {SWITCH3: {"now": "2x16"}}}),
    Row(id="pcie.link-speed", machine="gb200_tray"),
    Row(id="pcie.slot-below-card", machine="rtx3090_x2_bridge", state=N, subject="0000:01:00.0 GPU0",
        says=("gen 4 x16", "gen 4 x8")),
    Row(id="pcie.slot-below-card", machine=HGX),
    Row(id="pcie.emulated-switch", machine="h26_vm_flat_a800",
        change={"patch": {"above GPU0": {"max": "1x1", "now": "1x1"}}}, state=N, says=("GPU0", "NCCL_TOPO_FILE")),
    Row(id="pcie.emulated-switch", machine="h26_vm_flat_a800"),
    Row(id="pcie.emulated-switch", machine="gb10", applies=False),
    Row(id="pcie.nic-slot-too-slow", machine=HGX, change={"patch": {"above mlx5_0": {"max": "4x16"}}}, state=W,
        subject="0000:19:00.0 mlx5_0", says=("400 Gb/s", "252 Gb/s", "63 %")),
    Row(id="pcie.nic-slot-too-slow", machine=HGX, change={"patch": {"mlx5_2": {"now": "5x8"}}}),  # link-width has it
    Row(id="pcie.nic-slot-too-slow", machine=HGX, change={"patch": {"mlx5_2": {"now": "3x16"}}}),  # link-speed has it
    Row(id="pcie.nic-slot-too-slow", machine=HGX, state=W, says=("252 Gb/s", "gen 4 x16"),  # two causes: slot and lanes
        change={"patch": {"above mlx5_2": {"max": "4x16"}, "mlx5_2": {"now": "4x8"}}}),
    Row(id="pcie.nic-slot-too-slow", machine="gb10", state=N, says=("200 Gb/s", "126 Gb/s")),
    Row(id="pcie.nic-slot-too-slow", machine=HGX,
        change={"patch": {"above mlx5_0": {"max": "4x16"}, "mlx5_0": {"rate": "200_Gb/sec_(4X_HDR)"}}}),
    Row(id="pcie.nic-slot-too-slow", machine="rtx4090_x8", applies=False),
    Row(id="pcie.shared-uplink", machine="dgx_a100", state=N, subject="node", says=("GPU0+GPU1", "31.5 GB/s")),
    Row(id="pcie.shared-uplink", machine=HGX),
    Row(id="pcie.device-lost", machine="gpu_lost", state=F, subject="0000:ab:00.0 GPU5", says=("Xid 79", "drain")),
    Row(id="pcie.device-lost", machine=HGX, change={"patch": {"mlx5_0": {"lost": "1"}}}, state=F,
        subject="0000:19:00.0 mlx5_0"),
    Row(id="pcie.device-lost", machine=HGX),
    Row(id="pcie.device-lost", machine="laptop"),
    Row(id="pcie.replays", machine=HGX, change={"gpu": {"3": {"replays": 101}}}, state=N, subject=GPU3, says=("101",)),
    Row(id="pcie.replays", machine=HGX, change={"gpu": {"3": {"replays": 100}}}),
    Row(id="pcie.aer-errors", machine=HGX, change={"patch": {"GPU3": {"aer_fatal": "DLP:1"}}}, state=W, subject=GPU3,
        says=("1 fatal",)),
    Row(id="pcie.aer-errors", machine=HGX, change={"patch": {SWITCH3: {"aer_nonfatal": "CmpltTO:2"}}}, state=W,
        subject=f"{SWITCH3} (port above GPU3)", says=("2 non-fatal",)),
    Row(id="pcie.aer-errors", machine=HGX, change={"patch": {"GPU3": {"aer_nonfatal": "UnsupReq:3"}}}, state=N,
        subject=GPU3),
    Row(id="pcie.aer-errors", machine=HGX, change={"patch": {"GPU3": {"aer_cor": "BadTLP:1001"}}}, state=N,
        subject=GPU3, says=("1001",)),
    Row(id="pcie.aer-errors", machine=HGX, change={"patch": {"GPU3": {"aer_cor": "BadTLP:12,RxErr:3"}}}),
    Row(id="pcie.bar1-small", machine=HGX, change={"gpu": {"3": {"bar1_mib": 256}}}),  # consistency.siblings-differ
    Row(id="pcie.bar1-small", machine=HGX, change={"gpus": {"bar1_mib": 256}}, state=W, subject=GPU3,
        says=("256 MiB", "81559 MiB", "reboot")),
    Row(id="pcie.bar1-small", machine="rtx4090_x8", state=N, subject="node", says=("256 MiB",)),
    Row(id="pcie.bar1-small", machine=HGX),
    Row(id="pcie.bar1-small", machine="laptop", applies=False),
    Row(id="pcie.max-payload-mismatch", machine=HGX, change={"patch": {"GPU3": {"mps": "512"}}}, state=W, subject=GPU3,
        says=("512 bytes below", "256 above")),
    Row(id="pcie.max-payload-mismatch", machine=HGX,
        change={"patch": {"GPU3": {"mps": "512"}, "path GPU3": {"mps": "512"}, "mlx5_3": {"mps": "512"},
                          "above mlx5_3": {"mps": "512"}}}),
    Row(id="pcie.max-payload-mismatch", machine=HGX, change={"system": {"root": False}}, state=U, says=("root",)),
    Row(id="pcie.read-request-small", machine=HGX, change={"patch": {"mlx5_4": {"mrrs": "128"}}}, state=W,
        subject="0000:9b:00.0 mlx5_4", says=("128 bytes", "7 of its model", "512")),
    Row(id="pcie.read-request-small", machine=HGX,
        change={"patch": {"mlx5_8": {"mrrs": "256"}, "mlx5_9": {"mrrs": "256"}}},
        state=W, says=("256 bytes", "Gb/s")),
    Row(id="pcie.read-request-small", machine=HGX, change={"patch": {"mlx5_4": {"mrrs": "4096"}}}),
    Row(id="pcie.read-request-small", machine=HGX, change={"system": {"root": False}}, applies=False),
    Row(id="pcie.containment", machine=HGX, change={"patch": {"above GPU1": {"dpc": "1"}}}, state=F,
        subject="0000:39:00.0 (port above GPU1)", says=("DPC triggered", "GPU1", "dmesg")),
    Row(id="pcie.containment", machine=HGX, change={"patch": {"above GPU1": {"dpc": "1"}, "GPU1": {"hidden": "1"}}},
        state=W, subject="0000:39:00.0 (port)", says=("nothing is listed below", "reset the slot")),
    Row(id="pcie.containment", machine=HGX, change={"patch": {"above GPU1": {"dpc": "0"}}}),
    Row(id="pcie.containment", machine="no_pci", applies=False),
    Row(id="consistency.gpu-missing", machine=HGX, change={"patch": {"GPU7": {"hidden": "1"}}}, state=W,
        subject="0000:cc:00.0 (port)", says=("7 switches", "7 GPUs where 8")),
    Row(id="consistency.gpu-missing", machine=HGX,
        change={"patch": {"GPU7": {"hidden": "1"}}, "system": {"root": False}}, state=W),
    # Inner switches of this board hold one device each; those of the NICs are no siblings of those of the GPUs.
    Row(id="consistency.gpu-missing", machine="dgx_a100", change={"patch": {"GPU2": {"hidden": "1"}}}, state=W),
    # A NIC that is gone leaves a place that never held a GPU.
    Row(id="consistency.gpu-missing", machine=HGX, change={"patch": {"mlx5_3": {"hidden": "1"}}}),
    # A lost GPU still is listed: that is pcie.device-lost.
    Row(id="consistency.gpu-missing", machine="gpu_lost"),
    Row(id="consistency.gpu-missing", machine="rtx6000ada_x4", applies=False),
    # A card's slot without a link may be empty on purpose.
    Row(id="consistency.gpu-missing", machine="l40s_x8",
        change={"patch": {"GPU7": {"hidden": "1"}}, "system": {"root": False}}),
    Row(id="consistency.gpu-missing", machine="h100_x2_vm", applies=False),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_row(row: Row) -> None:
    """Each check fires on its fault, with subject and numbers, and is quiet on the look-alike."""
    assert_row(row)


def test_evidence_quotes_both_ends() -> None:
    """A narrow link shows what both ends say, by file."""
    (f,) = findings("pcie.link-width", variant(HGX, patch={"GPU3": {"now": "5x8"}}))
    at = "/sys/bus/pci/devices/"
    quoted = {e.source: e.raw for e in f.evidence}
    assert quoted[f"{at}0000:5c:00.0/current_link_width"] == "8"
    assert quoted[f"{at}0000:5c:00.0/max_link_width"] == "16"
    assert quoted[f"{at}0000:5b:00.0/max_link_width"] == "16"


def test_a_lost_gpu_spoils_nothing_else() -> None:
    """The link of a lost GPU, which reads x63, is no second finding, and its siblings stay quiet."""
    assert findings("pcie.link-width", healthy("gpu_lost")) == ()
    assert findings("pcie.link-speed", healthy("gpu_lost")) == ()


def test_a_gpu_that_answers_on_the_bus_may_have_lost_its_gsp() -> None:
    """Xid 79 is of the bus; 119 and 120 are of a GSP that stopped answering (NVIDIA, Xid Errors)."""
    (gone,) = findings("pcie.device-lost", healthy("gpu_lost"))
    assert "Xid 79" in (gone.fix or "")
    assert "119" not in (gone.fix or "")
    (f,) = findings("pcie.device-lost", variant(HGX, gpu={"2": {"error": "Unknown"}}))
    assert all(number in (f.fix or "") for number in ("79", "119", "120"))


def test_idle_is_told_once() -> None:
    """Eight resting GPUs make one note."""
    assert len(findings("pcie.link-speed", healthy("l40s_x8"))) == 1


@pytest.mark.parametrize(
    ("now", "most", "words"),
    [(8, 16, "half"), (4, 16, "a quarter of"), (12, 16, "three quarters of"), (5, 16, "31 % of")],
)
def test_share(now: int, most: int, words: str) -> None:
    """Halves and quarters in words, the rest in percent."""
    assert share(now, most) == words

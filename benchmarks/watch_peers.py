"""What nvidia-smi and NVML say of a machine while `watch_gpu.py` loads it, held against what watch recorded."""

from __future__ import annotations

import itertools
import re
import statistics
import subprocess
import threading
import time
from typing import Any

REASONS = {
    "Idle": 0x1,
    "Applications Clocks Setting": 0x2,
    "SW Power Cap": 0x4,
    "HW Slowdown": 0x8,
    "Sync Boost": 0x10,
    "SW Thermal Slowdown": 0x20,
    "HW Thermal Slowdown": 0x40,
    "HW Power Brake Slowdown": 0x80,
    "Display Clock Setting": 0x100,
}
"""nvidia-smi's names of the bits of nvmlClocksEventReason* (nvml.h)."""


class Peers(threading.Thread):
    """nvidia-smi and NVML's 20 ms window, asked again and again."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.smi: list[tuple[float, float, dict[str, dict[str, int]]]] = []
        self.pcie: list[tuple[float, int, str, int]] = []
        self.why = self.no_smi = ""
        self.over = threading.Event()

    def run(self) -> None:
        """Ask until told to stop."""
        while not self.over.wait(1.2):
            self._smi()
            self._window()

    def _smi(self) -> None:
        begun = time.time()
        argv = ["nvidia-smi", "-q", "-d", "PERFORMANCE,CLOCK"]
        try:
            text = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False).stdout
        except (OSError, subprocess.TimeoutExpired) as e:
            self.no_smi = f"{type(e).__name__}: {e}"
            return
        self.smi.append((begun, time.time(), parse_smi(text)))

    def _window(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            for i in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(i)
                for name, what in (("tx", 0), ("rx", 1)):
                    at = time.time()
                    self.pcie.append((at, i, name, pynvml.nvmlDeviceGetPcieThroughput(handle, what)))
        except Exception as e:  # noqa: BLE001 - a guest may not have it: the reason is printed
            self.why = f"{type(e).__name__}: {e}"


def parse_smi(text: str) -> dict[str, dict[str, int]]:
    """Return address -> `sm` (MHz) and `reasons` (bits) of `nvidia-smi -q -d PERFORMANCE,CLOCK`."""
    out: dict[str, dict[str, int]] = {}
    for part in re.split(r"^GPU (?=[0-9A-F]{8}:)", text, flags=re.M)[1:]:
        address = part.split()[0].lower()[4:]
        bits = 0
        for name, bit in REASONS.items():
            if re.search(rf"^\s+{re.escape(name)}\s+: Active\s*$", part, re.M):
                bits |= bit
        clocks = re.search(r"^\s+Clocks\s*$(.*?)^    \S", part + "    .", re.M | re.S)
        sm = re.search(r"^\s+SM\s+: (\d+) MHz", clocks[1] if clocks else part, re.M)
        out[address] = {"reasons": bits} | ({"sm": int(sm[1])} if sm else {})
    return out


# The comparison.


def counter(samples: list[dict[str, Any]], address: str, name: str, until: float) -> tuple[float, int] | None:
    """Return (time, value) of a counter in the last sample before a moment."""
    found = None
    for s in samples:
        if s["at"] > until:
            break
        for g in s.get("gpus", ()):
            if g["address"] == address and name in g.get("counters", {}):
                found = (s["at"], g["counters"][name])
    return found


def compared(
    samples: list[dict[str, Any]], moved: dict[str, Any], address: str, name: str, unit: int
) -> dict[str, Any]:
    """Return growth of a counter from before to after a copy against the bytes copied, and the steady rates."""
    if "error" in moved:
        return {"counter": name, "address": address, "missing": moved["error"]}
    before = counter(samples, address, name, moved["begun"])
    after = counter(samples, address, name, moved["ended"] + 2.2)
    if before is None or after is None:
        return {"counter": name, "address": address, "missing": "not in the recording"}
    grown = (after[1] - before[1]) * unit
    inside = [
        (s["at"], g["counters"][name])
        for s in samples
        if moved["begun"] + 0.7 < s["at"] < moved["ended"] - 0.2
        for g in s.get("gpus", ())
        if g["address"] == address and name in g.get("counters", {})
    ]
    steps = [(b[1] - a[1]) * unit / (b[0] - a[0]) / 1e9 for a, b in itertools.pairwise(inside)]
    return {
        "counter": name,
        "address": address,
        "copied_bytes": moved["bytes"],
        "counted_bytes": grown,
        "percent": round(100 * (grown / moved["bytes"] - 1), 3),
        "copied_gb_s": round(moved["gb_s"], 2),
        "overall_gb_s": round(moved["bytes"] / (moved["ended"] - moved["begun"]) / 1e9, 2),
        "watch_gb_s": round(statistics.median(steps), 2) if steps else None,
    }


def clocks_agree(samples: list[dict[str, Any]], peers: Peers) -> list[dict[str, Any]]:
    """Return nvidia-smi's clocks and reasons next to the samples around each."""
    out = []
    for begun, ended, found in peers.smi:
        around = [s for s in samples if begun - 0.8 < s["at"] < ended + 0.8]
        for address, smi in found.items():
            mine = [g for s in around for g in s.get("gpus", ()) if g["address"] == address]
            clocks = [g["clock_sm_mhz"] for g in mine if isinstance(g.get("clock_sm_mhz"), int)]
            reasons = [g["clock_reasons"] for g in mine if isinstance(g.get("clock_reasons"), int)]
            if not clocks or "sm" not in smi:
                continue
            out.append(
                {
                    "at": round(begun - samples[0]["at"], 1),
                    "address": address,
                    "smi_mhz": smi["sm"],
                    "watch_mhz": [min(clocks), max(clocks)],
                    "smi_reasons": hex(smi["reasons"]),
                    "watch_reasons": sorted({hex(r) for r in reasons}),
                    # One step of the clock is 15 MHz.
                    "agree": min(clocks) - 30 <= smi["sm"] <= max(clocks) + 30 and smi["reasons"] in reasons,
                }
            )
    return out

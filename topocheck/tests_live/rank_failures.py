"""Which rank is the cause of a hang or a failure, in words, from the last words of all that are heard here."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from topocheck.tests_live.roll_call import ranks_text
from topocheck.tests_live.shared_memory import SHM_STEP

if TYPE_CHECKING:
    from topocheck.tests_live.collect import Ranks

KILLED_STEP = "look for who ended it in the kernel's log (dmesg: out of memory, Xid) and in the job's log"


SILENT_STEP = (
    "look whether that rank's process still runs (its stack: py-spy dump --pid PID), what its own output says, and "
    "whether its node answers"
)


class RankState(msgspec.Struct):
    """The last word of one rank."""

    pid: int = 0
    step: int = 0
    row: str = ""
    call: str = "start"
    failed: str = ""
    cause: str = ""
    finished: bool = False


def hang_text(states: dict[int, RankState], limit: float, expected: int) -> str:
    """Name who did not answer; `expected` ranks are heard here, 0 where that is not known or a launcher has them."""
    if not states:
        return f"no rank said anything within {limit:.0f} s"
    # A rank that is stopped or dead is the cause; then one that never came; otherwise the one that is behind.
    odd = [(r, s, w) for r, s in sorted(states.items()) if (w := _process_state(s.pid))]
    absent = [r for r in range(expected) if r not in states]
    if absent and not odd:
        return f"hung after {limit:.0f} s without a word: {ranks_text(absent)} did not come; the others wait for it"
    if not expected and len(states) == 1 and not odd:
        ((r, s),) = states.items()
        return f"rank {r} waits in {s.call} ({limit:.0f} s without a word): one of the others did not come, or it hangs"
    if not odd:
        behind = min(s.step for s in states.values())
        odd = [(r, s, "") for r, s in sorted(states.items()) if s.step == behind]
        if len(odd) == len(states):
            return f"all ranks hung in {odd[0][1].call} ({limit:.0f} s without a word)"
    named = ", ".join(f"rank {r} (process {s.pid}{', ' + w if w else ''}) in {s.call}" for r, s, w in odd)
    return f"hung after {limit:.0f} s without a word: {named} did not come; the others wait for it"


def _process_state(pid: int) -> str:
    """Return `stopped`, `asleep in the kernel` or `gone` where a process is one of these; else the empty text."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "gone"
    letter = text.rpartition(")")[2].split()[0]
    return {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "asleep in the kernel", "Z": "gone"}.get(
        letter, ""
    )


def failure_text(ranks: Ranks, ended: dict[str, Any]) -> tuple[str, str]:
    """Return why the ranks ended without having done their part, and the next step.

    Args:
        ranks: their last words, and what their process printed.
        ended: the last word of the process that held them.
    """
    printed = ranks.process.printed(4000)
    text = f"{ended.get('reason', '')} {printed}"
    if "EADDRINUSE" in text or "address already in use" in text.lower():
        return f"the port where the ranks meet{' (' + ranks.port + ')' if ranks.port else ''} is in use", (
            "set MASTER_PORT to a free port, or end what listens there (ss -ltnp)"
        )
    if "No space left on device" in text:
        return "/dev/shm or the folder for temporary files is full", SHM_STEP
    told = next((s.cause for _, s in sorted(ranks.states.items()) if s.cause), "")
    if told:
        return told, SILENT_STEP
    killed = [(int(r), w) for r, w in dict(ended.get("failures") or {}).items() if w.startswith("signal")]
    # The rank that was killed is the cause; what the others say of it ("connection closed") is not.
    by_hand = [(r, w) for r, w in killed if w != "signal 15"] or killed
    if by_hand:
        r, w = by_hand[0]
        state = ranks.states.get(r, RankState())
        name = _signal_name(w)
        return f"rank {r} (process {state.pid}) was ended by {name} in {state.call}", KILLED_STEP
    # Where the others complain of a lost connection, the one that went without a word is the cause.
    lost = any(w in s.failed.lower() for s in ranks.states.values() for w in ("closed", "reset", "remote", "peer"))
    silent = [(r, s) for r, s in sorted(ranks.states.items()) if not s.failed and not s.finished]
    if lost and silent:
        r, s = silent[0]
        return f"rank {r} (process {s.pid}) ended without a word in {s.call}", KILLED_STEP
    for r, s in sorted(ranks.states.items(), key=lambda item: item[1].step):
        if s.failed:
            over_mpi = all(getattr(row, "backend", "") == "mpi" for row in ranks.rows)
            step = "" if over_mpi else "run the same again with TORCH_DISTRIBUTED_DEBUG=DETAIL"
            return f"rank {r} failed in {s.call}: {s.failed}", step
    reason = str(ended.get("reason") or "")
    if not reason:
        code = ranks.process.process.poll()
        if code is not None and code < 0:
            return f"this rank's process was ended by {_signal_name(f'signal {-code}')}", KILLED_STEP
        said = [line for line in printed.splitlines() if any(map(str.isalnum, line))] or ["it said nothing"]
        last = ([line for line in said if "Error: " in line] or said)[-1]
        reason = f"the ranks' launcher ended with status {code} ({last[:200]})"
    return reason, ""


def _signal_name(text: str) -> str:
    with contextlib.suppress(ValueError, IndexError):
        return signal.Signals(int(text.split()[1])).name
    return text

"""Which rank is the cause of a hang or a failure, in words, from the last words of all that are heard here."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Sequence
from typing import Any

import msgspec

from topocheck.process.child import Child
from topocheck.process.together import process_state
from topocheck.tests_live.launch.rank_status import lost
from topocheck.tests_live.launch.shared_memory import SHM_STEP
from topocheck.tests_live.launch.words import ranks_text

KILLED_STEP = "look for who ended it in the kernel's log (dmesg: out of memory, Xid) and in the job's log"


SILENT_STEP = (
    "check whether that rank's process still runs (its stack: py-spy dump --pid PID), what its own output says, and "
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
        return f"no rank reported anything within {limit:.0f} s"
    # A rank that is stopped or dead is the cause; then one that never came; otherwise the one that is behind.
    odd = {r: w for r, s in states.items() if (w := process_state(s.pid))}
    absent = [r for r in range(expected) if r not in states]
    if absent and not odd:
        return f"hung after {limit:.0f} s without a message: {ranks_text(absent)} did not come; the others wait for it"
    if not expected and len(states) == 1 and not odd:
        ((r, s),) = states.items()
        return (
            f"rank {r} waits in {s.call} ({limit:.0f} s without a message): one of the others did not come, or it hangs"
        )
    if not odd:
        behind = min(s.step for s in states.values())
        odd = {r: "" for r, s in states.items() if s.step == behind}
        if len(odd) == len(states):
            return f"all ranks hung in {states[min(odd)].call} ({limit:.0f} s without a message)"
    return f"hung after {limit:.0f} s without a message: {_named(odd, states)} did not come; the others wait for it"


def _named(odd: dict[int, str], states: dict[int, RankState]) -> str:
    """Return ranks, what is odd about them and where they are: `rank 1 (process 7, gone) in barrier`."""
    said = []
    for r, w in sorted(odd.items()):
        s = states.get(r, RankState())
        said.append(f"rank {r} (process {s.pid}{', ' + w if w not in ('', 'running') else ''}) in {s.call}")
    return ", ".join(said)


def failure_text(
    rows: Sequence[object], states: dict[int, RankState], process: Child, ended: dict[str, Any]
) -> tuple[str, str]:
    """Return why the ranks ended without having done their part, and the next step.

    Args:
        rows: what was to be measured.
        states: last word of each rank.
        process: the process that held them.
        ended: its last word.
    """
    printed = process.printed(4000)
    text = f"{ended.get('reason', '')} {printed}"
    if "No space left on device" in text:
        return "/dev/shm or the folder for temporary files is full", SHM_STEP
    told = next((s.cause for _, s in sorted(states.items()) if s.cause), "")
    if told:
        return told, SILENT_STEP
    ends: dict[int, int | str] = {int(r): w for r, w in dict(ended.get("failures") or {}).items()}
    killed = [(r, -w) for r, w in ends.items() if isinstance(w, int) and w < 0]
    # The rank that was killed is the cause; what the others say of it ("connection closed") is not.
    by_hand = [(r, number) for r, number in killed if number != signal.SIGTERM] or killed
    if by_hand:
        r, number = by_hand[0]
        state = states.get(r, RankState())
        name = _signal_name(number)
        return f"rank {r} (process {state.pid}) was ended by {name} in {state.call}", KILLED_STEP
    # Who is still there when the others have given up is the one they waited for.
    left = {r: w for r, w in ends.items() if isinstance(w, str)}
    failed = [s.failed for r, s in states.items() if r not in left and not s.finished]
    if left and failed and all(map(lost, failed)):
        return f"{_named(left, states)} did not come; the others waited in vain", SILENT_STEP
    # Where the others complain of a lost connection, the one that left without a message is the cause.
    gone = any(w in s.failed.lower() for s in states.values() for w in ("closed", "reset", "remote", "peer"))
    silent = [(r, s) for r, s in sorted(states.items()) if not s.failed and not s.finished]
    if gone and silent:
        r, s = silent[0]
        return f"rank {r} (process {s.pid}) ended without a message in {s.call}", KILLED_STEP
    for r, s in sorted(states.items(), key=lambda item: item[1].step):
        if s.failed:
            over_mpi = all(getattr(row, "backend", "") == "mpi" for row in rows)
            step = "" if over_mpi else "run the same again with TORCH_DISTRIBUTED_DEBUG=DETAIL"
            return f"rank {r} failed in {s.call}: {s.failed}", step
    reason = str(ended.get("reason") or "")
    if not reason:
        code = process.wait(0)
        if code is not None and code < 0:
            return f"this rank's process was ended by {_signal_name(-code)}", KILLED_STEP
        said = [line for line in printed.splitlines() if any(map(str.isalnum, line))] or ["it printed nothing"]
        last = ([line for line in said if "Error: " in line] or said)[-1]
        reason = f"the ranks' launcher ended with status {code} ({last[:200]})"
    return reason, ""


def _signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"

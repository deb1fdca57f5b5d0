"""What happens to each finding when an answer is lost: the table of docs/measurements/lost_evidence.md.

    python benchmarks/lost_evidence.py [--sampled] [--every N] [--jobs N] [--keep FOLDER] [--out FILE] [MACHINE...]

On every described machine, every recording and every machine with planted faults (tests/support/faults.py), each
recorded answer is removed in turn, then all answers of a kind, then all of a probe. Prints what must not change and
did, and writes the table of counts; exits 1 if a finding became better than unknown or a new one appeared.

With --sampled, of questions that ask the same of devices which are alike, two lose their answer (`Case.sampled`): a
quarter of an hour of CPU time for all machines, instead of hours.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.faults import case_list, case_of
from tests.support.losses import Tally

HEAD = """\
# Lost evidence

What happens to each warning and failure when an answer that it may depend on is lost. Made by

    python benchmarks/lost_evidence.py {option}--out docs/measurements/lost_evidence.md

with {machines} machines ({answers} recorded answers, {trials} trials{sampled}): all described machines, the
snapshots of real machines, and machines with planted faults, so that each check that can warn or fail does so on at
least one of them (`tests/support/faults.py`). A trial removes one answer, all answers of one kind, or all answers of
one probe: denied, timed out, not recorded, unparsable, or I/O error (`tests/support/losses.py`). A machine with a
thousand devices is left out: one trial of it takes as long as all of another.{alike}

* **tried**: trials on machines where the check warns or fails, counted per finding.
* **still**: the finding is still reported as a warning or failure.
* **unknown**: the check or a finding of it is `unknown`, and `probe.answers-lost` or `probe.failed` names the cause.
* **better**: neither of these. Must be 0.
* **worse**: a warning or failure that is not reported with all answers present. Must be 0.

`tests/checks/test_lost_evidence.py` runs a fixed part of these trials. The last two rows are the GPUDirect verdicts of
each pair, tried where they are `no` or `degraded`. ACS words that cannot be read are not counted there: they do not
change a P2P verdict, and `p2p.acs-redirect` is unknown.

| check | tried | still | unknown | better | worse |
| --- | ---: | ---: | ---: | ---: | ---: |
"""


ALIKE = """

Of single answers a sample is lost: where the same is asked of devices that are alike (same product, depth in the PCI
tree, paths, verdicts and findings) and the answers have the same form, two of them, in two different ways."""


class Result(msgspec.Struct, kw_only=True):
    """The counts of one machine, and its changes in words."""

    name: str
    answers: int
    trials: int = 0
    tallies: dict[str, Tally] = {}
    changes: list[str] = []
    seconds: float = 0.0


LARGE = ("thousand_devices",)
MOST = 8000
"""Trials on one machine; of one with more answers a fixed part is tried."""


def run(name: str, every: int, keep: Path | None, sampled: bool) -> Result:
    """Return the result of one machine, from `keep` if it is there."""
    kept = None if keep is None else keep / f"{name.replace(' ', '_')}.json"
    if kept is not None and kept.exists():
        return msgspec.json.decode(kept.read_bytes(), type=Result)
    began = time.process_time()
    case = case_of(name)
    result = Result(name=name, answers=len(case.questions))
    part = max(every, -(-len(case.questions) // MOST))
    for trial in case.sampled(every) if sampled else case.trials(part):
        result.changes += map(str, case.changes(trial, result.tallies))
        result.trials += 1
    result.seconds = time.process_time() - began
    if kept is not None:
        kept.write_bytes(msgspec.json.encode(result))
    return result


def page(machines: int, answers: int, trials: int, tallies: dict[str, Tally], sampled: bool) -> str:
    """Return the page."""
    order = sorted(tallies, key=lambda i: (i.startswith("verdict"), i))
    rows = []
    for i in order:
        counts = " | ".join(str(getattr(tallies[i], c)) for c in Tally.__struct_fields__)
        rows.append(f"| {i if i.startswith('verdict') else f'`{i}`'} | {counts} |")
    head = HEAD.format(
        machines=machines,
        answers=f"{answers:,}",
        trials=f"{trials:,}",
        sampled=", a sample" if sampled else "",
        option="--sampled " if sampled else "",
        alike=ALIKE if sampled else "",
    )
    return head + "\n".join(rows) + "\n"


def main(argv: Iterable[str] | None = None) -> int:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("machines", nargs="*", default=[c for c in case_list() if c not in LARGE])
    parser.add_argument("--every", type=int, default=1, help="only about one trial in so many")
    parser.add_argument("--sampled", action="store_true", help="of questions to devices that are alike, two")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="folder for the result of each machine, to continue a stopped run")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    total: dict[str, Tally] = {}
    answers = trials = wrong = 0
    work = functools.partial(run, every=options.every, keep=options.keep, sampled=options.sampled)
    with ProcessPoolExecutor(options.jobs) as pool:
        for r in pool.map(work, options.machines):
            answers, trials, wrong = answers + r.answers, trials + r.trials, wrong + len(r.changes)
            for id_, t in r.tallies.items():
                total.setdefault(id_, Tally()).add(t)
            print("".join(f"{change}\n" for change in r.changes), end="")
            said = f"# {r.name}: {r.answers} answers, {r.trials} trials, {len(r.changes)} wrong, {r.seconds:.0f} s"
            print(said, file=sys.stderr, flush=True)
    text = page(len(options.machines), answers, trials, total, options.sampled)
    if options.out is None:
        print(text)
    else:
        options.out.write_text(text, encoding="utf-8")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

"""One answer lost at a time: what every finding, every check and every verdict becomes without it.

An answer is lost where it may exist and did not come: denied, not in time, not recorded, of an unknown form, or with
an error of input and output. That a file is absent, or that a driver does not offer a question, is an answer.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from tests.support.recorder import Recorder
from topocheck.checks import registry
from topocheck.gpudirect import judge as judge_gpudirect
from topocheck.gpudirect.types import P2pVerdict, RdmaVerdict
from topocheck.host.base import Answer, Host, HostError, RecordedBackend
from topocheck.model.base import Finding, Missing, ProbeStatus, Reason, State, Verdict
from topocheck.model.node import Node
from topocheck.nccl.predict.report import installed_version
from topocheck.nccl.predict.types import NcclView
from topocheck.pipeline import Report, read_node, run_checks
from topocheck.policy.types import Policy
from topocheck.probes.registry import OPTIONAL_PROBES, PROBES, Probe
from topocheck.topology.build import build

LOSSES = ("denied", "timed_out", "not_recorded", "unparsable", "error")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_PLACE = re.compile(rf"{_ADDRESS.pattern} (?=\S+ port [0-9]+$)")
_NUMBER = re.compile(r"[0-9]+")
_BAD = (State.FAIL, State.WARN)
_DRIVER = "driver.not-answering"
_CAUSES = ("probe.failed", "probe.answers-lost", _DRIVER)
_GROUND = ("pci", "nvml", "cuda", "net", "numa")
"""Facts that the topology rests on, beside the name of a hypervisor."""
_OF_A_CLASS = 2
_MOST_TEXT = 64
_OF_PAIRS = ("P2PStatus", "CommonAncestor", "CanAccessPeer")
_CLASS_NAME = re.compile(r"/sys/class/(?:net|infiniband)/([^/|]+)")
_IDENTITY = re.compile(r"(?:[0-9a-fA-F]{2,8}[:.-]){2,}[0-9a-fA-F.]+|\b(?:0x)?[0-9a-f]{8,}\b|mlx5_[0-9]+")
"""Addresses, GUIDs, UUIDs, serial numbers and names, in which devices that are alike differ."""
_WORD = re.compile(r"[\w:.]+")
_ERRORS = {"nvml": "NVMLError_Unknown", "cuda": "CUDA_ERROR_UNKNOWN"}


def error_of(loss: str, question: str) -> HostError:
    """Return the error that stands for a lost answer."""
    if loss == "error":
        return HostError(Reason.UNSUPPORTED, _ERRORS.get(question.partition(":")[0], "EIO"))
    return HostError(Reason(loss), question)


def may_be_lost(question: str, answer: Answer) -> bool:
    """Tell whether an answer is one of the machine's, and there to be lost."""
    if question.startswith(("probe:", "duration:")):
        return False
    return not isinstance(answer, HostError) or answer.reason in (Reason.ABSENT, Reason.UNSUPPORTED)


def verdicts_of(report: Report) -> Iterator[P2pVerdict | RdmaVerdict]:
    """Yield all GPUDirect verdicts."""
    yield from report.gpudirect.p2p
    yield from report.gpudirect.rdma


def is_answer(loss: str, question: str) -> bool:
    """Tell whether a refusal says what was asked: NCCL may not read that file of settings or topology either."""
    return loss == "denied" and question.startswith(("conf:", "read:/var/run/nvidia-topologyd/", "read:/etc/topo.xml"))


def kind_of(question: str) -> str:
    """Return a question without the numbers of devices, ports and links."""
    if question.startswith("pci_names:"):
        return "pci_names:"
    text = _ADDRESS.sub("ADDRESS", question)
    text = re.sub(r"(/sys/class/(?:net|infiniband)/)[^/|]+", r"\1NAME", text)
    return _NUMBER.sub("N", text)


class _Kept:
    """A probe that gives the facts, or the error, that it gave before."""

    def __init__(self, probe: Probe, host: Host) -> None:
        self.name = probe.name
        self._error: Exception | None = None
        self._facts: Any = None
        try:
            self._facts = probe.read(host)
        except Exception as e:  # noqa: BLE001 - whatever it was, it comes again
            self._error = e

    def read(self, _: Host) -> Any:
        if self._error is not None:
            raise self._error
        return self._facts


class Change(msgspec.Struct, frozen=True):
    """A finding or verdict that a lost answer changed as it must not: `better` or `worse`."""

    kind: str
    id: str
    subject: str
    before: str
    after: str
    machine: str
    lost: str

    def __str__(self) -> str:
        what = f"{self.kind}: {self.id} [{self.subject}] {self.before} -> {self.after}"
        return f"{what} on {self.machine} without {self.lost}"


class Tally(msgspec.Struct):
    """Counts of one check: losses tried where it warned or failed, and what became of the finding.

    `better` and `worse` are faults: a finding that went away without a word, and one that was not there before.
    """

    tried: int = 0
    still: int = 0
    unknown: int = 0
    better: int = 0
    worse: int = 0

    def add(self, other: Tally) -> None:
        """Add the counts of another."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Trial(msgspec.Struct, frozen=True):
    """Answers that are lost together: those to some questions, or all of a probe."""

    what: str
    loss: str
    questions: tuple[str, ...] = ()
    probe: str = ""


class Case:
    """One machine with its complete run, ready to lose answers."""

    def __init__(self, name: str, answers: Mapping[str, Answer], policy: Policy | None = None) -> None:
        self.name = name
        self.answers = dict(answers)
        self.policy = policy
        self.probes = [*PROBES, *(p for p in OPTIONAL_PROBES if f"probe:{p.name}" in self.answers)]
        self.probes = [p for p in self.probes if not isinstance(self.answers.get(f"probe:{p.name}"), HostError)]
        self.asked: dict[str, set[str]] = {}
        self.kept: dict[str, _Kept] = {}
        for p in self.probes:
            recorder = Recorder(RecordedBackend(self.answers))
            self.kept[p.name] = _Kept(p, Host(recorder, name))
            for q in recorder.answers:
                self.asked.setdefault(q, set()).add(p.name)
        self.base = self._judge(self.answers, ())
        self._marked: dict[str, Hashable] = {}
        self.questions = sorted(q for q in self.asked if q in self.answers and may_be_lost(q, self.answers[q]))

    def _judge(self, answers: Mapping[str, Answer], again: Iterable[str]) -> Report:
        """Judge anew; only the probes named in `again` are read again."""
        rerun = set(again)
        probes: list[Any] = [p if p.name in rerun else self.kept[p.name] for p in self.probes]
        node = read_node(Host(RecordedBackend(answers), self.name), probes)
        return self._report(node)

    def _report(self, node: Node) -> Report:
        """Judge as the pipeline does, but for NCCL's predictions, which no check looks at.

        What rests on facts that are still the same is taken from the complete run.
        """
        base = self.base if hasattr(self, "base") else None
        same = base is not None and all(getattr(node, f) is getattr(base.node, f) for f in _GROUND)
        same = same and node.system.hypervisor == base.node.system.hypervisor
        topology = base.topology if same else build(node)
        gpudirect = base.gpudirect if same and node.system == base.node.system else judge_gpudirect(node, topology)
        nccl = NcclView(version=installed_version(node))
        policy = msgspec.structs.replace(self.policy or Policy(), preview=True)
        context = registry.Context(node=node, topology=topology, gpudirect=gpudirect, nccl=nccl, policy=policy)
        results, findings = run_checks(context)
        return Report(node=node, topology=topology, gpudirect=gpudirect, nccl=nccl, results=results, findings=findings)

    def without(self, questions: Iterable[str], loss: str) -> Report:
        """Return the report without the answers to some questions."""
        lost = list(questions)
        answers = self.answers | {q: error_of(loss, q) for q in lost}
        return self._judge(answers, {p for q in lost for p in self.asked[q]})

    def without_probe(self, probe: str, loss: str) -> Report:
        """Return the report where a whole probe gave nothing: it was not in time, or is not in the recording."""
        own = {q for q, by in self.asked.items() if by == {probe}}
        answers = {q: a for q, a in self.answers.items() if q not in own}
        if loss == "timed_out":
            status = ProbeStatus(name=probe, state="timed_out", ms=1.0, detail="no answer in 3 s")
            answers[f"probe:{probe}"] = msgspec.to_builtins(status)
        else:
            del answers[f"probe:{probe}"]
        return self._judge(answers, {probe})

    def trials(self, part: int = 1) -> Iterator[Trial]:
        """Yield each question by itself, all questions of each kind together, and each probe as a whole.

        By itself a question is lost in one of the ways, those of a kind in another, so that all ways come up.

        Args:
            part: only about one in so many trials, always the same ones.
        """
        kinds: dict[str, list[str]] = {}
        for q in self.questions:
            kinds.setdefault(kind_of(q), []).append(q)
            if self._in(part, q):
                yield from self._trial(q, (q,))
        for kind, questions in kinds.items():
            if len(questions) > 1 and self._in(part, kind):
                yield from self._trial(f"all {kind}", tuple(questions))
        for p in self.probes:
            for loss in ("timed_out", "not_recorded"):
                # A run without the cross-check was not asked for it, and lost nothing.
                if self._in(part, p.name + loss) and (loss == "timed_out" or p not in OPTIONAL_PROBES):
                    yield Trial(f"probe {p.name}", loss, probe=p.name)

    def sampled(self, part: int = 1) -> Iterator[Trial]:
        """Yield the trials of `trials` without those that repeat another: one or two of the questions of each class.

        Questions are of one class where they ask the same of devices that are alike (`_class_of`): the eight GPUs of
        a board that nothing distinguishes, but not the one with a fault. Two of a class lose their answer in different
        ways.

        Args:
            part: only about one in so many of them, always the same ones.
        """
        classes: dict[Hashable, list[str]] = {}
        for q in self.questions:
            classes.setdefault(self._class_of(q), []).append(q)
        for same in classes.values():
            if not self._in(part, same[0]):
                continue
            first = zlib.crc32(f"{same[0]} {self.name}".encode())
            for n, q in enumerate(same[:: max(1, len(same) - 1)][:_OF_A_CLASS]):
                loss = LOSSES[(first + n) % len(LOSSES)]
                yield Trial(q, "error" if is_answer(loss, q) else loss, (q,))
        alone = set(self.questions)
        yield from (t for t in self.trials(part) if t.probe or not (len(t.questions) == 1 and t.what in alone))

    def _class_of(self, question: str) -> Hashable:
        """Return what a question asks, its answer, and what sets apart the devices that it names.

        That is where they hang, what they are, and what was found of them.
        """
        devices = self._named(question)
        if not devices:
            return question
        answer = self.answers[question]
        shape = f"{len(answer)} bytes" if isinstance(answer, bytes) and len(answer) > _MOST_TEXT else repr(answer)
        further = question.split("|")[3:]  # kind of access, capability: after the two GPUs, or the GPU and its link
        # A number that matters is one of a finding, which sets the device apart.
        return kind_of(question), *further, kind_of(_IDENTITY.sub("ID", shape)), *(self._marks(d) for d in devices)

    def _named(self, question: str) -> list[str]:
        """Return the addresses, or names, of the devices that a question is about."""
        kind, _, asked = question.partition(":")
        call, *arguments = asked.split("|")
        if kind in ("nvml", "cuda"):
            count = 2 if call.endswith(_OF_PAIRS) else 1
            return [self._gpus.get((kind, n), n) for n in arguments[:count]]
        named = _CLASS_NAME.search(question)
        return _ADDRESS.findall(question) + ([named[1]] if named is not None else [])

    @functools.cached_property
    def _gpus(self) -> dict[tuple[str, str], str]:
        """Library and number -> address of a GPU."""
        out = {("nvml", str(g.index)): g.address for g in self.base.topology.gpus}
        return out | {("cuda", str(g.cuda.ordinal)): g.address for g in self.base.topology.gpus if g.cuda is not None}

    def _marks(self, device: str) -> Hashable:
        """Return what sets a device apart from others of its kind."""
        if device not in self._marked:
            self._marked[device] = self._marks_of(device)
        return self._marked[device]

    def _marks_of(self, device: str) -> Hashable:
        topology = self.base.topology
        nic = next((n for n in topology.nics if device in (n.label, *(i.name for i in n.interfaces))), None)
        address = device if nic is None else nic.address
        names = {device, address, topology.label(address), *(n.label for n in topology.nics if n.address == address)}
        found = frozenset(
            f.id
            for f in self.base.findings
            if address in f.devices or names & set(_WORD.findall(f"{f.subject} {f.title}"))
        )
        pci = topology.devices.get(address)
        what = (None, None) if pci is None else (str(pci.vendor_id), str(pci.device_id))
        chain = topology.chains.get(address, ())
        numa = pci.numa_node if pci is not None and isinstance(pci.numa_node, Missing) else None
        paths = frozenset(
            (str(p.class_), str(p.pcie_class), str(p.crosses_nodes)) for p in topology.paths if p.from_ == address
        )
        verdicts = frozenset(v.verdict for v in verdicts_of(self.base) if address in (v.from_, v.to))
        return found, what, len(chain), numa, paths, verdicts

    def _in(self, part: int, text: str) -> bool:
        return zlib.crc32(f"{self.name} {text}".encode()) % part == 0

    def _trial(self, what: str, questions: tuple[str, ...]) -> Iterator[Trial]:
        first = zlib.crc32(f"{what} {self.name}".encode())
        loss = LOSSES[first % len(LOSSES)]
        if is_answer(loss, questions[0]):
            loss = "error"
        yield Trial(what, loss, questions)

    def report(self, trial: Trial) -> Report:
        """Return the report without the answers of a trial."""
        return self.without_probe(trial.probe, trial.loss) if trial.probe else self.without(trial.questions, trial.loss)

    def changes(self, trial: Trial, tallies: dict[str, Tally]) -> list[Change]:
        """Return what a trial changed as it must not, and count what became of every finding."""
        return list(self.compare(self.report(trial), f"{trial.what} ({trial.loss})", tallies))

    def compare(self, report: Report, lost: str, tallies: dict[str, Tally]) -> Iterator[Change]:
        """Yield what changed as it must not, and count what became of every finding."""
        before, after = self.base, report
        results = {r.id: r.state for r in after.results}
        caused = any(f.id in _CAUSES and f.state in (State.UNKNOWN, State.FAIL) for f in after.findings)
        for f in before.findings:
            if f.state not in (*_BAD, State.UNKNOWN):
                continue
            t = tallies.setdefault(f.id, Tally()) if f.state in _BAD else Tally()
            t.tried += 1
            found = [g for g in after.findings if _same(f, g)]
            if any(g.state in _BAD for g in found):
                t.still += 1
            elif any(g.state is State.UNKNOWN for g in found) or _undecided(results.get(f.id), caused):
                t.unknown += 1
            else:
                t.better += 1
                now = ",".join(g.state for g in found) or str(results.get(f.id))
                yield Change("better", f.id, f.subject, f.state, now, self.name, lost)
        for g in after.findings:
            if g.id == _DRIVER:
                continue  # that a loaded driver gave no answer, or an error, is what it reports
            if g.state in _BAD and not any(_same(f, g) and _as_bad(f.state, g.state) for f in before.findings):
                tallies.setdefault(g.id, Tally()).worse += 1
                was = ",".join(f.state for f in before.findings if _same(f, g)) or "nothing"
                yield Change("worse", g.id, g.subject, was, f"{g.state}: {g.title}", self.name, lost)
        yield from self._verdicts(report, lost, tallies)

    def _verdicts(self, report: Report, lost: str, tallies: dict[str, Tally]) -> Iterator[Change]:
        for what in ("p2p", "rdma"):
            now = {(v.from_, v.to_label): v.verdict for v in getattr(report.gpudirect, what)}
            t = tallies.setdefault(f"verdict {what}", Tally())
            for v in getattr(self.base.gpudirect, what):
                after = now.get((v.from_, v.to_label), Verdict.UNKNOWN)
                if v.verdict in (Verdict.NO, Verdict.DEGRADED):
                    t.tried += 1
                    t.still += after is v.verdict or after is Verdict.NO
                    t.unknown += after is Verdict.UNKNOWN
                worse = _VERDICTS.index(after) < _VERDICTS.index(v.verdict)
                better = not worse and after is not v.verdict
                if better and _ACS.search(lost):
                    continue
                if after is not Verdict.UNKNOWN and (worse or better):
                    t.worse += worse
                    t.better += better
                    subject = f"{v.from_label}-{v.to_label}"
                    kind = "worse" if worse else "better"
                    yield Change(kind, f"verdict {what}", subject, v.verdict, after, self.name, lost)


_ACS = re.compile(r"read:/sys/bus/pci/devices/[^/]+/(config|class)")
"""ACS words that cannot be read do not take a yes back (topocheck/gpudirect/p2p.py); `p2p.acs-redirect` tells them."""
_VERDICTS = (Verdict.NO, Verdict.DEGRADED, Verdict.UNKNOWN, Verdict.YES)


def _same(a: Finding, b: Finding) -> bool:
    """Tell whether two findings are of one check and about one thing.

    A list of devices, or `node`, may lose a member: those that share a device, or name none, are about one thing. A
    subject such as `2 ports` names its devices only in `devices`. So
    are those about one port if the PCI address of its device was lost: `0000:ac:00.0 mlx5_5 port 1`, `mlx5_5 port 1`.
    """
    if a.id != b.id:
        return False
    here, there = set(_ADDRESS.findall(a.subject)), set(_ADDRESS.findall(b.subject))
    if here and there:
        return bool(here & there)
    if set(a.devices) & set(b.devices):
        return True
    same = _PLACE.sub("", a.subject) == _PLACE.sub("", b.subject)
    return same or not (here or there) or bool({a.subject, b.subject} & {"node", "process"})


def _as_bad(before: State, after: State) -> bool:
    return before is State.FAIL or (before is State.WARN and after is State.WARN)


def _undecided(state: State | None, caused: bool) -> bool:
    """Tell whether a check says that it could not judge all: by its state, or, where others fail, by the cause."""
    return caused and state in (State.UNKNOWN, *_BAD)

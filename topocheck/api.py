"""The Python API: what the commands find, as objects. `topocheck.report()` and `topocheck.load()` end here.

The commands take a machine's answers and a policy from here as well, so what judges them is loaded in functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path as File
from typing import TYPE_CHECKING, Any

import msgspec

from topocheck.host.base import Answer, Host, RecordedBackend
from topocheck.model.base import Finding, InputError, Missing, State, Verdict

if TYPE_CHECKING:
    from topocheck.checks.result import Outcome
    from topocheck.gpudirect.types import P2pVerdict, RdmaVerdict
    from topocheck.nccl.predict.types import NcclPair
    from topocheck.pipeline import Report
    from topocheck.policy.types import Policy
    from topocheck.topology.types import Gpu, Nic, Path

Name = str | PathLike[str]


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU with another GPU or with a NIC, in one direction.

    Attributes:
        path: class, theoretical rate in GB/s (10^9 bytes/s, one direction) and hops, the narrowest of them named.
        gpudirect: the verdict of GPUDirect P2P or RDMA with its reasons; None where the pair was not judged.
        nccl: NCCL's path type and the transport that it will choose, with the rules; None where NCCL was not judged.
    """

    path: Path
    gpudirect: P2pVerdict | RdmaVerdict | None = None
    nccl: NcclPair | None = None

    @property
    def theoretical_gb_s(self) -> float | Missing:
        """Rate of the narrowest hop whose rate is known; an upper bound where `path.upper_bound`."""
        return self.path.theoretical_gb_s

    @property
    def verdict(self) -> Verdict:
        """Whether GPUDirect works between the two; unknown where it was not judged."""
        return Verdict.UNKNOWN if self.gpudirect is None else self.gpudirect.verdict


class NodeReport(msgspec.Struct, frozen=True):
    """A judged node.

    `report` holds all facts and opinions (`report.node`, `report.topology`, `report.gpudirect`, `report.nccl`); their
    fields may change between minor versions. What is here, and the JSON document, does not.
    """

    report: Report
    policy: Policy

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the checks found, worst first, each with evidence and, where there is one, a fix."""
        return self.report.findings

    @property
    def state(self) -> State:
        """The worst state of all findings: ok, note, warn, fail or unknown."""
        return self._outcome.state

    @property
    def exit_code(self) -> int:
        """What `topocheck check` ends with: 0 healthy, 1 failed, 3 something required is unknown."""
        return self._outcome.exit_code

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs, by their numbers."""
        return self.report.topology.gpus

    @property
    def nics(self) -> tuple[Nic, ...]:
        """The RDMA NICs."""
        return self.report.topology.nics

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Every ordered pair of GPUs, and every GPU with every NIC."""
        return self._joined(self.report.topology.paths)

    def pair(self, a: str, b: str) -> Pair:
        """Return one pair, by labels (`GPU0`, `mlx5_0`) or PCI addresses.

        Raises:
            LookupError: there is no such device, or nothing is said of a pair of these.
        """
        path = self.report.topology.find_path(self._address(a), self._address(b))
        if path is None:
            raise LookupError(f"no path from {a} to {b}: pairs are of two GPUs, or of a GPU and a NIC in this order")
        return self._joined((path,))[0]

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `topocheck report --format json` (`topocheck schema report`) as plain values."""
        built: dict[str, Any] = msgspec.to_builtins(self._document())
        return built

    def to_json(self) -> str:
        """Return that document as JSON."""
        from topocheck.render.report_json import encode

        return encode(self._document())

    def to_text(self, width: int = 80) -> str:
        """Return what `topocheck report` prints, without colour."""
        from topocheck.render.page import Style
        from topocheck.render.text import report_text

        return report_text(self.report, None, Style(width, False))

    def to_html(self) -> str:
        """Return the page of `topocheck report --format html`."""
        from topocheck.render.html.report import report_html

        return report_html(self.report)

    @property
    def _outcome(self) -> Outcome:
        from topocheck.checks.result import conclude

        return conclude(self.report.node, self.report.findings, self.report.results, self.policy)

    def _document(self) -> msgspec.Struct:
        from topocheck.model.version import __version__
        from topocheck.render.report_json import report_document

        return report_document(self.report, __version__)

    def _address(self, name: str) -> str:
        devices: tuple[Gpu | Nic, ...] = (*self.gpus, *self.nics)
        found = next((d.address for d in devices if name in (d.label, d.address)), None)
        if found is None:
            raise LookupError(f"no device {name}; there are {', '.join(d.label for d in devices) or 'none'}")
        return found

    def _joined(self, paths: Sequence[Path]) -> tuple[Pair, ...]:
        """Return paths with what was judged of the same pairs."""
        gpudirect: dict[tuple[str, str], P2pVerdict | RdmaVerdict] = {}
        gpudirect |= {(v.from_, v.to): v for v in self.report.gpudirect.p2p}
        gpudirect |= {(v.from_, v.to): v for v in self.report.gpudirect.rdma}
        nccl = {(p.from_, p.to): p for p in self.report.nccl.pairs}
        ends = [(p, (p.from_, p.to)) for p in paths]
        return tuple(Pair(path=p, gpudirect=gpudirect.get(e), nccl=nccl.get(e)) for p, e in ends)


def report(*, policy: Name | None = None, budget_s: float | None = None) -> NodeReport:
    """Judge this machine; see `topocheck.report`."""
    return _judged(host_of(answers_of(None, budget_s=budget_s), None), _policy(policy))


def load(*files: Name, policy: Name | None = None) -> NodeReport:
    """Judge a recorded machine; see `topocheck.load`."""
    from topocheck.readers.files import only_a_matrix

    if not files:
        raise InputError("load() needs a file; report() is for this machine")
    rules, paths = _policy(policy), [File(f) for f in files]
    host = host_of(answers_of(paths), paths)
    if only_a_matrix(host):
        raise InputError(
            f"{paths[0]}: a matrix of nvidia-smi alone is no machine: topocheck report --smi-topo {paths[0]}"
        )
    return _judged(host, rules)


def _judged(host: Host, policy: Policy) -> NodeReport:
    from topocheck.pipeline import build_report

    return NodeReport(build_report(host, policy), policy)


def answers_of(
    files: Sequence[File] | None, *, cross_check: bool = False, budget_s: float | None = None
) -> dict[str, Answer]:
    """Return every question with its answer, from the files of a machine, or from this machine where there are none.

    Raises:
        InputError: a file cannot be read.
    """
    if not files:
        from topocheck.collect import ask_machine

        return ask_machine(cross_check=cross_check, budget_s=budget_s)
    from topocheck.readers.files import read_files

    return read_files(files).answers


def host_of(answers: dict[str, Answer], files: Sequence[File] | None) -> Host:
    """Return a host that gives these answers, called after the files they are from."""
    from topocheck.host.gather.jsonable import plain_text

    return Host(RecordedBackend(answers), ", ".join(plain_text(f.name) for f in files or ()) or "live")


def read_policy(path: File, say: Callable[[str], None] = lambda _: None) -> Policy:
    """Return the policy in a file, its names held against all checks, thresholds and probes there are.

    Args:
        path: the file.
        say: called with a line for each old name of a check.

    Raises:
        PolicyError: it cannot be used.
    """
    from topocheck.checks import threshold_names
    from topocheck.host.input import read_file
    from topocheck.policy.load import MAX_BYTES, PolicyError, parse
    from topocheck.probes.registry import PROBE_NAMES

    try:
        data = read_file(path, MAX_BYTES, "a short TOML file", name=f"policy {path}")
    except InputError as e:
        raise PolicyError(str(e)) from None
    return parse(data, str(path), threshold_names(), PROBE_NAMES, say)


def _policy(path: Name | None) -> Policy:
    from topocheck.policy.types import Policy

    return Policy() if path is None else read_policy(File(path))

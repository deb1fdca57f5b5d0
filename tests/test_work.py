"""Work grows no faster than it must: what runs and what is asked is counted on machines of n and of 2n devices.

Whatever is done for pairs may grow fourfold; all else must not grow faster than the machine, but for a sort's or a
search's logarithm.
"""

from __future__ import annotations

import contextlib
import functools
import io
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.machines.builder import Machine
from tests.machines.many import many
from tests.support.recorder import Recorder
from tests.support.work import grown, lines_run
from topocheck.checks import all_checks
from topocheck.cli.main import make_app
from topocheck.host.base import Answer, Host
from topocheck.host.recording import snapshot
from topocheck.pipeline import build_report, judge, read_node
from topocheck.probes.nvml.p2p import KINDS
from topocheck.probes.registry import PROBE_SET_VERSION
from topocheck.render import report_json as document
from topocheck.render.markdown import report_markdown
from topocheck.render.page import Style
from topocheck.render.text import SECTIONS, report_text

PAIRS, LINEAR = 4.5, 2.5

GROWING: dict[str, tuple[Callable[[int], Machine], int, float]] = {
    "GPUs and HCAs, PCIe": (lambda n: many(n, n, nvlink=False), 12, PAIRS),
    "GPUs and HCAs, NVLink": (lambda n: many(n, n), 12, PAIRS),
    "GPUs alone, NVLink": (lambda n: many(n, 0), 16, PAIRS),
    "HCAs": (lambda n: many(1, n), 32, LINEAR),
    "other PCI functions": (lambda n: many(1, 1, others=n), 64, LINEAR),
}
"""What grows -> (the machine with n of it, n, how many times the work of n that of 2n may be)."""


@pytest.fixture(scope="module", autouse=True)
def checks_are_found() -> None:
    all_checks()


@pytest.mark.slow
@pytest.mark.parametrize("what", GROWING)
def test_no_line_of_a_report_runs_more_often_than_the_machine_grows(what: str) -> None:
    machine, n, ratio = GROWING[what]
    small, large = (lines_run(functools.partial(_report, machine(x))) for x in (n, 2 * n))
    assert grown(small, large, ratio) == []
    assert sum(large.values()) < ratio * sum(small.values())


def _report(machine: Machine) -> None:
    report = build_report(machine.host())
    document.encode(document.report_document(report, "x"))
    report_text(report, tuple(SECTIONS), Style())
    report_markdown(report, None)


COMMANDS = (
    "check --from {snap}",
    "check --from {snap} --format junit",
    "placement --from {snap}",
    "emit nccl-env {snap}",
    "emit gres-conf {snap}",
    "emit rankfile {snap}",
    "nccl predict --from {snap}",
    "nccl topo --from {snap}",
    "report --from {snap} --format json -o {json}",
    "diff {json} {json}",
    "fleet {json}",
)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["GPUs and HCAs, PCIe", "HCAs"])
def test_no_line_of_a_command_runs_more_often_than_the_machine_grows(what: str, tmp_path: Path) -> None:
    machine, n, ratio = GROWING[what]
    counts = []
    for x in (n, 2 * n):
        recorder = Recorder(machine(x).backend)
        read_node(Host(recorder, "many"))
        names = {"snap": str(tmp_path / f"{x}.snap"), "json": str(tmp_path / f"{x}.json")}
        snapshot.save(names["snap"], recorder.answers, probe_set=PROBE_SET_VERSION)
        counts.append([lines_run(functools.partial(_command, c.format(**names).split())) for c in COMMANDS])
    for command, small, large in zip(COMMANDS, *counts, strict=True):
        assert (command, grown(small, large, ratio)) == (command, [])
        assert 1000 < sum(large.values()) < ratio * sum(small.values()), command


def _command(words: list[str]) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        make_app(words[0])(words, standalone_mode=False)


class _Asked:
    """A backend around another that counts the questions by kind, and by call where one says what it asks."""

    def __init__(self, machine: Machine) -> None:
        self._inner = machine.backend
        self.counts: Counter[str] = Counter()

    def ask(self, kind: str, *args: str | int) -> Answer:
        """Count, and pass on."""
        self.counts[f"{kind}:{args[0]}" if kind in ("nvml", "cuda") else kind] += 1
        return self._inner.ask(kind, *args)


PAIR_CALLS = {"nvml:DeviceGetP2PStatus", "nvml:DeviceGetTopologyCommonAncestor", "cuda:DeviceCanAccessPeer"}


@pytest.mark.parametrize("what", GROWING)
def test_a_machine_is_asked_no_more_than_it_grows(what: str) -> None:
    machine, n, _ = GROWING[what]
    small, large = _Asked(machine(n)), _Asked(machine(2 * n))
    for asked in (small, large):
        read_node(Host(asked, "many"))
    for call, times in large.counts.items():
        assert times <= (PAIRS if call in PAIR_CALLS else LINEAR) * small.counts[call], call


def test_each_pair_is_asked_once_in_each_direction_and_judged_once() -> None:
    """16 GPUs and 16 HCAs make 16 * 15 ordered pairs of GPUs, and 16 * 16 of a GPU and an HCA."""
    asked = _Asked(many(16, 16))
    report = judge(read_node(Host(asked, "many")))
    assert asked.counts["cuda:DeviceCanAccessPeer"] == 16 * 15
    assert asked.counts["nvml:DeviceGetP2PStatus"] == len(KINDS) * 16 * 15
    assert len(report.topology.paths) == 16 * 15 + 16 * 16
    assert len(report.gpudirect.p2p) == 16 * 15

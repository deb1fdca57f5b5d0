"""The one-line formats: slurm-prolog, nhc, npd, nagios."""

from __future__ import annotations

import importlib
import pkgutil
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.render.formats.made import NOTE, UNSURE, WARNING, WIDTH, half_report, outcome, report
from topocheck.model.base import Finding, State
from topocheck.render import formats
from topocheck.render.formats import lines, nagios, nhc, npd, slurm_prolog


def text(name: str, *findings: Finding, **more: object) -> tuple[str, int]:
    from topocheck.render.page import Style

    unknown_fails = bool(more.pop("unknown_fails", False))
    o = outcome(*findings, **more)
    return formats.render(name, o, report(), Style(), verbose=False, unknown_fails=unknown_fails)


@pytest.mark.parametrize("name", ["slurm-prolog", "nhc"])
def test_scheduler_line(name: str) -> None:
    said, code = text(name, WIDTH)
    assert said == f"{WIDTH.title} - topocheck: pcie.link-width\n"
    assert said[:20] == "GPU3 PCIe x8 of x16:"  # the column of `sinfo -R`
    assert code == 1


@pytest.mark.parametrize("name", ["slurm-prolog", "nhc"])
def test_scheduler_says_nothing_of_a_healthy_node(name: str) -> None:
    assert text(name) == ("", 0)
    assert text(name, WARNING, NOTE, UNSURE) == ("", 0)


@pytest.mark.parametrize("name", ["slurm-prolog", "nhc"])
def test_scheduler_could_not_tell(name: str) -> None:
    assert text(name, cannot_tell=["policy x: not TOML"]) == ("policy x: not TOML - topocheck: unknown\n", 0)
    assert text(name, cannot_tell=["policy x: not TOML"], unknown_fails=True)[1] == 1
    assert text(name, WIDTH, cannot_tell=["policy x"])[0].endswith(" - topocheck: pcie.link-width\n")


def test_several_failures_are_counted() -> None:
    second = Finding(id="pcie.link-width", state=State.FAIL, subject="0000:6c:00.0 GPU4", title="x8 of x16")
    assert text("nhc", second, WIDTH)[0].rstrip().endswith("(+1 more) - topocheck: pcie.link-width")


def test_strict_names_the_warning() -> None:
    assert text("nhc", WARNING, strict=True) == ("no device tells its node - topocheck: numa.node-missing\n", 1)


def test_a_sentence_that_does_not_fit_is_cut_between_words_and_keeps_the_count() -> None:
    down = "port 1 of mlx5_5 is down (DOWN, Polling): no signal from the other end of the cable"
    first = Finding(id="no.such-check", state=State.FAIL, subject="0000:ac:00.0 mlx5_5 port 1", title=down)
    other = Finding(id="no.such-check", state=State.FAIL, subject="0000:bd:00.0 mlx5_6 port 1", title=down)
    line = nagios.render(outcome(first, other), report()).partition(" | ")[0]
    # 80 bytes: 20 of "TOPOCHECK CRITICAL: ", 10 of " (+1 more)", 3 of "..." leave 47 for whole words.
    assert line == "TOPOCHECK CRITICAL: mlx5_5 port 1: port 1 of mlx5_5 is down (DOWN,... (+1 more)"


def test_a_cut_falls_between_words_but_within_a_long_one() -> None:
    # 13 bytes less 3 for the dots leave "one two th".
    assert lines.cut("one two three four", 13) == "one two..."
    assert lines.cut("see /sys/bus/pci/devices/0000:5c:00.0/config", 40) == "see /sys/bus/pci/devices/0000:5c:00.0..."


HOSTILE = st.text(alphabet=st.one_of(st.characters(), st.sampled_from("\"'`|\n\r\x1b;=$ä日")), max_size=400)


@given(title=HOSTILE, subject=HOSTILE)
def test_lines_hold_within_their_limits(title: str, subject: str) -> None:
    f = Finding(id="pcie.link-width", state=State.FAIL, subject=subject, title=title)
    o = outcome(f)
    for said, limit in (
        (npd.render(o, report()), 80),
        (nhc.render(o, report()), lines.REASON_BYTES),
        (slurm_prolog.render(o, report()), lines.REASON_BYTES),
        (nagios.render(o, report()).partition(" | ")[0] + "\n", 80),
    ):
        assert said.endswith("\n")
        line = said[:-1]
        assert len(line.encode()) <= limit
        assert line.isprintable()
        assert '"' not in line
        assert "`" not in line
    assert nagios.render(o, report()).count("|") == 1


@given(st.text(), st.integers(3, 100))
def test_cut_is_a_beginning(said: str, limit: int) -> None:
    short = lines.cut(said, limit)
    assert len(short.encode()) <= limit
    whole = said.encode("utf-8", "replace").decode()
    assert short == whole or whole.startswith(short.removesuffix("..."))


def test_npd() -> None:
    assert text("npd") == ("healthy\n", 0)
    said, code = text("npd", WIDTH)
    assert code == 1
    # 17 bytes of the check's id and 63 of the sentence fit.
    assert said == "pcie.link-width: GPU3 PCIe x8 of x16: link between 0000:5c:00.0 and 0000:5b:00.0\n"
    assert len(said) == 81
    assert text("npd", cannot_tell=["probe nvml: timed out"]) == ("probe nvml: timed out\n", 2)


# Monitoring Plugins guidelines: 'label'=value[UOM];[warn];[crit];[min];[max], ranges [@][start:][end].
_RANGE = r"@?(?:~:|-?[\d.]+:)?(?:-?[\d.]+)?"
_PERFORMANCE = re.compile(
    rf"'([^'=]+)'=(-?[\d.]+)(us|ms|s|%|B|KB|MB|GB|TB|c)?;({_RANGE})?;({_RANGE})?;([\d.]+)?;?([\d.]+)?"
)


def perfdata(line: str) -> dict[str, re.Match[str]]:
    status, _, data = line.rstrip("\n").partition(" | ")
    assert status.startswith("TOPOCHECK ")
    out = {}
    for word in data.split(" "):
        m = _PERFORMANCE.fullmatch(word)
        assert m, word
        out[m[1]] = m
    return out


@pytest.mark.parametrize(
    ("findings", "more", "word", "code"),
    [
        ((), {}, "OK", 0),
        ((NOTE,), {}, "OK", 0),
        ((WARNING,), {}, "WARNING", 1),
        ((WIDTH, WARNING), {}, "CRITICAL", 2),
        ((WARNING,), {"cannot_tell": ["probe nvml"]}, "UNKNOWN", 3),
        ((WARNING,), {"strict": True}, "CRITICAL", 2),
    ],
)
def test_nagios_states(findings: tuple[Finding, ...], more: dict[str, object], word: str, code: int) -> None:
    said, got = text("nagios", *findings, **more)
    assert said.startswith(f"TOPOCHECK {word}: ")
    assert said.count("\n") == 1
    assert got == code
    perfdata(said)


def test_nagios_alerts_below_what_the_link_can_do() -> None:
    found = perfdata(nagios.render(outcome(WIDTH, on=half_report()), half_report()))
    # Gen 5: 32 GT/s x 128/130 / 8 = 3.938 GB/s a lane; x8 is 31.508, x16 is 63.015.
    assert found["GPU3_pcie"][2] == "31.508"
    assert found["GPU3_pcie"][5] == "63.015:"
    assert found["GPU2_pcie"][2] == "63.015"
    assert found["fail"][2] == "1"


def test_nagios_usage() -> None:
    assert nagios.usage_line("a|b\nc") == "TOPOCHECK UNKNOWN: a/b c\n"


def test_every_format_has_a_row_and_a_module() -> None:
    modules = [importlib.import_module(f"{formats.__name__}.{m.name}") for m in pkgutil.iter_modules(formats.__path__)]
    rendering = {m.__name__.rpartition(".")[2].replace("_", "-") for m in modules if hasattr(m, "render")}
    assert set(formats.NAMES) == {"text", "json"} | rendering
    for name in formats.NAMES:
        assert f"\n{name} " in "\n" + formats.conventions()
        said, _ = text(name, WIDTH)
        assert "pcie.link-width" in said or name in ("nagios", "nfd")

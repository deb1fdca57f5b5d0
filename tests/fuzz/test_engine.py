"""The fuzzer finds what is wrong: one planted fault of every kind."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest

from tests.fuzz import answers, corpus, oracles, runner, targets, trees
from tests.fuzz.case import Case, Finding, command
from tests.fuzz.client import Server
from tests.fuzz.minimise import minimise


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(1) as one:
        yield one


def found(server: Server, name: str, wall_s: float = 10.0, **more: object) -> list[Finding]:
    case = Case(call=f"tests.fuzz.planted:{name}", **more)  # type: ignore[arg-type]
    return oracles.judge(case, server.run(case, wall_s))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("traceback", "traceback"),
        ("of_a_child", "traceback"),
        ("memory", "memory"),
        ("killed", "signal"),
        ("exit_code", "exit code"),
        ("escape", "escape"),
        ("escape_in_a_file", "escape"),
        ("forged_line", "forged line"),
        ("left_behind", "left behind"),
    ],
)
def test_a_fault_is_found(server: Server, name: str, kind: str) -> None:
    assert [f.kind for f in found(server, name)] == [kind]


def test_folders_deeper_than_python_calls_itself_are_left_by_no_case(server: Server) -> None:
    deep = Case(call="tests.fuzz.planted:deep")
    for _ in range(2):
        assert oracles.judge(deep, server.run(deep)) == []
    assert server.run(Case(call="tests.fuzz.planted:fine")).out.startswith(b"fine []")


@pytest.mark.slow
def test_a_hang_is_ended_and_its_place_is_told(server: Server) -> None:
    (hang,) = found(server, "hang", wall_s=1.0)
    assert hang.kind == "hang"
    assert "in hang" in hang.detail


def test_an_order_that_changes_is_found(server: Server) -> None:
    case = Case(call="tests.fuzz.planted:order")
    with Server(2) as other:
        assert [f.kind for f in oracles.differ(case, server.run(case), other.run(case))] == ["order"]


def test_a_case_has_its_files_variables_and_input_and_leaves_nothing(server: Server) -> None:
    case = Case(
        call="tests.fuzz.planted:fine", files={"a": b"1"}, odd={"b": "fifo"}, env={"WORD": b"said"}, stdin=b"typed"
    )
    for _ in range(2):
        outcome = server.run(case)
        assert (outcome.code, outcome.out) == (0, b"fine ['a', 'b'] typed said\n")
        assert not oracles.judge(case, outcome)
    assert b"['a']" in server.run(msgspec.structs.replace(case, odd={})).out


def test_the_command_line_is_run_by_its_real_entry(server: Server) -> None:
    assert b"31.5" in server.run(Case(argv=command("pcie", "5", "8"))).out
    refused = server.run(Case(argv=command("pcie", "99", "8")))
    assert refused.code == 2
    assert refused.err.startswith(b"topocheck: ")


@pytest.mark.parametrize(
    ("out", "err", "code", "argv", "kind"),
    [
        ('{"a": NaN}', "", 0, ("fleet", "a", "--format", "json"), "form"),
        ('{"a": 1, "a": 2}', "", 0, ("fleet", "a", "--format", "json"), "form"),
        ('{"schema_version": 1}', "", 0, ("report", "--format", "json"), "schema"),
        ("<testsuites>", "", 0, ("check", "--format", "junit"), "form"),
        ("a{b} 1", "", 0, ("check", "--format", "prometheus"), "form"),
        ("", "", 2, ("report",), "error line"),
        ("", "topocheck: one\nand two\n", 2, ("report",), "error line"),
        ("", "topocheck: one\n", 3, ("report",), "exit code"),
        ("", "topocheck: one\n", 3, ("check", "--format", "npd"), "exit code"),
    ],
)
def test_output_of_another_form_is_found(out: str, err: str, code: int, argv: tuple[str, ...], kind: str) -> None:
    from tests.fuzz.case import Outcome

    outcome = Outcome(code=code, out=out.encode(), err=err.encode())
    assert kind in [f.kind for f in oracles.judge(Case(argv=command(*argv)), outcome)]


def test_a_case_is_made_small(server: Server) -> None:
    noise = b"".join(b"line %d\n" % i for i in range(100))
    case = Case(call="tests.fuzz.planted:traceback", files={"in": noise + b"bad\n" + noise, "x": noise})
    (finding,) = oracles.judge(case, server.run(case))
    small = minimise(case, finding, lambda c: oracles.judge(c, server.run(c)), seconds=300)
    assert small.files["in"].replace(b"\n", b"") == b"bad"
    assert small.files["x"] in (b"", b"\n", b"l")


@pytest.mark.slow
def test_what_is_found_can_be_run_again(tmp_path: Path) -> None:
    def make(rng: Random) -> Case:
        return Case(call="tests.fuzz.planted:traceback", files={"in": b"x\nbad\n"})

    with runner.Fuzzer(tell=lambda _: None) as fuzzer:
        fuzzer.one("planted", make, "1")
        assert fuzzer.tallies["planted"].kinds == {"traceback": 1}
        runner.keep(tmp_path, fuzzer.tallies)
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text())["finding"]["key"] == "ValueError at ?"
    assert [f.kind for f in runner.replay(file)] == ["traceback"]


@pytest.mark.slow
@pytest.mark.parametrize("target", sorted(targets.every()))
def test_the_same_seed_makes_the_same_case(target: str) -> None:
    make = targets.every()[target]
    one, two = ([make(Random(f"{target} {n}")) for n in range(5)] for _ in range(2))
    assert [c.name() for c in one] == [c.name() for c in two]
    assert len({c.name() for c in one}) > 1
    assert all(os.fsdecode(a) for c in one for a in c.argv[:1])


def test_mutations_leave_the_sound_inputs_alone() -> None:
    before = trees.to_json(corpus.report("laptop")), corpus.recording_text("laptop")
    for n in range(20):
        trees.mutated(Random(n), corpus.report("laptop"))
        trees.retouched(Random(n), corpus.report("laptop"))
        answers.mutated(Random(n), "laptop")
    assert before == (trees.to_json(corpus.report("laptop")), corpus.recording_text("laptop"))

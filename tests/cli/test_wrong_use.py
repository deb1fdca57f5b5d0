"""Wrong use: one line with what is wrong, where, the nearest right word and the help; of a file also the line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.commands import Topocheck
from topocheck.model.excerpt import excerpt, place_of_byte, place_of_key

SNAPSHOT = str(Path(__file__).parents[2] / "docs/examples/machines/hgx.snap")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("reprot", "no such command 'reprot'; did you mean report? see topocheck --help"),
        ("nccl prdict", "no such command 'prdict'; did you mean predict? see topocheck nccl --help"),
        ("report --form json", "no such option: --form; did you mean --format or --from? see topocheck report --help"),
        ("report --nope", "no such option: --nope; see topocheck report --help"),
        ("check --sample", "option '--sample' requires an argument; see topocheck check --help"),
        ("pcie", "missing argument 'GEN'; see topocheck pcie --help"),
        ("snapshot save", "missing argument 'FILE'; see topocheck snapshot save --help"),
        ("report extra", "got unexpected extra argument(s) (extra); see topocheck report --help"),
        ("report --width -1", "invalid value for '--width': -1 is not in the range x>=0; see topocheck report --help"),
        ("lab p2pp", "no lab 'p2pp'; did you mean p2p? (topocheck lab list names all)"),
        ("explain pcie.link-widht", "no check 'pcie.link-widht'; did you mean pcie.link-width, pcie.link-speed? "
         "(topocheck explain list names all)"),
        ("integrations slurm/prolg.sh", "no file 'slurm/prolg.sh'; did you mean slurm/prolog.sh? "
         "(topocheck integrations lists all)"),
        ("bw --backend ncl", "backend 'ncl': expected one of nccl, gloo, mpi; did you mean nccl?"),
        ("pcie gen9 x16", "PCIe generation 9: expected a number from 1 to 7"),
    ],
)  # fmt: skip
def test_one_line(words: str, error: str, topocheck: Topocheck) -> None:
    done = topocheck(*words.split())
    assert (done.code, done.out, done.error) == (2, "", f"topocheck: {error}\n")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "version = 1\nnics == 10\n",
            "line 2, column 7: not TOML: invalid value\n  2 | nics == 10\n    |       ^\n",
        ),
        (
            "[expect]\ngpu_cuont = 8\n",
            "line 2: expect.gpu_cuont: there is no such key; did you mean gpu_count?\n  2 | gpu_cuont = 8\n    | ^\n",
        ),
        (
            '[expect]\n  gpu_count = "8"\n',
            "line 2: expect.gpu_count: expected a whole number, found text\n"
            '  2 |   gpu_count = "8"\n    |   ^\n',
        ),
        (
            '[expect]\ngpu_count = 8\n[checks]\n"pcie.link-widht" = { severity = "warn" }\n',
            "line 4: checks.'pcie.link-widht': there is no such check; did you mean pcie.link-width?\n"
            '  4 | "pcie.link-widht" = { severity = "warn" }\n    | ^\n',
        ),
        (
            '[checks."pcie.link-width"]\nseverity = "bad"\n',
            "line 2: checks.'pcie.link-width'.severity is 'bad'; expected one of note, warn, fail\n"
            '  2 | severity = "bad"\n    | ^\n',
        ),
    ],
)  # fmt: skip
def test_a_policy_shows_its_line(text: str, error: str, topocheck: Topocheck, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(text)
    done = topocheck("check", "--from", SNAPSHOT, "--policy", "p.toml")
    assert (done.code, done.error) == (2, f"topocheck: policy p.toml: {error}")


@pytest.mark.parametrize(
    ("command", "text", "error"),
    [
        (("diff", "f", SNAPSHOT), '{"a": 1,\n "b": ,}\n', "line 2, column 7: "),
        (("bw", "--from", "f"), '{"a": 1,,}', "line 1, column 9: "),
        (("nccl", "topo", "--from", SNAPSHOT, "--input", "f"), "<system><cpu></system>", "line 1, column 14: "),
        (("report", "--from", "f"), "<nvidia_smi_log>\n<gpu></gpux>\n</nvidia_smi_log>\n", "line 2, column 8: "),
        (("scale", "--simulate", "8", "--levels", "f"), "[[level]]\nx = = 1\n", "line 2, column 5: not TOML"),
    ],
)  # fmt: skip
def test_documents_show_their_line(
    command: tuple[str, ...], text: str, error: str, topocheck: Topocheck, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text(text)
    done = topocheck(*command)
    assert done.code == 2
    first, line, caret = done.error.splitlines()
    assert first.startswith(f"topocheck: f: {error}")
    number, column = (int(x) for x in (error.split()[1].rstrip(","), error.split()[3].rstrip(":")))
    assert line == f"  {number} | {text.splitlines()[number - 1]}"
    assert caret == f"    | {' ' * (column - 1)}^"


def test_a_long_line_is_cut_around_its_place() -> None:
    line, caret = excerpt("x" * 5000 + "!" + "y" * 5000, (1, 5001))
    assert max(len(line), len(caret)) < 120
    assert line[caret.index("^")] == "!"


@given(st.text(), st.integers(-2, 50), st.integers(1, 99))
def test_any_text_has_an_excerpt_of_two_lines_or_none(text: str, line: int, column: int) -> None:
    assert len(excerpt(text, (line, column))) in (0, 2)


@given(st.binary(max_size=80), st.integers(0, 90))
def test_any_byte_has_a_place_in_its_text(data: bytes, offset: int) -> None:
    line, column = place_of_byte(data, offset)
    assert 1 <= line <= data.count(b"\n") + 1
    assert 1 <= column <= len(data) + 1


@given(st.text(), st.lists(st.text(max_size=5), max_size=3))
def test_any_text_may_be_asked_for_a_key(text: str, keys: list[str]) -> None:
    place = place_of_key(text, keys)
    assert place is None or 1 <= place[0] <= text.count("\n") + 1

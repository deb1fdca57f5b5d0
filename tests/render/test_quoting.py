"""Each kind of quoting by itself, read back by what reads such text."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import tomllib
import unicodedata
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.hostile import PIECES, markup, spelt, unseen
from tests.support.snapshots import record
from topocheck.host.base import Host, RecordedBackend
from topocheck.model.names import is_host_name, is_nccl_word, is_slurm_node
from topocheck.pipeline import build_report
from topocheck.render import quoting

ANY = st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join))


_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
# Unicode 16.0, DerivedCoreProperties.txt: Default_Ignorable_Code_Point.
_IGNORED = (
    (0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F),
    (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
)  # fmt: skip


def test_every_character_that_cannot_be_seen_is_replaced() -> None:
    """By the categories of this Python's Unicode data, and its list of what is ignored by default."""
    hidden = {c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) in _HIDDEN} - {"\n", "\t"}
    for first, last in _IGNORED:
        hidden |= set(map(chr, range(first, last + 1)))
    seen = {c for c in map(chr, range(sys.maxunicode + 1)) if quoting.terminal_text(c) == c} - {"\ufffd"}
    assert not hidden & seen
    lost = {c for c in map(chr, range(sys.maxunicode + 1)) if c not in hidden} - seen - {"\ufffd"}
    # What a newer Unicode than this Python's has for format characters; nothing that is text.
    assert {unicodedata.category(c) for c in lost} <= {"Cn", "Mn", "Lo"}
    assert len(lost) < 10


@given(ANY)
def test_one_line(text: str) -> None:
    line = quoting.one_line(text)
    assert not unseen(line)
    assert len(line.splitlines()) <= 1


@given(st.recursive(ANY, lambda x: st.lists(x) | st.dictionaries(ANY, x), max_leaves=5))
def test_json(value: object) -> None:
    text = quoting.json_text(value)
    assert not unseen(text)
    assert json.loads(text) == value


def test_json_of_what_is_no_unicode() -> None:
    assert json.loads(quoting.json_text({"\udc80": ["a\ud800b"]})) == {"\ufffd": ["a\ufffdb"]}


@given(ANY)
def test_markdown(text: str) -> None:
    shown = " ".join(quoting.one_line(text).split())
    for written in (quoting.markdown_item(text), f"# {quoting.markdown_text(text)}"):
        found = list(markup(written))
        kinds = {kind for kind, _ in found}
        assert kinds <= {
            "bullet_list_open", "list_item_open", "paragraph_open", "inline", "text", "text_special", "paragraph_close",
            "list_item_close", "bullet_list_close", "heading_open", "heading_close",
        }  # fmt: skip
        said = "".join(content for kind, content in found if kind in ("text", "text_special"))
        assert " ".join(said.split()) == shown
    cells = [content for kind, content in markup(f"| a |\n| --- |\n{quoting.markdown_row([text])}") if kind == "text"]
    assert len(list(markup(f"| a |\n| --- |\n{quoting.markdown_row([text])}"))) < 60
    assert "a" in cells


@given(st.lists(st.tuples(ANY, st.none() | st.integers() | ANY), min_size=1))
def test_csv(rows: list[tuple[str, object]]) -> None:
    text = quoting.csv_text(("a", "b"), rows)
    assert not unseen(text)
    read = list(csv.reader(io.StringIO(text, newline="")))
    assert len(read) == len(rows) + 1 == text.count("\n")
    for (first, _), (cell, _) in zip(rows, read[1:], strict=True):
        assert cell.removeprefix("'") == quoting.one_line(first).removeprefix("'")


@pytest.mark.parametrize(
    ("value", "cell"),
    [("=1+1", "'=1+1"), ("-5", "-5"), ("+1.5e3", "+1.5e3"), ("-1+1", "'-1+1"), (" =x", "' =x"), (-5, -5), (None, "")],
)
def test_cells_that_a_spreadsheet_would_run(value: object, cell: object) -> None:
    assert quoting.csv_cell(value) == cell


@given(ANY | st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False))
def test_toml(value: str | int | float) -> None:
    text = quoting.toml_value(value)
    assert not unseen(text)
    assert tomllib.loads(f"x = {text}") == {"x": value}


@given(ANY)
def test_xml(text: str) -> None:
    ElementTree.fromstring(f"<a>{quoting.xml_comment(text)}</a>")
    root = ElementTree.Element("a", {"b": quoting.xml_text(text)})
    assert ElementTree.fromstring(ElementTree.tostring(root)).get("b") == quoting.xml_text(text)


@given(ANY)
def test_comments_and_labels(text: str) -> None:
    line = quoting.comment(text)
    assert line.startswith("#")
    assert not line.endswith("\\")
    assert len(line.splitlines()) == 1
    label = quoting.nagios_label(text)
    assert label
    assert not set(label) & set("'=|; \n\"")


@given(st.lists(ANY, min_size=1, max_size=40))
@settings(max_examples=20)
def test_reasons_stay_within_single_quotes(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    """As Node Health Check's `die` hands them to eval (nhc 1.4.3)."""
    folder = tmp_path_factory.mktemp("reasons")
    lines = [quoting.reason_text(t) for t in texts]
    assert not any(unseen(x) for x in lines)
    die = """die() { eval printf '%s\\\\n' "'$*'"; }; for line in "$@"; do die "$line"; done"""
    done = subprocess.run(["bash", "-c", die, "bash", *lines], cwd=folder, capture_output=True, check=True)
    assert done.stdout.decode().split("\n") == [*lines, ""]
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "host", "word"),
    [
        ("gpu-01.example.com", True, True),
        ("n_1", True, True),
        ("mlx5_0", True, True),
        ("", False, False),
        ("-n1", False, True),
        ("n1 ", False, False),
        ("n[1-2]", False, False),
        ("n1,n2", False, False),
        ("n1#", False, False),
        ("a;b", False, False),
        ("a$(b)", False, False),
        ("a:b", False, False),
        ("eth0\n", False, False),
        ("é", False, False),
        ("x" * 254, False, False),
    ],
)
def test_names_that_files_can_hold(name: str, host: bool, word: bool) -> None:
    assert is_host_name(name) is host
    assert is_nccl_word(name) is word


def test_slurm_knows_no_node_of_these_names() -> None:
    assert is_slurm_node("n1")
    assert not is_slurm_node("DEFAULT")  # slurm.conf(5): NodeName=DEFAULT sets the defaults of all that follow
    assert not is_slurm_node("default")


def test_a_command_to_type_holds_a_name_as_one_word(tmp_path: Path) -> None:
    name = "siw0;touch pwned;$(touch pwned)"
    answers = {
        spelt(q, {"siw_eth0": name}): spelt(a, {"siw_eth0": name}) for q, a in record("h01_software_rdma").items()
    }
    found = build_report(Host(RecordedBackend(answers), "a test")).findings
    fix = next(f.fix for f in found if f.id == "rdma.software-device" and f.fix)
    typed = fix.partition("rdma link delete ")[2]
    done = subprocess.run(["sh", "-c", f"printf %s {typed}"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == name
    assert list(tmp_path.iterdir()) == []


_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), ANY),
    lambda inside: st.one_of(st.lists(inside, max_size=3), st.dictionaries(st.text(max_size=3), inside, max_size=3)),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=3), _VALUES, max_size=4), st.lists(_VALUES, max_size=5), st.integers(1, 3))
def test_json_in_pieces_is_the_json_of_the_whole(plain: dict[str, object], items: list[object], piece: int) -> None:
    def members(one: object, other: object) -> quoting.Members:
        inside = quoting.Members({"of it": other, **plain})
        return quoting.Members({**plain, "list": one, "inside": inside, "empty": quoting.Members()})

    whole = quoting.json_text(members(items, items))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quoting, "_ITEMS", piece)
        assert "".join(quoting.json_pieces(members(iter(items), iter(items)))) == whole

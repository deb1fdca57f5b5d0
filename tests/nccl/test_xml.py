"""The dialect of NCCL's XML. Oracles: the standard library's XML parser for what is well formed in both."""

from __future__ import annotations

import contextlib
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.nccl import files
from topocheck.model.base import InputError
from topocheck.nccl.topofile.rules import check_topology
from topocheck.nccl.topofile.xml import MAX_DEPTH, Element, NcclXmlError, parse, parse_topology, write

# As NCCL itself writes it (two spaces a level, one attribute after the other): a dump in our own numbers.
DUMP = """<system version="1">
  <cpu host_hash="0x1" numaid="-1" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="207">
    <pci busid="0000:00:06.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="0">
      <gpu dev="0" sm="90" rank="0" gdr="1">
        <nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>
      </gpu>
    </pci>
    <nic>
      <net name="eth0" dev="0" latency="0" speed="10000" port="0" guid="0x0" gdr="0"/>
    </nic>
  </cpu>
</system>
"""


def by_standard_library(text: str | bytes) -> tuple[object, ...]:
    def walk(e: ElementTree.Element) -> tuple[object, ...]:
        return e.tag, tuple(e.attrib.items()), tuple(walk(c) for c in e)

    return walk(ElementTree.fromstring(text))


def test_a_dump_is_read_and_written_byte_for_byte():
    document = parse_topology(DUMP)
    assert document.remarks == ()
    assert write(document.root) == DUMP


@pytest.mark.parametrize("text", [DUMP, files.dgx1v(), files.hgx_h100(), files.eight_pcie_gpus(files.AMD)])
def test_content_equals_what_the_standard_library_reads(text):
    assert parse(text).root.content() == by_standard_library(text)
    assert parse(write(parse(text).root)).root.content() == by_standard_library(text)


def test_comments_line_ends_and_quotes():
    text = "<!-- a -- b > c -->\r\n<system version='1'><!-- x -->\r\n<cpu numaid='0'/>\r\n</system>\r\n"
    assert parse(text).root.content() == ("system", (("version", "1"),), (("cpu", (("numaid", "0"),), ()),))


def test_unknown_elements_and_attributes_are_kept():
    inside = '<pci busid="0000:c1:00.0"><gpu dev="0" gcn="910"><xgmi count="1"/></gpu></pci>'
    text = f'<system version="2"><cpu numaid="0">{inside}</cpu></system>'
    assert write(parse(text).root).count("xgmi") == 1
    remarks = check_topology(parse(text).root, (2, 28, 9))
    assert any("xgmi" in r.text and not r.fatal for r in remarks)
    assert any("version" in r.text and r.fatal for r in remarks)


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ('<system version="1">\n <cpu numaid="0">\n', 3, 1, "still open"),
        ('<system version="1">\n <cpu numaid="0"', 2, 17, "ends inside"),
        ('<system version="1"></cpu></system>', 1, 21, "</cpu>"),
        ("<system>\n text </system>", 2, 2, "text"),
        ('<?xml version="1.0"?><system/>', 1, 1, "prologue"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><system/>', 1, 1, "document type"),
        ("<system/><system/>", 1, 10, "second root"),
        ("<system a=1/>", 1, 8, "expected"),
        ("", 1, 1, "no element"),
        ("<!-- never closed", 1, 1, "comment"),
        ("</system>", 1, 1, "closes nothing"),
        ("< system/>", 1, 1, "name"),
    ],
)
def test_errors_say_where(text, line, column, words):
    with pytest.raises(NcclXmlError) as e:
        parse(text)
    assert (e.value.line, e.value.column) == (line, column)
    assert words in str(e.value)


def test_a_fragment_is_refused_with_its_root():
    with pytest.raises(NcclXmlError, match="root is <pci>"):
        parse_topology('<pci busid="0002:81:00.0"><gpu dev="0"/></pci>')


def test_a_file_cut_in_the_middle_says_so_at_every_place():
    for end in range(1, len(DUMP) - 2):
        with pytest.raises(NcclXmlError):
            parse_topology(DUMP[:end])


def test_entities_are_never_expanded():
    document = parse('<system name="&lol;"/>')
    assert document.root.get("name") == "&lol;"


def test_depth_size_and_number_are_limited():
    deep = "<a>" * (MAX_DEPTH + 1) + "</a>" * (MAX_DEPTH + 1)
    with pytest.raises(NcclXmlError, match="deep"):
        parse(deep)
    with pytest.raises(NcclXmlError, match="larger than"):
        parse(b" " * (9 << 20))
    with pytest.raises(NcclXmlError, match="more than"):
        parse("<system>" + "<cpu/>" * 70000 + "</system>")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('<system version="1">\t<cpu numaid="0"/></system>', "tab"),
        ('<system  version="1"/>', "several spaces"),
        ('<system\nversion="1"/>', "parted by spaces"),
        (f'<system version="1" name="{"x" * 300}"/>', "254"),
        ('<system version="1" version="2"/>', "twice"),
    ],
)
def test_where_nccl_would_stop_is_remarked(text, words):
    assert any(words in r.text for r in parse(text).remarks)


def test_several_blanks_do_not_stop_nccl_and_line_ends_do():
    # xmlGetToken (src/graph/xml.cc) takes an empty attribute for each further blank, and goes on.
    for text in ('<system  version="1"  />', '<system version="1"   name="x"/>'):
        document = parse(text)
        assert document.root.get("version") == "1"
        assert not any(r.fatal for r in document.remarks)
    for text in ('<system version="1"\nname="x"/>', '<system version="1"\n/>'):
        assert any(r.fatal for r in parse(text).remarks)


def test_rules_beyond_syntax():
    text = (
        '<system version="1"><cpu numaid="0">'
        '<pci class="0x030200" link_speed="33 GT/s"/>'
        '<pci busid="zz" class="0x030200"/><pci busid="0000:01:00.0"><gpu dev="0"><nvlink target="x"/></gpu></pci>'
        '<pci busid="0000:01:00.0"/></cpu></system>'
    )
    words = " | ".join(r.text for r in check_topology(parse(text).root, (2, 28, 9)))
    for expected in ("without busid", "is none NCCL knows", "not written dddd", "without count", "appears twice"):
        assert expected in words


def test_children_are_limited_by_version():
    text = (
        '<system version="1"><cpu numaid="0">'
        + "".join(f'<pci busid="0000:{i:02x}:00.0"/>' for i in range(40))
        + "</cpu></system>"
    )
    root = parse(text).root
    assert any("more than the 32" in r.text for r in check_topology(root, (2, 20, 5)))
    assert not any("more than" in r.text for r in check_topology(root, (2, 21, 5)))


def test_what_cannot_be_written_is_refused():
    with pytest.raises(InputError, match="cannot be written"):
        write(Element(name="system", attributes=(("name", "a\"b'c"),)))


@pytest.mark.parametrize("value", ["\x00", "\x1b[31m", "\n", "\r", "\x7f", "\x9b", "\udc80", "\ufffe", "<", "x" * 255])
def test_what_no_reader_of_xml_takes_is_refused(value):
    """XML 1.0, section 2.2 (Char); NCCL's MAX_STR_LEN is 255 with its end mark."""
    with pytest.raises(InputError, match="cannot be written"):
        write(Element(name="system", attributes=(("name", value),)))


def test_what_other_readers_take_for_an_entity_is_refused_where_a_machine_says_it():
    root = Element(name="system", attributes=(("name", "a&b"),))
    assert parse(write(root)).root.content() == root.content()
    with pytest.raises(InputError, match="cannot be written"):
        write(root, plain=True)


@pytest.mark.parametrize("value", ["a\u202eb", "a\u200bb", "a\u2069b"])
def test_what_cannot_be_seen_is_refused(value):
    with pytest.raises(InputError, match="cannot be written"):
        write(Element(name="system", attributes=(("name", value),)))


@given(st.text(alphabet="<>/=\"' abcsytem!-?&\n\t1", max_size=200))
def test_any_text_parses_or_gives_its_one_error(text):
    try:
        document = parse(text)
    except NcclXmlError:
        return
    check_topology(document.root, (2, 28, 9))


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_give_that_error(data):
    with contextlib.suppress(NcclXmlError):
        parse(data)


_NAMES = st.text(alphabet="abcxyz_0", min_size=1, max_size=6)
_VALUES = st.text(alphabet='abc 019.:/"&;>-', max_size=12)
_ELEMENTS = st.recursive(
    st.builds(
        Element, name=_NAMES, attributes=st.dictionaries(_NAMES, _VALUES, max_size=3).map(lambda d: tuple(d.items()))
    ),
    lambda inner: st.builds(Element, name=_NAMES, children=st.lists(inner, max_size=3).map(tuple)),
    max_leaves=10,
)


@given(_ELEMENTS)
def test_what_is_written_is_read_back(element):
    assert parse(write(element)).root.content() == element.content()

"""The table of NCCL's settings, and how values are read. Expected values: NCCL's sources, or C's strtol."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topocheck.knowledge import nccl, nccl_rules
from topocheck.knowledge.tables import TABLES
from topocheck.nccl.rules.values import judge_setting, read_integer, read_level

V = (2, 28, 9)


def kinds(name: str, value: str, version: tuple[int, int, int] = V) -> list[str]:
    return [p.kind for p in judge_setting(name, value, version)]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.28.9+cuda13.0", (2, 28, 9)),
        ("NCCL version 2.19.4+cuda12.2", (2, 19, 4)),
        ("v2.8.3-1", (2, 8, 3)),
        ("(2, 28, 9)", (2, 28, 9)),
        ("2.17", (2, 17, 0)),
        ("<=2.3.5", (2, 3, 5)),
        ("21805", (2, 18, 5)),
        ("2708", (2, 7, 8)),
        ("no number", None),
        ("", None),
    ],
)
def test_version_texts(text, version):
    assert nccl.parse_version(text) == version


def test_table_is_whole_and_states_its_version():
    table = nccl.settings()
    assert len(table) > 260
    for s in table.values():
        assert s.name.startswith("NCCL_")
        assert s.effect
        assert nccl.parse_version(s.since), s.name
        if s.status == "removed":
            assert nccl.version_key(s.status_version) > (0, 0, 0)
        if s.replaced_by:
            assert s.replaced_by in table, s.name
    first_line = (Path(nccl.__file__).with_name("data") / "nccl_settings.tsv").read_text().splitlines()[0]
    assert f"nccl_version: {nccl.TABLE_VERSION}" in first_line


def test_every_default_history_belongs_to_a_setting_and_ends_at_its_default():
    history: dict[str, list[nccl.DefaultChange]] = {}
    for r in TABLES["nccl_default_history"].rows():
        history.setdefault(r.name, []).append(r)
    for name, rows in history.items():
        assert nccl.lookup(name) is not None, name
        versions = [r.from_version for r in rows]
        assert versions == sorted(versions)
        assert len(set(versions)) == len(versions)


@pytest.mark.parametrize(
    ("name", "version", "default"),
    [
        ("NCCL_IB_TIMEOUT", (2, 12, 7), "14"),
        ("NCCL_IB_TIMEOUT", (2, 14, 3), "18"),
        ("NCCL_IB_TIMEOUT", (2, 22, 3), "18"),
        ("NCCL_NVLS_ENABLE", (2, 17, 1), "1"),
        ("NCCL_NET_GDR_C2C", (2, 26, 5), "0"),
        ("NCCL_PXN_C2C", (2, 27, 7), "0"),
        ("NCCL_CUMEM_ENABLE", (2, 18, 6), "0"),
        ("NCCL_IB_GID_INDEX", (2, 20, 5), "0"),
    ],
)
def test_defaults_by_version(name, version, default):
    assert nccl.default_in(name, version) == default


def test_default_today_and_of_no_setting():
    assert nccl.default_in("NCCL_IB_TIMEOUT", (2, 28, 9)).startswith("20")
    assert nccl.default_in("NCCL_NO_SUCH_THING") is None


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        # getNthreads (src/graph/tuning.cc): a multiple of 32 from 64 to 512, else 512 is taken; 160 to 640 for LL128.
        ("NCCL_NTHREADS", ("64", "96", "512", "-2"), ("100", "32", "544", "640", "0")),
        ("NCCL_LL128_NTHREADS", ("160", "640"), ("128", "672", "161")),
        # src/init.cc: ignored where it is no power of two, cut to 1 GiB.
        ("NCCL_WORK_FIFO_BYTES", ("1048576", "0x40000000"), ("1000000", "2147483648", "-1024")),
        ("NCCL_BUFFSIZE", ("4194304", "-2", "5000000"), ("-4194304",)),
        ("NCCL_P2P_MAX_PEERS", ("1", "8"), ("0",)),
        ("NCCL_L1_SHARED_MEMORY_CARVEOUT", ("0", "100"), ("101", "-5")),
        ("NCCL_SYM_CTAS", ("0", "16"), ("-3",)),
    ],
)
def test_numbers_outside_what_nccl_takes(name, good, bad):
    for value in good:
        assert kinds(name, value, (2, 30, 7)) == [], value
    for value in bad:
        assert kinds(name, value, (2, 30, 7)) == ["out_of_range"], value


def test_every_rule_for_numbers_is_of_a_setting_that_reads_numbers():
    for s in nccl.settings().values():
        if s.minimum is not None or s.maximum is not None or s.step:
            assert s.reads in ("integer", "switch"), s.name
        # What is said of a number in words is held, too.
        if s.reads == "integer" and ("in steps of" in s.accepted or "power-of-2" in s.accepted):
            assert s.step, s.name


@pytest.mark.parametrize(
    ("text", "value", "rest"),
    [
        ("0x10", 16, ""),
        ("010", 8, ""),
        ("08", 0, "8"),
        ("true", 0, "true"),
        ("1abc", 1, "abc"),
        ("-2", -2, ""),
        (" 7", 7, ""),
        ("", 0, ""),
    ],
)
def test_integers_as_c_reads_them(text, value, rest):
    assert read_integer(text) == (value, rest)


@given(st.text(alphabet="0123456789abcdefxX+- \t19", max_size=9))
def test_integers_agree_with_the_c_library(text):
    """The C library's own strtol is the oracle: base 0, and where it stopped."""
    libc = ctypes.CDLL(None)
    libc.strtol.restype = ctypes.c_long
    raw = ctypes.create_string_buffer(text.encode())
    end = ctypes.c_char_p()
    value = libc.strtol(ctypes.cast(raw, ctypes.c_char_p), ctypes.byref(end), 0)
    ours, rest = read_integer(text)
    assert ours == value
    assert rest.encode() == end.value


@pytest.mark.parametrize(
    ("text", "version", "level"),
    [
        ("PXB", V, "PXB"),
        ("SYS", V, "SYS"),
        ("pix", V, None),
        ("NODE", V, None),
        ("NVLINK", V, None),
        ("0", V, "LOC"),
        ("1", V, "PIX"),
        ("3", V, "PHB"),
        ("9", V, "SYS"),
        ("C2C", (2, 25, 1), None),
        ("C2C", (2, 26, 2), "C2C"),
        ("P2C", (2, 26, 2), None),
        ("", V, None),
    ],
)
def test_levels(text, version, level):
    assert read_level(text, version) == level


def test_a_word_for_a_number_is_read_as_zero():
    (p,) = judge_setting("NCCL_IB_DISABLE", "true", V)
    assert p.kind == "not_understood"
    assert "as 0" in p.text
    assert p.fix == "NCCL_IB_DISABLE=1"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("NCCL_P2P_DISABLE", "2", ["no_effect"]),
        ("NCCL_P2P_DISABLE", "0", []),
        ("NCCL_P2P_DISABLE", "1", ["risky"]),
        ("NCCL_P2P_LEVEL", "nvl", ["not_understood"]),
        ("NCCL_P2P_LEVEL", "3", ["deprecated"]),
        ("NCCL_IB_TIMEOUT", "99", ["out_of_range"]),
        ("NCCL_IB_TIMEOUT", "20", []),
        ("NCCL_IB_RETRY_CNT", "7", []),
        ("NCCL_DEBUG", "warn", []),
        ("NCCL_DEBUG_SUBSYS", "INIT,GRAPH", []),
        ("NCCL_DEBUG_SUBSYS", "^NET,ENV", []),
        ("NCCL_SOCKET_FAMILY", "af_inet", ["not_understood"]),
        ("NCCL_NETDEVS_POLICY", "MAX:2", []),
        ("NCCL_RINGS", "0 1", ["removed"]),
        ("NCCL_IB_GDR_LEVEL", "2", ["removed"]),
        ("NCCL_MAX_NRINGS", "4", ["deprecated"]),
        ("NCCL_GRAPH_HELPER_DISABLE", "1", ["unused"]),
        ("NCCL_IB_OOO_RQ", "1", ["not_yet"]),
        ("NCCL_TESTS_DEVICE", "1", []),
        ("NCCL_ASYNC_ERROR_HANDLING", "1", []),
        ("NCCL_P2P_DISABLE", "", []),
        ("NCCL_SOCKET_IFNAME", "eth0", []),
        ("NCCL_PROTO", "LL,ll128", ["risky"]),
        ("NCCL_PROTO", "^LL128", []),
        ("NCCL_NVLS_ENABLE", "2", []),
        ("NCCL_NVLS_ENABLE", "0x0", ["risky"]),
        ("NCCL_P2P_LEVEL", "0", ["deprecated"]),
    ],
)
def test_judgements(name, value, expected):
    assert kinds(name, value) == expected


def test_a_misspelt_name_gets_the_nearest():
    (p,) = judge_setting("NCCL_P2P_DISABEL", "1", V)
    assert p.kind == "unknown_name"
    assert p.fix == "NCCL_P2P_DISABLE=1"
    assert nccl.nearest("ib_hca") == "NCCL_IB_HCA"
    assert nccl.nearest("NCCL_XYZZY_FROBNICATE") is None


def test_removed_names_were_read_once():
    assert kinds("NCCL_WORK_FIFO_DEPTH", "1024", (2, 20, 3)) == []
    assert kinds("NCCL_WORK_FIFO_DEPTH", "1024", (2, 22, 3)) == ["removed"]


@given(st.sampled_from(sorted(nccl.settings())), st.text(max_size=30))
def test_any_value_can_be_judged(name, value):
    for p in judge_setting(name, value, V):
        assert p.text


def test_rules_by_version():
    assert not nccl_rules.has("p2p_disable_wins", (2, 5, 7))
    assert nccl_rules.has("p2p_disable_wins", (2, 6, 4))
    assert not nccl_rules.has("nvls", (2, 16, 5))
    assert nccl_rules.number("nvls_min_gpus", (2, 17, 0), 5) == 5  # before the rule existed
    assert nccl_rules.number("nvls_min_gpus", (2, 18, 1), 5) == 3
    assert nccl_rules.word("gpu_link", (2, 30, 7), "maximum") == "current"
    assert nccl_rules.path_order((2, 30, 7)).index("PXN") == 7
    assert nccl_rules.path_order((2, 27, 3)).index("P2C") == 7
    assert nccl_rules.path_order((2, 18, 1)).index("PHB") == 6


@pytest.mark.parametrize(
    ("number", "version", "path_type"),
    [(3, (2, 8, 3), "PIX"), (3, (2, 6, 4), "PXB"), (6, (2, 27, 3), "PXN"), (6, (2, 28, 9), "P2C")],
)
def test_numbers_of_path_types_by_version(number, version, path_type):
    """Numbers as logs of these versions print them: PATH_* of src/graph/topo.h."""
    assert nccl_rules.path_order(version)[number] == path_type

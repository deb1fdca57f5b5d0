"""Matrices of `nvidia-smi topo`. All matrices here are invented; the layouts are those that drivers, terminals and
people have made of them: each oddity is named in its test.
"""

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.probes.answers import host_of
from topocheck.host.base import HostError
from topocheck.model.base import Reason
from topocheck.model.smi import SmiMatrix
from topocheck.probes.smi import text as smi_text
from topocheck.probes.smi.topo import SmiTopoError, parse_matrix, read

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
"""
NV_LINE = "  NV#  = Connection traversing a bonded set of # NVLinks\n"

# Two GPUs joined by a bridge, each with a NIC of its own under the same switch, on two sockets.
TWO_BY_TWO = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV4\tPIX\tSYS\t0-31\t0\t\tN/A\n"
    "GPU1\tNV4\t X \tSYS\tPIX\t32-63\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tSYS\tPIX\tSYS\t X \t\t\t\t\n"
)
TWO_BY_TWO_CELLS = {
    "GPU0": {"GPU1": "NV4", "NIC0": "PIX", "NIC1": "SYS"},
    "GPU1": {"GPU0": "NV4", "NIC0": "SYS", "NIC1": "PIX"},
    "NIC0": {"GPU0": "PIX", "GPU1": "SYS", "NIC1": "SYS"},
    "NIC1": {"GPU0": "SYS", "GPU1": "PIX", "NIC0": "SYS"},
}


def test_raw_tabs_escapes_and_second_tab_before_gpu_numa_id():
    m = parse_matrix(TWO_BY_TWO + LEGEND + NV_LINE + "\nNIC Legend:\n\n  NIC0: mlx5_2\n  NIC1: mlx5_bond_0\n")
    assert m.cells == TWO_BY_TWO_CELLS
    assert m.cpu_affinity == {"GPU0": "0-31", "GPU1": "32-63"}
    assert m.numa_affinity == {"GPU0": "0", "GPU1": "1"}
    assert m.gpu_numa_id == {}  # N/A on a machine that is not coherent
    assert (m.device_name("NIC0"), m.device_name("NIC1"), m.device_name("GPU0")) == ("mlx5_2", "mlx5_bond_0", "GPU0")
    assert (m.kind, m.warnings) == ("m", ())


def test_escape_character_lost_on_the_way():
    assert parse_matrix(TWO_BY_TWO.replace("\x1b", "")).cells == TWO_BY_TWO_CELLS
    assert parse_matrix(TWO_BY_TWO.replace("\x1b", "^[")).cells == TWO_BY_TWO_CELLS


def test_escape_before_the_leading_tab():
    moved = TWO_BY_TWO.replace("\t\x1b[4m", "\x1b[4m\t", 1)
    assert parse_matrix(moved).cells == TWO_BY_TWO_CELLS


def ordered_pairs(matrix: SmiMatrix) -> list[tuple[str, str, str]]:
    """Return (from, to, class) of every ordered GPU/GPU pair and every GPU -> NIC pair."""
    return [(a, b, cls) for a, row in matrix.cells.items() if a.startswith("GPU") for b, cls in row.items()]


def test_ordered_pairs_of_gpus_and_to_nics():
    assert ordered_pairs(parse_matrix(TWO_BY_TWO)) == [
        ("GPU0", "GPU1", "NV4"),
        ("GPU0", "NIC0", "PIX"),
        ("GPU0", "NIC1", "SYS"),
        ("GPU1", "GPU0", "NV4"),
        ("GPU1", "NIC0", "SYS"),
        ("GPU1", "NIC1", "PIX"),
    ]


def test_header_that_lost_its_tabs_and_nics_in_port_order():
    text = (
        "\t   GPU0GPU1GPU2mlx5_0\tmlx5_2\tmlx5_1\tCPU Affinity\n"
        "GPU0\t X \tNV1\tSOC\tPIX\tSOC\tPHB\t1-1\n"
        "GPU1\tNV1\t X \tSOC\tPHB\tSOC\tPIX\t1-1\n"
        "GPU2\tSOC\tSOC\t X \tSOC\tPIX\tSOC\t2-2\n"
        "mlx5_0\tPIX\tPHB\tSOC\t X \tSOC\tPHB\n"
        "mlx5_2\tSOC\tSOC\tPIX\tSOC\t X \tSOC\n"
        "mlx5_1\tPHB\tPIX\tSOC\tPHB\tSOC\t X \n"
    )
    m = parse_matrix(text)
    assert m.columns == ("GPU0", "GPU1", "GPU2", "mlx5_0", "mlx5_2", "mlx5_1")
    assert m.cells["GPU2"] == {"GPU0": "SYS", "GPU1": "SYS", "mlx5_0": "SYS", "mlx5_2": "PIX", "mlx5_1": "SYS"}
    assert m.cells["GPU1"]["mlx5_1"] == "PIX"
    assert m.soc
    assert m.cpu_affinity == {"GPU0": "1-1", "GPU1": "1-1", "GPU2": "2-2"}
    assert m.numa_affinity == {}


def test_header_at_column_zero_is_no_row():
    m = parse_matrix("GPU0    GPU1    CPU Affinity\nGPU0     X     SOC    0-11\nGPU1    SOC     X     0-11")
    assert m.cells == {"GPU0": {"GPU1": "SYS"}, "GPU1": {"GPU0": "SYS"}}
    assert m.cpu_affinity["GPU1"] == "0-11"


def test_cells_run_together_by_a_wrapped_terminal():
    text = (
        "        GPU0    GPU1    NIC0    NIC1        NIC2\n"
        "GPU0     X      NV18    PIX     NODENODE    0-55,112-167    0               N/A\n"
        "GPU1    NV18     X      SYS     SYSPIX      70-99,102-107   1               N/A\n"
        "NIC0    PIX     SYS      X      NODENODE\n"
        "NIC1    NODE    SYS     NODE     X NODE\n"
        "NIC2    NODE    PIX     NODE    NODE X \n"
    )
    m = parse_matrix(text)
    assert m.cells["GPU1"] == {"GPU0": "NV18", "NIC0": "SYS", "NIC1": "SYS", "NIC2": "PIX"}
    assert m.cells["NIC1"] == {"GPU0": "NODE", "GPU1": "SYS", "NIC0": "NODE", "NIC2": "NODE"}
    assert m.cpu_affinity == {"GPU0": "0-55,112-167", "GPU1": "70-99,102-107"}


def test_row_wrapped_inside_a_word_is_continued_on_the_next_line():
    text = "\tGPU0 GPU1 mlx5_0\nGPU0 X NV1\n8 NO\nDE 0-3 0\nGPU1 NV18 X S\nYS 4-7 1\nmlx5_0 NODE SYS X\n"
    m = parse_matrix(text)
    assert m.cells["GPU0"] == {"GPU1": "NV18", "mlx5_0": "NODE"}
    assert m.cells["GPU1"] == {"GPU0": "NV18", "mlx5_0": "SYS"}
    assert m.cpu_affinity == {"GPU0": "0-3", "GPU1": "4-7"}


def test_numbers_as_gpu_numa_id_and_node_lists():
    m = parse_matrix(
        "        GPU0   GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
        "GPU0     X      NV6     0-71           0,3-9           2\n"
        "GPU1    NV6      X      72-143         1,11-17         10\n"
    )
    assert m.gpu_numa_id == {"GPU0": "2", "GPU1": "10"}
    assert m.numa_affinity == {"GPU0": "0,3-9", "GPU1": "1,11-17"}


def test_empty_cpu_affinity_in_raw_tabs_does_not_shift_the_rest():
    m = parse_matrix("\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t\t3\t\t7\n")
    assert (m.cpu_affinity, m.numa_affinity, m.gpu_numa_id) == ({}, {"GPU0": "3"}, {"GPU0": "7"})


def test_one_gpu_has_no_pairs():
    m = parse_matrix("\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-27\t0\t\tN/A\n" + LEGEND)
    assert (m.rows, ordered_pairs(m)) == (("GPU0",), [])


@pytest.mark.parametrize(
    "legend",
    [
        "NIC0: irdma0\nNIC1: irdma1",
        "NIC0: irdma0    NIC1: irdma1",
        "NIC Legend:\n  NIC0 irdma0\n  NIC1   irdma1",
        "  NIC0 = irdma0\n  NIC1 = irdma1",
        "NIC0 -> irdma0, NIC1 -> irdma1",
    ],
)
def test_spellings_of_the_nic_legend(legend):
    assert parse_matrix(f"{TWO_BY_TWO}\n{legend}\n").legend == {"NIC0": "irdma0", "NIC1": "irdma1"}


def test_legend_words_are_no_rows():
    m = parse_matrix(TWO_BY_TWO + LEGEND + NV_LINE)
    assert m.rows == ("GPU0", "GPU1", "NIC0", "NIC1")


def test_full_legend_without_nvlink_means_mp_and_a_cut_one_does_not():
    plain = TWO_BY_TWO.replace("NV4", "SYS")
    assert parse_matrix(plain + LEGEND).kind == "mp"
    assert parse_matrix(plain + LEGEND + NV_LINE).kind == "m"
    assert parse_matrix(plain + LEGEND.replace("  PHB", "  ---")).kind == "m"


def test_several_tables_in_one_text():
    text = (
        "$ nvidia-smi topo -m\n" + TWO_BY_TWO + "\n$ nvidia-smi topo -mp\n" + TWO_BY_TWO.replace("NV4", "SYS") +
        "\n$ nvidia-smi topo -p2p rw\n \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tCNS\tX\t\n\nLegend:\n\n"
        "nvidia-smi topo -p2p n (P2P NVLink)\n \tGPU0\tGPU1\t\n GPU0\tX\tNS\t\n GPU1\tNS\tX\t\n"
        "# nvidia-smi topo -c 48\nThe GPUs that have an affinity with CPU 48 are:\n0, 1\n"
    )  # fmt: skip
    m = parse_matrix(text)
    assert m.kind == "m"
    assert m.cells["GPU0"]["GPU1"] == "NV4"
    assert m.pcie_cells["GPU0"]["GPU1"] == "SYS"
    assert [(t.capability, t.codes) for t in m.p2p] == [
        ("rw", {"GPU0": {"GPU1": "OK"}, "GPU1": {"GPU0": "CNS"}}),
        ("n", {"GPU0": {"GPU1": "NS"}, "GPU1": {"GPU0": "NS"}}),
    ]
    assert m.warnings == ()


def test_text_with_p2p_alone():
    m = parse_matrix("$ nvidia-smi topo -p2p p\n        GPU0    GPU1\n GPU0   X       GNS\n GPU1   TNS     X\n")
    assert (m.kind, m.cells) == ("p2p", {})
    assert m.p2p[0].codes == {"GPU0": {"GPU1": "GNS"}, "GPU1": {"GPU0": "TNS"}}


def test_markdown_table_and_quoted_ticket():
    table = (
        "| | GPU0 | GPU1 | CPU Affinity |\n|---|---|---|---|\n"
        "| **GPU0** | X | PHB | 0-7 |\n| **GPU1** | PHB | X | 0-7 |\n"
    )
    assert parse_matrix(table).cells == {"GPU0": {"GPU1": "PHB"}, "GPU1": {"GPU0": "PHB"}}
    quoted = "".join(f"> # {line}\n" for line in TWO_BY_TWO.splitlines())
    assert parse_matrix(quoted).cells == TWO_BY_TWO_CELLS


@pytest.mark.parametrize("prefix", ["node7: ", "[1,0]<stdout>:  ", "2026-03-01T10:00:00Z host7 job: "])
def test_prefix_of_a_launcher_or_a_log(prefix):
    assert parse_matrix("".join(f"{prefix}{line}\n" for line in TWO_BY_TWO.splitlines())).cells == TWO_BY_TWO_CELLS


def test_line_ends_of_windows():
    assert parse_matrix(TWO_BY_TWO.replace("\n", "\r\n")).cells == TWO_BY_TWO_CELLS


def test_second_matrix_of_another_machine_is_told():
    other = TWO_BY_TWO.replace("NV4", "NV12")
    m = parse_matrix(f"{TWO_BY_TWO}\n\n{other}")
    assert m.cells == TWO_BY_TWO_CELLS
    assert m.warnings == ("the text holds 2 matrices; the first is read",)


def test_rows_of_the_nics_cut_off_takes_columns_from_the_header():
    m = parse_matrix("".join(TWO_BY_TWO.splitlines(keepends=True)[:3]))
    assert m.cells == {k: v for k, v in TWO_BY_TWO_CELLS.items() if k.startswith("GPU")}
    assert "columns taken from the header" in m.warnings[0]


def test_columns_cut_off_are_missing_not_guessed():
    m = parse_matrix("   GPU0 GPU1\nGPU0 X NODE\nGPU1 NODE X\nGPU2 SYS SYS\n")
    assert m.cells == {"GPU0": {"GPU1": "NODE"}, "GPU1": {"GPU0": "NODE"}, "GPU2": {"GPU0": "SYS", "GPU1": "SYS"}}
    assert m.class_of("GPU0", "GPU2") is None
    assert m.class_of("GPU2", "GPU2") == "X"
    assert m.warnings


def test_matrix_that_contradicts_itself_is_told():
    m = parse_matrix("\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tSYS\t X \n")
    assert m.warnings == ("line 2: GPU0 to GPU1 is PIX but GPU1 to GPU0 is SYS",)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "no matrix"),
        ("No devices were found\n", 1, "No devices were found"),
        ("\n\x1b]0;evil\x07gone\n", 1, "no matrix"),
        ("   GPU0 GPU1\nGPU0 X PIX\nGPU1 X PIX\n", 3, "expected its X below GPU1"),
        ("   GPU0 GPU1 GPU2\nGPU0 X PIX WHAT SYS\nGPU1 PIX X SYS SYS\nGPU2 SYS SYS X SYS", 2, "4 cells"),
        ("GPU0 X PIX\nGPU1 WHAT X\n", 2, "'WHAT' in row GPU1"),
        ("   GPU0 GPU1\nGPU0 X PIX SYS\nGPU1 PIX X SYS\n", 2, "one row for each column"),
        ("   GPU0 mlx5_0\nGPU0 X PIX\nmlx5_0 PIX X\nmlx5_0 PIX X\n", 4, "twice"),
        ("x" * (smi_text.MAX_LINE_CHARACTERS + 1), 1, "longer than"),
    ],
)
def test_bad_text_names_its_line(text, line, words):
    with pytest.raises(SmiTopoError) as e:
        parse_matrix(text)
    assert "\x1b" not in str(e.value)
    assert e.value.line == line
    assert words in str(e.value)


def test_too_long_a_text_is_refused():
    with pytest.raises(SmiTopoError, match="4 MiB"):
        parse_matrix("GPU0 X\n" * (smi_text.MAX_TEXT_BYTES // 7 + 1))


def test_number_of_devices_is_bounded():
    rows = "".join(f"GPU{i} PIX\n" for i in range(smi_text.MAX_LABELS + 1))
    with pytest.raises(SmiTopoError, match="more than 256 rows"):
        parse_matrix(rows)


CLASSES = st.sampled_from(["NV1", "NV4", "NV12", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS"])
NIC_NAMES = st.sampled_from(["NIC{}", "mlx5_{}", "rocep{}s0f0", "irdma{}", "mlx5_bond_{}"])


@st.composite
def matrices(draw):
    gpus = [f"GPU{i}" for i in range(draw(st.integers(1, 12)))]
    stem = draw(NIC_NAMES)
    labels = gpus + [stem.format(i) for i in range(draw(st.integers(0, 5)))]
    cells = {a: {} for a in labels}
    for a, b in itertools.combinations(labels, 2):
        cells[a][b] = cells[b][a] = draw(CLASSES)
    return labels, cells


def rendered_rows(labels, cells, affinity=("0-31,64-95", "0", "N/A")):
    for a in labels:
        tail = list(affinity) if a.startswith("GPU") else []
        yield [a] + ["X" if a == b else cells[a][b] for b in labels] + tail


def raw_tabs(labels, cells):
    lines = ["\t\x1b[4m" + "\t".join([*labels, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]) + "\x1b[0m"]
    rows = rendered_rows(labels, cells, ("0-31,64-95", "0", "", "N/A"))
    lines += ["\t".join(" X " if w == "X" else w for w in row) for row in rows]
    return "\n".join(lines) + "\n" + LEGEND + NV_LINE


def squashed(labels, cells):
    first, rest = raw_tabs(labels, cells).split("\n", 1)
    return first.replace("\t", "").replace("\x1b[4m", "").replace("\x1b[0m", "") + "\n" + rest


def blanks(labels, cells):
    return raw_tabs(labels, cells).replace("\x1b[4m", "").replace("\x1b[0m", "").expandtabs(8)


def indented(labels, cells):
    return "".join(f"        {line}\n" for line in blanks(labels, cells).splitlines())


def no_affinity(labels, cells):
    return "\n".join("  ".join(row) for row in [["     ", *labels], *rendered_rows(labels, cells, ())])


def no_header(labels, cells):
    return "\n".join("\t".join(row) for row in rendered_rows(labels, cells))


def markdown(labels, cells):
    rows = [["", *labels], ["---"] * (len(labels) + 1), *rendered_rows(labels, cells, ())]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def glued(labels, cells):
    header = "        " + "".join(f"{x:8}" for x in labels)
    return "\n".join([header, *(f"{row[0]:16}" + "".join(row[1:]) for row in rendered_rows(labels, cells, ()))])


def wrapped(labels, cells):
    lines = blanks(labels, cells).split(LEGEND.strip().split("\n")[0])[0].split("\n")
    return "\n".join(line[i : i + 50] for line in lines for i in range(0, max(1, len(line.rstrip())), 50))


LAYOUTS = [raw_tabs, squashed, blanks, indented, no_affinity, no_header, markdown, glued, wrapped]


@given(matrices(), st.sampled_from(LAYOUTS))
def test_every_layout_reads_back_to_the_same_classes(matrix, layout):
    labels, cells = matrix
    m = parse_matrix(layout(labels, cells))
    assert m.rows == tuple(labels)
    assert m.cells == cells
    assert m.warnings == ()


WORDS = st.sampled_from(
    "GPU0 GPU1 GPU10 NIC0 mlx5_0 X NV4 NV18 PIX SYS SOC NODE OK NS CNS DR U CPU Affinity 0-3 N/A Legend: = | > \x1b[4m "
    "NIC0: NO DE nvidia-smi topo -m -mp -p2p r".split()
)
MESS = st.lists(st.tuples(WORDS, st.sampled_from([" ", "\t", "\n", ""])), max_size=60).map(
    lambda pairs: "".join(a + b for a, b in pairs)
)


@given(st.one_of(st.text(max_size=400), MESS))
def test_arbitrary_text_raises_nothing_else(text):
    try:
        m = parse_matrix(text)
    except SmiTopoError:
        return
    assert m.rows
    assert all(cls != "SOC" for row in m.cells.values() for cls in row.values())


def run(stdout="", rc=0, stderr=""):
    return {"rc": rc, "stdout": stdout, "stderr": stderr}


def test_read_joins_m_and_mp():
    host = host_of(
        {
            "run:8|nvidia-smi|topo|-m": run(TWO_BY_TWO),
            "run:8|nvidia-smi|topo|-mp": run(TWO_BY_TWO.replace("NV4", "SYS")),
        }
    )
    facts = read(host)
    assert facts.error == ""
    assert facts.matrix is not None
    assert (facts.matrix.cells["GPU0"]["GPU1"], facts.matrix.pcie_cells["GPU0"]["GPU1"]) == ("NV4", "SYS")


def test_read_says_why_there_is_none():
    absent = HostError(Reason.ABSENT, "ENOENT")
    host = host_of({"run:8|nvidia-smi|topo|-m": absent, "run:8|nvidia-smi|topo|-mp": absent})
    assert "absent" in read(host).error
    failed = run("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", rc=9)
    host = host_of({"run:8|nvidia-smi|topo|-m": failed, "run:8|nvidia-smi|topo|-mp": failed})
    facts = read(host)
    assert facts.matrix is None
    assert facts.error.startswith("NVIDIA-SMI has failed")
    with pytest.raises(HostError, match="not_recorded"):
        read(host_of({}))


NA = """\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tN/A\tN/A\t0-31\t0\t\tN/A
GPU1\tNV18\t X \tN/A\tWARP9\t0-31\t0\t\tN/A
GPU2\tN/A\tN/A\t X \tNV18\t32-63\t1\t\tN/A
GPU3\tN/A\tERR!\tNV18\t X \t32-63\t1\t\tN/A
"""


def test_cells_without_a_class_cost_themselves_alone():
    """The rest of the row is read, its affinities included, and the warning names row, column and word."""
    m = parse_matrix(NA.replace("ERR!", "UNK"))
    assert m.cells == {
        "GPU0": {"GPU1": "NV18"},
        "GPU1": {"GPU0": "NV18"},
        "GPU2": {"GPU3": "NV18"},
        "GPU3": {"GPU2": "NV18"},
    }
    assert m.cpu_affinity == {"GPU0": "0-31", "GPU1": "0-31", "GPU2": "32-63", "GPU3": "32-63"}
    assert m.numa_affinity == {"GPU0": "0", "GPU1": "0", "GPU2": "1", "GPU3": "1"}
    assert any("GPU1" in w and "WARP9 below GPU3" in w for w in m.warnings)


def test_a_p2p_table_with_cells_that_are_not_applicable():
    m = parse_matrix("\tGPU0\tGPU1\tGPU2\nGPU0\tX\tOK\tN/A\nGPU1\tOK\tX\tCNS\nGPU2\tN/A\tCNS\tX\n")
    assert m.p2p[0].codes == {"GPU0": {"GPU1": "OK"}, "GPU1": {"GPU0": "OK", "GPU2": "CNS"}, "GPU2": {"GPU1": "CNS"}}


@given(st.text(alphabet="XNVODESY/APIB0123 \t\nGUC?", max_size=300))
def test_any_text_is_read_or_refused_with_a_line(text):
    with contextlib.suppress(SmiTopoError):
        m = parse_matrix("\tGPU0\tGPU1\n" + text)
        assert not any(c == "?" for row in m.cells.values() for c in row.values())

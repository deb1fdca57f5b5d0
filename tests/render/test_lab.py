"""The one painter of all labs: cells, groups, reasons, and names from other nodes."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import msgspec
import pytest

from topocheck.bandwidth.lab_catalogue import BY_NAME, LABS
from topocheck.model.lab import Column, CurveSpec, JobRecord, LabReport, LabTable, NodeRecord, TableSpec
from topocheck.render.html.lab import charts, lab_html, lab_svg
from topocheck.render.lab import cell, lab_csv, lab_json, lab_markdown, lab_text, list_text
from topocheck.render.page import Style

NODE = NodeRecord(
    node="a", server="Vendor X", cpu="CPU", cpus=8, gpus="8 x GPU", gpu_connection="NV18 (28 of 28 pairs)"
)
SPEC = TableSpec(
    name="t",
    title="A table",
    columns=(
        Column(key="backend", title="backend"), Column(key="memory", title="memory"),
        Column(key="ranks", title="ranks"),
        Column(key="time_us", title="time", unit="us"), Column(key="rate", title="rate", unit="MB/s"),
    ),
)  # fmt: skip
ROWS = (
    SPEC.row("no GPU", backend="nccl", memory="gpu"),
    SPEC.row(backend="gloo", memory="host", ranks=2, time_us=1234.5, rate=990.55),
    SPEC.row("rank 1 was lost", backend="gloo", memory="host", ranks=4),
)
REPORT = LabReport(
    lab="p2p",
    question="How fast?",
    record=JobRecord(ranks=16, servers=3, launcher="slurm", nodes=(NODE, msgspec.structs.replace(NODE, node="b"))),
    tables=(LabTable(spec=SPEC, rows=ROWS, notes=("a note",)),),
)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "us", "-"), (1234.5, "us", "1.23 ms"), (0.5, "s", "500 ms"), (4096, "B", "4 KiB"),
        (1_057_000, "B", "1.01 MiB"),
        (0.3333, "share", "33.3 %"), (1.5, "ratio", "1.50"), (3e-4, "relative", "3.0e-04"), (0.0, "relative", "0"),
        (True, "", "yes"), (17, "", "17"), (990.55, "MB/s", "991"), (12345.6, "MB/s", "12346"), ("right", "", "right"),
    ],
)  # fmt: skip
def test_cells(value, unit, text):
    assert cell(value, Column(key="x", title="x", unit=unit)) == text


def test_the_record_comes_first_and_equal_nodes_are_one():
    lines = lab_text(REPORT, Style()).splitlines()
    assert lines.index("Experiment record") < lines.index("A table")
    assert "  job               16 ranks on 3 servers, started by slurm" in lines
    assert "  2 nodes           a, b" in lines
    assert sum("Vendor X" in line for line in lines) == 1
    assert "  NCCL              none found" in lines


def test_backends_are_groups_and_a_reason_stands_by_its_row():
    text = lab_text(REPORT, Style())
    assert "  nccl, gpu: no GPU\n" in text
    assert "  gloo, host:\n" in text
    assert "  gloo, host, ranks 4: rank 1 was lost\n" in text
    assert re.search(r"1\.23 ms +991", text)


def test_csv_has_every_column_and_every_row():
    rows = list(csv.reader(io.StringIO(lab_csv(REPORT))))
    assert rows[0] == ["table", "backend", "memory", "ranks", "time_us", "rate", "reason"]
    assert rows[2] == ["t", "gloo", "host", "2", "1234.5", "990.55", ""]
    assert rows[1][-1] == "no GPU"
    bare = list(csv.reader(io.StringIO(lab_csv(msgspec.structs.replace(REPORT, tables=())))))
    assert [r[0] for r in bare] == ["node", "a", "b"]


def test_json_and_markdown():
    document = json.loads(lab_json(REPORT))
    assert document["tables"][0]["rows"][1]["values"] == ["gloo", "host", 2, 1234.5, 990.55]
    assert document["record"]["nodes"][0]["gpu_connection"] == NODE.gpu_connection
    assert "| 2 | 1.23 ms | 991 |" in lab_markdown(REPORT)


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_whole_and_quotes_what_other_nodes_say():
    evil = msgspec.structs.replace(NODE, node='<script>alert("x")</script>\x1b[31m')
    text = lab_html(msgspec.structs.replace(REPORT, record=JobRecord(ranks=1, nodes=(evil,))))
    assert Tags(text).open == []
    assert "<script>alert" not in text
    assert "\x1b" not in text
    assert "\x1b" not in lab_text(msgspec.structs.replace(REPORT, record=JobRecord(ranks=1, nodes=(evil,))), Style())


def test_an_interval_without_an_upper_end_keeps_both_ends_and_columns_are_explained():
    ends = (
        Column(key="beta", title="beta", unit="GB/s", about="the rate"), Column(key="low", title="from", unit="GB/s"),
        Column(key="high", title="to", unit="GB/s"), Column(key="x", title="empty", about="not shown"),
    )  # fmt: skip
    spec = TableSpec(name="f", title="Fit", columns=ends)
    rows = (spec.row(beta=2.0, low=1.0), spec.row(beta=3.0, low=1.5))
    text = lab_text(msgspec.structs.replace(REPORT, tables=(LabTable(spec=spec, rows=rows),)), Style())
    assert re.search(r"beta \(GB/s\) +95 %\n +2 +1 to -\n +3 +1.5 to -\n", text)
    assert "Columns\n  beta (GB/s)   the rate\n" in text
    assert "not shown" not in text


def test_a_value_without_a_column_is_a_mistake():
    with pytest.raises(KeyError, match="t: no column speed"):
        SPEC.row(speed=1)


def test_the_list_names_every_lab_and_every_column_once():
    text = list_text(LABS, Style(width=120))
    assert all(f"  {name} " in text for name in BY_NAME)
    for lab in LABS:
        for table in lab.tables:
            keys = [c.key for c in table.columns]
            assert len(keys) == len(set(keys)), (lab.name, table.name)


DRAWN = TableSpec(
    name="d",
    title="Steps",
    columns=(
        Column(key="backend", title="backend"),
        Column(key="memory", title="memory"),
        Column(key="ranks", title="ranks"),
        Column(key="model", title="model"),
        Column(key="time_us", title="time", unit="us"),
        Column(key="predicted_us", title="predicted", unit="us"),
    ),
    curves=(CurveSpec(x="ranks", y=("time_us", "predicted_us"), by=("model",)),),
)


def drawn(*rows: tuple[object, ...]) -> LabReport:
    keys = [c.key for c in DRAWN.columns]
    lines = tuple(DRAWN.row(**dict(zip(keys, r, strict=True))) for r in rows)
    return msgspec.structs.replace(REPORT, tables=(LabTable(spec=DRAWN, rows=lines),))


def test_each_backend_has_a_chart_with_a_curve_of_each_model_and_what_was_predicted():
    report = drawn(
        ("gloo", "host", 1, "mlp", 3000.0, 2500.0), ("gloo", "host", 2, "mlp", 4000.0, None),
        ("gloo", "host", 4, "mlp", 8000.0, 6000.0), ("gloo", "host", 2, "rnn", 500.0, None),
        ("gloo", "host", 4, "rnn", None, None), ("nccl", "gpu", None, None, None, None),
    )  # fmt: skip
    (chart,) = charts(report)
    assert chart.chart.title == "Steps: gloo, host"
    assert [(c.name, [(p.x, p.y, p.hollow) for p in c.points]) for c in chart.chart.curves] == [
        # microseconds as they are in the table; one point of rnn has a number
        ("mlp, time", [(1, 3000, False), (2, 4000, False), (4, 8000, False)]),
        ("mlp, predicted", [(1, 2500, True), (4, 6000, True)]),
        ("rnn, time", [(2, 500, False)]),
    ]
    assert lab_svg(report).count("<svg ") == 2, "one around, one of the chart"


def test_one_point_is_no_curve():
    report = drawn(("gloo", "host", 2, "mlp", 3000.0, 2500.0))
    assert charts(report) == []
    assert ElementTree.fromstring(lab_svg(report)).tag.endswith("svg")


@pytest.mark.parametrize("lab", LABS, ids=lambda x: x.name)
def test_curves_are_of_columns_that_are_there(lab):
    for table in lab.tables:
        keys = {c.key for c in table.columns}
        for curve in table.curves:
            assert {curve.x, *curve.y, *curve.by, *curve.chart} <= keys, table.name

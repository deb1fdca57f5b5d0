"""What the report says of NCCL's prediction: version, NVLS, bounds, and an init that would end."""

from __future__ import annotations

import pytest

import topocheck
from tests.machines.builder import machine
from topocheck.knowledge.nccl import TABLE_VERSION
from topocheck.pipeline import Report, build_report
from topocheck.render.page import Style
from topocheck.render.report_json import report_document
from topocheck.render.text import report_text

HGX = "hgx_h100_cx7"


def section(report: Report) -> str:
    return report_text(report, ("nccl",), Style(width=80))


def test_bounds_of_eight_h100_on_nvswitches() -> None:
    """18 NVLinks of 20.6 GB/s by NCCL's constants (src/graph/topo.h): 370.8; NVLS 2 x 370.8 x 7/9 = 576.8."""
    report = build_report(machine(HGX).host())
    text = section(report)
    assert f"{TABLE_VERSION}, all GPUs of the node in one job" in text
    assert "yes: NVSwitch, multicast, and 8 GPUs" in text
    rows = [line.split() for line in text.splitlines() if " GB/s " in line]
    assert [r[:3] for r in rows] == [["Ring", "370.8", "GB/s"], ["NVLS", "576.8", "GB/s"]]
    assert "all NVLinks of 0000:18:00.0 together" in " ".join(rows[0])
    assert max(map(len, text.splitlines())) <= 80
    doc = report_document(report, topocheck.__version__).nccl
    assert (doc.predicted_for, doc.nvls, doc.fatal) == (TABLE_VERSION, True, "")
    assert [(b.algorithm, b.busbw_gb_s) for b in doc.bounds] == [("Ring", 370.8), ("NVLS", 576.8)]


def test_a_malformed_topology_file_is_told_first() -> None:
    m = machine(HGX, environment={"NCCL_TOPO_FILE": "/opt/t.xml"}, files={"/opt/t.xml": "<system"})
    report = build_report(m.host())
    assert "ncclCommInitRank would fail: /opt/t.xml: line 1" in section(report)
    assert report_document(report, topocheck.__version__).nccl.fatal.startswith("/opt/t.xml")


def test_nvls_that_cannot_be_told_is_null_with_its_reason() -> None:
    report = build_report(machine(HGX, hangs=["cuda:DeviceGetCount"]).host())
    doc = report_document(report, topocheck.__version__).nccl
    assert doc.nvls is None
    assert "nvls" in doc.missing
    assert "not known: whether the driver offers multicast is not known" in section(report)


@pytest.mark.parametrize("name", ["no_pci", "mi300x_x8"])
def test_nothing_is_predicted_without_gpus_of_nccl(name: str) -> None:
    text = section(build_report(machine(name).host()))
    assert "predicted for" not in text
    assert "busbw" not in text

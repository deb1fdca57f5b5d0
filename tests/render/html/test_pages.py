"""The pages: whole, escaped, self-contained, readable without their script."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.machines.builder import machine
from tests.machines.many import many
from tests.support.hostile import NAMES, PIECES, Tags, call, hostile_recording, shown_of, unseen
from topocheck.pipeline import Report, build_report
from topocheck.render.html.node import report_svg
from topocheck.render.html.report import matrices, report_html

MAX_BYTES = 1_000_000
RESOURCES = set("link img iframe object embed audio video base form image use foreignobject".split())
"""Elements that fetch or send something."""
FAULTY = {"patch": {"GPU3": {"now": "5x8"}}, "environment": {"NCCL_P2P_DISABLE": "1"}}


@functools.cache
def report(name: str = "hgx_h100_cx7", faulty: bool = False) -> Report:
    return build_report(machine(name, **(FAULTY if faulty else {})).host())


@functools.cache
def page(name: str = "hgx_h100_cx7", faulty: bool = False) -> str:
    return report_html(report(name, faulty))


def tags(text: str) -> Tags:
    found = Tags()
    found.feed(text)
    found.close()
    return found


def test_a_page_stands_alone() -> None:
    found = tags(page())
    assert {tag for tag, _, _ in found.found} & RESOURCES == set()
    assert [f for f in found.found if f[1] in ("src", "href", "action", "srcset") and not f[2].startswith("#")] == []
    outside = [u for u in re.findall(r"""https?://[^\s"'<]+""", page()) if u != "http://www.w3.org/2000/svg"]
    assert outside == []
    assert "url(" not in page()
    assert "@import" not in page()


def test_the_policy_of_a_page_allows_its_own_script_alone() -> None:
    scripts = re.findall(r"<script>(.*?)</script>", page(), re.DOTALL)
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page()


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="pairs">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_what_the_page_says_of_a_pair_is_what_was_found() -> None:
    data, made = data_of(page(faulty=True)), report(faulty=True)
    ends = data["devices"]
    assert len(data["pairs"]) == len(made.topology.paths)
    kind, rate, narrowest, said, verdict, steps, _, links, least = data["pairs"][
        f"{ends.index('GPU3')}-{ends.index('mlx5_3')}"
    ]
    found = next(v for v in made.gpudirect.rdma if (v.from_label, v.to_label) == ("GPU3", "mlx5_3"))
    assert data["texts"][kind] == "PIX (one PCIe switch)"
    # 8 lanes x 32 GT/s x 128/130 / 8 bits = 31.5 GB/s
    assert data["texts"][rate] == "31.5 GB/s per direction"
    assert data["texts"][narrowest] == "narrowest hop: PCIe gen 5 x8, 31.5 GB/s at 0000:5c:00.0"
    assert (verdict, data["texts"][said]) == (found.verdict.value, f"GPUDirect RDMA: {found.verdict.value}")
    assert [data["texts"][s[1]] for s in steps] == [r.text for r in found.reasons]
    assert least in links.split()


def test_findings_come_first_with_evidence_and_fix() -> None:
    text = page(faulty=True)
    for f in report(faulty=True).findings:
        assert f.id in text
    assert text.index('id="findings"') < text.index('id="drawing"')
    shown = " ".join(tags(text).shown)
    assert "/sys/bus/pci/devices/0000:5c:00.0/current_link_width: 8" in shown
    assert "Fix:" in shown


def test_a_node_without_a_gpu_is_not_called_healthy() -> None:
    text = page("no_pci")
    assert "no GPU checked" in text
    assert 'class="chip ok"' not in text
    assert 'class="chip ok"' in page("laptop")


def test_the_sections_of_the_text_are_all_there() -> None:
    said = call("report", "--format", "markdown", "--from", "docs/examples/half_width.snap").out
    made = call("report", "--format", "html", "--from", "docs/examples/half_width.snap").out
    shown = " ".join(tags(made).shown)
    drawn = ("PCI tree", "Matrix (as")
    headings = [h for h in re.findall(r"^## (.*)$", said, re.MULTILINE) if not h.startswith(drawn)]
    assert headings
    assert [h for h in headings if h.replace("\\", "") not in shown] == []


@pytest.mark.parametrize("name", ["laptop", "no_pci", "gpu_lost", "driver_not_loaded", "h03_nvml_crashes"])
def test_every_machine_has_a_page_and_a_drawing(name: str) -> None:
    assert page(name).endswith("</html>\n")
    ElementTree.fromstring(report_svg(report(name)))


def test_a_drawing_is_xml_and_holds_no_script() -> None:
    root = ElementTree.fromstring(report_svg(report()))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    names = {e.tag.rpartition("}")[2] for e in root.iter()}
    assert names == {"svg", "title", "style", "rect", "g", "path", "text"}
    assert [k for e in root.iter() for k in e.attrib if k.lower().startswith("on") or "href" in k] == []


@pytest.mark.parametrize(("gpus", "nics"), [(16, 18), (60, 60)])
def test_a_large_machine_has_a_page_below_a_megabyte(gpus: int, nics: int) -> None:
    made = build_report(many(gpus, nics).host(), checks=())
    text = report_html(made)
    assert len(text.encode()) < MAX_BYTES
    assert bool(matrices(made)) == (gpus == 16)
    assert ("pairs are too many for a page" in text) == (gpus == 60)


def test_names_chosen_by_an_attacker_are_shown_and_do_nothing(tmp_path: Path) -> None:
    usual = tags(call("report", "--from", hostile_recording(tmp_path / "u.snap", {}), "--format", "html").out)
    names = {k: "x".join(PIECES) for k in NAMES}
    file = hostile_recording(tmp_path / "h.snap", names)
    text = call("report", "--from", file, "--format", "html").out
    assert not unseen(text)
    found = tags(text)
    assert {(t, k) for t, k, _ in found.found} <= {(t, k) for t, k, _ in usual.found}
    assert shown_of(names["host"]).replace("\ufffe", "\ufffd") in "".join("".join(found.shown).split())
    assert data_of(text)["devices"]
    drawing = call("report", "--from", file, "--format", "svg").out
    assert not unseen(drawing)
    assert {e.tag.rpartition("}")[2] for e in ElementTree.fromstring(drawing).iter()} == {
        *("svg", "title", "style", "rect", "g", "path", "text")
    }


MATRIX = "\tGPU0\tGPU1\tNIC0\nGPU0\t X \tNV12\tPIX\nGPU1\tNV12\t X \tSYS\nNIC0\tPIX\tSYS\t X\n"


def test_a_pasted_matrix_has_a_page_and_no_drawing(tmp_path: Path) -> None:
    (tmp_path / "topo.txt").write_text(MATRIX)
    text = call("report", "--smi-topo", tmp_path / "topo.txt", "--format", "html").out
    assert "NV12" in text
    assert "so there is no drawing" in text
    refused = call("report", "--smi-topo", tmp_path / "topo.txt", "--format", "svg")
    assert refused.code == 2
    assert "nothing to draw" in refused.error


def test_sections_are_of_the_text() -> None:
    refused = call("report", "--from", "docs/examples/half_width.snap", "--format", "svg", "--section", "nics")
    assert (refused.code, "--section" in refused.error) == (2, True)

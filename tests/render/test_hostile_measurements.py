"""Labels, nodes and messages chosen by an attacker, through the painters of what was measured and of a job's nodes."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from itertools import combinations
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from tests.bandwidth.test_assess import HEALTHY, judge
from tests.cluster.test_node_findings import judged, pair
from tests.support.hostile import (
    MARKUP,
    NAMES,
    PIECES,
    Tags,
    forged,
    hostile_answers,
    markup,
    restruct,
    safe_cells,
    unseen,
)
from tests.tests_live.training.test_scale_tables import report as scaled
from topocheck.cli.cluster import _bytes, _judge
from topocheck.model.base import Finding, State
from topocheck.model.measurement import DeviceState, NotMeasured
from topocheck.render import bw, bw_data, cluster, node_pairs, scale
from topocheck.render.html import results, scale_curve
from topocheck.render.page import Style
from topocheck.tests_live.launch.exchange import Heard, RankWord
from topocheck.tests_live.training.report_types import ScaleOptions, ScaleReport

MANY = ["x".join(PIECES[i::7]) for i in range(7)] + list(PIECES)


def clean(text: str) -> str:
    assert not unseen(text)
    assert not forged(text)
    return text


def safe_markdown(text: str, *headings: str) -> None:
    """Whatever stands in it, the markup is ours."""
    assert {kind for kind, _ in markup(clean(text))} <= MARKUP | {"softbreak"}
    assert all(line.startswith(headings) for line in text.splitlines() if line.startswith("#"))


def safe_csv(text: str) -> None:
    rows = list(csv.reader(io.StringIO(clean(text), newline="")))
    assert len({len(r) for r in rows}) == 1
    assert len(rows) == text.count("\n")
    assert safe_cells(rows)


def finding(name: str) -> Finding:
    return Finding(id=name, state=State.FAIL, subject=name, title=name, consequence=name, fix=name)


@pytest.mark.parametrize("name", MANY)
def test_bandwidth(name: str) -> None:
    made = judge(*HEALTHY, not_measured=(NotMeasured(id=name, reason=name, required=True),))
    slow = msgspec.structs.replace(HEALTHY[4], median=100.0, samples=(100.0,) * 5, bandwidth_gb_s=100.0)
    made = msgspec.structs.replace(judge(slow, *HEALTHY[1:4]), findings=(finding(name),), advice=(name,))
    labels = {"GPU0": name, "GPU1": f"{name}1"}
    run = restruct(made.run, labels)
    run = msgspec.structs.replace(
        run,
        machine={name: name, "nccl_settings": name},
        software={name: name},
        method=name,
        taken_at=name,
        device_states=(DeviceState(address=name, samples=1, event_reasons=(name,)),),
    )
    made = msgspec.structs.replace(made, run=run)
    clean(bw.bw_text(made, Style(), verbose=True))
    clean(bw.bw_text(made, Style(width=40)))
    # On a terminal that wants colours there are those, and no other escape.
    clean(re.sub(r"\x1b\[[0-9;]*m", "", bw.bw_text(made, Style(colour=True), verbose=True)))
    assert json.loads(clean(bw_data.bw_json(made)))["machine"][name] == name
    safe_csv(bw_data.bw_csv(made))
    safe_markdown(bw_data.bw_markdown(made), "# topocheck bw", "## Cost model", "## Findings")
    safe_page(results.bw_html(made))


@pytest.mark.parametrize("name", MANY)
def test_pairs_of_nodes(name: str) -> None:
    nodes = (f"{name}a", f"{name}b", name)
    pairs = [pair(a, b, 3.0 if nodes[1] in (a, b) else 12.0, transport="tcp") for a, b in combinations(nodes, 2)]
    made = judged(nodes, pairs)
    assert made.findings
    made = msgspec.structs.replace(
        made,
        unresponsive={name: name},
        notes=(name,),
        transport_comparison=(name,),
        launcher=name,
        method=name,
        findings=(finding(name),),
    )
    made = msgspec.structs.replace(made, pairs=(*made.pairs, pair(name, name, None, error=name, rail=name)))
    clean(node_pairs.pairs_text(made, Style()))
    assert json.loads(clean(node_pairs.pairs_json(made)))["launcher"] == name
    safe_csv(node_pairs.pairs_csv(made))
    safe_markdown(node_pairs.pairs_markdown(made), "## Network between", "### ")


def safe_page(text: str) -> None:
    """A page has its own script alone, and no name made an element or an attribute of it."""
    assert text.endswith("</html>\n")
    found = Tags()
    found.feed(clean(text))
    assert not {t for t, _, _ in found.found} & {"img", "iframe", "link", "form", "object"}
    assert not [k for _, k, _ in found.found if k.startswith("on")]
    assert text.count("<script") == 1


def free_texts() -> ScaleReport:
    """A report without the structs that take none but their own words."""
    return msgspec.structs.replace(scaled(), measurements=(), options=ScaleOptions(hooks=()))


@pytest.mark.parametrize("name", MANY)
def test_scaling(name: str) -> None:
    made = restruct(free_texts(), {"gloo": name, "host": f"{name}1", "fp16": name})
    made = msgspec.structs.replace(
        made,
        machine={name: name},
        software={name: name},
        method=name,
        not_applicable=(name,),
        not_measured=(NotMeasured(id=name, reason=name, next_step=name),),
    )
    clean(scale.scale_text(made, Style()))
    assert json.loads(clean(scale.scale_json(made)))["method"] == name
    safe_csv(scale.scale_csv(made))
    safe_markdown(scale.scale_markdown(made))
    safe_page(results.scale_html(made))
    root = ElementTree.fromstring(clean(scale_curve.svg(made)))
    kinds = {e.tag.rpartition("}")[2] for e in root.iter()}
    assert kinds <= {"svg", "title", "style", "g", "rect", "text", "line", "path", "circle"}
    assert not {k for e in root.iter() for k in e.attrib if k.startswith("on") or "href" in k}


def test_a_curve_of_such_names_can_be_drawn() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert scale_curve.png(restruct(free_texts(), {"gloo": r"_$\frac{$", "host": "x"})).startswith(b"\x89PNG")


@pytest.mark.parametrize("names", [dict.fromkeys(NAMES, name) for name in MANY[:7]])
def test_the_nodes_of_a_job(names: Mapping[str, str]) -> None:
    def word(node: str, **changed: Any) -> RankWord:
        answers = hostile_answers(names)
        own = {q: a for q, a in answers.items() if q.startswith(("environ:", "process:")) or "/proc/self/" in q}
        return RankWord(node=node, machine=_bytes({**answers, **changed}), own=_bytes(own))

    name = names["host"]
    broken = RankWord(node=f"{name}3", machine=b"no recording")
    heard = Heard(
        words={0: word(name), 1: word(f"{name}2", **{"nvml:DeviceGetName|0": name * 2}), 2: broken},
        unresponsive={f"{name}4": name},
    )
    made = _judge(heard, name)
    clean(cluster.cluster_text(made, Style()))
    assert json.loads(clean(cluster.cluster_json(made)))["launcher"] == name
    safe_markdown(cluster.cluster_markdown(made), "## 2 nodes", "### ")

"""The Python API: the examples of its page, and what it promises beyond them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

import topocheck
from tests.support.printed import REPOSITORY, printed
from tests.support.python_examples import EXAMPLE, PAGE, run
from tests.support.renew import RENEW
from tests.support.waiting import PATIENCE_S
from topocheck.model.base import State, Verdict
from topocheck.render.schema import schema

SNAP = REPOSITORY / "docs/examples/half_width.snap"
EXAMPLES = EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("code", "output"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_print_what_the_page_shows(code: str, output: str) -> None:
    assert run(code) == output, f"renew it: {RENEW}"


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.fixture(scope="module")
def node() -> topocheck.NodeReport:
    return topocheck.load(SNAP)


def test_the_document_is_that_of_the_command(node: topocheck.NodeReport) -> None:
    document = json.loads(node.to_json())
    assert document == node.to_dict() == json.loads(printed(f"report --from {SNAP} --json"))
    jsonschema.Draft202012Validator(json.loads(schema("report"))).validate(document)


def test_the_text_is_that_of_the_command(node: topocheck.NodeReport) -> None:
    assert node.to_text(100) == printed(f"report --from {SNAP} --width 100")
    assert node.to_html() == printed(f"report --from {SNAP} --format html")


def test_pairs_by_label_and_address(node: topocheck.NodeReport) -> None:
    pair = node.pair("GPU3", "mlx5_3")
    assert pair == node.pair("0000:5c:00.0", "0000:5d:00.0")
    # PCIe gen 5 x8: 32 GT/s, 128b/130b, 8 lanes.
    assert pair.theoretical_gb_s == pytest.approx(32 * 128 / 130)
    assert pair.verdict is Verdict.YES
    assert pair.nccl is not None
    assert pair.nccl.nccl_class == "PIX"
    # 8 GPUs: 8 * 7 ordered pairs; 10 NICs.
    assert len(node.pairs) == 8 * 7 + 8 * 10


@pytest.mark.parametrize(
    ("a", "b", "words"), [("GPU0", "GPU9", "no device GPU9; there are GPU0"), ("mlx5_0", "GPU0", "in this order")]
)
def test_pairs_that_are_none(node: topocheck.NodeReport, a: str, b: str, words: str) -> None:
    with pytest.raises(LookupError, match=words):
        node.pair(a, b)


def test_a_policy_counts(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('[checks."pcie.link-width"]\nseverity = "note"\n')
    assert topocheck.load(SNAP, policy=policy).state is State.WARN
    policy.write_text("nonsense = 1\n")
    with pytest.raises(topocheck.InputError, match="nonsense"):
        topocheck.load(SNAP, policy=policy)


def test_a_lone_matrix_and_no_file_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "topo.txt"
    text.write_text("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-7\nGPU1\tPHB\t X \t0-7\n")
    with pytest.raises(topocheck.InputError, match="report --smi-topo"):
        topocheck.load(text)
    with pytest.raises(topocheck.InputError, match="report\\(\\) is for this machine"):
        topocheck.load()


def test_this_machine() -> None:
    here = topocheck.report(budget_s=PATIENCE_S)
    assert here.to_dict()["source"] == "live"
    assert here.exit_code in (0, 1, 3)


def test_importing_it_loads_nothing() -> None:
    code = "import sys; before = set(sys.modules); import topocheck; print(sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert done.stdout.strip() in ("['topocheck']", "['__future__', 'topocheck']")


def test_what_it_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'reports'"):
        topocheck.reports  # noqa: B018
    assert set(topocheck.__all__) <= {*dir(topocheck), "NodeReport", "Pair", "InputError"}

"""The pages of predictions, differences and fleets; those of measurements are in test_hostile_measurements.py."""

from __future__ import annotations

import re
from pathlib import Path

from tests.render.html.test_pages import tags
from tests.support.hostile import NAMES, PIECES, call, hostile_recording, unseen

HALF = "docs/examples/half_width.snap"


def text_of(page: str) -> str:
    return " ".join(" ".join(tags(page).shown).split())


def test_a_prediction_has_every_pair() -> None:
    page = call("nccl", "predict", "--from", HALF, "--format", "html").out
    heat = page.split("<h3>Transport</h3>")[1].split("</table>")[0]
    # NCCL_P2P_DISABLE=1 in that snapshot: 8 GPUs, 56 ordered pairs, and none of them over P2P.
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", heat.split("<tbody>")[1])
    assert len(cells) == 64
    assert cells.count("X") == 8
    assert not [c for c in cells if c.startswith("P2P")]


def test_differences_are_those_of_the_text(tmp_path: Path) -> None:
    other = hostile_recording(tmp_path / "other.snap", {})
    said = call("diff", HALF, other)
    page = call("diff", HALF, other, "--format", "html")
    assert page.code == said.code == 1
    count = re.search(r"(\d+) differences", said.out)
    assert count is not None
    assert f"{count[1]} differences" in text_of(page.out)


def test_results_of_hostile_machines_run_nothing(tmp_path: Path) -> None:
    usual, bad = (
        hostile_recording(tmp_path / f"{n}.snap", names)
        for n, names in (("a", {}), ("b", {k: "x".join(PIECES) for k in NAMES}))
    )
    for argv in (("diff", usual, bad), ("nccl", "predict", "--from", bad), ("fleet", usual, bad)):
        page = call(*argv, "--format", "html").out
        assert page.endswith("</html>\n"), argv
        assert not unseen(page)
        found = tags(page)
        assert not {t for t, _, _ in found.found} & {"img", "iframe", "link", "form", "object"}
        assert not [k for _, k, _ in found.found if k.startswith("on")]
        assert page.count("<script") == page.count("</script>") <= 1

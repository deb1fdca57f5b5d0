"""The page in a real browser: Chromium without a screen, driven by a page around it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require_program
from tests.machines.builder import machine
from tests.support.hostile import NAMES, PIECES, call, hostile_recording
from tests.support.printed import printed
from tests.support.waiting import PATIENCE_S
from topocheck.pipeline import build_report
from topocheck.render.html.report import report_html

pytestmark = pytest.mark.service

_AROUND = """<!doctype html><body><pre id="said"></pre>
<iframe id="page" src="%s" style="width: %dpx; height: 2000px; border: 0"></iframe>
<script>
const frame = document.getElementById("page");
frame.addEventListener("load", () => {
  const page = frame.contentDocument, view = frame.contentWindow;
  const all = (q) => [...page.querySelectorAll(q)];
  const seen = (e) => e.getClientRects().length > 0;
  let said;
  try { said = (() => { %s })(); } catch (e) { said = { error: String(e) }; }
  document.getElementById("said").textContent = JSON.stringify(said);
});
</script>"""

_EVERYTHING = """
const wide = page.documentElement.scrollWidth;
const out = [];
for (const box of all("svg.drawing .box").filter(seen)) {
  const edge = box.querySelector(":scope > rect").getBoundingClientRect();
  for (const text of box.querySelectorAll(":scope > text")) {
    const r = text.getBoundingClientRect();
    if (r.left < edge.left - 1 || r.right > edge.right + 1 || r.top < edge.top - 1 || r.bottom > edge.bottom + 1)
      out.push(text.textContent);
  }
}
const node = (label) => all("svg [data-dev]").filter(seen).find((e) => e.querySelector("text").textContent === label);
const lit = () => all(".link.lit").filter(seen).map((e) => e.dataset.link);
const answer = () => page.getElementById("answer").textContent;
const before = lit().length;
node("GPU3").dispatchEvent(new view.MouseEvent("click", { bubbles: true }));
const asked = answer();
node("mlx5_9").dispatchEvent(new view.KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
const across = { lit: lit().length, narrowest: all(".narrowest").filter(seen).map((e) => e.getAttribute("aria-label")),
  answer: answer(), pressed: all("[aria-pressed=true]").filter(seen).length, hash: view.location.hash };
view.dispatchEvent(new view.KeyboardEvent("keydown", { key: "Escape" }));
const cleared = lit().length;
const [from, to] = all("#chooser select");
from.value = "0"; from.dispatchEvent(new view.Event("change"));
to.value = "1"; to.dispatchEvent(new view.Event("change"));
return { wide, out, before, asked, across, cleared, chosen: { lit: lit().length, answer: answer() },
  names: all("svg [role=button]").filter((e) => !e.getAttribute("aria-label")).length,
  labels: all("select").every((s) => s.labels.length === 1) };
"""


def browse(folder: Path, page: str, width: int, script: str) -> tuple[Any, list[str]]:
    """Return what a script says of a page that is `width` pixels wide, and the lines of the browser's console."""
    require_program("chromium")
    (folder / "page.html").write_text(page, encoding="utf-8")
    (folder / "around.html").write_text(_AROUND % ("page.html", width, script), encoding="utf-8")
    ran = subprocess.run(
        [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"),
            *("--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}", "--dump-dom"),
            (folder / "around.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    found = re.search(r'<pre id="said">(.*?)</pre>', ran.stdout, re.DOTALL)
    assert found is not None, ran.stderr[-2000:]
    said = found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    assert said, ran.stderr[-2000:]
    return json.loads(said), [line for line in ran.stderr.splitlines() if ":CONSOLE" in line]


@pytest.fixture(scope="module")
def faulty() -> str:
    return report_html(build_report(machine("hgx_h100_cx7", patch={"GPU3": {"now": "5x8"}}).host()))


def test_choosing_a_pair_lights_its_path_on_a_screen(faulty: str, tmp_path: Path) -> None:
    said, console = browse(tmp_path, faulty, 1280, _EVERYTHING)
    assert console == []
    assert said["out"] == []
    assert said["wide"] <= 1280
    assert (said["before"], said["cleared"], said["names"], said["labels"]) == (0, 0, 0, True)
    assert "now choose the other end" in said["asked"]
    # CPU to root complex, to the switch, to GPU3; between the sockets with a tap on each; to the other root complex
    # and to mlx5_9: 3 + 3 + 2.
    assert said["across"]["lit"] == 8
    assert said["across"]["narrowest"] == ["gen 5 x8, 32 GB/s, x8 of x16"]
    assert said["across"]["pressed"] == 2
    assert said["across"]["hash"] == "#pair=GPU3,mlx5_9"
    assert "31.5 GB/s" in said["across"]["answer"]
    assert said["chosen"]["lit"] == 2
    assert "NV18" in said["chosen"]["answer"]


def test_nothing_is_wider_than_a_telephone(faulty: str, tmp_path: Path) -> None:
    said, console = browse(tmp_path, faulty, 375, _EVERYTHING)
    assert console == []
    assert said["out"] == []
    assert said["wide"] <= 375
    assert said["across"]["lit"] == 8


def test_names_chosen_by_an_attacker_run_nothing(tmp_path: Path) -> None:
    worst = {k: "x".join(PIECES) + "<img src=x onerror=alert(1)>\"' onload=alert(1)" for k in NAMES}
    page = call("report", "--from", hostile_recording(tmp_path / "h.snap", worst), "--format", "html").out
    said, console = browse(
        tmp_path,
        page,
        375,
        "return { wide: page.documentElement.scrollWidth, made: all('img, iframe, object').length, "
        "on: all('*').filter((e) => [...e.attributes].some((a) => a.name.startsWith('on'))).length };",
    )
    assert console == []
    assert (said["made"], said["on"]) == (0, 0)
    assert said["wide"] <= 375


_PAGES = {
    "fleet": "fleet docs/examples/fleet",
    "diff": "diff docs/examples/fleet/node1.snap docs/examples/fleet/node3.snap",
    "bw": "bw --from docs/measurements/2026-11-28-h100x2/bw_standard.json",
    "watch": "watch --from docs/examples/watch.jsonl.gz",
    "predict": "nccl predict --from docs/examples/half_width.snap",
}


@pytest.mark.parametrize("name", _PAGES)
def test_every_page_fits_a_telephone(name: str, tmp_path: Path) -> None:
    """Tables and charts scroll in themselves; no word of a table is broken, and a chart's text stays legible (8 px)."""
    said, console = browse(
        tmp_path,
        printed(f"{_PAGES[name]} --format html"),
        360,
        "return { wide: page.documentElement.scrollWidth, "
        "small: all('.charts svg text, .timeline text').filter(seen)"
        ".map((e) => e.getBoundingClientRect().height).filter((h) => h > 0 && h < 8).length, "
        "broken: all('td:not(:has(code, .dim))').filter((e) => e.scrollWidth > e.clientWidth + 1).length };",
    )
    assert console == []
    assert said["wide"] <= 360
    assert (said["small"], said["broken"]) == (0, 0)

"""Names chosen by an attacker, through every format and command, read back by somebody else's reader."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import junitparser
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from prometheus_client.parser import text_string_to_metric_families

from tests.render.formats.test_documents import check_sarif
from tests.support.hostile import (
    FORGED,
    MARKUP,
    NAMES,
    PIECES,
    Said,
    Tags,
    call,
    forged,
    hostile_recording,
    markup,
    names,
    safe_cells,
    shown_of,
    unseen,
)
from tests.support.snapshots import write_snapshot

pytestmark = pytest.mark.slow

WORST = [{k: "x".join(PIECES[i::7]) for k in NAMES} for i in range(7)]
"""All pieces, in names of some hundred characters each."""
EACH = [dict.fromkeys(NAMES, f"a{piece}b") for piece in PIECES]


def hostile(test: Any) -> Any:
    """Give a test names by hypothesis, and those of WORST."""
    run = settings(
        max_examples=6,
        phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a smaller example would take minutes to find
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )(given(names=names)(test))
    for worst in WORST:
        run = example(names=worst)(run)
    return run


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_snapshot(tmp_path_factory.mktemp("usual") / "usual.snap", "nic_wrong_socket")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def said(*argv: object, codes: tuple[int, ...] = (0, 1, 3)) -> Said:
    """Run a command; whatever it prints holds nothing that a terminal acts on, and no line that a name forged."""
    got = call(*argv)
    assert got.code in codes, (argv, got.error)
    for text in (got.out, got.error):
        assert not unseen(text), (argv, unseen(text))
        assert not forged(text), (argv, forged(text))
    for line in got.error.splitlines():
        assert line.startswith("topocheck: "), (argv, line)
    return got


@hostile
def test_text(folder: Path, usual: Path, names: Mapping[str, str]) -> None:
    bad = hostile_recording(folder / "bad.snap", names)
    for argv in (
        ("report", "--from", bad),
        ("report", "--from", bad, "--width", "40"),
        ("check", "-v", "--from", bad),
        ("placement", "--from", bad),
        ("nccl", "env", "--from", bad),
        ("nccl", "env", "NCCL_DEBUG", "--from", bad),
        ("nccl", "predict", "--why", "--from", bad),
        ("snapshot", "show", bad),
        ("snapshot", "show", bad, "--grep", ""),
        ("diff", usual, bad),
        ("diff", bad, usual, "--same-node"),
        ("fleet", usual, bad, "--all"),
    ):
        assert said(*argv).out


@hostile
def test_json(folder: Path, usual: Path, names: Mapping[str, str]) -> None:
    bad = hostile_recording(folder / "bad.snap", names)
    for argv in (
        ("report", "--format", "json", "--from", bad),
        ("check", "--format", "json", "--from", bad),
        ("placement", "--format", "json", "--from", bad),
        ("nccl", "env", "--format", "json", "--from", bad),
        ("nccl", "predict", "--format", "json", "--from", bad),
        ("diff", usual, bad, "--format", "json"),
        ("fleet", usual, bad, "--format", "json"),
    ):
        json.loads(said(*argv).out)
    check_sarif(json.loads(said("check", "--format", "sarif", "--from", bad).out))
    (folder / "report.json").write_text(said("report", "--format", "json", "--from", bad).out)
    document = json.loads((folder / "report.json").read_text())
    # A reader gets back what the machine said, character for character; of the file, the first line without its end.
    if name := names["gpu"].strip():
        assert {g["name"] for g in document["gpus"]} == {name}
    again = json.loads(said("fleet", folder / "report.json", "--format", "json").out)
    assert again["fleet"]["nodes"] == 1


@hostile
def test_markdown(folder: Path, names: Mapping[str, str]) -> None:
    bad = hostile_recording(folder / "bad.snap", names)
    text = said("report", "--format", "markdown", "--from", bad).out
    assert {kind for kind, _ in markup(text)} <= MARKUP
    known = call("report", "--format", "markdown", "--from", hostile_recording(folder / "known.snap", NAMES)).out
    headings = {line for line in known.splitlines() if line.startswith("#")}
    assert {line for line in text.splitlines() if line.startswith("#")} <= headings
    outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    assert not re.search(r"(?<!\\)<", outside)
    # Nothing of a name is lost or read as markup: its characters come back, blanks aside.
    shown = "".join(content for kind, content in markup(text) if kind in ("text", "text_special"))
    assert shown_of(facts(bad)["dmi_vendor"] or "") in "".join(shown.split())


@hostile
def test_html(folder: Path, usual: Path, names: Mapping[str, str]) -> None:
    bad = hostile_recording(folder / "bad.snap", names)
    page = Tags()
    page.feed(said("fleet", usual, bad, "--format", "html").out)
    tags = set(
        "html head meta title style body header main section footer h1 h2 h3 article div span b details summary "
        "table thead tbody tr th td code p ul li".split()
    )
    assert {tag for tag, _, _ in page.found} <= tags
    names_of = {k for _, k, _ in page.found if k}
    assert names_of <= set("lang charset class scope tabindex role aria-label name content http-equiv style".split())
    styles = {v for _, k, v in page.found if k == "style"}
    assert all(re.fullmatch(r"--w:[0-9.]+%", v) for v in styles), styles
    classes = {c for _, k, v in page.found if k == "class" for c in v.split()}
    assert classes <= set(
        "fail warn unknown note id badge scroll right share dim bold finding fix mono evidence chips chip".split()
    ) | {f"is-{s}" for s in ("fail", "warn", "unknown", "note")}
    shown = shown_of(facts(bad)["hostname"] or "").replace("\ufffe", "\ufffd")  # no character of XML
    assert shown in "".join("".join(page.shown).split())


@hostile
def test_csv(folder: Path, usual: Path, names: Mapping[str, str]) -> None:
    bad = hostile_recording(folder / "bad.snap", names)
    text = said("fleet", usual, bad, "--format", "csv").out
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert len(rows) == text.count("\n")
    assert {len(r) for r in rows} == {11}
    assert safe_cells(rows)


@hostile
def test_xml(folder: Path, names: Mapping[str, str]) -> None:
    bad = hostile_recording(folder / "bad.snap", names)
    text = said("check", "--format", "junit", "--from", bad).out
    root = ElementTree.fromstring(text.encode())
    kinds = {
        "testsuites",
        "testsuite",
        "properties",
        "property",
        "testcase",
        "failure",
        "error",
        "skipped",
        "system-out",
    }
    assert {e.tag for e in root.iter()} <= kinds
    assert junitparser.JUnitXml.fromstring(text.encode()).tests > 50
    for argv in (("emit", "nccl-topo", bad), ("nccl", "topo", "--from", bad)):
        got = said(*argv, codes=(0, 2))
        if got.code:
            assert "cannot be written" in got.error
            continue
        tree = ElementTree.fromstring(got.out)
        assert {e.tag for e in tree.iter()} <= {"system", "cpu", "pci", "gpu", "nvlink", "nic", "net", "c2c"}
        assert [n.get("name") for n in tree.iter("net")] == [names["nic"]]


def facts(recording: Path) -> dict[str, Any]:
    """Return what the probes made of the host's files, without line ends and NULs; readers of JSON get it whole."""
    host: dict[str, Any] = json.loads(call("report", "--format", "json", "--from", recording).out)["host"]
    return host


_PERFORMANCE = re.compile(r"'[^'=|\s]+'=-?[\d.]+(GB)?;[\d.:~@]*;[\d.:~@]*;?[\d.]*;?[\d.]*")


@hostile
def test_lines_of_schedulers_and_monitors(folder: Path, names: Mapping[str, str]) -> None:
    bad = hostile_recording(folder / "bad.snap", names)
    for format_ in ("nagios", "npd", "nhc", "slurm-prolog"):
        line = said("check", "--format", format_, "--from", bad, codes=(0, 1, 2, 3)).out
        assert line.count("\n") == 1
        assert not set('`"$\\') & set(line)
        _died(line.rstrip("\n"), folder)
        if format_ == "nagios":
            _, data = line.rstrip("\n").split("|")
            assert all(_PERFORMANCE.fullmatch(word) for word in data.split()), data
    features = said("check", "--format", "nfd", "--from", bad).out
    feature = re.compile(r"topocheck\.io/[a-z][a-z0-9.]*=([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)")
    assert all(feature.fullmatch(x) for x in features.splitlines()), features


def _died(line: str, folder: Path) -> None:
    """Hand a line to the `die` of Node Health Check, which evaluates it in single quotes (nhc 1.4.3, function die)."""
    die = """die() { eval $OFFLINE_NODE "'$HOSTNAME'" "'$*'"; }; die "$1" """
    environment = {"PATH": "/usr/bin:/bin", "OFFLINE_NODE": "printf %s\\n", "HOSTNAME": "n1"}
    done = subprocess.run(
        ["bash", "-c", die, "bash", line.replace("'", "") if " | " in line else line],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert not (folder / "pwned").exists()


@hostile
def test_prometheus(folder: Path, names: Mapping[str, str]) -> None:
    bad = hostile_recording(folder / "bad.snap", names)
    text = said("check", "--format", "prometheus", "--from", bad).out
    families = list(text_string_to_metric_families(text))
    assert all(f.name.startswith("topocheck_") for f in families)
    subjects = {s.labels["subject"] for f in families for s in f.samples if f.name == "topocheck_finding_info"}
    assert len(subjects) > 1
    assert all(len(x) == len(x.splitlines()[0]) for x in subjects if x)
    if shutil.which("promtool"):
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=text.encode(), capture_output=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


_WORD = re.compile(r"[A-Za-z0-9_.-]{1,63}")
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")


@hostile
def test_settings_that_a_shell_reads(folder: Path, names: Mapping[str, str]) -> None:
    bad = hostile_recording(folder / "bad.snap", names)
    (folder / "nccl.conf").write_text(said("emit", "nccl-env", bad).out)
    subprocess.run(["sh", "-n", folder / "nccl.conf"], check=True)
    done = subprocess.run(
        ["env", "-i", "PATH=/usr/bin:/bin", "sh", "-c", "set -a; . ./nccl.conf; /usr/bin/env -0"],
        cwd=folder,
        capture_output=True,
        check=True,
    )
    assert done.stderr == b""
    assert not (folder / "pwned").exists()
    got = dict(x.split("=", 1) for x in done.stdout.decode().split("\0") if x.startswith("NCCL_"))
    fits = {k: bool(_WORD.fullmatch(names[k])) for k in ("nic", "netdev")}
    want = {"NCCL_IB_HCA": f"={names['nic']}:1"} if fits["nic"] else {}
    # The netdev of the only RDMA NIC is also the only interface with an address.
    want |= {"NCCL_SOCKET_IFNAME": f"={names['netdev']}"} if fits["netdev"] and not _virtual(names["netdev"]) else {}
    assert got == want


def _virtual(name: str) -> bool:
    return name == "lo" or name.startswith(("docker", "veth", "virbr", "cni", "br-", "tun", "tap"))


@hostile
def test_a_script_that_binds_ranks(folder: Path, names: Mapping[str, str]) -> None:
    bad = hostile_recording(folder / "bad.snap", names)
    (folder / "numactl.sh").write_text(said("emit", "numactl", bad).out)
    (folder / "numactl").write_text('#!/bin/sh\necho "$@"\n')
    (folder / "numactl").chmod(0o755)
    subprocess.run(["sh", "-n", folder / "numactl.sh"], check=True)
    done = subprocess.run(
        ["sh", "numactl.sh", "train"],
        cwd=folder,
        env={"PATH": f"{folder}:/usr/bin:/bin", "LOCAL_RANK": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.fullmatch(r"--physcpubind=[\d,-]+ --membind=\d+ train\n", done.stdout)
    assert done.stderr == ""
    assert not (folder / "pwned").exists()


@hostile
def test_files_of_schedulers_and_launchers(folder: Path, usual: Path, names: Mapping[str, str]) -> None:
    bad = hostile_recording(folder / "bad.snap", names)
    host = names["host"].strip()
    fits = bool(_HOST.fullmatch(host)) and len(host) < 254
    lines = {
        "gres-conf": rf"NodeName={re.escape(host)} Name=gpu Type=[a-z0-9_]+ File=/dev/nvidia\d+"
        r"( Cores=[\d,-]+)?( Links=[\d,-]+)?",
        "rankfile": rf"rank \d+={re.escape(host)} slot=\d+:\d+(-\d+)?",
        "topology-conf": r"SwitchName=\w+ (Nodes|Switches)=[A-Za-z0-9_.,\[\]-]+",
    }
    for kind, grammar in lines.items():
        files = (usual, bad) if kind == "topology-conf" else (bad,)
        got = said("emit", kind, *files, codes=(0, 2))
        assert (got.code == 0) == fits, got.error
        assert fits or "no host name" in got.error
        for line in got.out.splitlines():
            assert not line or line.startswith("#") or re.fullmatch(grammar, line), line


@hostile
def test_a_policy_is_toml_of_what_was_found(folder: Path, names: Mapping[str, str]) -> None:
    from topocheck.cli.common import open_host
    from topocheck.pipeline import build_report
    from topocheck.policy.write import expectations
    from topocheck.render.policy import policy_toml

    found = build_report(open_host([hostile_recording(folder / "bad.snap", names)]))
    expected = expectations(found.node, found.topology, found.gpudirect)
    text = policy_toml(expected, found.node)
    assert not unseen(text)
    assert tomllib.loads(text) == {"expect": expected}


@pytest.mark.parametrize("names", EACH, ids=[f"{i}" for i in range(len(EACH))])
def test_each_piece_alone(tmp_path: Path, usual: Path, names: dict[str, str]) -> None:
    bad = hostile_recording(tmp_path / "bad.snap", names)
    said("report", "--from", bad)
    said("check", "--from", bad)
    assert {kind for kind, _ in markup(said("report", "--format", "markdown", "--from", bad).out)} <= MARKUP
    json.loads(said("report", "--format", "json", "--from", bad).out)


@pytest.mark.parametrize("name", ["\x1b[31m", f"x\n{FORGED}", "\x9b\u202e", "\udcff", "--x\x1b[31m", "-\x1b[0m"])
@pytest.mark.parametrize(
    "argv",
    [
        ("report", "--from"),
        ("report", "--smi-topo"),
        ("report", "--format"),
        ("report", "--width"),
        ("check", "--policy"),
        ("check", "--only"),
        ("check", "--gpus"),
        ("explain",),
        ("nccl", "env"),
        ("nccl", "log"),
        ("nccl", "topo", "--no-machine", "--input"),
        ("nccl", "predict", "--topo"),
        ("nccl", "predict", "--ranks"),
        ("fleet",),
        ("diff",),
        ("emit", "rankfile"),
        ("emit", "topology-conf"),
        ("snapshot", "show"),
        ("snapshot", "save"),
        ("schema",),
        ("pcie", "3"),
        ("pcie", "3", "16"),
        (),
    ],
)
def test_errors(tmp_path: Path, argv: tuple[str, ...], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    got = call(*argv, name)
    assert got.code == (0 if argv == ("snapshot", "save") and got.out else 2)
    assert not unseen(got.out + got.error)
    assert not forged(got.out + got.error)
    assert not os.listdir(tmp_path) or argv == ("snapshot", "save")


STRANGERS = {
    "a log of NCCL": (("nccl", "log"), "n1:1:2 [0] NCCL INFO NCCL version 2.28.9+cuda12.8{0}\n"
                      "n1:1:2 [0] NCCL INFO NCCL_{0} set by environment to {0}\n"
                      "n1:1:2 [0] NCCL WARN {0}\nn1:1:2 [0] NCCL INFO NET/IB : Using [0]{0}:1/RoCE [RO]; OOB {0}:1<0>\n"
                      "n1:1:2 [0] {0}.cc:1 NCCL WARN Cuda failure '{0}'\n"),
    "a topology file": (("nccl", "topo", "--no-machine", "--input"),
                        '<system version="1"><cpu numaid="0" {0}="{0}"><{0} busid="{0}"/></cpu></system>'),
    "a topology": (("nccl", "predict", "--topo"),
                   '<system version="1"><cpu numaid="0"><pci busid="{0}"><gpu dev="{0}"/></pci></cpu></system>'),
    "a matrix": (("report", "--smi-topo"),
                 "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \t{0}\t0-3\nGPU1\tPIX\t X \t{0}\n{0}\n"),
    "a policy": (("check", "--from", "SNAP", "--policy"), "[expect]\n{0} = 1\n\"{0}\" = 2\n"),
    "a policy's values": (("check", "--from", "SNAP", "--policy"), "[expect]\ngpu_model = '''{0}'''\n"),
    "ranks": (("nccl", "predict", "--ranks"), '[[rank]]\n"{0}" = \'\'\'{0}\'\'\'\n'),
    "a report": (("fleet",), '{{"schema_version": "2.0", "{0}": "{0}"}}'),
    "a baseline": (("bw", "--no-copies", "--plan", "--baseline"), '{{"format": "{0}", "version": 1}}'),
}  # fmt: skip


@pytest.mark.parametrize("format_", ["text", "json"])
@pytest.mark.parametrize("kind", STRANGERS)
def test_files_from_strangers(tmp_path: Path, usual: Path, kind: str, format_: str) -> None:
    argv, content = STRANGERS[kind]
    words = [str(usual) if a == "SNAP" else a for a in argv]
    for i, piece in enumerate(PIECES):
        path = tmp_path / f"{i}"
        path.write_text(content.format(piece), encoding="utf-8")
        got = call(*words, path, *(() if argv[0] == "emit" else ("--format", format_)))
        assert not unseen(got.out + got.error), (piece, got)
        assert not forged(got.out + got.error), (piece, got)

"""NHC, node-problem-detector, PBS and systemd: each script against what its caller does with it."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require_program
from tests.render.formats.made import UNSURE, WARNING, WIDTH, outcome, report
from tests.support.waiting import PATIENCE_S
from topocheck.checks import all_checks
from topocheck.render.formats import prometheus

INTEGRATIONS = Path(__file__).parents[2] / "integrations"
SCRIPTS = sorted(p for p in INTEGRATIONS.rglob("*") if p.suffix in (".sh", ".nhc") or p.name.startswith("elim."))


def fake_topocheck(folder: Path, code: int, out: str = "", err: str = "") -> Path:
    """Write a program that says `out` and `err` and exits with `code`, and notes its arguments in `folder`/args."""
    path = folder / "topocheck"
    path.write_text(
        f"#!/bin/sh\necho \"$@\" >{folder}/args\nprintf '%s' '{out}'\nprintf '%s' '{err}' >&2\nexit {code}\n"
    )
    path.chmod(0o755)
    return path


@pytest.mark.service
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_shellcheck(path: Path) -> None:
    require_program("shellcheck")
    done = subprocess.run(
        ["shellcheck", "-x", str(path)], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.stdout == ""


@pytest.mark.parametrize("path", [p for p in SCRIPTS if p.parent.name == "slurm"], ids=lambda p: p.name)
def test_slurm_scripts_name_programs_by_full_path(path: Path) -> None:
    """Slurm sets no PATH: outside of builtins and own functions, a command begins with a slash or a variable."""
    known = set("case esac if then else fi for do done exit return echo printf set export . [ : ( ) { } shift".split())
    known |= set("judge say look drain resume scontrol".split())
    for line in path.read_text().splitlines():
        code = line.split("#")[0].strip()
        if not code or re.match(r"[A-Z_a-z]+=|[A-Za-z_]+\(\)|[\"0-9*].*\)|--", code):
            continue
        assert code.split()[0] in known or code.startswith(("/", "$")), line


# LBNL NHC sources its check files into bash; `die CODE TEXT` ends the run with TEXT, `log TEXT` writes to its log.
NHC = """
die() {{ echo "die $1 $2"; }}
log() {{ echo "log $*"; }}
TOPOCHECK={program}
. {script}
check_topocheck --only pcie
echo "rc $?"
"""


@pytest.mark.parametrize(
    ("code", "out", "err", "expected"),
    [
        (0, "", "", "rc 0\n"),
        (1, "GPU3 PCIe x8 of x16 - topocheck: pcie.link-width\n", "a warning\n",
         "die 1 GPU3 PCIe x8 of x16 - topocheck: pcie.link-width\nrc 1\n"),
        (0, "policy x - topocheck: unknown\n", "", "log policy x - topocheck: unknown\nrc 0\n"),
        (2, "", "no such option\n", "log topocheck: could not judge this node (exit code 2): no such option\nrc 0\n"),
        (1, "", "KeyError: 3\n", "log topocheck: could not judge this node (exit code 1): KeyError: 3\nrc 0\n"),
        (0, "", "topocheck: no metrics: disk full\n", "rc 0\n"),
    ],
)  # fmt: skip
def test_nhc(tmp_path: Path, code: int, out: str, err: str, expected: str) -> None:
    program = fake_topocheck(tmp_path, code, out, err)
    script = NHC.format(program=program, script=INTEGRATIONS / "nhc" / "topocheck.nhc")
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.stdout == expected
    assert (tmp_path / "args").read_text() == "check --format nhc --budget 10 --only pcie\n"


LSF_CASES = [
    (0, "", "", True),
    (1, "GPU3 PCIe x8 of x16 - topocheck: pcie.link-width\n", "", False),
    (0, "policy x - topocheck: unknown\n", "", True),  # could not tell
    (1, "", "KeyError: 3\n", True),  # a crash
    (2, "", "no such option\n", True),
]


@pytest.mark.parametrize(("code", "out", "err", "fit"), LSF_CASES)
def test_lsf_pre_execution(tmp_path: Path, code: int, out: str, err: str, fit: bool) -> None:
    """LSF requeues the job on any exit code but 0, and avoids the host by PREEXEC_EXCLUDE_HOST_EXIT_VALUES."""
    env = {"TOPOCHECK": str(fake_topocheck(tmp_path, code, out, err)), "PATH": "/usr/bin:/bin"}
    script = str(INTEGRATIONS / "lsf" / "host_pre_exec.sh")
    done = subprocess.run(["/bin/sh", script], env=env, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (0 if fit else 1, "")
    assert (tmp_path / "args").read_text() == "check --format slurm-prolog --budget 10\n"


@pytest.mark.parametrize(("code", "out", "err", "fit"), LSF_CASES)
def test_lsf_load_index(tmp_path: Path, code: int, out: str, err: str, fit: bool) -> None:
    """LIM reads `NUMBER NAME VALUE` lines for as long as the elim runs (IBM Spectrum LSF, external load indices)."""
    env = {
        "TOPOCHECK": str(fake_topocheck(tmp_path, code, out, err)),
        "TOPOCHECK_INTERVAL": "0.01",
        "PATH": "/usr/bin:/bin",
    }
    script = INTEGRATIONS / "lsf" / "elim.topocheck"
    done = subprocess.run(
        ["/bin/sh", "-c", f"/bin/sh {script} | head -n 3"],
        env=env, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.stdout == f"1 topocheck_ok {int(fit)}\n" * 3


def npd(*args: str) -> tuple[int, str]:
    done = subprocess.run(
        ["/bin/sh", str(INTEGRATIONS / "npd" / "topocheck_npd.sh"), *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    assert len(done.stdout.encode()) <= 81
    return done.returncode, done.stdout.rstrip("\n")


def test_npd(tmp_path: Path) -> None:
    file = tmp_path / "topocheck.prom"
    assert npd("all", str(file)) == (2, f"no result of topocheck at {file}"[:80])
    file.write_text(prometheus.render(outcome(WIDTH, WARNING, UNSURE), report()))
    assert npd("all", str(file)) == (1, "pcie.link-width: 0000:5c:00.0 GPU3")
    assert npd("pcie.link-width", str(file)) == (1, "0000:5c:00.0 GPU3")
    assert npd("numa.node-missing", str(file))[0] == 0
    assert npd("pcie.aer-errors", str(file)) == (0, "no problem")
    assert npd("p2p.acs-redirect", str(file)) == (2, "unknown")
    assert npd("p2p.mig", str(file)) == (0, "does not apply to this node")
    assert npd("pcie.link", str(file)) == (2, "topocheck has no check pcie.link")
    file.write_text(prometheus.render(outcome(WARNING), report()))
    assert npd("all", str(file)) == (0, "no check fails")
    file.write_text(prometheus.render(outcome(cannot_tell=["probe nvml"]), report()))
    assert npd("all", str(file))[0] == 2
    old = time.time() - 3600
    os.utime(file, (old, old))
    code, said = npd("all", str(file))
    assert code == 2
    assert re.fullmatch(r"the result of topocheck is 36\d\d s old", said)


def test_npd_configuration() -> None:
    config = json.loads((INTEGRATIONS / "npd" / "topocheck-monitor.json").read_text())
    conditions = {c["type"] for c in config["conditions"]}
    reasons = [r["reason"] for r in config["rules"]]
    assert len(reasons) == len(set(reasons))
    known = {c.id for c in all_checks()} | {"all"}
    for rule in config["rules"]:
        assert rule["condition"] in conditions
        assert rule["type"] == "permanent"
        assert set(rule["args"]) <= known
        # A rule's timeout may only shorten the plugin's.
        assert float(rule["timeout"][:-1]) <= float(config["pluginConfig"]["timeout"][:-1])
    assert config["pluginConfig"]["max_output_length"] <= 4096


class Rejected(Exception):
    """What the hook's environment raises to end a hook."""


class Accepted(Exception):
    """The same, for acceptance."""


def run_hook(program: Path, kind: int, comment: str | None) -> tuple[Any, list[str], list[str]]:
    """Run the hook with a stand-in for PBS' module; return the vnode, what happened, and what was logged."""
    happened: list[str] = []
    logged: list[str] = []
    vnode = types.SimpleNamespace(state=0, comment=comment)

    def reject(text: str) -> None:
        happened.append(f"reject {text}")
        raise Rejected

    def accept() -> None:
        happened.append("accept")
        raise Accepted

    job = types.SimpleNamespace(rerun=lambda: happened.append("rerun"))
    event = types.SimpleNamespace(type=kind, vnode_list={"n1": vnode}, job=job, reject=reject, accept=accept)
    fake = types.ModuleType("pbs")
    fake.__dict__.update(
        EXECJOB_BEGIN=1, EXECHOST_PERIODIC=2, ND_OFFLINE=8, ND_FREE=0, LOG_WARNING=4,
        event=lambda: event, get_local_nodename=lambda: "n1", logmsg=lambda level, text: logged.append(text),
    )  # fmt: skip
    source = (INTEGRATIONS / "pbs" / "hook.py").read_text().replace("/usr/local/bin/topocheck", str(program))
    path = program.parent / "hook.py"
    path.write_text(source)
    sys.modules["pbs"] = fake
    try:
        runpy.run_path(str(path))
    except (Rejected, Accepted):
        pass
    finally:
        del sys.modules["pbs"]
    return vnode, happened, logged


REASON = "GPU3 PCIe x8 of x16 - topocheck: pcie.link-width"
REASON_0_1 = "topocheck: pcie.link-width: GPU3 runs at x8"
"""As 0.1 wrote it: a node that it took out must be given back by this version."""
OTHER = "disk 3 is being replaced"


@pytest.mark.parametrize(
    ("code", "out", "kind", "before", "state", "after", "happened", "noted"),
    [
        (0, "", 1, None, 0, None, ["accept"], False),
        (1, REASON, 1, None, 8, REASON, ["rerun", f"reject {REASON}"], False),
        (1, REASON, 1, OTHER, 0, OTHER, ["rerun", f"reject {REASON}"], False),
        (1, REASON, 2, None, 8, REASON, ["accept"], False),
        (0, "", 2, REASON, 0, None, ["accept"], False),
        (0, "", 1, REASON, 0, REASON, ["accept"], False),
        (0, "", 2, OTHER, 0, OTHER, ["accept"], False),
        (0, "", 2, REASON_0_1, 0, None, ["accept"], False),
        (1, REASON, 2, REASON_0_1, 8, REASON, ["accept"], False),
        (2, "", 1, None, 0, None, ["accept"], True),
        (1, "Traceback", 1, None, 0, None, ["accept"], True),
        (0, "policy x - topocheck: unknown", 2, REASON, 0, REASON, ["accept"], True),
    ],
)
def test_pbs_hook(
    tmp_path: Path,
    code: int,
    out: str,
    kind: int,
    before: str | None,
    state: int,
    after: str | None,
    happened: list[str],
    noted: bool,
) -> None:
    vnode, got, logged = run_hook(fake_topocheck(tmp_path, code, out), kind, before)
    assert (vnode.state, vnode.comment, got) == (state, after, happened)
    assert bool(logged) == noted


def test_pbs_hook_without_topocheck(tmp_path: Path) -> None:
    vnode, got, logged = run_hook(tmp_path / "none", 1, None)
    assert (vnode.state, got) == (0, ["accept"])
    assert logged


@pytest.mark.service
def test_systemd_units(tmp_path: Path) -> None:
    require_program("systemd-analyze")
    program = fake_topocheck(tmp_path, 0)
    for name in ("topocheck.service", "topocheck.timer"):
        text = (INTEGRATIONS / "systemd" / name).read_text().replace("/usr/local/bin/topocheck", str(program))
        (tmp_path / name).write_text(text)
    units = [str(tmp_path / n) for n in ("topocheck.service", "topocheck.timer")]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )
    assert [x for x in (done.stdout + done.stderr).splitlines() if "topocheck." in x] == []


def test_unit_accepts_our_exit_codes() -> None:
    unit = (INTEGRATIONS / "systemd" / "topocheck.service").read_text()
    assert re.search(r"^SuccessExitStatus=1 3$", unit, re.M)
    assert re.search(r"^ExecStart=/\S+ check --format prometheus .*--output /\S+\.prom$", unit, re.M)

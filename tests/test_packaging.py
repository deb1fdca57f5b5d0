"""The wheel as it is built: what it says of itself, what it holds, and that it runs from where it lies."""

from __future__ import annotations

import email
import email.message
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import topocheck
from tests.support.printed import REPOSITORY
from tests.support.waiting import PATIENCE_S

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the unpacked wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder / "installed")
    return folder / "installed"


def metadata(installed: Path) -> email.message.Message:
    (path,) = installed.glob("*.dist-info/METADATA")
    return email.message_from_string(path.read_text(encoding="utf-8"))


def run(installed: Path, *argv: str) -> str:
    """Return what the installed program prints, run somewhere else."""
    code = "import sys; sys.argv[0] = 'topocheck'; from topocheck.cli.main import main; main()"
    env = dict(os.environ, PYTHONPATH=str(installed))
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *argv],
        cwd=installed.parent, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_what_it_says_of_itself(installed: Path) -> None:
    said = metadata(installed)
    assert (said["Name"], said["Version"]) == ("topocheck-gpu", topocheck.__version__)
    assert said.get_all("Project-URL")
    assert len(said.get_all("Classifier") or ()) >= 10
    required = [r for r in said.get_all("Requires-Dist") or () if "extra ==" not in r]
    assert {r.split(">=")[0] for r in required} >= {"jinja2", "junitparser", "prometheus-client"}
    assert not any("torch" in r for r in required)


def test_version_and_changelog_agree(installed: Path) -> None:
    assert run(installed, "--version") == f"topocheck {topocheck.__version__}\n"
    headings = [x for x in (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8").splitlines() if x[:3] == "## "]
    assert headings[0].startswith(f"## [{topocheck.__version__}]")


def test_man_page_and_schemas_are_inside(installed: Path) -> None:
    (man,) = installed.glob("*.data/data/share/man/man1/topocheck.1")
    assert man.read_bytes() == (REPOSITORY / "docs/man/topocheck.1").read_bytes()
    for path in (REPOSITORY / "docs" / "schema").iterdir():
        assert (installed / "topocheck" / "schema" / path.name).read_bytes() == path.read_bytes()


def test_integrations_are_inside_and_printed(installed: Path) -> None:
    listed = run(installed, "integrations").split()
    files = [p for p in (REPOSITORY / "integrations").rglob("*") if p.is_file() and p.name != "README.md"]
    assert listed == sorted(str(p.relative_to(REPOSITORY / "integrations")) for p in files)
    for name in listed:
        packed, path = installed / "topocheck/integrations" / name, REPOSITORY / "integrations" / name
        assert packed.read_bytes() == path.read_bytes()
    name = "slurm/prolog.sh"
    assert run(installed, "integrations", name) == (REPOSITORY / "integrations" / name).read_text(encoding="utf-8")
    assert run(installed, "integrations", "--folder") == f"{installed / 'topocheck' / 'integrations'}\n"


def test_every_extra_installs_by_name() -> None:
    """Hints name packages of the index; an extra names the same ones."""
    named = {r.split(">=")[0].split(";")[0].strip() for rows in PROJECT["optional-dependencies"].values() for r in rows}
    for package in ("torch", "numpy", "cuda-bindings", "mpi4py", "scikit-learn", "pyyaml"):
        assert package in named

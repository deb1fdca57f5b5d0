"""The manifests by Kubernetes' own schemas, and the image that they start by hadolint."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import topocheck
from tests.conftest import require_program
from tests.support.printed import REPOSITORY
from tests.support.waiting import PATIENCE_S

FOLDER = REPOSITORY / "integrations" / "kubernetes"
DOCKERFILE = REPOSITORY / "Dockerfile"
VERSIONS = ("1.31", "1.34")
MANIFESTS = sorted(FOLDER.glob("*.yaml"))


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def containers(document: dict[str, Any]) -> list[dict[str, Any]]:
    pod = document.get("spec", {}).get("template", {}).get("spec", {})
    return [*pod.get("initContainers", ()), *pod.get("containers", ())]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda p: p.name)
def test_it_follows_the_schema(path: Path, version: str) -> None:
    for document in documents(path):
        kubernetes_validate.validate(document, version, strict=True)


def test_the_schema_refuses_what_is_wrong() -> None:
    (job,) = documents(FOLDER / "init-container.yaml")
    job["spec"]["template"]["spec"]["restartPolicie"] = "Never"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSIONS[0], strict=True)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda p: p.name)
def test_its_scripts_are_shell_and_name_real_options(path: Path) -> None:
    scripts = [
        a for d in documents(path) for c in containers(d) if c.get("command") == ["/bin/sh", "-c"] for a in c["args"]
    ]
    assert scripts
    for script in scripts:
        done = subprocess.run(["sh", "-n", "-c", script], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        (command,) = re.findall(r"topocheck (check [^|\n]*)", script)
        argv = [sys.executable, "-m", "topocheck", *re.sub(r"--output \S+", "", command).split()]
        recorded = ["--from", "docs/examples/half_width.snap"]
        ran = subprocess.run([*argv, *recorded], cwd=REPOSITORY, capture_output=True, check=False, timeout=PATIENCE_S)
        assert (ran.returncode, ran.stderr) == (1, b"")  # GPU3 at x8


def test_images_have_this_version() -> None:
    named = [c["image"] for p in MANIFESTS for d in documents(p) for c in containers(d) if c["name"] == "topocheck"]
    assert set(named) == {f"registry.example.com/topocheck:{topocheck.__version__}"}


def test_the_image_by_hadolint() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    require_program(str(hadolint))
    done = subprocess.run([str(hadolint), str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_image_is_built_from_all_that_the_wheel_needs() -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")
    copied = [w for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE) for w in line.split()]
    assert all((REPOSITORY / c).exists() for c in copied)
    allowed = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().split() if line.startswith("!")}
    assert set(copied) == allowed
    wheel = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["force-include"], *wheel["shared-data"], *wheel["packages"], "README.md", "LICENSE"}
    assert all(any(n == c or n.startswith(f"{c}/") for c in copied) for n in needed)

"""Where programs are looked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from topocheck.process import programs
from topocheck.process.programs import find_program, search_path

NAME = "topocheck-test-program"


def install(folder: Path, name: str = NAME) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text("#!/bin/sh\necho hostile\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user without any special rights."""
    monkeypatch.setattr(programs, "privileged", lambda: False)


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "privileged", lambda: True)


@pytest.mark.parametrize("path", ["", ":", ".", "./", "bin", "bin:", "..", ":/usr/bin:", "bin/../bin"])
@pytest.mark.parametrize("rights", ["user", "root"])
def test_the_current_folder_is_never_searched(
    path: str, rights: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request.getfixturevalue(rights)
    install(tmp_path)
    install(tmp_path / "bin")
    install(tmp_path / "sub" / "..")
    (tmp_path / "sub").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / "sub" if path == ".." else tmp_path)
    monkeypatch.setenv("PATH", path)
    assert find_program(NAME) is None
    assert all(os.path.isabs(folder) for folder in search_path())


@pytest.mark.usefixtures("user")
def test_a_users_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = install(tmp_path, "sh")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin")
    assert find_program("sh") == str(program)
    monkeypatch.delenv("PATH")
    assert find_program("sh") in ("/usr/bin/sh", "/bin/sh"), "the system's folders are searched without it too"


@pytest.mark.usefixtures("root")
def test_root_ignores_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "sh")
    install(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program(NAME) is None
    assert find_program("sh") in ("/usr/bin/sh", "/bin/sh")


@pytest.mark.usefixtures("root")
def test_a_package_folder_is_roots_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to make a folder of root's")
    folder = Path("/opt") / f"topocheck-test-{os.getpid()}"
    program = install(folder / "bin")
    try:
        monkeypatch.setattr(programs, "PACKAGES", (str(folder / "bin"), str(tmp_path / "open")))
        assert find_program(NAME) == str(program)
        (folder / "bin").chmod(0o777)
        assert find_program(NAME) is None
        (folder / "bin").chmod(0o755)
        folder.chmod(0o775)
        assert find_program(NAME) is None, "whoever may write above it may put another folder there"
        folder.chmod(0o755)
        os.chown(folder / "bin", 65534, 65534)
        assert find_program(NAME) is None
        link = folder / "link"
        install(tmp_path / "open")
        link.symlink_to(tmp_path / "open")
        monkeypatch.setattr(programs, "PACKAGES", (str(link),))
        assert find_program(NAME) is None, "what counts is where it leads"
    finally:
        subprocess.run(["rm", "-r", str(folder)], check=True)


@pytest.mark.parametrize("name", ["", "a/b", "./sh", "../bin/sh", "s\0h", "/no/such/program", "/etc/passwd", "/usr"])
def test_what_names_no_program(name: str) -> None:
    assert find_program(name) is None


def test_an_absolute_path_is_taken() -> None:
    assert find_program("/bin/sh") == "/bin/sh"


@pytest.mark.parametrize("path", [".", "", "bin"])
def test_a_command_of_a_probe_is_not_taken_from_the_current_folder(path: str, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "bin"):
        install(folder, "nvidia-smi-of-topocheck-tests")
        install(folder, "true")
    code = (
        "from topocheck.host.base import HostError\n"
        "from topocheck.host.live.command import run_command\n"
        "try: print(run_command(['nvidia-smi-of-topocheck-tests'], 30))\n"
        "except HostError as e: print(e.reason.value)\n"
        "print(repr(run_command(['true'], 30)['stdout']))\n"
        "print(run_command(['sh', '-c', 'echo $PATH; true; nvidia-smi-of-topocheck-tests'], 30)['stdout'])\n"
    )
    env = {**os.environ, "PATH": path}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert "hostile" not in done.stdout, done.stdout
    reason, out, seen = done.stdout.splitlines()[:3]
    assert (reason, out) == ("absent", "''")
    assert all(os.path.isabs(folder) for folder in seen.split(":")), "nor by the programs it runs"

"""Files written by root where another user has a hand in: in a folder of theirs, under names of theirs."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import run
from tests.render.formats.made import outcome, report
from topocheck.cli import check, common
from topocheck.cli.common import check_writable
from topocheck.host.output import open_folder, write_file
from topocheck.host.recording.export import export_tree
from topocheck.host.recording.snapshot import SnapshotError
from topocheck.model.base import InputError

NOBODY = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture
def theirs() -> Iterator[Path]:
    """A folder of another user; not below pytest's own, which is closed to others."""
    with tempfile.TemporaryDirectory() as top:
        Path(top).chmod(0o755)
        folder = Path(top, "theirs")
        folder.mkdir()
        os.chown(folder, NOBODY, NOBODY)
        yield folder


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("secret")
    path.chmod(0o600)
    return path


def unharmed(victim: Path) -> None:
    assert victim.read_text() == "secret"
    assert stat.S_IMODE(victim.stat().st_mode) == 0o600


ATTACK = """
import os, sys
folder, victim, user = sys.argv[1:]
os.chdir(folder)
os.setgroups([])
os.setgid(int(user))
os.setuid(int(user))
print("ready", flush=True)
while True:
    for name in os.listdir("."):
        try:
            if not os.path.islink(name):
                os.symlink(victim, ".planted")
                os.replace(".planted", name)
        except OSError:
            pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("sticky", [False, True])
def test_a_race_for_the_file_harms_no_other(theirs: Path, victim: Path, sticky: bool) -> None:
    """The attacker puts a link to root's file under every name that appears in the folder."""
    if sticky:
        os.chown(theirs, 0, 0)
        theirs.chmod(0o1777)
    attacker = subprocess.Popen(
        [sys.executable, "-I", "-c", ATTACK, str(theirs), str(victim), str(NOBODY)], stdout=subprocess.PIPE
    )
    assert attacker.stdout is not None
    try:
        assert attacker.stdout.readline() == b"ready\n"
        made = outcome()
        for i in range(300):
            check._metrics(theirs / "metrics", made, report())
            with contextlib.suppress(InputError):
                common.emit("new", theirs / f"out{i % 3}")
            unharmed(victim)
    finally:
        attacker.send_signal(signal.SIGKILL)
        attacker.wait()
        attacker.stdout.close()


def test_a_planted_link_is_refused(theirs: Path, victim: Path) -> None:
    (theirs / "out").symlink_to(victim)
    with pytest.raises(InputError, match="is a symbolic link"):
        common.emit("new", theirs / "out")
    with pytest.raises(InputError, match=r"--save .*is a symbolic link"):
        check_writable(theirs / "out", "--save")
    unharmed(victim)


def link(path: Path, target: Path, owner: int) -> None:
    path.symlink_to(target)
    os.chown(path, owner, owner, follow_symlinks=False)


def test_a_link_on_the_way_is_followed_only_where_its_maker_may_write(theirs: Path, tmp_path: Path) -> None:
    own, also_theirs = tmp_path / "own", theirs / "real"
    own.mkdir()
    also_theirs.mkdir()
    os.chown(also_theirs, NOBODY, NOBODY)
    link(theirs / "to_root", own, NOBODY)
    link(theirs / "to_theirs", also_theirs, NOBODY)
    link(theirs / "by_root", own, 0)
    link(theirs / "relative", Path("real"), NOBODY)
    link(theirs / "twice", Path("to_root"), NOBODY)
    link(theirs / "above", Path("..") / theirs.name / "real" / "..", NOBODY)
    for name in ("to_root", "twice", "to_root/../own"):
        with pytest.raises(InputError, match=f"a symbolic link of user {NOBODY}, and leads to a folder of user 0"):
            write_file(theirs / name / "x", b"new")
    assert os.listdir(own) == []
    for name in ("to_theirs", "by_root", "relative", "above"):
        write_file(theirs / name / "x", b"new")
    assert os.listdir(own) == ["x"]
    assert sorted(os.listdir(also_theirs)) == ["x"]
    assert (theirs / "x").exists()


def test_folders_that_only_the_kernel_can_follow(tmp_path: Path) -> None:
    write_file(f"/proc/{os.getpid()}/root{tmp_path}/x", b"new")
    assert (tmp_path / "x").read_bytes() == b"new"


def test_links_in_circles_and_ends_of_all_kinds(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    for name in ("loop", "file", "absent", "x" * 300, "nul\0"):
        with pytest.raises(InputError, match=r"no folder|null"):
            write_file(f"{tmp_path}/{name}/x", b"")
    before = os.listdir("/proc/self/fd")
    with contextlib.suppress(InputError):
        write_file(f"{tmp_path}/loop/x", b"")
    os.close(open_folder(str(tmp_path)))
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_name_cannot_speak_for_topocheck(tmp_path: Path) -> None:
    name = "x\x1b[31m\ntopocheck: all is well\u202e\x9b"
    for path in (f"{tmp_path}/{name}/y", f"{tmp_path}/{'y' * 5000}{name}"):
        said = subprocess.run(
            [sys.executable, "-m", "topocheck", "snapshot", "save", path], capture_output=True, timeout=60, check=False
        )
        assert said.returncode == 2
        assert said.stderr.count(b"\n") == 1
        assert len(said.stderr) < 1000
        assert not {"\x1b", "\u202e", "\x9b"} & set(said.stderr.decode())


@pytest.mark.parametrize("name", ["x" * 255, "x" * 256])
def test_long_names(tmp_path: Path, name: str) -> None:
    if len(name) < 256:
        write_file(tmp_path / name, b"new")
        assert (tmp_path / name).read_bytes() == b"new"
        return
    with pytest.raises(InputError, match="File name too long"):
        write_file(tmp_path / name, b"new")


def test_a_tree_is_not_written_through_a_planted_link(
    theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of the folder turns a new folder in it into a link, at the worst moment."""
    away = tmp_path / "away"
    away.mkdir()
    real, planted = os.mkdir, []

    def mkdir(path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        real(path, mode, dir_fd=dir_fd)
        if os.path.basename(path) == "sys" and not planted:
            planted.append(path)
            (theirs / "sys").rmdir()
            (theirs / "sys").symlink_to(away)

    monkeypatch.setattr(os, "mkdir", mkdir)
    with pytest.raises(SnapshotError):
        export_tree({"read:/sys/a": b"1"}, str(theirs))
    assert planted
    assert os.listdir(away) == []


def test_a_tree_that_cannot_be_written_leaves_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="File name too long"):
        export_tree({"read:/a/b/c": b"1", "list:/a/d": [], f"read:/z{'z' * 300}": b"2"}, str(tmp_path / "tree"))
    assert os.listdir(tmp_path / "tree") == []


def test_the_tree_of_a_recording(tmp_path: Path) -> None:
    from topocheck.cli.snapshot import show

    recording = Path(__file__).parents[1] / "recordings" / "h100_x2_vm.snap"
    ran = run(show, recording, "--tree", tmp_path / "new" / "tree")
    assert ran.code == 0
    assert ran.out.startswith("wrote ")
    assert (tmp_path / "new" / "tree" / "proc" / "version").is_file()

"""Where the secret of a job comes from, and what is no secret."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.tests_live.launch.callers import world
from topocheck.tests_live.launch import munge
from topocheck.tests_live.launch.secret import find_secret
from topocheck.tests_live.launch.world import LaunchError

SECRET = "correct horse battery staple"
MPIRUN = "f7c76025156fafca-5047072c6da25af7"
"""As mpirun of Open MPI 4.1.4 gave it to its ranks."""


@pytest.fixture(autouse=True)
def no_munge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(munge, "available", lambda: False)


def file(tmp_path: Path, mode: int = 0o600, text: str = SECRET) -> dict[str, str]:
    path = tmp_path / "secret"
    path.write_text(text)
    path.chmod(mode)
    return {"TOPOCHECK_SECRET_FILE": str(path)}


def test_variable_and_file_give_one_key_and_another_job_another(tmp_path: Path) -> None:
    by_variable = find_secret(world(), {"TOPOCHECK_SECRET": SECRET})
    assert by_variable.method == "secret"
    assert find_secret(world(rank=1), file(tmp_path, text=f"{SECRET}\n")).key == by_variable.key
    assert len(by_variable.key) == 32
    assert SECRET.encode() not in by_variable.key
    others = [
        find_secret(world(), {"TOPOCHECK_SECRET": SECRET + "r"}),
        find_secret(world(job="slurm/1.0"), {"TOPOCHECK_SECRET": SECRET}),
        find_secret(world(), {}),
    ]
    assert len({o.key for o in others} | {by_variable.key}) == 4


def test_the_variable_comes_first(tmp_path: Path) -> None:
    both = file(tmp_path, text="x" * 20) | {"TOPOCHECK_SECRET": SECRET}
    assert find_secret(world(), both).key == find_secret(world(), {"TOPOCHECK_SECRET": SECRET}).key


@pytest.mark.parametrize("text", ["", "short", "x" * 15, "x" * 5000])
def test_a_secret_of_the_wrong_length_is_refused(tmp_path: Path, text: str) -> None:
    for env in ({"TOPOCHECK_SECRET": text}, file(tmp_path, text=text)):
        with pytest.raises(LaunchError, match="expected 16 to 4096") as e:
            find_secret(world(), env)
        assert text == "" or text not in str(e.value)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o604, 0o620])
def test_a_file_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(LaunchError, match=f"mode {mode:04o}.*chmod 600"):
        find_secret(world(), file(tmp_path, mode))


def test_a_link_a_folder_a_fifo_and_no_file_are_refused(tmp_path: Path) -> None:
    real = file(tmp_path)["TOPOCHECK_SECRET_FILE"]
    (tmp_path / "link").symlink_to(real)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo", 0o600)
    for name in ("link", "folder", "fifo", "absent"):
        with pytest.raises(LaunchError, match="TOPOCHECK_SECRET_FILE"):
            find_secret(world(), {"TOPOCHECK_SECRET_FILE": str(tmp_path / name)})


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
def test_a_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    env = file(tmp_path)
    os.chown(env["TOPOCHECK_SECRET_FILE"], 65534, -1)
    with pytest.raises(LaunchError, match="belongs to uid 65534, expected 0"):
        find_secret(world(), env)


def test_the_key_of_open_mpi() -> None:
    variable = "OMPI_MCA_orte_precondition_transports"
    mine = find_secret(world(launcher="openmpi"), {variable: MPIRUN})
    assert (mine.method, mine.source) == ("secret", "mpirun's job key")
    # Only mpirun gives it to its own ranks and to nobody else.
    assert find_secret(world(launcher="torchrun"), {variable: MPIRUN}).method == "none"
    assert find_secret(world(launcher="slurm"), {variable: MPIRUN}).method == "none"


@pytest.mark.parametrize(
    "value",
    [
        "",
        "0058c18700000000-0058c18700000000",  # the job's number, as some sites set it for srun
        "0001e24000000000-0001e24000000000",
        "0000000000000001-0000000000000002",
        "f7c76025156fafca-f7c76025156fafca",
        "f7c76025156fafca",
        "F7C76025156FAFCA-5047072C6DA25AF7",
        "f7c76025156fafca-5047072c6da25af7-1",
    ],
)
def test_a_key_that_anybody_could_know_is_none(value: str) -> None:
    env = {"OMPI_MCA_orte_precondition_transports": value}
    assert find_secret(world(launcher="openmpi"), env).method == "none"


def test_under_slurm_munge_comes_before_the_key_of_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"SLURM_JOB_ID": "7", "OMPI_MCA_orte_precondition_transports": MPIRUN}
    assert find_secret(world(launcher="openmpi"), env).method == "secret"
    monkeypatch.setattr(munge, "available", lambda: True)
    assert find_secret(world(launcher="openmpi"), env).method == "munge"
    assert find_secret(world(launcher="torchrun"), env).method == "munge"
    assert find_secret(world(launcher="torchrun"), env | {"TOPOCHECK_SECRET": SECRET}).method == "secret"
    assert find_secret(world(launcher="torchrun"), {}).method == "none"


def test_a_secret_is_not_shown() -> None:
    found = find_secret(world(), {"TOPOCHECK_SECRET": SECRET})
    assert SECRET not in repr(found)
    assert repr(found.key)[2:-1] not in repr(found)


@pytest.mark.parametrize(
    ("text", "socket"),
    [
        ("AuthType=auth/munge\nAuthInfo=socket=/run/other/munge.socket.2\n", "/run/other/munge.socket.2"),
        ("authinfo = ttl=60,socket=/a/b # why\n", "/a/b"),
        ("# AuthInfo=socket=/a\n", ""),
        ("AuthInfo=socket=relative\n", ""),
        ("AuthInfo=\n", ""),
    ],
)
def test_the_socket_of_munge_by_slurms_configuration(tmp_path: Path, text: str, socket: str) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text(text)
    conf.chmod(0o644)
    assert munge.socket_path({"SLURM_CONF": str(conf)}) == socket
    conf.chmod(0o666)
    assert munge.socket_path({"SLURM_CONF": str(conf)}) == ""
    assert munge.socket_path({"SLURM_CONF": str(tmp_path / "absent")}) == ""
    os.mkfifo(tmp_path / "fifo", 0o600)
    assert munge.socket_path({"SLURM_CONF": str(tmp_path / "fifo")}) == ""

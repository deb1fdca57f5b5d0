"""The live machine, against a temporary tree and small programs."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.support.recorder import Recorder
from topocheck.host.base import Host, HostError
from topocheck.host.live import command
from topocheck.host.live.backend import LiveBackend, reason_of
from topocheck.model.base import Reason

ROOT = os.geteuid() == 0


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "b").write_bytes(b"0x10de\n")
    (tmp_path / "folder" / "a").write_bytes(bytes(range(256)) * 16)
    (tmp_path / "link").symlink_to("folder/b")
    (tmp_path / "out").symlink_to("/etc")
    (tmp_path / "dangling").symlink_to("nothing")
    return tmp_path


@pytest.fixture(params=["whole machine", "captured tree"])
def host_and_base(request: pytest.FixtureRequest, tree: Path) -> tuple[Host, str]:
    if request.param == "captured tree":
        return Host(LiveBackend(str(tree))), ""
    return Host(LiveBackend()), str(tree)


def error_of(ask: object) -> HostError:
    with pytest.raises(HostError) as caught:
        ask()  # type: ignore[operator]
    return caught.value


def test_files(host_and_base: tuple[Host, str]) -> None:
    host, base = host_and_base
    assert host.read_text(f"{base}/folder/b") == "0x10de\n"
    assert host.read_bytes(f"{base}/folder/a", 64) == bytes(range(64))
    assert len(host.read_bytes(f"{base}/folder/a")) == 4096
    assert host.listdir(f"{base}/folder") == ["a", "b"]
    assert host.readlink(f"{base}/link") == "folder/b"
    assert host.readlink(f"{base}/dangling") == "nothing"
    assert host.realpath(f"{base}/link") == f"{base}/folder/b"
    stat = host.stat(f"{base}/link")
    assert (stat.kind, stat.size_bytes) == ("file", 7)
    assert host.stat(f"{base}/folder").kind == "dir"
    assert host.access(f"{base}/folder/b", "r") is True
    assert host.access(f"{base}/folder/b", "x") is False


def test_what_is_absent(host_and_base: tuple[Host, str]) -> None:
    host, base = host_and_base
    for ask in (host.read_text, host.listdir, host.readlink, host.realpath, host.stat, lambda p: host.access(p, "r")):
        error = error_of(lambda ask=ask: ask(f"{base}/folder/none"))
        assert (error.reason, error.detail) == (Reason.ABSENT, "ENOENT")
    assert error_of(lambda: host.read_text(f"{base}/folder/b/c")).detail == "ENOTDIR"
    assert error_of(lambda: host.realpath(f"{base}/dangling")).reason is Reason.ABSENT
    assert error_of(lambda: host.read_text(f"{base}/nul\0")).reason is Reason.UNSUPPORTED


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOENT, Reason.ABSENT),
        (errno.ENOTDIR, Reason.ABSENT),
        (errno.ENODEV, Reason.ABSENT),
        (errno.ENXIO, Reason.ABSENT),
        (errno.EACCES, Reason.DENIED),
        (errno.EPERM, Reason.DENIED),
        (errno.EINVAL, Reason.UNSUPPORTED),
        (errno.EOPNOTSUPP, Reason.UNSUPPORTED),
        (errno.EIO, Reason.UNSUPPORTED),
        (errno.EAGAIN, Reason.UNSUPPORTED),
        (errno.ELOOP, Reason.UNSUPPORTED),
        (errno.ETIMEDOUT, Reason.TIMED_OUT),
    ],
)
def test_every_error_of_the_kernel(number: int, reason: Reason, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "read", refuse)
    error = error_of(lambda: Host(LiveBackend()).read_text("/proc/version"))
    assert error.reason is reason
    assert error.detail == errno.errorcode[number]
    assert reason_of(OSError(number, "")).reason is reason


def test_again_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken driver can answer EAGAIN for ever."""
    calls = []

    def again(*args: object) -> bytes:
        calls.append(args)
        raise BlockingIOError(errno.EAGAIN, "again")

    monkeypatch.setattr(os, "read", again)
    error_of(lambda: Host(LiveBackend()).read_text("/proc/version"))
    assert len(calls) == 1


@pytest.mark.skipif(ROOT, reason="root may read everything")
def test_denied(tree: Path) -> None:
    (tree / "folder" / "b").chmod(0)
    assert error_of(lambda: Host(LiveBackend()).read_text(f"{tree}/folder/b")).reason is Reason.DENIED


def test_endless_file_is_cut() -> None:
    assert Host(LiveBackend()).read_bytes("/dev/zero", 100_000) == bytes(100_000)


def test_files_are_closed(tree: Path) -> None:
    before = os.listdir("/proc/self/fd")
    host = Host(LiveBackend())
    host.read_text(f"{tree}/folder/b")
    error_of(lambda: host.read_text(f"{tree}/folder"))
    assert os.listdir("/proc/self/fd") == before


def test_lines_hold_only_what_was_asked_for(tree: Path) -> None:
    (tree / "status").write_text("Name:\tsecret\nCapEff:\t0\nSeccomp:\t2\n")
    recorder = Recorder(LiveBackend())
    assert Host(recorder).read_lines(f"{tree}/status", "CapEff:", "Seccomp:") == ["CapEff:\t0", "Seccomp:\t2"]
    assert "secret" not in repr(recorder.answers)


def test_settings_file_keeps_only_settings(tree: Path) -> None:
    (tree / "nccl.conf").write_text(
        "# password\nNCCL_DEBUG=INFO\nTOKEN=secret\nnot a setting\n  NCCL_IB_HCA = =mlx5_0\n"
    )
    assert Host(LiveBackend()).conf_lines(f"{tree}/nccl.conf") == ["2\tNCCL_DEBUG=INFO", "5\t  NCCL_IB_HCA = =mlx5_0"]


def test_environment_is_filtered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    environ = Host(LiveBackend()).environ()
    assert environ["NCCL_DEBUG"] == "INFO"
    assert "AWS_SECRET_ACCESS_KEY" not in environ


def test_kernel_options_are_filtered(tree: Path) -> None:
    (tree / "proc").mkdir()
    (tree / "proc" / "cmdline").write_text("root=UUID=secret ro iommu=pt pci=realloc=off password=x\n")
    assert Host(LiveBackend(str(tree))).kernel_options() == ["iommu=pt", "pci=realloc=off"]


def test_process() -> None:
    process = Host(LiveBackend()).process()
    assert process["uid"] == os.getuid()
    assert process["python_version"] == "{}.{}.{}".format(*sys.version_info)
    assert process["sys_path"] == [p for p in sys.path if p.endswith(("/site-packages", "/dist-packages"))]
    assert "pid" not in process


def test_statvfs() -> None:
    total, available = Host(LiveBackend()).statvfs("/")
    assert 0 <= available <= total


def test_psutil() -> None:
    host = Host(LiveBackend())
    assert host.psutil("virtual_memory")["total"] > 0
    assert ["inet", "127.0.0.1"] in host.psutil("net_addresses").get("lo", [["inet", "127.0.0.1"]])
    assert error_of(lambda: host.psutil("users")).reason is Reason.UNSUPPORTED


def test_captured_tree_does_not_lead_out(tree: Path) -> None:
    host = Host(LiveBackend(str(tree)))
    for path in ("/out/passwd", "/../../../../etc/passwd", "/folder/../../etc"):
        assert error_of(lambda path=path: host.read_text(path)).reason is Reason.ABSENT
    assert host.readlink("/out") == "/etc"


@pytest.mark.parametrize("kind", ["environ", "process", "run", "psutil", "nvml", "cuda"])
def test_captured_tree_says_nothing_about_this_process(tree: Path, kind: str) -> None:
    assert error_of(lambda: LiveBackend(str(tree)).ask(kind, 1, "x")).reason is Reason.NOT_RECORDED


def test_unknown_question() -> None:
    assert error_of(lambda: LiveBackend().ask("launch", "x")).reason is Reason.UNSUPPORTED


# -- programs


def run(*argv: str, timeout_s: int = 20) -> tuple[int, str, str]:
    result = Host(LiveBackend()).run(argv, timeout_s)
    return result.rc, result.stdout, result.stderr


def test_program() -> None:
    assert run("sh", "-c", "echo out; echo err >&2; exit 3") == (3, "out\n", "err\n")
    assert run("sh", "-c", "kill -9 $$")[0] == -signal.SIGKILL
    assert run("cat") == (0, "", ""), "standard input is empty"
    assert run("printf", "\\377")[1] == "\ufffd"


def test_program_runs_under_the_c_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_MESSAGES", "de_DE.UTF-8")
    monkeypatch.setenv("LANGUAGE", "de")
    assert run("sh", "-c", "echo $LC_ALL,$LC_MESSAGES,$LANGUAGE")[1] == "C,,\n"


def test_arguments_see_no_shell() -> None:
    assert run("echo", "$HOME; ls *")[1] == "$HOME; ls *\n"


@pytest.mark.parametrize("argv", [["no-such-program-here"], ["/no/such/program"], [""]])
def test_no_such_program(argv: list[str]) -> None:
    assert error_of(lambda: run(*argv)).reason is Reason.ABSENT


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_slow_program_is_killed_with_its_children(tmp_path: Path) -> None:
    script = f"trap '' TERM; sleep 1000 & echo $! > {tmp_path}/pid; wait"
    error = error_of(lambda: run("sh", "-c", script, timeout_s=1))
    assert error.reason is Reason.TIMED_OUT
    assert "sh" in error.detail
    wait_until_gone(int((tmp_path / "pid").read_text()))


def wait_until_gone(pid: int) -> None:
    for _ in range(1000):
        if not alive(pid):
            break
        time.sleep(0.01)
    assert not alive(pid)


def test_program_that_leaves_a_process_with_its_output(tmp_path: Path) -> None:
    script = f"sleep 1000 & echo $! > {tmp_path}/pid; echo done"
    assert run("sh", "-c", script) == (0, "done\n", "")
    wait_until_gone(int((tmp_path / "pid").read_text()))


def test_program_that_leaves_a_daemon_with_its_output(tmp_path: Path) -> None:
    script = f"setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 1000' & until [ -s {tmp_path}/pid ]; do :; done"
    assert run("sh", "-c", script + "; echo done") == (0, "done\n", "")
    pid = int((tmp_path / "pid").read_text())
    assert alive(pid), "a daemon is no process of ours"
    os.kill(pid, signal.SIGKILL)


def test_endless_output_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "OUTPUT_LIMIT", 1 << 20)
    error = error_of(lambda: run("yes"))
    assert error.reason is Reason.UNSUPPORTED
    assert "more than 1 MiB" in error.detail


def test_command_ends_before_its_probe() -> None:
    backend = LiveBackend()
    backend.until = time.monotonic()
    assert error_of(lambda: backend.ask("run", 1000, "sleep", "1000")).reason is Reason.TIMED_OUT

"""A described machine answers exactly as the live backend does over the same files on disk."""

from __future__ import annotations

from typing import Any

import pytest

from tests.machines.builder import Machine, machine
from tests.machines.tree import Dir, Error, File
from topocheck.host.base import HostError
from topocheck.host.live.backend import LiveBackend


def _said(backend: Any, kind: str, *args: str | int) -> Any:
    try:
        return backend.ask(kind, *args)
    except HostError as e:
        return e.reason, e.detail


@pytest.fixture(scope="module", params=["gb10", "laptop"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Machine, LiveBackend]:
    """A machine in memory and the live backend over its export."""
    m = machine(request.param, files={"/etc/nccl.conf": "# c\nNCCL_DEBUG = INFO\nHOME=/x\n\nnccl_x=1\n"})
    folder = tmp_path_factory.mktemp(request.param)
    m.export(folder)
    return m, LiveBackend(str(folder))


def test_files_folders_and_links(both: tuple[Machine, LiveBackend]) -> None:
    """Every path, asked in every way: the same answer, or the same reason with the same errno."""
    m, live = both
    # What cannot be read, and device nodes, are not written to disk.
    left_out = {
        path
        for path, entry in m.tree.entries.items()
        if isinstance(entry, Error) or (isinstance(entry, File) and entry.kind != "file")
    }
    folders_cut = {path.rpartition("/")[0] for path in left_out}
    for path, entry in m.tree.entries.items():
        if path in left_out:
            continue
        for kind in ("read", "readlink", "realpath"):
            assert _said(m.backend, kind, path) == _said(live, kind, path), (kind, path)
        if isinstance(entry, Dir) and path not in folders_cut:
            assert _said(m.backend, "list", path) == _said(live, "list", path), path


@pytest.mark.parametrize(
    "question",
    [
        ("read", "/proc/nothing"),
        ("read", "/proc/version", 10),
        ("read", "/proc/version/below"),
        ("read", "/sys"),
        ("list", "/proc/version"),
        ("list", "/nowhere"),
        ("readlink", "/proc/version"),
        ("readlink", "/nowhere"),
        ("realpath", "/sys/bus/pci/devices/none"),
        ("stat", "/nowhere"),
        ("access", "/nowhere", "r"),
        ("access", "/proc/version", "r"),
        ("access", "/proc/version", "x"),
        ("lines", "/proc/cpuinfo", "processor", "model name"),
        ("lines", "/proc/self/status", "Cpus_allowed_list:"),
        ("conf", "/etc/nccl.conf"),
        ("conf", "/etc/none.conf"),
        ("kernel_options",),
        ("no_such_kind",),
    ],
)
def test_odd_questions(both: tuple[Machine, LiveBackend], question: tuple[Any, ...]) -> None:
    """What is absent, of another kind, cut or filtered."""
    m, live = both
    assert _said(m.backend, *question) == _said(live, *question)


def test_stat_has_the_same_shape(both: tuple[Machine, LiveBackend]) -> None:
    """Kinds and sizes agree; owner, times and devices are the machine's own."""
    m, live = both
    for path in ("/proc/version", "/sys/bus", "/dev/shm"):
        ours, theirs = m.backend.ask("stat", path), live.ask("stat", path)
        assert set(ours) == set(theirs)
        assert ours["kind"] == theirs["kind"]
        if ours["kind"] == "file":
            assert ours["size_bytes"] == theirs["size_bytes"]

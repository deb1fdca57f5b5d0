"""NCCL called directly, against a stand-in for its library that writes down what it is asked."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import require_program
from topocheck.bandwidth.cases import CollectiveRow
from topocheck.bandwidth.collective_plan import COLLECTIVES
from topocheck.bandwidth.collective_sizes import DTYPES
from topocheck.model.measurement import Measurement
from topocheck.tests_live.collectives import nccl as nccl_direct
from topocheck.tests_live.collectives.nccl import Communicator, NcclError, NcclMissingError, load, unique_id
from topocheck.tests_live.collectives.ops import variants

STREAM, SEND, RECV = 0x51, 0x100, 0x200
TAIL = "0xc0 0x51"  # the communicator and the stream, which end every call


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_program("gcc")
    # Where the package torch depends on puts it, seen from torch's own file.
    folder = tmp_path_factory.mktemp("site") / "nvidia" / "nccl" / "lib"
    folder.mkdir(parents=True)
    out = folder / "libnccl.so.2"
    source = Path(__file__).with_name("fake_nccl.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(out), str(source)], check=True)
    return out


@pytest.fixture
def lib(path: Path) -> ctypes.CDLL:
    found = load([(str(path), os.RTLD_NOW)], (2, 28, 9))
    found.fake_said.restype = ctypes.c_char_p
    found.fake_forget()
    return found


def said(lib: ctypes.CDLL) -> list[str]:
    return [" ".join(line.split()) for line in lib.fake_said().decode().splitlines()]


def member(lib: ctypes.CDLL, rank: int, size: int) -> Communicator:
    made = Communicator(lib, unique_id(lib), rank=rank, size=size, stream=STREAM)
    assert said(lib)[-1] == f"ncclCommInitRank {size} 7 9 {rank}"  # the id whole, its zeros too
    lib.fake_forget()
    return made


def test_numbers_are_those_of_nccl_h() -> None:
    # ncclDataType_t, ncclRedOp_t, ncclResult_t and NCCL_UNIQUE_ID_BYTES of nccl.h 2.28.
    enum = {"ncclUint8": 1, "ncclInt32": 2, "ncclInt64": 4, "ncclFloat16": 6}
    enum |= {"ncclFloat32": 7, "ncclFloat64": 8, "ncclBfloat16": 9}
    ours = {name.lower(): number for name, number in nccl_direct.DATA_TYPES.items()}
    assert ours == {name.removeprefix("nccl").lower(): number for name, number in enum.items()}
    assert set(nccl_direct.DATA_TYPES) == set(DTYPES)
    assert (nccl_direct.SUM, nccl_direct.SUCCESS, nccl_direct.IN_PROGRESS) == (0, 0, 7)
    assert ctypes.sizeof(nccl_direct.UniqueId) == nccl_direct.UNIQUE_ID_BYTES == 128
    # NCCL_VERSION: 1000 per minor release up to 2.8, 100 after it.
    assert nccl_direct.version_code((2, 28, 9)) == 22809
    assert nccl_direct.version_code((2, 8, 3)) == 2803
    assert set(nccl_direct.ISSUED_BY) == set(COLLECTIVES)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("all_reduce", [f"ncclAllReduce 0x100 0x200 6 7 0 {TAIL}"]),
        ("broadcast", [f"ncclBroadcast 0x100 0x200 6 7 0 {TAIL}"]),
        ("reduce", [f"ncclReduce 0x100 0x200 6 7 0 0 {TAIL}"]),
        ("all_gather", [f"ncclAllGather 0x100 0x200 6 7 {TAIL}"]),
        ("reduce_scatter", [f"ncclReduceScatter 0x100 0x200 6 7 0 {TAIL}"]),
        (
            "send_recv",  # rank 2 of 3: to 0, from 1
            ["ncclGroupStart", f"ncclSend 0x100 6 7 0 {TAIL}", f"ncclRecv 0x200 6 7 1 {TAIL}", "ncclGroupEnd"],
        ),
        (
            "all_to_all",  # parts of 6 elements of 4 bytes lie 24 = 0x18 bytes apart
            [
                "ncclGroupStart",
                f"ncclSend 0x100 6 7 0 {TAIL}",
                f"ncclRecv 0x200 6 7 0 {TAIL}",
                f"ncclSend 0x118 6 7 1 {TAIL}",
                f"ncclRecv 0x218 6 7 1 {TAIL}",
                f"ncclSend 0x130 6 7 2 {TAIL}",
                f"ncclRecv 0x230 6 7 2 {TAIL}",
                "ncclGroupEnd",
            ],
        ),
    ],
)
def test_what_nccl_is_asked(lib: ctypes.CDLL, name: str, expected: list[str]) -> None:
    call = member(lib, 2, 3).collective(name, send=SEND, recv=RECV, count=6, dtype="float32", width=4)
    assert said(lib) == []
    # The stand-in takes addresses this low for marks and copies nothing.
    call()
    assert said(lib) == expected


def test_a_failed_call_is_named_in_nccls_words_and_its_group_closed(lib: ctypes.CDLL) -> None:
    one = member(lib, 0, 2)
    call = one.collective("send_recv", send=SEND, recv=RECV, count=1, dtype="int32", width=4)
    lib.fake_fail(b"ncclRecv", 5)
    with pytest.raises(NcclError) as e:
        call()
    assert str(e.value) == "ncclRecv: invalid usage (ncclResult_t 5); NCCL's last error: the cable is out"
    assert [line.split()[0] for line in said(lib)] == ["ncclGroupStart", "ncclSend", "ncclRecv", "ncclGroupEnd"]
    lib.fake_forget()
    lib.fake_async(6)
    with pytest.raises(NcclError, match="ncclAllReduce: remote process exited"):
        one.check("ncclAllReduce")


def test_a_communicator_that_does_not_block_is_waited_for(lib: ctypes.CDLL) -> None:
    call = member(lib, 0, 2).collective("all_reduce", send=SEND, recv=RECV, count=1, dtype="uint8", width=1)
    lib.fake_fail(b"ncclAllReduce", 7)  # ncclInProgress, and then ncclCommGetAsyncError says that it is done
    call()
    lib.fake_async(5)
    with pytest.raises(NcclError, match="ncclAllReduce: invalid usage"):
        call()


def test_a_communicator_is_freed_once(lib: ctypes.CDLL) -> None:
    one = member(lib, 0, 2)
    one.destroy()
    one.destroy()
    one.abort()
    assert said(lib) == ["ncclCommDestroy 0xc0"]
    two = member(lib, 1, 2)
    two.abort()
    two.destroy()
    assert said(lib) == ["ncclCommAbort 0xc0"]


def test_another_version_and_no_library_are_not_taken(path: Path, tmp_path: Path) -> None:
    with pytest.raises(NcclMissingError, match=r"22809, and torch's NCCL is 2\.27\.5"):
        load([(str(path), os.RTLD_NOW)], (2, 27, 5))
    with pytest.raises(NcclMissingError, match="absent"):
        load([(str(tmp_path / "absent.so"), os.RTLD_NOW)], (2, 28, 9))


class FakeGraph:
    """A graph that does again what was done while it was captured: nothing is captured, the calls are counted."""

    replays = 0

    def replay(self) -> None:
        FakeGraph.replays += 1


class FakeEvent:
    """Two of them are always 4 ms apart."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: Any) -> None:
        assert stream.cuda_stream == STREAM

    def elapsed_time(self, other: FakeEvent) -> float:
        return 4.0


class FakeTorch:
    """torch with the CUDA of a machine that has no GPU replaced."""

    def __init__(self, real: Any, file: Path) -> None:
        self._real, self.__file__ = real, str(file)
        self.empty_stream = True
        stream = SimpleNamespace(cuda_stream=STREAM, query=lambda: self.empty_stream)
        self.cuda = SimpleNamespace(
            nccl=SimpleNamespace(version=lambda: (2, 28, 9)),
            Stream=lambda device: stream,
            stream=lambda s: contextlib.nullcontext(),
            synchronize=lambda device: None,
            Event=FakeEvent,
            CUDAGraph=FakeGraph,
            graph=lambda graph, **more: contextlib.nullcontext(),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.fixture
def real_torch() -> Iterator[Any]:
    torch = pytest.importorskip("torch", reason="needs torch (the [bw] extra)")
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield torch
    dist.destroy_process_group()


def sweep(torch: FakeTorch, name: str, modes: tuple[str, ...]) -> list[Measurement]:
    """Sweep one collective of one rank at 4096 bytes; Gloo stands for torch's own NCCL group."""
    from topocheck.tests_live.collectives.nccl_timing import connect
    from topocheck.tests_live.collectives.sweep import Sweep

    calls: list[tuple[str, dict[str, Any]]] = []
    events = SimpleNamespace(
        send=lambda event, **more: calls.append((event, more)), at=lambda row, call: calls.append((call, {}))
    )
    world = torch.distributed.group.WORLD
    cpu = torch.device("cpu")
    direct, why = connect(torch, world, rank=0, size=1, device=cpu, limit_s=1.0)
    row = CollectiveRow(
        id=name, collective=name, backend="nccl", ranks=1, sizes_bytes=(4096,), samples_min=2, samples_max=2
    )
    Sweep(
        torch=torch,
        row=row,
        rank=0,
        group=world,
        control=world,
        device=cpu,
        events=events,  # type: ignore[arg-type]
        direct=direct,
        no_direct=why,
    ).run(modes)
    # A rank that hangs is described by the last of these words.
    named = [c for c, _ in calls if "sample" in c]
    assert all((nccl_direct.ISSUED_BY[name] in c) == (direct is not None and "one_at" not in c) for c in named)
    return [more["measurement"] for event, more in calls if event == "measured"]


@pytest.mark.torch
# torch 2.13 has other names for two collectives, which older ones do not know.
@pytest.mark.filterwarnings("ignore:.*torch.distributed.*deprecated:FutureWarning")
@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_sweep_calls_nccl_and_one_at_a_time_goes_through_torch(
    lib: ctypes.CDLL, path: Path, real_torch: Any, name: str
) -> None:
    torch = FakeTorch(real_torch, path.parents[3] / "torch" / "__init__.py")
    # Gloo stands for torch's group, and it sends nothing to itself.
    modes = ("back_to_back",) if name == "send_recv" else ("back_to_back", "one_at_a_time")
    rows = sweep(torch, name, modes)
    assert [m.mode for m in rows] == list(modes) * len(variants(name))
    for m in rows:
        assert m.verified is True, m.wrong
        assert m.notes == ()
        direct = m.mode == "back_to_back"
        assert m.issuer == ("NCCL called directly" if direct else "torch.distributed")
        if direct:
            assert m.median == pytest.approx(4000 / m.iterations)  # 4 ms for the calls between two events
    asked = [line.split() for line in said(lib)]
    first = nccl_direct.ISSUED_BY[name].split()[0]
    made = [x for x in asked if x[0] == first]
    # Two checks, 5 warm-ups, one to see how long it takes; then 2 samples, each of the calls and an untimed one.
    assert len(made) == sum(2 + 5 + 1 + 2 * (m.iterations + 1) for m in rows if m.mode == "back_to_back")
    count = made[0][2] if first == "ncclSend" else made[0][3]
    assert int(count) == 1024  # 4096 bytes of float32 for each of one rank


@pytest.mark.torch
def test_a_graph_is_of_twenty_calls_and_launched_twenty_times(lib: ctypes.CDLL, path: Path, real_torch: Any) -> None:
    FakeGraph.replays = 0
    (m,) = sweep(FakeTorch(real_torch, path.parents[3] / "torch" / "__init__.py"), "all_reduce", ("graph",))
    assert (m.mode, m.issuer, m.iterations) == ("graph", "NCCL called directly", 400)
    assert m.median == pytest.approx(4000 / 400)
    # One to warm up; 2 samples of 20 launches and an untimed one.
    assert FakeGraph.replays == 1 + 2 * (20 + 1)
    # Two checks, 5 warm-ups, 20 captured.
    assert len([line for line in said(lib) if line.startswith("ncclAllReduce")]) == 2 + 5 + 20


@pytest.mark.torch
def test_where_nccl_cannot_be_loaded_torch_is_measured_and_a_note_says_so(real_torch: Any, tmp_path: Path) -> None:
    (m,) = sweep(FakeTorch(real_torch, tmp_path / "torch" / "__init__.py"), "all_reduce", ("back_to_back",))
    assert m.verified is True
    assert m.issuer == "torch.distributed"
    assert m.notes[0].startswith("through torch.distributed, which adds microseconds to a call: rank 0: ")
    assert "libnccl.so.2" in m.notes[0]


@pytest.mark.torch
def test_a_stream_that_never_empties_is_given_up(lib: ctypes.CDLL, path: Path, real_torch: Any) -> None:
    from topocheck.tests_live.collectives.nccl_timing import connect

    torch = FakeTorch(real_torch, path.parents[3] / "torch" / "__init__.py")
    world = torch.distributed.group.WORLD
    direct, why = connect(torch, world, rank=0, size=1, device=torch.device("cpu"), limit_s=0.0)
    assert direct is not None, why
    torch.empty_stream = False
    with pytest.raises(NcclError, match="did not end within 0 s"):
        direct.finish()
    # What NCCL itself reports comes before the limit.
    lib.fake_async(6)
    with pytest.raises(NcclError, match="remote process exited"):
        direct.finish()

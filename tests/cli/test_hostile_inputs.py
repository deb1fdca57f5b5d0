"""Inputs that are not what they should be end in a result or in one line and exit code 2, through the real entry."""

from __future__ import annotations

import errno
import gzip
import os
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from tests.cli.commands import Topocheck, one_line
from tests.support.snapshots import record
from topocheck.host.base import Answer, HostError
from topocheck.host.input import read_standard_input
from topocheck.host.recording import snapshot
from topocheck.model.base import Reason
from topocheck.probes.registry import PROBE_SET_VERSION

LONG = "n" * 300
"""More than NAME_MAX (255) of Linux: every call that takes a path says ENAMETOOLONG."""


def save(name: str, answers: dict[str, Answer]) -> None:
    snapshot.save(name, answers, probe_set=PROBE_SET_VERSION)


@pytest.mark.parametrize(
    "words",
    [
        ("report", "--from", LONG),
        ("report", "--smi-topo", LONG),
        ("report", "--from", "in.snap", "-o", LONG),
        ("check", "--from", LONG),
        ("check", "--from", "in.snap", "-o", LONG),
        ("check", "--from", "in.snap", "--write-policy", LONG),
        ("fleet", LONG),
        ("fleet", "in.snap", "--against", LONG),
        ("fleet", "in.snap", "--policy", LONG),
        ("fleet", "in.snap", "-o", LONG),
        ("diff", LONG, "in.snap"),
        ("diff", "in.snap", LONG),
        ("emit", "gres-conf", "--from", LONG),
        ("emit", "topology-conf", LONG),
        ("placement", "--from", LONG),
        ("snapshot", "show", LONG),
        ("snapshot", "show", "in.snap", "--tree", LONG),
        ("snapshot", "save", LONG, "--from", "in.snap"),
        ("nccl", "log", LONG),
        ("nccl", "topo", "--input", LONG, "--no-machine"),
        ("nccl", "predict", "--from", "in.snap", "--topo", LONG),
        ("nccl", "predict", "--ranks", LONG),
        ("nccl", "env", "--library", LONG),
        ("bw", "--plan", "--baseline", LONG),
        ("bw", "--plan", "--policy", LONG),
        ("bw", "--plan", "-o", LONG),
        ("scale", "--curve", LONG, "--hooks", "none", "--backend", "no such"),
    ],
)
def test_a_name_too_long_for_a_file_is_one_line(topocheck: Topocheck, words: tuple[str, ...]) -> None:
    save("in.snap", record("laptop"))
    assert one_line(topocheck(*words))


def test_metrics_that_cannot_be_written_do_not_change_the_judgement(topocheck: Topocheck) -> None:
    save("in.snap", record("laptop"))
    ran = topocheck("check", "--from", "in.snap", "--metrics", LONG)
    assert (ran.code, ran.error.count("\n")) == (0, 1)
    assert "File name too long" in ran.error


def test_an_hca_may_be_called_by_a_digit_of_another_script(topocheck: Topocheck) -> None:
    save("in.snap", record("hgx_h100_cx7"))
    text = gzip.decompress(Path("in.snap").read_bytes())
    assert b"mlx5_0" in text
    Path("in.snap").write_bytes(gzip.compress(text.replace(b"mlx5_0", "²".encode())))
    for words in (("check",), ("report",), ("nccl", "predict"), ("nccl", "topo")):
        ran = topocheck(*words, "--from", "in.snap")
        assert ran.code in (0, 1), ran.error
        assert not ran.error
    assert "²" in topocheck("report", "--from", "in.snap").out


@pytest.fixture
def no_bus_ids(topocheck: Topocheck) -> dict[str, Answer]:
    """Two GPUs of which neither NVML nor sysfs tells an address."""
    refused = HostError(Reason.DENIED, "EACCES")
    answers = record("h100_x2_vm")
    hidden = ("nvml:DeviceGetPciInfo|", "cuda:DeviceGetPCIBusId|", "list:/sys/bus/pci/devices", "list:/proc/driver")
    found = {q: refused if q.startswith(hidden) else a for q, a in answers.items()}
    save("in.snap", found)
    return found


def test_gpus_without_an_address_are_written_to_gres_conf(topocheck: Topocheck, no_bus_ids: object) -> None:
    ran = topocheck("emit", "gres-conf", "--from", "in.snap")
    assert ran.code == 0, ran.error
    assert [line.split()[3] for line in ran.out.splitlines() if line.startswith("NodeName")] == [
        "File=/dev/nvidia0",
        "File=/dev/nvidia1",
    ]


def test_a_log_is_compared_with_gpus_without_an_address(topocheck: Topocheck, no_bus_ids: object) -> None:
    head = "n1:1:1 [0] NCCL INFO "
    Path("log").write_text(
        "".join(
            f"{head}ncclCommInitRank comm 0x1{r} rank {r} nranks 2 cudaDev {r} nvmlDev {r} busId {r + 6}0 commId 0x1\n"
            for r in range(2)
        )
        + f"{head}Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read\n"
    )
    ran = topocheck("nccl", "log", "log", "--compare", "--from", "in.snap")
    assert ran.code in (0, 1), ran.error
    assert "another PCI address" not in ran.out


def test_a_rate_of_a_log_that_is_no_number_is_passed_over(topocheck: Topocheck) -> None:
    row = "n1:1:1 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 12, bw {}/20.0, type NVL/PIX, sameChannels 1\n"
    Path("log").write_text("".join(row.format(x) for x in ("1.2.3", ".", "1..2", "20.5")))
    ran = topocheck("nccl", "log", "log", "--format", "json")
    assert ran.code == 0, ran.error
    assert "12 channels of 20.5/20.0 GB/s, NVL/PIX" in ran.out


def test_an_attribute_with_a_carriage_return_is_one_line(topocheck: Topocheck) -> None:
    Path("t.xml").write_bytes(b'<system version="1"><cpu numaid="0\r" arch="x86_64"></cpu></system>')
    ran = topocheck("nccl", "topo", "--input", "t.xml", "--no-machine", "-o", "out.xml")
    assert one_line(ran)
    assert "cannot be written in a topology file" in ran.error
    assert not Path("out.xml").exists()


@pytest.mark.parametrize("number", ["nan", "inf", "1_0", "٣", "1e3"])
def test_a_link_speed_of_a_topology_file_is_a_number_of_digits(topocheck: Topocheck, number: str) -> None:
    from topocheck.nccl.topofile.compare import _number

    assert _number(f"{number} GT/s PCIe") is None
    assert _number("16.0 GT/s PCIe") == 16.0


def test_standard_input_that_does_not_block_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """BufferedReader.read gives None where there is nothing yet, and the raw read does (io.RawIOBase.read)."""
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    os.write(theirs, b"first")
    child = os.fork()
    if child == 0:
        os.close(ours)
        os.read(GATE[0], 1)
        os.write(theirs, b" second")
        os._exit(0)
    os.close(theirs)
    with open(ours, encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        os.write(GATE[1], b"x")
        assert read_standard_input(100) == b"first second"
    os.waitpid(child, 0)


GATE = os.pipe()


def test_standard_input_is_cut_at_the_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x" * 200_000)
    with (tmp_path / "in").open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert len(read_standard_input(100_001)) == 100_001


@pytest.mark.parametrize("number", [errno.EIO, errno.EDQUOT, errno.EFBIG, errno.ENOSPC, errno.EBADF, errno.ESTALE])
def test_standard_output_that_fails_is_one_line(
    topocheck: Topocheck, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def broken(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("topocheck.render.pcie.pcie_text", broken)
    ran = topocheck("pcie", "5", "16")
    assert one_line(ran)
    assert os.strerror(number) in ran.error


def test_a_file_that_fails_in_the_middle_of_a_command_is_named(
    topocheck: Topocheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error", "/some/where")

    monkeypatch.setattr("topocheck.render.pcie.pcie_text", broken)
    ran = topocheck("pcie", "5", "16")
    assert (ran.code, ran.error) == (2, "topocheck: /some/where: Input/output error\n")


def test_a_site_policy_hidden_from_this_user_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from topocheck.policy import load

    def denied(path: object, **_: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(load, "SITE_FILE", tmp_path / "policy.toml")
    assert load.find(None, {}) is None
    with monkeypatch.context() as hidden:
        hidden.setattr(load.os, "stat", denied)
        assert load.find(None, {}) == tmp_path / "policy.toml"


def test_a_file_name_that_is_no_text_is_shown(topocheck: Topocheck) -> None:
    """A byte that is not UTF-8 comes as a lone surrogate (PEP 383), which standard output does not encode."""
    save("in.snap", record("h100_x2_vm"))
    name = os.fsdecode(b"\xff")
    for words in (
        ("snapshot", "save", name, "--from", "in.snap"),
        ("snapshot", "show", "in.snap", "--tree", f"{name}-tree"),
        ("check", "--from", "in.snap", "--write-policy", f"{name}-policy"),
    ):
        ran = topocheck(*words)
        assert ran.code == 0, ran.error
        assert ran.out.startswith("wrote ")
        assert ran.out.encode()


def test_two_rdma_devices_of_one_function_have_a_column_each(topocheck: Topocheck) -> None:
    """As mlx4 and the subfunctions of mlx5 make them: two names below one PCI function."""
    answers = record("nic_wrong_socket")
    (name,) = answers["list:/sys/class/infiniband"]
    second = {q.replace(name, "second"): a for q, a in answers.items() if f"/infiniband/{name}" in q}
    save("in.snap", answers | second | {"list:/sys/class/infiniband": [name, "second"]})
    ran = topocheck("report", "--from", "in.snap", "--section", "matrix", "--width", "200")
    assert ran.code == 0, ran.error
    assert f"NIC0 {name}; NIC1 second" in ran.out
    rows = [line.split() for line in ran.out.splitlines()]
    head = next(r for r in rows if "NIC0" in r)
    assert head[-2:] == ["NIC0", "NIC1"]
    assert all(r[-1] == r[-2] for r in rows if r[:1] == ["GPU0"] and len(r) == len(head) + 1)

"""Things that a snapshot with replaced identifiers once held, each where it stood: none of them is in one now."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import run
from topocheck.cli.report import report
from topocheck.cli.snapshot import save as save_command
from topocheck.host.base import Answer, HostError
from topocheck.host.recording.snapshot import save
from topocheck.model.base import Reason
from topocheck.probes.registry import PROBE_SET_VERSION

POD = "8932f937-d72c-4106-c12f-20bd9faed9f6"
UNDERSCORED = POD.replace("-", "_")
SLICE = f"/kubepods.slice/kubepods-burstable-pod{UNDERSCORED}.slice/cri-containerd-{'5f' * 32}.scope"
PROCESS = {"uid": 48213, "gid": 48213, "home": "/home/wjones", "affinity": "0-3", "python_version": "3.11.9"}
HOST: dict[str, Answer] = {"read:/proc/sys/kernel/hostname": b"borealis\n"}

LEAKS: dict[str, tuple[dict[str, Answer], tuple[str, ...]]] = {
    "UID of a pod in a control group": (
        {
            "read:/proc/self/cgroup": f"0::{SLICE}\n".encode(),
            f"read:/sys/fs/cgroup{SLICE}/memory.max": b"max\n",
        },
        (UNDERSCORED, "5f5f5f"),
    ),
    "UID of a pod in a control group of version 1": (
        {"read:/proc/self/cgroup": f"4:memory:/kubepods/burstable/pod{POD}/{'5f' * 32}\n".encode()},
        (POD, "5f5f5f"),
    ),
    "job, user and node in Slurm's control group": (
        HOST | {"read:/proc/self/cgroup": b"5:cpuset:/slurm_borealis/uid_48213/job_8841207/step_0\n"},
        ("borealis", "48213", "8841207"),
    ),
    "name of a service in a control group": (
        {"read:/proc/self/cgroup": b"0::/system.slice/umbrella-trainer.service\n"},
        ("umbrella",),
    ),
    "addresses and keys that Open MPI hands to its ranks": (
        {
            "environ:": {
                "OMPI_MCA_orte_hnp_uri": "1234.0;tcp://node:41234",
                "OMPI_MCA_opal_key": "k9Zq3vXw7Lb2",
                "OMPI_MCA_u": "wjones",
            }
        },
        ("41234", "k9Zq3vXw7Lb2", "wjones"),
    ),
    "user in a value of UCX": ({"environ:": {"UCX_LOG_FILE": "/scratch/wjones/ucx.log"}}, ("wjones",)),
    "free text in a value of NCCL": (
        {"environ:": {"NCCL_NET_PLUGIN": "umbrella-fabric", "NCCL_TUNER_PLUGIN": "libumbrella.so"}},
        ("umbrella",),
    ),
    "token in a setting": (
        {
            "conf:/etc/nccl.conf": [
                "1\tNCCL_INSPECTOR_TOKEN=s3cr3t-9Zq",
                "2\tNCCL_NET=ghp_R8sWq2LmZ0vTnYc4KbXe7UdJ1aPf5Hg3",
            ]
        },
        ("s3cr3t", "ghp_R8"),
    ),
    "password in a URL": (
        {"environ:": {"NCCL_INSPECTOR_DUMP_URL": "https://wjones:hunter2@metrics.umbrella.example/put?sig=Zm9v"}},
        ("hunter2", "wjones", "umbrella", "Zm9v"),
    ),
    "name of a host without a digit in other texts": (
        HOST
        | {
            "environ:": {"NCCL_TOPO_FILE": "/shared/borealis/topo-borealis.xml", "MASTER_ADDR": "borealis.hpc.example"},
            "read:/shared/borealis/topo-borealis.xml": b'<system version="1"><!-- of borealis --></system>',
            "run:2|dcgmi|--version": {"rc": 0, "stdout": "dcgmi version: 3.3.5 (borealis)\n", "stderr": ""},
        },
        ("borealis", "hpc.example"),
    ),
    "files in shared memory": (
        {"list:/dev/shm": ["nccl-AbCd12", "sem.umbrella", "wjones-dataset.bin", "nccl-umbrella-x"]},
        ("umbrella", "wjones"),
    ),
    "packages that are not public": (
        {
            "process:": PROCESS | {"sys_path": ["/usr/lib/python3/dist-packages"]},
            "list:/usr/lib/python3/dist-packages": [
                "torch-2.5.0+umbrella1.dist-info",
                "umbrella_trainer",
                "wjones.pth",
            ],
        },
        ("umbrella", "wjones"),
    ),
    "module path": (
        {
            "process:": PROCESS
            | {"sys_path": ["/home/wjones/umbrella/src", "/data/umbrella/lib/python3.11/site-packages"]}
        },
        ("umbrella", "wjones", "48213"),
    ),
    "serial number without a colon": (
        {
            "run:2|dcgmi|--version": {
                "rc": 0,
                "stdout": "version 3.3.5 serial 1650522093417 S/N 7KQX0Z493PB2",
                "stderr": "",
            }
        },
        ("1650522093417", "7KQX0Z493PB2"),
    ),
    "MAC with dashes": (
        {"environ:": {"NCCL_HOSTID": "a6-5c-9e-13-d7-4b"}, "read:/proc/self/cgroup": b"0::/lxc/a6-5c-9e-13-d7-4c\n"},
        ("a6-5c-9e-13-d7",),
    ),
    "builder of the kernel": (
        {
            "read:/proc/version": b"Linux version 6.8.0-45-generic (wjones@borealis) (gcc 13.2.0) #45 SMP\n",
            "read:/proc/driver/nvidia/version": b"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  "
            b"Release Build  (wjones@borealis)\nGCC version:  gcc of borealis\n",
        },
        ("wjones", "borealis"),
    ),
    "release of a kernel of one's own": (
        {
            "read:/proc/sys/kernel/osrelease": b"6.8.0-umbrella7\n",
            "lines:/boot/config-6.8.0-umbrella7|CONFIG_PCI_P2PDMA=|CONFIG_DMABUF_MOVE_NOTIFY=|CONFIG_INFINIBAND_USER_ACCESS="
            "|CONFIG_IOMMU_DEFAULT_": ["CONFIG_PCI_P2PDMA=y"],
        },
        ("umbrella",),
    ),
    "services of the machine": ({"list:/sys/fs/cgroup/system.slice": ["umbrella-agent.service"]}, ("umbrella",)),
    "drop-ins of logind": (
        {
            "list:/etc/systemd/logind.conf.d": ["90-umbrella.conf"],
            "lines:/etc/systemd/logind.conf.d/90-umbrella.conf|RemoveIPC": ["RemoveIPC=no"],
        },
        ("umbrella",),
    ),
    "interfaces with names of one's own": (
        {"list:/sys/class/net": ["umbrella0", "eth0"], "read:/sys/class/net/umbrella0/mtu": b"9000\n"},
        ("umbrella",),
    ),
    "name of a slot": (
        {
            "list:/sys/bus/pci/slots": ["umbrella-rack7"],
            "read:/sys/bus/pci/slots/umbrella-rack7/address": b"0000:3b:00\n",
        },
        ("umbrella",),
    ),
    "product named by its owner": (
        {
            "read:/sys/class/dmi/id/product_name": b"Umbrella GPU Node 7KQX0Z493PB2\n",
            "read:/sys/class/dmi/id/sys_vendor": b"Umbrella\n",
        },
        ("umbrella", "7KQX0Z493PB2"),
    ),
    "dependents and addresses of kernel modules": (
        {"lines:/proc/modules|nvidia |nvidia_uvm ": ["nvidia 14299136 4 umbrella_mod, Live 0xffffffffc1c8a000 (POE)"]},
        ("umbrella", "ffffffffc1c8a000"),
    ),
    "text in a config space": (
        {
            "read:/sys/bus/pci/devices/0000:3b:00.0/config|1024": bytes(0xC0)
            + b"umbrella SN 7KQX0Z493PB2"
            + bytes(0x300)
        },
        ("umbrella", "7KQX0Z493PB2"),
    ),
    "reason of a missing answer": (
        {
            "cuda:DeviceGetCount": HostError(
                Reason.ABSENT, "/home/wjones/lib/libcuda.so.1: wrong ELF class of borealis"
            ),
            "probe:cuda": {"state": "failed", "ms": 1.0, "detail": "OSError: /home/wjones/lib of borealis"},
        },
        ("wjones", "borealis"),
    ),
    "a question that no probe asks": ({"read:/home/wjones/.netrc": b"password hunter2"}, ("wjones", "hunter2")),
}


@pytest.mark.parametrize("name", LEAKS)
def test_leak_is_closed(name: str, tmp_path: Path) -> None:
    answers, secrets = LEAKS[name]
    raw, path = tmp_path / "raw", tmp_path / "saved"
    save(str(raw), {"now:": "2026-01-02T03:04:05Z", **answers}, probe_set=PROBE_SET_VERSION)
    assert run(save_command, path, "--from", raw).code == 0
    texts: list[Any] = [gzip.decompress(path.read_bytes()).decode(), path.read_bytes()[:64].decode("latin-1")]
    texts.append(run(report, "--from", path, "--format", "json").out)
    assert [s for s in secrets if any(s.lower() in t.lower() for t in texts)] == []

"""Texts of other programs, pasted, mixed and damaged, through every command that takes `--from`."""

from __future__ import annotations

import gzip
import io
import tarfile
from random import Random

from tests.fuzz import hostile, texts
from tests.fuzz.case import Case, command
from tests.fuzz.targets.matrices import INVENTED

SEEDS = (
    INVENTED,
    "00:00.0 Host bridge [0600]: Intel Corporation Device [8086:09a2]\n\tControl: I/O-\n\n"
    "01:00.0 3D controller [0302]: NVIDIA Corporation GH100 [10de:2330] (rev a1)\n\tControl: I/O-\n\tNUMA node: 0\n"
    "\tRegion 0: Memory at 3f000000000 (64-bit, prefetchable) [size=16M]\n"
    "\tCapabilities: [60] Express (v2) Endpoint, MSI 00\n\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16\n"
    "\t\tLnkSta:\tSpeed 32GT/s, Width x16\n\tKernel driver in use: nvidia\n",
    "-[0000:00]-+-00.0  Intel Corporation Device 09a2\n"
    "           \\-01.0-[01]----00.0  NVIDIA Corporation Device 2330\n",
    "==============NVSMI LOG==============\nDriver Version : 580.1\nAttached GPUs : 1\nGPU 00000000:01:00.0\n"
    "    Product Name : NVIDIA H100\n    Minor Number : 0\n    ECC Mode\n        Current : Enabled\n"
    "        Pending : Enabled\n    BAR1 Memory Usage\n        Total : 131072 MiB\n",
    "<nvidia_smi_log><attached_gpus>1</attached_gpus>"
    "<gpu id='00000000:01:00.0'><uuid>GPU-1</uuid></gpu></nvidia_smi_log>",
    "GPU 0: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n",
    "[    0.1] Linux version 6.8.0 (x)\n[    0.2] Command line: iommu=pt\n[    0.3] PCI host bridge to bus 0000:00\n"
    "[    0.4] pci 0000:00:01.0: [8086:352a] type 01 class 0x060400\n"
    "[    0.5] pci 0000:00:01.0: PCI bridge to [bus 01-02]\n",
    "CA 'mlx5_0'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: Active\n\t\tRate: 400\n",
    "hca_id:\tmlx5_0\n\ttransport:\tInfiniBand (0)\n\tphys_port_cnt:\t1\n\t\tport:\t1\n\t\t\tstate:\tPORT_ACTIVE (4)\n",
    "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev eth0\n",
    "1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN\n    inet 127.0.0.1/8 scope host lo\n",
    "available: 2 nodes (0-1)\nnode 0 cpus: 0 1\nnode 0 size: 1 MB\nnode distances:\nnode 0 1\n 0: 10 20\n",
    '<topology><object type="Machine" nodeset="0x1">'
    '<object type="NUMANode" os_index="0" cpuset="0x3"/></object></topology>',
    '<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200"/></cpu></system>',
    "PATH=/bin\nNCCL_DEBUG=INFO\nHOME=/root\n",
)


def make(rng: Random) -> Case:
    names = [f"f{n}" for n in range(rng.choice((1, 1, 2, 3)))]
    files = {name: _file(rng) for name in names}
    given = [word for name in names for word in ("--from", name)]
    argv = rng.choice((["report"], ["check"], ["nccl", "predict"], ["nccl", "env"], ["snapshot", "save", "out.snap"]))
    if rng.random() < 0.1:
        return Case(argv=command("fleet", *names), files=files)
    return Case(argv=command(*argv, *given), files=files)


def _file(rng: Random) -> bytes:
    text = rng.choice(SEEDS)
    pick = rng.randrange(12)
    if pick < 6:
        data = hostile.raw(texts.lines(rng, text, 6, other=rng.choice(SEEDS)))
    elif pick < 8:
        data = texts.broken(rng, text.encode())
    elif pick == 8:
        data = hostile.raw("\n".join(rng.choice(SEEDS) for _ in range(rng.choice((2, 5, 50)))))
    elif pick == 9:
        data = hostile.raw(text * rng.choice((1, 10, 500)))
    elif pick == 10:
        data = _tar(rng, text)
    else:
        data = hostile.raw(rng.choice((" ", "\t", "\n", "<object>", "01:00.0 ", "[")) * rng.choice((10, 100_000)))
    return gzip.compress(data, mtime=0) if rng.random() < 0.1 else data


def _tar(rng: Random, text: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in ("a/lspci", "sys/bus/pci/devices/x", "../../x", "/proc/version", hostile.text(rng)[:50] or "b"):
            info = tarfile.TarInfo(name.encode("utf-8", "replace").decode())
            if rng.random() < 0.3:
                info.type, info.linkname = tarfile.SYMTYPE, rng.choice(("/etc/passwd", "../..", ".", "x"))
                archive.addfile(info)
            else:
                info.size = len(text.encode())
                archive.addfile(info, io.BytesIO(text.encode()))
    return texts.broken(rng, out.getvalue()) if rng.random() < 0.3 else out.getvalue()

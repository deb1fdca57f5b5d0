"""Any answer of a machine may be anything: the sysfs probes lose that one fact and nothing else."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.probes.test_pci import GPU, machine
from tests.probes.test_system import guest
from tests.probes.trees import host_of
from tests.support.recorder import Recorder
from topocheck.host.base import Answer, Host, HostError, RecordedBackend
from topocheck.model.base import Reason
from topocheck.probes import limits, numa, system
from topocheck.probes.pci import sysfs as pci

NUMA = {
    "/sys/devices/system/node/online": "0",
    "/sys/devices/system/node/node0/cpulist": "0-3",
    "/sys/devices/system/node/node0/distance": "10",
    "/sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 1024 kB\nNode 0 MemFree: 512 kB",
    "/sys/devices/system/cpu/online": "0-3",
    "/sys/devices/system/cpu/cpu0/topology/package_cpus_list": "0-3",
    "/sys/devices/system/cpu/cpu0/topology/physical_package_id": "0",
    "/sys/devices/system/cpu/cpu0/topology/core_cpus_list": "0-1",
    "/proc/self/status": "CapEff:\t00\nSeccomp:\t0\nCpus_allowed_list:\t0-3\nMems_allowed_list:\t0",
    "/proc/self/limits": "Max locked memory         65536                65536                bytes",
    "/proc/self/cgroup": "0::/job",
    "/sys/fs/cgroup/job/cpuset.cpus.effective": "0-3",
    "/sys/fs/cgroup/job/memory.max": "max",
    "/dev/shm/nccl-1": "",
}
PROBES = (pci.read, numa.read, system.read, limits.read)


@cache
def recording() -> dict[str, Answer]:
    """Return what the probes asked of a small machine, with its answers."""
    with tempfile.TemporaryDirectory() as folder:
        answers = {"pci_names:10b5:8747|10de:20b0|8086:2030": {}, "now:": "2026-01-01T00:00:00Z"}
        _, backend = host_of(Path(folder), machine() | guest() | NUMA, answers)
        recorder = Recorder(backend)
        for read in PROBES:
            read(Host(recorder))
    return recorder.answers


def garbage(question: str) -> st.SearchStrategy[Answer]:
    """Return answers of the right type and any content, or an error, for a question."""
    kind = question.partition(":")[0]
    text = st.text(max_size=60)
    values: dict[str, st.SearchStrategy[Answer]] = {
        "read": st.binary(max_size=300),
        "lines": st.lists(text, max_size=4),
        "list": st.lists(text, max_size=4),
        "readlink": text,
        "realpath": text,
    }
    errors = st.sampled_from([HostError(r, "EIO") for r in Reason])
    return st.one_of(values.get(kind, errors), errors)


@pytest.mark.parametrize("read", PROBES, ids=lambda r: r.__module__.rsplit(".", 1)[-1])
@given(data=st.data())
def test_probes_never_raise(read, data: st.DataObject) -> None:
    answers = dict(recording())
    for question in data.draw(st.lists(st.sampled_from(sorted(answers)), min_size=1, max_size=4)):
        answers[question] = data.draw(garbage(question))
    facts = read(Host(RecordedBackend(answers)))
    # What was read is of the types that the facts promise: it survives a strict round trip.
    assert msgspec.json.decode(msgspec.json.encode(facts), type=type(facts)) == facts


@given(data=st.data())
def test_a_broken_gpu_leaves_the_ports_as_they_are(data: st.DataObject) -> None:
    answers = dict(recording())
    of_gpu = sorted(q for q in answers if f"/sys/bus/pci/devices/{GPU}" in q)
    question = data.draw(st.sampled_from(of_gpu))
    answers[question] = data.draw(garbage(question))
    whole = pci.read(Host(RecordedBackend(recording()))).devices
    broken = pci.read(Host(RecordedBackend(answers))).devices
    assert isinstance(whole, tuple)
    assert isinstance(broken, tuple)
    names = {"vendor_name", "device_name"}  # asked of all at once, so under another question when ids change

    def others(devices: tuple[pci.PciDevice, ...]) -> list[dict[str, object]]:
        return [
            {k: v for k, v in msgspec.structs.asdict(d).items() if k not in names} for d in devices if d.address != GPU
        ]

    assert others(broken) == others(whole)

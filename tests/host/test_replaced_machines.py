"""Described machines before and after the replacement: only identifiers differ, and no pair changes its class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.machines import builder
from tests.support.recorder import Recorder
from topocheck.host.base import Backend, Host, RecordedBackend
from topocheck.host.recording.anonymize import anonymize
from topocheck.model.node import Node
from topocheck.probes.kept.table import table
from topocheck.probes.registry import PROBES
from topocheck.topology.build import build

IDENTIFIERS = {
    *(
        "uuid",
        "serial",
        "boot_id",
        "hostname",
        "ip_addresses",
        "destination",
        "gateway",
        "node_guid",
        "sys_image_guid",
        "gid",
        "netdev_address",
    ),
    *("DeviceGetUUID", "DeviceGetUuid", "DeviceGetSerial", "DeviceGetGpuFabricInfoV", "fabric_cluster_uuid"),
    *("/proc/sys/kernel/hostname", "/proc/sys/kernel/random/boot_id"),
    *("DeviceGetMigDeviceHandleByIndex", "SLURMD_NODENAME", "MASTER_ADDR"),
}


def facts(backend: Backend) -> dict[str, Any]:
    host = Host(backend)
    return {p.name: p.read(host) for p in PROBES if p.group != "commands"}


def leaves(value: Any, name: str = "", path: str = "") -> Iterator[tuple[str, str, Any]]:
    """Every scalar with its path and the nearest name that is no number."""
    if isinstance(value, dict):
        for k, v in value.items():
            yield from leaves(v, k, f"{path} {k}")
    elif isinstance(value, list | tuple):
        for n, v in enumerate(value):
            yield from leaves(v, name, f"{path} {n}")
    else:
        yield path, name, value


# In these a user's home folder, a text that is no number or version, or a UUID in a setting is replaced, too; in the
# second line the number of a container or job in the path of a control group.
OTHERS = {
    *("laptop", "no_pci", "h19_unreadable_counter", "h23_mig_visible", "h28_odd_bytes", "h62_tcpxo_profile"),
    *("h42_mig_handles_refused", "h69_graph_file_of_four", "h75_topology_without_arch", "h76_old_mig_name"),
    *("h40_device_cgroup", "h46_task_of_one_gpu", "h47_step_of_two_gpus"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in (*builder.names(), *builder.case_names()) if n not in OTHERS])
def test_only_identifiers_differ(name: str) -> None:
    recorder = Recorder(builder.machine(name).backend)
    before = facts(recorder)
    after = facts(RecordedBackend(anonymize(recorder.answers, table())))
    old = {path: (leaf, value) for path, leaf, value in leaves(msgspec.to_builtins(before))}
    new = {path: (leaf, value) for path, leaf, value in leaves(msgspec.to_builtins(after))}
    assert old.keys() == new.keys()
    assert {old[path][0].partition("(")[0] for path in old if old[path] != new[path]} <= IDENTIFIERS
    uuids = [(o, new[path][1]) for path, (leaf, o) in old.items() if leaf == "uuid"]
    assert len(set(uuids)) == len({o for o, _ in uuids}) == len({n for _, n in uuids}), "one to one"
    assert all(o != n for o, n in uuids)
    paths = [
        [(p.from_, p.to, p.class_, p.pcie_class) for p in build(Node(source="x", **f)).paths] for f in (before, after)
    ]
    assert paths[0] == paths[1]

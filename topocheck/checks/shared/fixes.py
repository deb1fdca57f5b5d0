"""Fixes as data: what to do, and what must be true of the machine for it to work. The first that fits is printed."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from topocheck.checks.registry import Context
from topocheck.gpudirect.inputs import kernel_version
from topocheck.gpudirect.registration import peer_memory_interface
from topocheck.model.base import known

Condition = Callable[[Context], bool]


class Fix(msgspec.Struct, frozen=True):
    """One way to put a problem right.

    Attributes:
        text: the command or setting, with its price where it has one.
        when: all of these must hold; a fix without conditions always fits, so it stands last.
    """

    text: str
    when: tuple[Condition, ...] = ()

    def fits(self, c: Context) -> bool:
        """Tell whether it can work on this machine."""
        return all(condition(c) for condition in self.when)


def first_fitting(c: Context, *fixes: Fix) -> str | None:
    """Return the text of the first fix that can work on this machine; None where none can."""
    return next((f.text for f in fixes if f.fits(c)), None)


def on_node(c: Context, fix: str) -> str:
    """Return a fix that needs the node itself, said to be done there where this process is in a container."""
    return f"on the node, outside this container: {fix}" if in_container(c) else fix


def never(condition: Condition) -> Condition:
    """Return the opposite of a condition."""
    return lambda c: not condition(c)


def in_container(c: Context) -> bool:
    """Tell whether this process runs in a container."""
    return known(c.node.system.container)


def in_kubernetes(c: Context) -> bool:
    """Tell whether this process runs in a pod."""
    return c.node.system.container == "kubernetes"


def in_system_container(c: Context) -> bool:
    """Tell whether this process runs in a container with an init of its own, whose devices its configuration lists."""
    return c.node.system.container in ("lxc", "lxc-libvirt", "systemd-nspawn")


def in_slurm(c: Context) -> bool:
    """Tell whether this process is part of a Slurm job, by its variables or its control group."""
    return any(s.name == "SLURM_JOB_ID" and s.value for s in c.node.settings.related)


def in_guest(c: Context) -> bool:
    """Tell whether a hypervisor is known to show this machine."""
    return known(c.node.system.hypervisor)


def is_root(c: Context) -> bool:
    """Tell whether this process runs as root."""
    return c.node.limits.uid == 0


def open_module(c: Context) -> bool:
    """Tell whether the loaded NVIDIA kernel module is the open one."""
    return c.node.system.nvidia_module_flavor == "open"


def kernel_from(*version: int) -> Condition:
    """Return the condition that the kernel is of a version or newer; one that is not known does not count."""

    def holds(c: Context) -> bool:
        found = kernel_version(c.node.system.kernel_release)
        return found is not None and found >= version

    return holds


def peer_memory(c: Context) -> bool:
    """Tell whether the kernel has the interface that nvidia_peermem registers with."""
    return peer_memory_interface(c.node.system)

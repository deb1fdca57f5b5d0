"""External network plugins: devices that need one, and settings that ask for one."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, Scope, check, not_applicable
from topocheck.checks.shared.common import listed
from topocheck.checks.shared.settings import OWN_NETWORKS, in_force, place, quoted
from topocheck.checks.sources import GPUS, Needs
from topocheck.knowledge.nccl_net_plugins import NetPlugin, may_hold, plugin_for
from topocheck.model.base import Evidence, Finding, Missing, State, known
from topocheck.model.system import Setting


def _needing(c: Context) -> dict[str, tuple[NetPlugin, list[str]]]:
    """Return plugin -> (what is known of it, devices that need it)."""
    found: dict[str, tuple[NetPlugin, list[str]]] = {}
    devices = c.node.pci.devices
    for d in devices if known(devices) else ():
        row = plugin_for(d.driver) if known(d.driver) else None
        if row is not None:
            found.setdefault(row.plugin, (row, []))[1].append(d.address)
    return found


def _asked(c: Context) -> Setting | None:
    """Return the setting that asks for a network or a plugin which is not NCCL's own."""
    net, plugin = (in_force(c).get(n) for n in ("NCCL_NET", "NCCL_NET_PLUGIN"))
    if net is not None and net.value.lower() not in OWN_NETWORKS:
        return net
    return plugin if plugin is not None and plugin.value.lower() != "none" else None


@check(
    "nccl.plugin-missing",
    title="A network plugin is needed and the loader does not find it",
    severity=State.FAIL,
    reads=("LD_LIBRARY_PATH", "/etc/ld.so.conf.d", "NCCL_NET", "NCCL_NET_PLUGIN", "drivers of PCI functions"),
    needs=Needs((*GPUS, "settings", "driver")),
    scope=Scope.PROCESS,
)
def plugin_missing(c: Context) -> Iterator[Finding]:
    """Network devices here need an external plugin, or a setting asks for one, and the loader would not find it.

    Looks at:
        Drivers of PCI functions whose devices NCCL reaches through a plugin only (EFA, Slingshot), NCCL_NET and
        NCCL_NET_PLUGIN; and whether the plugin's library is in a folder of LD_LIBRARY_PATH, of ld.so.conf or of the
        system.

    Why it matters:
        Without its plugin NCCL silently falls back to TCP sockets at the default log level. Where NCCL_NET names
        the plugin's network, init fails.

    Fix:
        Put the plugin's folder on LD_LIBRARY_PATH, or install the plugin.

    Does not apply:
        Without such devices and settings, and without GPUs. Where a folder could not be looked into, it is unknown.
    """
    if not c.topology.gpus:
        raise not_applicable("no NVIDIA GPU, so no NCCL job runs here")
    needing, asked = _needing(c), _asked(c)
    if not needing and asked is None:
        raise not_applicable("no device here needs a network plugin, and no setting asks for one")
    plugins = c.node.software.network_plugins
    if not isinstance(plugins, Missing) and plugins:
        return
    elsewhere = c.node.software.plugins_elsewhere
    path = next((s.value for s in c.node.settings.related if s.name == "LD_LIBRARY_PATH"), "not set")
    looked = (
        Evidence("LD_LIBRARY_PATH", path),
        Evidence("network plugin on the loader's path", str(plugins) if isinstance(plugins, Missing) else "none"),
        *(Evidence("installed off the loader's path", p) for p in elsewhere[:2]),
    )
    unknown = isinstance(plugins, Missing)
    if asked is not None:
        fatal = asked.name == "NCCL_NET"
        yield Finding(
            id="nccl.plugin-missing",
            state=State.UNKNOWN if unknown else State.FAIL if fatal else State.WARN,
            subject=place(asked),
            title=f"{asked.name}={asked.value} needs a network plugin that the loader does not find",
            consequence="NCCL's init fails: the network is not found"
            if fatal
            else "NCCL uses its own networks instead",
            evidence=(*quoted(asked), *looked),
            rule="libnccl-net.so, or what NCCL_NET_PLUGIN names, in a folder of the loader",
            fix=_put(elsewhere, asked.value) or f"put the plugin's folder on LD_LIBRARY_PATH, or unset {asked.name}",
        )
    for row, devices in needing.values():
        yield Finding(
            id="nccl.plugin-missing",
            state=State.UNKNOWN if unknown else State.WARN,
            subject=row.devices,
            title=f"{len(devices)} {row.devices} devices are here, and their NCCL plugin ({row.plugin}) is not found by"
            " the loader",
            consequence=f"NCCL uses {row.without}",
            evidence=(Evidence(f"driver {row.driver}", listed(devices, 4)), *looked),
            rule=f"{row.plugin} on the loader's path ({row.source})",
            fix=_put(elsewhere, row.plugin) or row.fix,
        )


def _put(elsewhere: tuple[str, ...], wanted: str) -> str:
    """Return how the loader gets to find the plugin that is wanted, where it is installed; empty where it is not."""
    folder = next((p.rpartition("/")[0] for p in elsewhere if may_hold(wanted, p)), "")
    return f"export LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH" if folder else ""

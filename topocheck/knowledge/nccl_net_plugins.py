"""Network devices that NCCL reaches only through an external plugin (data/nccl_net_plugins.tsv)."""

import functools

import msgspec

from topocheck.knowledge.tables import Source, Table


class NetPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """A driver of devices, the plugin that they need, and what NCCL uses without it."""

    driver: str
    devices: str
    plugin: str
    without: str
    fix: str
    source: Source


_PLUGINS = Table("nccl_net_plugins", NetPlugin, key=("driver",))


@functools.cache
def plugin_for(driver: str) -> NetPlugin | None:
    """Return the plugin that a driver's devices need; None where NCCL's own transports reach them."""
    return next(iter(_PLUGINS.starting(driver)), None)

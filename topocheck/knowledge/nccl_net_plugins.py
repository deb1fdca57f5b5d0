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


_FAMILIES = (
    (("gib",), ("/gib/",)),
    (("fastrak",), ("/tcpxo/", "/fastrak/")),
    (("gputcpx", "gpudirecttcpx"), ("/tcpx/",)),
    (("aws libfabric", "ofi", "libfabric", "aws-ofi"), ("ofi-nccl",)),
    (("ibext", "rdma-sharp", "spectrum"), ("/hpcx/",)),
)
"""Beginnings of what NCCL_NET or NCCL_NET_PLUGIN names -> parts of the folders that its maker installs to."""


def may_hold(asked: str, path: str) -> bool:
    """Tell whether a plugin at a path may be the one that a setting asks for: one of another maker is not."""
    wanted = next((parts for words, parts in _FAMILIES if asked.lower().startswith(words)), None)
    return wanted is None or any(part in path for part in wanted)


_PLUGINS = Table("nccl_net_plugins", NetPlugin, key=("driver",))


@functools.cache
def plugin_for(driver: str) -> NetPlugin | None:
    """Return the plugin that a driver's devices need; None where NCCL's own transports reach them."""
    return next(iter(_PLUGINS.starting(driver)), None)

"""Names: their order, and which of them the files of other programs can hold, none of which has a way to quote."""

from __future__ import annotations

import re

_HOST = r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?"
_WORD = r"[A-Za-z0-9_.-]{1,63}"


def natural_key(name: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key by which `mlx5_2` stands before `mlx5_10`; numbers may have any length."""
    parts = re.split(r"0*([0-9]+)", name)
    return tuple((len(p), p) if i % 2 else (-1, p) for i, p in enumerate(parts))


def is_host_name(name: str) -> bool:
    """Tell whether a name is a host name (RFC 1123, and the underscore that sites use), so a word in any file."""
    return re.fullmatch(_HOST, name) is not None


def is_slurm_node(name: str) -> bool:
    """Tell whether Slurm can know a node by this name: `DEFAULT` begins a line of defaults (slurm.conf(5))."""
    return is_host_name(name) and name.upper() not in ("DEFAULT", "ALL", "NONE")


def is_slurm_switch(name: str) -> bool:
    """Tell whether a switch of Slurm's topology can have this name: at most 64 characters (topology.yaml(5)).

    Slurm's hostlists and `KEY=VALUE` lines give a meaning to brackets, commas, blanks and equal signs.
    """
    return re.fullmatch(_WORD, name) is not None


def is_nccl_word(name: str) -> bool:
    """Tell whether a device or interface can stand in a list of NCCL_IB_HCA or NCCL_SOCKET_IFNAME.

    NCCL parts such a list at commas and colons, and nccl.conf, which shells read as well, knows no quotes; the kernel
    allows both in the name of an interface, and all that a shell acts on.
    """
    return re.fullmatch(_WORD, name) is not None

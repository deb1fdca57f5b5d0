"""Where the pages of a buffer lie, and allocation from chosen CPUs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from collections import Counter
from collections.abc import Iterator

from topocheck.model.address import parse_cpulist

_MOVE_PAGES = {"x86_64": 279, "aarch64": 239, "ppc64le": 301, "riscv64": 239}
"""Number of the system call move_pages (asm/unistd_64.h of each architecture)."""

LOOKS = 64
"""Pages looked at in a buffer."""


@contextlib.contextmanager
def on_cpus(cpulist: str) -> Iterator[str]:
    """Run the body on the CPUs of a kernel list; yields what came of it in words.

    Pages are placed on the node of the thread that touches them first, so a buffer allocated in the body lies near
    those CPUs. Nothing changes where the list is empty or holds no CPU of this process.
    """
    try:
        before = os.sched_getaffinity(0)
        wanted = set(parse_cpulist(cpulist)) & before
    except (OSError, ValueError):
        yield "not bound: the affinity of this process cannot be read"
        return
    if not wanted:
        yield (
            "not bound: no CPU near the GPU is known" if not cpulist else "not bound: none of its CPUs is allowed here"
        )
        return
    try:
        os.sched_setaffinity(0, wanted)
    except OSError as e:
        yield f"not bound: {e.strerror}"
        return
    try:
        yield f"bound to {len(wanted)} CPUs"
    finally:
        os.sched_setaffinity(0, before)


def nodes_of(pointer: int, size_bytes: int) -> dict[int, int] | str:
    """Return NUMA node -> number of pages, over up to 64 pages spread over a buffer; or why the kernel does not say.

    Asks move_pages(2) with no target, which moves nothing.
    """
    number = _MOVE_PAGES.get(platform.machine())
    if number is None:
        return f"no move_pages number known for {platform.machine()}"
    page = os.sysconf("SC_PAGE_SIZE")
    first = pointer // page * page
    count = max(1, size_bytes // page)
    step = max(1, count // LOOKS)
    addresses = [first + i * page for i in range(0, count, step)][:LOOKS]
    pages = (ctypes.c_void_p * len(addresses))(*addresses)
    status = (ctypes.c_int * len(addresses))()
    libc = ctypes.CDLL(None, use_errno=True)
    rc = libc.syscall(number, 0, ctypes.c_ulong(len(addresses)), pages, None, status, 0)
    if rc != 0:
        return f"move_pages: {os.strerror(ctypes.get_errno())}"
    found = Counter(s for s in status if s >= 0)
    if not found:
        return f"move_pages: {os.strerror(-status[0])} for pages the driver mapped"
    return dict(found)


def placement_text(nodes: dict[int, int] | str, wanted: int | None, bound: str) -> tuple[str, bool | None]:
    """Return the placement in words, and whether it is where it was wanted (None: cannot be determined)."""
    if isinstance(nodes, str):
        return f"{bound}; where the pages lie is unknown ({nodes})", None
    total = sum(nodes.values())
    where = ", ".join(f"node {n}: {100 * c // total} %" for n, c in sorted(nodes.items()))
    if wanted is None:
        return f"{bound}; pages on {where}; which node is near is unknown", None
    good = nodes.get(wanted, 0) == total
    return f"{bound}; pages on {where}, wanted node {wanted}", good

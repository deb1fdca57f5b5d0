"""torch's store of keys on the ranks' own meeting place, so that what Gloo and NCCL tell each other first goes there.

torch's TCPStore would be a second port, which listens on all addresses and believes whoever reaches it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from topocheck.tests_live.launch.rendezvous import Rendezvous

_KEPT: list[Any] = []
"""Stores that torch's threads may use to the end of the process: its C++ side does not keep the Python side alive."""


def torch_store(torch: Any, meeting: Rendezvous, limit_s: float) -> Any:
    """Return a `torch.distributed.Store` with the keys of a meeting place; it may be used from any thread.

    Args:
        torch: the module.
        meeting: the place; all processes of a group must name the same one.
        limit_s: seconds that a key is waited for, where torch names no other limit.
    """

    class MeetingStore(torch.distributed.Store):  # type: ignore[misc]
        """See torch.distributed.Store."""

        def __init__(self) -> None:
            super().__init__()
            self._limit_s = limit_s
            _KEPT.append(self)

        def set(self, key: str, value: bytes | str) -> None:
            meeting.put(key, value.encode() if isinstance(value, str) else bytes(value))

        def get(self, key: str) -> bytes:
            value = meeting.get(key, self._limit_s)
            if value is None:
                raise torch.distributed.DistStoreError(f"{key} was not set within {self._limit_s:.0f} s")
            return value

        def add(self, key: str, amount: int) -> int:
            return meeting.add(key, amount)

        def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
            first, second = (v.encode() if isinstance(v, str) else bytes(v) for v in (expected, desired))
            return meeting.exchange(key, first, second)

        def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
            seconds = self._limit_s if timeout is None else timeout.total_seconds()
            late = meeting.missing(list(keys), seconds)
            if late:
                raise torch.distributed.DistStoreError(f"{late[0]} was not set within {seconds:.0f} s: wait timeout")

        def check(self, keys: list[str]) -> bool:
            return not meeting.missing(list(keys))

        def delete_key(self, key: str) -> bool:
            return meeting.delete(key)

        def num_keys(self) -> int:
            return meeting.count()

        def clone(self) -> Any:
            return MeetingStore()

        def set_timeout(self, timeout: timedelta) -> None:
            self._limit_s = timeout.total_seconds()

        def has_extended_api(self) -> bool:
            return False

    return MeetingStore()

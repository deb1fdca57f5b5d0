"""Whether the ranks of one node can meet over loopback, before they wait for each other in vain."""

from __future__ import annotations

import socket

LOOPBACK_STEP = "bring it up (ip link set lo up; in a network namespace of its own it starts down)"
LIMIT_S = 2.0


def loopback_problem(address: str = "127.0.0.1") -> str:
    """Return why the ranks of this node cannot meet, or the empty text.

    Binding is not enough: with the interface down an address can be bound that nothing reaches. A firewall may drop
    what is sent to oneself, so the connection has a limit.
    """
    try:
        with socket.socket() as listener, socket.socket() as caller:
            listener.bind((address, 0))
            listener.listen(1)
            caller.settimeout(LIMIT_S)
            caller.connect(listener.getsockname())
    except OSError as e:
        why = f"no answer within {LIMIT_S:.0f} s" if isinstance(e, TimeoutError) else e.strerror
        return (
            "the loopback interface does not work, and ranks on one node need it for their "
            f"rendezvous: {address}: {why}"
        )
    return ""

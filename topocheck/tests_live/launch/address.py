"""Where rank 0 is and where it listens: at the address that the ranks use, and at no other."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket

from topocheck.tests_live.launch.world import LaunchError, World

BACKLOG = 4096
NOWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Set aside for documentation (RFC 5737, RFC 3849): reached by the default route. Nothing is sent there."""


def resolve(world: World) -> list[str]:
    """Return rank 0's addresses in numbers, in the order of preference.

    Raises:
        LaunchError: its name means nothing here.
    """
    for port in world.ports:
        if not 0 < port < 1 << 16:
            raise LaunchError(f"rank {world.rank}: MASTER_PORT={port} is no port: expected 1 to 65535")
    try:
        found = socket.getaddrinfo(world.address, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as e:
        why = (e.strerror if isinstance(e, OSError) else "") or "no host name"
        raise LaunchError(
            f"rank {world.rank}: rank 0's host {world.address!r} cannot be found ({why}): set MASTER_ADDR to a name or "
            "address of it"
        ) from None
    names = (socket.getnameinfo(to, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0] for *_, to in found)
    return list(dict.fromkeys(names))


def listen(world: World) -> list[socket.socket]:
    """Return rank 0's sockets, listening at one of its ports on every address that its name has here.

    A name that means loopback on its own host (127.0.1.1 in Debian's /etc/hosts) means another address elsewhere:
    there it listens on the address of the default route as well.

    Raises:
        LaunchError: it cannot; says why and what to do.
    """
    addresses = resolve(world)
    if world.size != world.local_size and _is_name(world.address) and all(map(is_loopback, addresses)):
        addresses += [a for a in map(_route_address, NOWHERE) if a]
    problems = []
    for port in world.ports or (0,):
        sockets, problem = _bound(addresses, port)
        if sockets:
            return sockets
        problems.append(problem)
    raise LaunchError(f"rank {world.rank}: {problems[0] if len(set(problems)) == 1 else '; '.join(problems)}")


def is_loopback(address: str) -> bool:
    """Tell whether an address in numbers is of the loopback interface; a text that is no address is not."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _is_name(host: str) -> bool:
    if host == "localhost":
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


def _route_address(family: socket.AddressFamily) -> str:
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as s:
        s.connect((NOWHERE[family], 9))
        return str(s.getsockname()[0])
    return ""


def _bound(addresses: list[str], port: int) -> tuple[list[socket.socket], str]:
    """Return sockets that listen on all of those addresses that are this host's, or why there are none."""
    out: list[socket.socket] = []
    problem = ""
    for address in addresses:
        family, kind, proto, _, to = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        s = socket.socket(family, kind, proto)
        try:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that an earlier run has just left is free
            s.bind(to)
            s.listen(BACKLOG)
        except OSError as e:
            s.close()
            if e.errno == errno.EADDRNOTAVAIL:
                problem = problem or f"{address} is no address of this host: set MASTER_ADDR to the host of rank 0"
                continue
            for other in out:
                other.close()
            what = "is in use" if e.errno == errno.EADDRINUSE else f"cannot be listened on ({e.strerror})"
            return [], (f"port {port} {what} on this host: set MASTER_PORT to a free one (ss -ltnp shows who listens)")
        s.setblocking(False)
        port = port or int(s.getsockname()[1])
        out.append(s)
    return out, problem

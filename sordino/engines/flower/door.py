"""Limits how many connections one address holds to a SuperLink, and what is kept of a call's head.

The gate counts calls. A connection on which nothing is ever called costs a stranger nothing and the
SuperLink an open file: a thousand of them, and no node got in any more.
"""

from __future__ import annotations

import ipaddress
import resource
import socket
from collections import Counter
from contextlib import suppress
from typing import Any

CONNECTIONS = 256  # that one address holds at most
LOCAL = 2000  # that an address of this machine holds at most: the coordinator's own are among them


def place_of(address: str) -> str:
    """Returns what is counted as one caller: an address, or all that are one subscriber's in IPv6.

    Example:
        >>> place_of("2001:db8::77"), place_of("::ffff:192.0.2.1"), place_of("")
        ('2001:db8::/64', '192.0.2.1', '')
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((found, 64), strict=False))


class Visit(socket.socket):
    """A connection that is counted until it is closed."""

    door: Door | None = None
    place = ""

    def close(self) -> None:
        """Closes the connection."""
        super().close()
        if self.door is not None:
            self.door.leave(self.place)
            self.door = None


class Door(socket.socket):
    """A socket that listens, and turns away who holds too many connections. It counts them."""

    visits: Counter[str]

    @classmethod
    def replace(cls, bound: socket.socket) -> Door:
        """Returns a door in the place of a socket that is bound; that one is of no use any more."""
        door = cls(bound.family, bound.type, bound.proto, fileno=bound.detach())
        door.set_inheritable(False)  # what the SuperLink starts must not hold its port
        door.visits = Counter()
        return door

    def accept(self) -> tuple[socket.socket, Any]:
        """Returns the next connection and the address that it is from.

        Raises:
            BlockingIOError: Nobody is there.
            ConnectionAbortedError: Who was there was turned away.
        """
        handle, address = self._accept()  # type: ignore[attr-defined]
        visit = Visit(self.family, self.type, self.proto, fileno=handle)
        place = place_of(str(address[0]))
        if self.visits[place] >= most(str(address[0])):
            visit.close()
            raise ConnectionAbortedError
        self.visits[place] += 1
        visit.door = self
        visit.place = place
        return visit, address

    def leave(self, place: str) -> None:
        """Counts a connection that was closed."""
        self.visits[place] -= 1
        if self.visits[place] <= 0:
            del self.visits[place]


def most(address: str) -> int:
    """Returns how many connections an address may hold."""
    with suppress(ValueError):
        if ipaddress.ip_address(place_of(address).partition("/")[0]).is_loopback:
            return LOCAL
    return CONNECTIONS


def allow_many_files() -> None:
    """Lets this process open as many files as the system allows it, instead of the usual 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def put_door_in_front() -> None:
    """Has every server that uvicorn runs in this process listen behind a door."""
    import uvicorn

    run = uvicorn.Server.run

    def run_behind_door(self: uvicorn.Server, sockets: list[socket.socket] | None = None) -> None:
        self.config.loop = "asyncio"  # another loop would not ask the door
        self.config.http = "h11"  # its heads end at 64 KiB; the other's grow until memory is full
        bound = sockets or [self.config.bind_socket()]
        run(self, sockets=[Door.replace(one) for one in bound])

    uvicorn.Server.run = run_behind_door  # type: ignore[method-assign, unused-ignore]

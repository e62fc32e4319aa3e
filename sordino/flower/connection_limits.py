"""Limits how many connections one caller holds to a SuperLink.

Access control counts calls. A connection without any call costs a stranger nothing and the
SuperLink an open file: with a thousand of them, no node could connect any more.
"""

from __future__ import annotations

import ipaddress
import resource
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sordino.flower.callers import identify_caller

# Connections that one caller holds at most.
CONNECTIONS = 256
# Connections that this machine holds at most; the coordinator's own are among them.
LOCAL_CONNECTIONS = 2000


class CountedConnection(socket.socket):
    """A connection that is counted until it is closed."""

    listener: LimitedListener | None = None
    caller = ""

    def close(self) -> None:
        """Closes the connection."""
        super().close()
        if self.listener is not None:
            self.listener.release(self.caller)
            self.listener = None


class LimitedListener(socket.socket):
    """A listening socket that closes connections of callers that hold too many.

    It holds how many connections each caller has.
    """

    connections: Counter[str]
    before_accept: Callable[[], None]

    @classmethod
    def replace(cls, bound: socket.socket, before_accept: Callable[[], None]) -> LimitedListener:
        """Returns a listener in place of a socket that is bound.

        Args:
            bound: The socket; it cannot be used any more.
            before_accept: Called whenever a caller connects.
        """
        listener = cls(bound.family, bound.type, bound.proto, fileno=bound.detach())
        # Processes that the SuperLink starts must not hold its port.
        listener.set_inheritable(False)
        listener.connections = Counter()
        listener.before_accept = before_accept
        return listener

    def accept(self) -> tuple[socket.socket, Any]:
        """Returns the next connection and the address that it comes from.

        Returns:
            The connection and the address.

        Raises:
            BlockingIOError: No caller waits.
            ConnectionAbortedError: The caller holds too many connections; this one is closed.
        """
        handle, address = self._accept()  # type: ignore[attr-defined]
        self.before_accept()
        connection = CountedConnection(self.family, self.type, self.proto, fileno=handle)
        caller = identify_caller(str(address[0]))
        if self.connections[caller] >= find_limit(str(address[0])):
            connection.close()
            raise ConnectionAbortedError
        self.connections[caller] += 1
        connection.listener = self
        connection.caller = caller
        return connection, address

    def release(self, caller: str) -> None:
        """Counts a connection that was closed.

        Args:
            caller: Who held it.
        """
        self.connections[caller] -= 1
        if self.connections[caller] <= 0:
            del self.connections[caller]


def find_limit(address: str) -> int:
    """Returns how many connections an address may hold.

    Args:
        address: The address.
    """
    with suppress(ValueError):
        if ipaddress.ip_address(identify_caller(address)).is_loopback:
            return LOCAL_CONNECTIONS
    return CONNECTIONS


def raise_file_limit() -> None:
    """Lets this process open as many files as the system allows, instead of the usual 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

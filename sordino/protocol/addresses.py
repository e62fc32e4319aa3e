"""Reads and writes the addresses of machines: a name or an address, alone or with a port."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any

from sordino.protocol.errors import InvalidValue
from sordino.protocol.value_checks import Check, Text

# The last port that a machine has.
LAST_PORT = 2**16 - 1
# What no name contains: parts of a URL, of a list, of a port, of a network.
FOREIGN = frozenset(" /\\@?#,;:[]%*'\"")

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class Host(Check):
    """A name or an address under which others reach a machine, without a port."""

    def accept_value(self, key: str, value: Any) -> str:
        """Returns the name or the address; one of IPv6 without brackets, in its shortest form.

        Args:
            key: Key of the entry, for the message of an error.
            value: The given value.

        Raises:
            InvalidValue: It is neither, has a port, or others cannot reach a machine by it.
        """
        text = Text().accept_value(key, value)
        found = parse_ip(text)
        if found is None:
            if FOREIGN.intersection(text):
                raise InvalidValue(key, value, self.values_allowed)
            if not text.isascii():
                advice = "Certificates hold ASCII: write the name in the form that begins with xn--"
                raise InvalidValue(key, value, self.values_allowed, f"{advice}.")
            return text
        if found.is_unspecified:
            advice = "It listens on all addresses of its machine; this is what others call it."
            raise InvalidValue(key, value, self.values_allowed, advice)
        if found.version == 6 and found.is_link_local:
            # It means another machine in every network, and needs the name of a network card.
            advice = "This address holds in one network only: take another of the machine's."
            raise InvalidValue(key, value, self.values_allowed, advice)
        return str(found)

    @property
    def values_allowed(self) -> str:
        return "a bare name or address, such as fl.example.org, 192.0.2.1 or 2001:db8::1"

    def build_schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1}


@dataclass(frozen=True)
class Address(Check):
    """A name or an address with a port; an address of IPv6 is in brackets."""

    def accept_value(self, key: str, value: Any) -> str:
        """Returns the address in its normal form.

        Args:
            key: Key of the entry, for the message of an error.
            value: The given value.

        Raises:
            InvalidValue: It has no port, or what comes before the port is no host.
        """
        text = Text().accept_value(key, value)
        host, _, port = text.rpartition(":")
        if not port.isdecimal() or not port.isascii() or not 0 < int(port) <= LAST_PORT:
            raise InvalidValue(key, value, self.values_allowed)
        # Without brackets the port could as well be the last part of the address.
        if ":" in host and not (host.startswith("[") and host.endswith("]")):
            raise InvalidValue(key, value, self.values_allowed)
        try:
            return join_address(Host().accept_value(key, host), int(port))
        except InvalidValue as error:
            raise InvalidValue(key, value, self.values_allowed, error.advice) from None

    @property
    def values_allowed(self) -> str:
        return "HOST:PORT, such as 127.0.0.1:8000, or [2001:db8::1]:8000 with an address of IPv6"

    def build_schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1}


def parse_ip(text: str) -> IpAddress | None:
    """Returns the address that a text is.

    Args:
        text: An address of IPv4 or IPv6, the latter with or without brackets.

    Returns:
        The address; one of IPv4 also where it is written as one of IPv6. None for other text.

    Example:
        >>> parse_ip("[::1]"), parse_ip("::ffff:192.0.2.1"), parse_ip("fl.example.org")
        (IPv6Address('::1'), IPv4Address('192.0.2.1'), None)
    """
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
        if ":" not in text:
            return None
    # What follows a percent sign is the name of a network card, which other machines do not have.
    if "%" in text:
        return None
    try:
        return unmap_address(ipaddress.ip_address(text))
    except ValueError:
        return None


def unmap_address(address: IpAddress) -> IpAddress:
    """Returns an address of IPv4 where it is written as one of IPv6.

    Args:
        address: The address.
    """
    return getattr(address, "ipv4_mapped", None) or address


def join_address(host: str, port: int) -> str:
    """Returns a host and a port in one, as they are written in URLs.

    Args:
        host: A name or an address.
        port: The port.

    Example:
        >>> join_address("::1", 8000), join_address("localhost", 8000)
        ('[::1]:8000', 'localhost:8000')
    """
    if ":" in host:
        return f"[{host}]:{port}"
    return f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Returns the host and the port of an address, which `Address` has accepted.

    Args:
        address: Host and port.

    Raises:
        ValueError: There is no port.

    Example:
        >>> split_address("[::1]:8000")
        ('::1', 8000)
    """
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)

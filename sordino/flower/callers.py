"""Says which network addresses count as one caller."""

from __future__ import annotations

import ipaddress

from sordino.protocol.addresses import IpAddress, unmap_address

# A subscriber of IPv6 has a whole network of this prefix length.
SUBSCRIBER_PREFIX = 64


def identify_caller(address: str) -> str:
    """Returns the caller that an address belongs to.

    Args:
        address: An address of IPv4 or IPv6.

    Returns:
        The address; of IPv6 the network of its subscriber; other text as it is.

    Example:
        >>> identify_caller("2001:db8::77")
        '2001:db8::/64'
        >>> identify_caller("::ffff:192.0.2.1")
        '192.0.2.1'
    """
    try:
        found: IpAddress = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    found = unmap_address(found)
    # The network of the loopback address is nobody's.
    if found.version == 4 or found.is_loopback:
        return str(found)
    return str(ipaddress.IPv6Network((found, SUBSCRIBER_PREFIX), strict=False))

"""Looks at a SuperLink from outside, and says in words what is wrong with the way to it."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

AHEAD = 5.0  # seconds that a node's clock may be ahead before Flower turns it away
BEHIND = 300.0  # seconds that it may be behind
SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Describes what was seen of a SuperLink.

    Attributes:
        trouble: What is wrong, with the remedy; None if nothing is.
        ahead: Seconds by which this machine's clock is ahead of the SuperLink's; None if unknown.
    """

    trouble: str | None
    ahead: float | None = None


def probe_superlink(address: str, certificate: str | None) -> Probe:
    """Asks a SuperLink for its health.

    Args:
        address: Host and port.
        certificate: File of the authority that is trusted; None for a connection without TLS.
    """
    host, _, port = address.rpartition(":")
    try:
        connection = open_connection(host.strip("[]"), int(port), certificate)
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
        connection.close()
    except ssl.SSLCertVerificationError as error:
        return Probe(
            trouble=f"the certificate of {address} is not to be trusted: {error.verify_message}. "
            "Compare ca.crt with the coordinator's; if it has expired, ask for the renewed one"
        )
    except ssl.SSLError as error:
        return Probe(trouble=f"{address} does not speak TLS as it should: {error.reason}")
    except socket.gaierror:
        return Probe(trouble=f"the name {host} is not known: check the address of the SuperLink")
    except (OSError, ValueError, http.client.HTTPException) as error:
        return Probe(
            trouble=f"{address} cannot be reached ({error}): "
            "is the coordinator's machine up, and does the firewall let you out to its port?"
        )
    if answer.status != 200:
        return Probe(trouble=f"{address} answers {answer.status} where a SuperLink would say 200")
    ahead = measure_clock(answer.getheader("Date"))
    return Probe(trouble=describe_clock(ahead), ahead=ahead)


def open_connection(host: str, port: int, certificate: str | None) -> http.client.HTTPConnection:
    """Opens a connection to a SuperLink."""
    if certificate is None:
        return http.client.HTTPConnection(host, port, timeout=SECONDS)
    trusted = ssl.create_default_context(cafile=certificate)
    return http.client.HTTPSConnection(host, port, timeout=SECONDS, context=trusted)


def measure_clock(date: str | None) -> float | None:
    """Returns by how many seconds this machine's clock is ahead; None where no date was sent."""
    if date is None:
        return None
    # The date is cut to whole seconds: half a second more is the best guess.
    return time.time() - parsedate_to_datetime(date).timestamp() - 0.5


def describe_clock(ahead: float | None) -> str | None:
    """Says what is wrong with this machine's clock; None if it is good enough."""
    if ahead is None or -BEHIND < ahead < AHEAD - 1.0:
        return None
    side = "ahead of" if ahead > 0 else "behind"
    return (
        f"this machine's clock is {abs(ahead):.0f} s {side} the coordinator's, and what it signs "
        "is refused: set it by NTP (timedatectl set-ntp true)"
    )

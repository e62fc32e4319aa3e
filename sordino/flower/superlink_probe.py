"""Checks the connection to a SuperLink, lists connected clients, and describes faults in words."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path

from sordino.flower.node_certificates import load_own_certificate
from sordino.protocol.addresses import split_address

# Seconds that a node's clock may be ahead or behind before Flower refuses what it signs.
AHEAD = 5.0
BEHIND = 300.0
# Seconds that a SuperLink has to answer.
TIMEOUT = 5.0
UP = "is the coordinator's machine up, and does the firewall let you out to its port?"
REGISTER = "has the coordinator registered this node's public key, the file that ends in .pub?"


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Describes what was seen of a SuperLink.

    Attributes:
        trouble: The fault, with its remedy; None if there is none.
        ahead: Seconds by which this machine's clock is ahead of the SuperLink's; None if unknown.
        is_untrusted: Whether it answers with a certificate that is not to be trusted. It runs
            then, and starting it again would mend nothing.
    """

    trouble: str | None
    ahead: float | None = None
    is_untrusted: bool = False


def probe_superlink(address: str, certificate: str | None, key: str | None = None) -> Probe:
    """Asks a SuperLink for its health, and measures the clocks' difference.

    Args:
        address: Host and port.
        certificate: File of the authority that is trusted; None for a connection without TLS.
        key: File of a node's private key, whose certificate is shown; None for the coordinator.

    Returns:
        The fault, if there is one.
    """
    try:
        host, port = split_address(address)
        connection = open_connection(host, port, certificate, key)
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
        connection.close()
    except ssl.SSLCertVerificationError as error:
        return Probe(
            trouble=f"the certificate of {address} is not to be trusted: {error.verify_message}. "
            "Compare ca.crt with the coordinator's; if it has expired, ask for the renewed one",
            is_untrusted=True,
        )
    except ssl.SSLError as error:
        return Probe(trouble=f"{address} does not speak TLS as it should: {error.reason}")
    except socket.gaierror:
        return Probe(trouble=f"the name {host} is not known: check the address of the SuperLink")
    except ConnectionResetError as error:
        # This is also raised where a connection is closed without an answer.
        remedy = UP
        if key is not None:
            remedy = f"{REGISTER} If so: {UP}"
        return Probe(trouble=f"{address} ends the connection ({error}): {remedy}")
    except (OSError, ValueError, http.client.HTTPException) as error:
        return Probe(trouble=f"{address} cannot be reached ({error}): {UP}")
    if answer.status != 200:
        return Probe(trouble=f"{address} answers {answer.status} where a SuperLink would say 200")
    ahead = measure_clock(answer.getheader("Date"))
    return Probe(trouble=describe_clock(ahead), ahead=ahead)


def count_online_nodes(address: str, authority: str) -> int:
    """Returns how many nodes are connected to a SuperLink on this machine.

    Args:
        address: Host and port of the SuperLink.
        authority: File of the authority that certified it.
    """
    from flwr.proto.control_pb2 import ListNodesRequest
    from flwr.supercore.control.control_http_client import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    interceptors = [RuntimeVersionHttpInterceptor(component_name="sordino")]
    trusted = Path(authority).read_bytes()
    with ControlHttpClient.from_server_address(address, False, trusted, interceptors) as client:
        nodes = client.ListNodes(ListNodesRequest()).nodes_info
    return sum(node.status == "online" for node in nodes)


def open_connection(
    host: str, port: int, certificate: str | None, key: str | None
) -> http.client.HTTPConnection:
    """Returns a connection to a SuperLink.

    Args:
        host: Name or address.
        port: Port.
        certificate: File of the authority that is trusted; None for a connection without TLS.
        key: File of a node's private key, whose certificate is shown; None to show none.
    """
    if certificate is None:
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT)
    trusted = ssl.create_default_context(cafile=certificate)
    if key is not None:
        load_own_certificate(trusted, Path(key))
    return http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=trusted)


def measure_clock(date: str | None) -> float | None:
    """Returns by how many seconds this machine's clock is ahead.

    Args:
        date: The header of an answer; None where there is none.

    Returns:
        The seconds; None where no date was sent.
    """
    if date is None:
        return None
    # The date is cut to whole seconds: half a second more is the best guess.
    return time.time() - parsedate_to_datetime(date).timestamp() - 0.5


def describe_clock(ahead: float | None) -> str | None:
    """Returns the fault of this machine's clock.

    Args:
        ahead: Seconds by which it is ahead; None where that is not known.

    Returns:
        The trouble with its remedy; None if the clock is good enough.
    """
    if ahead is None or -BEHIND < ahead < AHEAD - 1.0:
        return None
    side = "behind"
    if ahead > 0:
        side = "ahead of"
    return (
        f"this machine's clock is {abs(ahead):.0f} s {side} the coordinator's, and what it signs "
        "is refused: set it by NTP (timedatectl set-ntp true)"
    )

"""Closes connections to a SuperLink without the certificate of a registered node.

Flower's command line and its ServerApp come to the same port and cannot show a certificate, so
TLS itself cannot require one from everybody. They are processes of the coordinator's account on
its own machine; any other connection without a certificate is closed before a byte of HTTP is
read.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from pathlib import Path

from uvicorn.protocols.http.h11_impl import H11Protocol

from sordino.flower.access_control import CERTIFICATE_SHOWN, is_own_connection

LOG = logging.getLogger("flwr")


class TrustedCertificates:
    """Adds the certificates of registered clients to those that TLS trusts.

    It holds when their file was last changed.
    """

    def __init__(self, path: Path) -> None:
        """Creates the list.

        Args:
            path: File of the certificates, which changes as clients are registered.
        """
        self._path = path
        self._read_at = 0

    def refresh(self, context: ssl.SSLContext) -> None:
        """Reads the file if it has changed. A client that was removed is trusted until a restart.

        Args:
            context: The SuperLink's TLS context.
        """
        try:
            status = self._path.stat()
        except OSError:
            # Before the first registration there is no file.
            return
        # OpenSSL refuses a file without certificates.
        if status.st_mtime_ns == self._read_at or not status.st_size:
            return
        self._read_at = status.st_mtime_ns
        try:
            context.load_verify_locations(self._path)
        except OSError as error:
            # An error here would keep out all nodes, also those that are trusted already.
            LOG.error("%s cannot be read (%s): new nodes are not let in.", self._path, error)


class CertificateProtocol(H11Protocol):
    """Serves connections with a node's certificate, and those of the coordinator's account."""

    app_state: dict[str, object]

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begins a connection, or closes it.

        Args:
            transport: The connection, after its TLS handshake.
        """
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        shown = tls is not None and tls.getpeercert(binary_form=True) is not None
        # The application refuses calls of nodes whose connection showed none.
        self.app_state = {**self.app_state, CERTIFICATE_SHOWN: shown}
        # The system's own table of connections names the account that holds a socket; no caller can
        # forge it.
        if not shown and not is_own_connection(self.client, self.server, os.getuid()):
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Reads data, unless the connection was closed.

        Args:
            data: What arrived.
        """
        # Bytes that arrived together with the handshake would otherwise still be parsed.
        if not self.transport.is_closing():
            super().data_received(data)

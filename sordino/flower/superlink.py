"""Runs Flower's SuperLink behind TLS with certificates, access control and limits.

`sordino flower link` becomes this program.
"""

from __future__ import annotations

import os
import socket
import ssl
import sys
from pathlib import Path
from typing import Any

from sordino.flower.access_control import AccessControl
from sordino.flower.client_keys import NODES
from sordino.flower.connection_limits import LimitedListener, raise_file_limit
from sordino.protocol import UserError


def install_access_control(*, secured: bool) -> None:
    """Puts access control in front of every app that Flower creates in this process.

    Args:
        secured: Whether nodes have keys.

    Raises:
        UserError: The installed version of Flower has no hook for it.
    """
    from flwr.superlink import extensions
    from starlette.middleware import Middleware

    find_others = getattr(extensions, "get_middleware", None)
    if find_others is None:
        raise UserError(
            "this version of Flower lets nothing be put in front of its SuperLink, which would be "
            "open to everybody. Install the one that Sordino asks for: pip install "
            "'sordino[flower]'"
        )

    def list_middleware() -> tuple[Any, ...]:
        return (Middleware(AccessControl, secured=secured), *find_others())

    vars(extensions)["get_middleware"] = list_middleware


def check_access_control() -> None:
    """Checks that access control is the first thing that a call meets.

    Raises:
        UserError: Something else would be met first.
    """
    from flwr.superlink import main as superlink_app

    first = superlink_app._get_middleware()[0]
    if first.cls is not AccessControl:
        raise UserError("access control is not in front of the SuperLink; it is not started.")


def install_listener(nodes: Path | None = None) -> None:
    """Makes uvicorn limit connections and ask for certificates, in this whole process.

    Args:
        nodes: File of the certificates that nodes show; None where there is no TLS.
    """
    import uvicorn

    from sordino.flower.mutual_tls import CertificateProtocol, TrustedCertificates

    run = uvicorn.Server.run

    def run_limited(self: uvicorn.Server, sockets: list[socket.socket] | None = None) -> None:
        # Another event loop would not use the listener.
        self.config.loop = "asyncio"
        # The heads that h11 reads end at 64 KiB; those of httptools grow until memory is full.
        self.config.http = "h11"
        trusted = None
        if nodes is not None:
            trusted = TrustedCertificates(nodes)
            self.config.http = CertificateProtocol
            # CertificateProtocol decides which connections need no certificate.
            self.config.ssl_cert_reqs = ssl.CERT_OPTIONAL

        def refresh_trust() -> None:
            if trusted is not None and self.config.ssl is not None:
                trusted.refresh(self.config.ssl)

        bound = sockets or [self.config.bind_socket()]
        run(self, sockets=[LimitedListener.replace(one, refresh_trust) for one in bound])

    uvicorn.Server.run = run_limited  # type: ignore[method-assign, unused-ignore]


def find_node_certificates(arguments: list[str]) -> Path:
    """Returns the file of the nodes' certificates, which is next to the SuperLink's own.

    Args:
        arguments: Arguments of Flower's command.
    """
    return Path(arguments[arguments.index("--ssl-certfile") + 1]).with_name(NODES)


def hide_database(arguments: list[str]) -> None:
    """Lets nobody but the own account read the SuperLink's database.

    Uploads wait in it until they are fetched, and tokens of tasks stand in it.

    Args:
        arguments: Arguments of Flower's command.
    """
    # Without one, everything is in memory.
    if "--database" not in arguments:
        return
    database = Path(arguments[arguments.index("--database") + 1])
    # SQLite gives the files that it puts beside a database the permissions that this one has.
    database.touch(mode=0o600)
    for path in database.parent.glob(f"{database.name}*"):
        path.chmod(0o600)


def main(arguments: list[str]) -> None:
    """Runs a SuperLink.

    Args:
        arguments: Arguments of Flower's command.

    Raises:
        UserError: The installed version of Flower cannot be secured.
    """
    from flwr.superlink.cli.flower_superlink import flower_superlink

    # No caller may name another address than its own; by default uvicorn believes 127.0.0.1.
    os.environ["FORWARDED_ALLOW_IPS"] = ""
    secured = "--enable-supernode-auth" in arguments
    install_access_control(secured=secured)
    check_access_control()
    raise_file_limit()
    hide_database(arguments)
    nodes = None
    if secured:
        nodes = find_node_certificates(arguments)
    install_listener(nodes)
    sys.argv = ["flower-superlink", *arguments]
    flower_superlink()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)

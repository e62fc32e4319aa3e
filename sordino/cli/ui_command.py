"""The command `sordino ui`."""

from __future__ import annotations

import ipaddress
import webbrowser
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from sordino.cli.console import print_message
from sordino.protocol import UserError

LOCAL = "127.0.0.1"


def ui(
    runs: Annotated[
        Path, typer.Argument(metavar="[RUNS]", help="Folder whose runs are shown.")
    ] = Path("runs"),
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="By default the first free one from 8501.")
    ] = None,
    address: Annotated[
        str, typer.Option(help="Where to listen; by default only for this machine.")
    ] = LOCAL,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Explore guarantees, watch runs and test published claims in a browser."""
    # Streamlit and Plotly are large, and come with an extra.
    missing = [name for name in ("streamlit", "plotly") if find_spec(name) is None]
    if missing:
        raise UserError(
            f"the explorer needs {' and '.join(missing)}. Install with: pip install 'sordino[ui]'"
        )
    from sordino.explorer.server import find_free_port, serve

    chosen = find_free_port(address, port)
    host = address
    if ":" in address:
        # An address of IP version 6.
        host = f"[{address}]"
    url = f"http://{host}:{chosen}"
    print_message(f"The explorer is at {url} (Ctrl-C ends it). Runs: {runs}")
    # The explorer has no passwords.
    if not is_loopback(address):
        print_message("Warning: everyone who can reach this machine can see these runs.")
    if open_browser:
        webbrowser.open(url)
    serve(runs, address=address, port=chosen)


def is_loopback(address: str) -> bool:
    """Returns whether only this machine reaches an address.

    Args:
        address: A name or a number.

    Example:
        >>> [is_loopback(address) for address in ("127.0.0.1", "localhost", "0.0.0.0")]
        [True, True, False]
    """
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        # A name may lead anywhere; only this one is local by convention.
        return address == "localhost"

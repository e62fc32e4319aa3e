"""`sordino ui`: the explorer in a browser."""

from __future__ import annotations

import ipaddress
import webbrowser
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from sordino.protocol import UserError
from sordino.ui.console import messages

LOCAL = "127.0.0.1"


def ui(
    runs: Annotated[
        Path, typer.Argument(metavar="[RUNS]", help="Folder whose runs are shown.")
    ] = Path("runs"),
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="By default the first free one from 8501.")
    ] = None,
    address: Annotated[
        str, typer.Option(help="Where to listen; by default for this machine alone.")
    ] = LOCAL,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Explore promises, watch runs and test published claims in a browser. Nothing leaves this machine."""
    missing = [name for name in ("streamlit", "plotly") if find_spec(name) is None]
    if missing:
        raise UserError(
            f"the explorer needs {' and '.join(missing)}. Install it with: pip install 'sordino[ui]'"
        )
    from sordino.ui.explorer.server import free_port, serve

    chosen = free_port(address, port)
    shown = f"[{address}]" if ":" in address else address
    place = f"http://{shown}:{chosen}"
    messages.print(f"The explorer is at {place} (Ctrl-C ends it). Runs: {runs}", soft_wrap=True)
    if not loopback(address):
        messages.print(
            "Warning: whoever reaches this machine on the network can see these runs.",
            soft_wrap=True,
        )
    if open_browser:
        webbrowser.open(place)
    serve(runs, address=address, port=chosen)


def loopback(address: str) -> bool:
    """Whether only this machine reaches an address.

    Example:
        >>> loopback("127.0.0.1"), loopback("localhost"), loopback("0.0.0.0")
        (True, True, False)
    """
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"

"""Serves the explorer with Streamlit, which sends no statistics and calls no other machine."""

from __future__ import annotations

import socket
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.explorer import watched_folder
from sordino.explorer.watching import list_runs
from sordino.protocol import UserError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

# The ports among which a free one is chosen.
PORTS = range(8501, 8521)
CONFIG: dict[str, Any] = {
    "browser.gatherUsageStats": False,
    "client.showErrorDetails": "none",
    "client.toolbarMode": "minimal",
    "global.developmentMode": False,
    "logger.hideWelcomeMessage": True,
    "logger.level": "error",
    "server.fileWatcherType": "none",
    "server.headless": True,
    "server.runOnSave": False,
    "theme.primaryColor": "#0072B2",
    "theme.dark.primaryColor": "#56B4E9",
}
# A report may come from anywhere: it may run nothing, and load nothing.
REPORT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:"
)


def serve(runs: Path, *, address: str, port: int) -> None:
    """Serves the explorer until Ctrl-C.

    Args:
        runs: The folder whose runs are shown.
        address: The address to listen on.
        port: The port to listen on.
    """
    import streamlit as st
    from starlette.routing import Route

    watched_folder.watch_folder(runs)
    script = Path(__file__).with_name("app.py")
    app = st.App(
        script, routes=[Route("/report/{name:path}", serve_report)], on_script_error=show_error
    )
    app.run(config={**CONFIG, "server.address": address, "server.port": port})


async def serve_report(request: Request) -> Response:
    """Serves the report of a listed run, and no other file.

    Args:
        request: The request, whose path names the run.
    """
    from starlette.responses import FileResponse, PlainTextResponse

    name = request.path_params["name"]
    path = watched_folder.watcher.root / name / "report.html"
    # Only listed names are served, so that a path with .. reaches no file outside of the folder.
    if name not in list_runs(watched_folder.watcher.root) or not path.is_file():
        return PlainTextResponse("There is no such report.", status_code=404)
    # A report from another machine could contain anything.
    return FileResponse(
        path, media_type="text/html", headers={"Content-Security-Policy": REPORT_POLICY}
    )


def show_error(error: Exception) -> bool:
    """Shows a sentence on the page after an error of the explorer, and details in the terminal.

    Args:
        error: The error.

    Returns:
        True, which tells Streamlit that the error has been shown.
    """
    import streamlit as st

    # Details may quote private data, which not every visitor may see.
    traceback.print_exception(error)
    st.error(
        "Something went wrong in the explorer. The terminal in which it runs has the details; "
        "reload the page to continue."
    )
    return True


def find_free_port(address: str, wanted: int | None) -> int:
    """Returns the requested port, or without one the first that is free.

    Args:
        address: The address to listen on.
        wanted: The requested port; None for any.

    Raises:
        UserError: The port is taken, or the address is not one of this machine's.

    Example:
        >>> find_free_port("127.0.0.1", None) in PORTS
        True
    """
    ports: Sequence[int] = PORTS
    subject = f"every port from {PORTS.start} to {PORTS.stop - 1} of {address}"
    if wanted is not None:
        ports = (wanted,)
        subject = f"port {wanted} of {address}"
    family = socket.AF_INET
    if ":" in address:
        family = socket.AF_INET6
    for port in ports:
        # Only binding a port shows that it is free.
        try:
            with socket.create_server((address, port), family=family):
                return port
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
    raise UserError(
        f"{subject} cannot be used ({reason}). Choose another with --port, or another --address."
    )

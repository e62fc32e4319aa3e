"""The server of the explorer: Streamlit on this machine alone, without usage statistics, watchers or calls to anywhere."""

from __future__ import annotations

import socket
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.protocol import UserError
from sordino.ui.console import messages
from sordino.ui.explorer import place
from sordino.ui.explorer.watching import found

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

PORTS = range(8501, 8521)  # looked through for a free one
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
# A report may come from anywhere: it is shown as it is, runs nothing, and loads nothing.
REPORT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:"
)


def serve(runs: Path, *, address: str, port: int) -> None:
    """Serve until Ctrl-C."""
    import streamlit as st
    from starlette.routing import Route

    place.choose(runs)
    script = Path(__file__).with_name("app.py")
    app = st.App(script, routes=[Route("/report/{name:path}", report)], on_script_error=say_so)
    app.run(config={**CONFIG, "server.address": address, "server.port": port})


async def report(request: Request) -> Response:
    """The report of a run that is listed; no other file."""
    from starlette.responses import FileResponse, PlainTextResponse

    name = request.path_params["name"]
    path = place.watch.root / name / "report.html"
    if name not in found(place.watch.root) or not path.is_file():
        return PlainTextResponse("There is no such report.", status_code=404)
    return FileResponse(
        path, media_type="text/html", headers={"Content-Security-Policy": REPORT_POLICY}
    )


def say_so(error: Exception) -> bool:
    """A mistake of the explorer itself: a sentence on the page, the details in the terminal."""
    import streamlit as st

    messages.print("".join(traceback.format_exception(error)), markup=False, soft_wrap=True)
    st.error(
        "Something went wrong in the explorer. The terminal in which it runs has the details; reload the page to go on."
    )
    return True


def free_port(address: str, wanted: int | None) -> int:
    """The port that is wanted, or else the first free one.

    Raises:
        UserError: it is taken, or the address is none of this machine's.

    Example:
        >>> free_port("127.0.0.1", None) in PORTS
        True
    """
    for port in PORTS if wanted is None else (wanted,):
        try:
            with socket.create_server(
                (address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET
            ):
                return port
        except (OSError, OverflowError) as error:
            reason = error
    taken = (
        f"port {wanted} of {address}"
        if wanted is not None
        else f"every port from {PORTS.start} to {PORTS.stop - 1} of {address}"
    )
    said = getattr(reason, "strerror", None) or str(reason)
    raise UserError(
        f"{taken} cannot be used ({said}). Choose another with --port, or another --address."
    )

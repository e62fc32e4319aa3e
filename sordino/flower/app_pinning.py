"""Runs only the app that a client agreed to, whatever a SuperLink sends.

Flower itself would run any app. Here nothing that is sent is started, looked up by a name or
imported: the process that answers is Sordino's, it compares the digest of what was sent with the
one that was agreed to, and then calls the ClientApp of this installation. Only if a client agreed
to another app than Sordino's (`--app`) is that app unpacked, byte for byte as it was agreed to.
"""

from __future__ import annotations

import hashlib
import tempfile
from importlib.resources import as_file
from pathlib import Path
from typing import TYPE_CHECKING

from sordino.flower.client_store import ClientStore
from sordino.flower.flower_commands import APP
from sordino.flower.upload_requests import RequestRefused
from sordino.protocol import UserError

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

# The one kind of task that a client answers.
CLIENT_APP = "flwr-clientapp"


def compute_app_digest(folder: Path | None = None) -> str:
    """Returns the SHA-256 of the bundle that Flower makes of an app folder.

    Args:
        folder: The app; by default the one that `sordino train` sends.

    Returns:
        The digest, in hexadecimal.
    """
    from flwr.cli.build import build_fab_from_disk

    if folder is not None:
        return hashlib.sha256(build_fab_from_disk(folder)).hexdigest()
    with as_file(APP) as own:
        return hashlib.sha256(build_fab_from_disk(own)).hexdigest()


class AppPin:
    """Decides which ClientApp answers on a client's machine."""

    def __init__(self, store: ClientStore, own: str) -> None:
        """Creates the pin.

        Args:
            store: The client, whose agreement names the digest of an app.
            own: Digest of the app that belongs to this installation of Sordino.
        """
        self._store = store
        self._own = own
        self._agreed = store.agreement.app or own

    def choose_app(self, kind: str, bundle: bytes) -> ClientApp:
        """Returns the app that answers a task.

        Args:
            kind: What Flower would start for the task.
            bundle: The app that the SuperLink sent.

        Raises:
            RequestRefused: Another kind of task or another app; the ledger has the reason.
        """
        if kind != CLIENT_APP:
            raise self._store.refuse_unheld(f"{kind} was to be started, which nobody agreed to")
        found = hashlib.sha256(bundle).hexdigest()
        if found != self._agreed:
            raise self._store.refuse_unheld(f"an app was sent that was not agreed to ({found})")
        if found == self._own:
            from sordino.flower.client_app import app

            return app
        return unpack_agreed_app(bundle)


def unpack_agreed_app(bundle: bytes) -> ClientApp:
    """Unpacks an app and loads its ClientApp.

    Args:
        bundle: The app, whose digest was compared already.
    """
    from flwr.cli.config_utils import get_fab_metadata
    from flwr.cli.install import install_from_fab
    from flwr.clientapp.utils import get_load_client_app_fn

    install_from_fab(bundle, skip_prompt=True)
    name, version = get_fab_metadata(bundle)
    load = get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
    return load(name, version, hashlib.sha256(bundle).hexdigest())


class RehearsalStore(ClientStore):
    """Refuses without writing to the ledger: no server has asked yet."""

    def refuse_unheld(self, reason: str) -> RequestRefused:
        """Returns the error to raise.

        Args:
            reason: Why the request is refused.
        """
        return RequestRefused(reason)


FOREIGN_APP = """
from flwr.clientapp import ClientApp
open({proof!r}, "w").close()
app = ClientApp()
"""


def check_pin(folder: Path, own: str) -> None:
    """Plays the attack of a SuperLink that sends a foreign app, before a real one can.

    Args:
        folder: The client's folder.
        own: Digest of the app that belongs to this installation of Sordino.

    Raises:
        UserError: Another app than the agreed one would run.
    """
    from flwr.cli.build import build_fab_from_disk

    pin = AppPin(RehearsalStore(folder), own)
    with tempfile.TemporaryDirectory(prefix="sordino-pin-") as temporary, as_file(APP) as app:
        proof = Path(temporary) / "it-ran"
        foreign = Path(temporary) / "foreign"
        write_foreign_app(Path(app), foreign, proof)
        attacks = (
            (CLIENT_APP, build_fab_from_disk(foreign)),
            (CLIENT_APP, b"not a bundle"),
            ("flwr-agentapp", build_fab_from_disk(Path(app))),
        )
        for kind, bundle in attacks:
            require_refusal(pin, kind, bundle, folder)
        if proof.exists():
            raise UserError(f"{folder}: a foreign app ran. This node is not started.")


def write_foreign_app(own: Path, foreign: Path, proof: Path) -> None:
    """Writes an app like Sordino's whose client side leaves a proof when it is imported.

    Args:
        own: Folder of Sordino's app.
        foreign: Folder to write.
        proof: File that the app would write.
    """
    from shutil import copytree, ignore_patterns

    copytree(own, foreign, ignore=ignore_patterns("__pycache__"))
    text = FOREIGN_APP.format(proof=str(proof))
    (foreign / "sordino_app" / "client_app.py").write_text(text, encoding="utf-8")


def require_refusal(pin: AppPin, kind: str, bundle: bytes, folder: Path) -> None:
    """Checks that a task is refused.

    Args:
        pin: What decides.
        kind: The kind of the task.
        bundle: The app that comes with it.
        folder: The client's folder, for the message.

    Raises:
        UserError: The task would be run.
    """
    try:
        pin.choose_app(kind, bundle)
    except RequestRefused:
        return
    raise UserError(
        f"{folder}: {kind} with an app that was not agreed to would run here. "
        "This node is not started; install Sordino and Flower again."
    )

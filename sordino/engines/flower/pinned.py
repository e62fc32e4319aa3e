"""Only the code that a client agreed to runs on its machine.

A SuperNode runs whatever app the SuperLink sends. Here it finds, under the names of the programs that Flower would start, programs of
the client's own: one that starts a ClientApp if the app is the agreed one, byte for byte, and for every other kind of app one that ends
at once.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from importlib.resources import as_file
from pathlib import Path
from typing import Any

from sordino.engines.flower.custody import Custodian
from sordino.engines.flower.processes import APP
from sordino.federation.storage import writing

CLIENT_APP = "flwr-clientapp"
FORBIDDEN = ("flwr-agentapp", "flwr-connector", "flwr-model", "flwr-serverapp", "flwr-simulation")


def app_digest(folder: Path | None = None) -> str:
    """SHA-256 of the bundle that Flower makes of an app folder; by default of the one that `sordino train` sends."""
    from flwr.cli.build import build_fab_from_disk

    if folder is not None:
        return hashlib.sha256(build_fab_from_disk(folder)).hexdigest()
    with as_file(APP) as own:
        return hashlib.sha256(build_fab_from_disk(own)).hexdigest()


def write_programs(folder: Path) -> Path:
    """The client's own programs under Flower's names, in a folder that goes first in the search path."""
    place = folder / "bin"
    with writing(place):
        place.mkdir(exist_ok=True)
        for name in (CLIENT_APP, *FORBIDDEN):
            call = "start(__file__)" if name == CLIENT_APP else "forbid(__file__)"
            program = place / name
            program.write_text(
                f"#!{sys.executable}\nfrom sordino.engines.flower.pinned import forbid, start\n{call}\n",
                encoding="utf-8",
            )
            program.chmod(0o700)
    return place


def start(program: str) -> None:
    """Run a ClientApp as Flower does, if it is the one that was agreed to."""
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp
    from flwr.supernode.runtime import run_clientapp

    custodian = Custodian(Path(program).resolve().parents[1])
    # Flower has no hook for this. It unpacks the bundle by this name in that module, before it imports anything from it.
    vars(run_clientapp)["install_from_fab"] = only_agreed(custodian, run_clientapp.install_from_fab)
    flwr_clientapp()


def only_agreed(custodian: Custodian, install: Callable[..., Any]) -> Callable[..., Any]:
    """Flower's way to unpack a bundle, refused for all but the agreed one; an attempt is written to the client's ledger."""

    def installed(bundle: bytes, *more: Any, **options: Any) -> Any:
        found = hashlib.sha256(bundle).hexdigest()
        if custodian.agreement.app is not None and found != custodian.agreement.app:
            raise custodian.turned_away(f"an app was sent that was not agreed to ({found})")
        return install(bundle, *more, **options)

    return installed


def forbid(program: str) -> None:
    """End at once: a client agrees to a ClientApp and to nothing else."""
    path = Path(program).resolve()
    sys.exit(
        str(
            Custodian(path.parents[1]).turned_away(
                f"{path.name} was to be started, which nobody agreed to"
            )
        )
    )

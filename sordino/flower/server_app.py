"""Sordino's ServerApp, which Flower starts next to the SuperLink with the settings of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from sordino.engines.choice import SuperLink
from sordino.federation.store.files import write_whole
from sordino.flower.run_follower import OUTCOME
from sordino.flower.strategy import SordinoStrategy
from sordino.protocol import Protocol, SordinoError, loads, read_protocol

app = ServerApp()


@app.main()
def run_training(grid: Grid, context: Context) -> None:
    """Trains, or resumes a run, as the settings of the run on Flower say.

    Args:
        grid: Flower's connection to the nodes.
        context: The settings.
    """
    settings = dict(context.run_config)
    try:
        make_strategy(settings).start(grid)
    # Errors of Sordino are for the user, whose process cannot see this one's terminal.
    except SordinoError as error:
        write_outcome(settings, error, str(context.run_id))
        raise


def make_strategy(settings: Mapping[str, Any]) -> SordinoStrategy:
    """Returns the strategy that the settings of a run describe.

    Args:
        settings: The settings, as in the app's pyproject.toml.
    """
    superlink = SuperLink(
        address=str(settings["superlink"]) or "127.0.0.1:8000",
        certificate=str(settings["certificate"]) or None,
        patience=float(settings["patience"]),
        deadline=float(settings["deadline"]),
    )
    protocol = None
    if not settings["resume"]:
        protocol = read_setting(str(settings["protocol"]))
    folder = None
    if settings["folder"]:
        folder = Path(str(settings["folder"]))
    # A negative number means the default.
    evaluate_every: int | None = int(settings["evaluate-every"])
    if evaluate_every is not None and evaluate_every < 0:
        evaluate_every = None
    return SordinoStrategy(
        protocol,
        superlink=superlink,
        folder=folder,
        evaluate_every=evaluate_every,
        keep_uploads=int(settings["keep-uploads"]),
        signer=str(settings.get("signer", "")),
        report=bool(settings["report"]),
    )


def read_setting(setting: str) -> Protocol:
    """Returns the protocol in the settings of a run.

    Args:
        setting: The text of a protocol, or the path of a file on this machine.
    """
    # A protocol has several lines and a path has one.
    if "\n" in setting:
        return loads(setting)
    return read_protocol(setting)


def write_outcome(settings: Mapping[str, Any], error: SordinoError, flower_run: str) -> None:
    """Leaves an error in the run folder, for the user's process that follows the run.

    Args:
        settings: The settings of the run.
        error: The error.
        flower_run: Id of the run on Flower, by which its follower knows the error for its own.
    """
    folder = Path(str(settings["folder"]))
    # Without a run folder nobody follows, and Flower's log has the error.
    if str(settings["folder"]) and folder.is_dir():
        outcome = {
            "flower_run": flower_run,
            "error": str(error),
            "exit_code": error.exit_code,
        }
        write_whole(folder / OUTCOME, json.dumps(outcome).encode())

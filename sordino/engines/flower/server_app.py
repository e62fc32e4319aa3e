"""Sordino's ServerApp: what Flower starts beside the SuperLink, told what to do by the settings of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from sordino.engines.choice import SuperLink
from sordino.engines.flower.driver import OUTCOME
from sordino.engines.flower.strategy import SordinoStrategy
from sordino.federation.storage import write_whole
from sordino.protocol import Protocol, SordinoError, loads, read

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run a training, or go on with one, as the settings of the run say."""
    settings = dict(context.run_config)
    try:
        strategy_of(settings).start(grid)
    except SordinoError as error:
        tell(settings, error)
        raise


def strategy_of(settings: Mapping[str, Any]) -> SordinoStrategy:
    """The strategy that the settings of a run describe."""
    link = SuperLink(
        address=str(settings["superlink"]) or "127.0.0.1:8000",
        certificate=str(settings["certificate"]) or None,
        patience=float(settings["patience"]),
        deadline=float(settings["deadline"]),
    )
    protocol = None if settings["resume"] else protocol_of(str(settings["protocol"]))
    folder = Path(str(settings["folder"])) if settings["folder"] else None
    every = int(settings["evaluate-every"])
    return SordinoStrategy(
        protocol,
        superlink=link,
        folder=folder,
        evaluate_every=None if every < 0 else every,
        keep_uploads=int(settings["keep-uploads"]),
        report=bool(settings["report"]),
    )


def protocol_of(setting: str) -> Protocol:
    """The protocol in the settings of a run: its text, or the path of a file on this machine."""
    return loads(setting) if "\n" in setting else read(setting)


def tell(settings: Mapping[str, Any], error: SordinoError) -> None:
    """Leave word for who follows the run, where there is a folder for it."""
    folder = Path(str(settings["folder"]))
    if str(settings["folder"]) and folder.is_dir():
        write_whole(
            folder / OUTCOME,
            json.dumps({"error": str(error), "exit_code": error.exit_code}).encode(),
        )

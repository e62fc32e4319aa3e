"""Sordino's ServerApp: the loop of `federation/loop.py`, in the process that Flower starts beside the SuperLink."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from sordino.engines.flower.engine import Exchange, FlowerEngine
from sordino.engines.flower.roster import Roster
from sordino.engines.training import Begun, begin, checked_every, go_on, made_folder
from sordino.federation.folder import RunFolder
from sordino.federation.setup import Setup, prepare
from sordino.federation.storage import write_whole
from sordino.protocol import Protocol, SordinoError, loads, read

OUTCOME = "outcome.json"  # where who follows a run is told why there is none
RECONNECT = 60.0  # seconds that a round waits for participants that are not connected
LOCKED = 90.0  # seconds that a killed SuperLink's process may hold a run after its end


@dataclass(frozen=True, kw_only=True)
class OnFlower:
    """The engine across machines, as a run notes it."""

    grid: Grid
    roster: Roster
    exchange: Exchange
    facts: Mapping[str, Any]

    name = "flower"
    reason = "it was asked for"
    fingerprint = None

    def start(self, setup: Setup, *, workers: int | None, device: str) -> FlowerEngine:
        """The engine itself."""
        return FlowerEngine(setup, self.grid, self.roster, self.exchange)


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run a training, or go on with one, as the settings of the run say."""
    settings = dict(context.run_config)
    try:
        serve(grid, settings, str(context.run_id))
    except SordinoError as error:
        tell(settings, error)
        raise


def serve(grid: Grid, settings: Mapping[str, Any], flower_run: str, reconnect: float = RECONNECT) -> None:
    """Run a training, or go on with one. A round waits `reconnect` seconds for participants that are not connected."""
    if settings["resume"]:
        resumed(grid, settings, flower_run, reconnect)
        return
    protocol = protocol_of(str(settings["protocol"]))
    roster = Roster(grid, protocol.clients)
    setup = server_setup(protocol, roster.all_sizes(float(settings["patience"])))
    training = secrets.token_hex(16)
    facts = {"training": training, **connection(settings)}
    choice = OnFlower(grid=grid, roster=roster, exchange=exchange_of(settings, training, reconnect), facts=facts)
    every = checked_every(None if settings["evaluate-every"] < 0 else int(settings["evaluate-every"]), protocol.rounds)
    folder = str(settings["folder"]) or None
    begin(setup, choice, lambda: made_folder(folder, setup.protocol), every, protocol.clients, "cpu", noting(flower_run, settings), nothing)


def resumed(grid: Grid, settings: Mapping[str, Any], flower_run: str, reconnect: float) -> None:
    """Go on with the run in a folder, under the name that its clients know."""
    place = RunFolder.existing(Path(str(settings["folder"])))

    def prepared(protocol: Protocol) -> tuple[Setup, OnFlower]:
        facts = place.facts()
        roster = Roster(grid, protocol.clients)
        roster.wait(range(protocol.clients), float(settings["patience"]))
        exchange = exchange_of(settings, facts["training"], reconnect)
        return server_setup(protocol, facts["sizes"]), OnFlower(grid=grid, roster=roster, exchange=exchange, facts={})

    go_on(place, prepared, None, "cpu", noting(flower_run, settings), nothing, nothing, patience=LOCKED)


def server_setup(protocol: Protocol, sizes: list[int]) -> Setup:
    """A protocol made concrete on the server, which holds test records alone: of the clients' records it knows how many there are."""
    return prepare(protocol, parts=[np.arange(size) for size in sizes])


def protocol_of(setting: str) -> Protocol:
    """The protocol in the settings of a run: its text, or the path of a file on this machine."""
    return loads(setting) if "\n" in setting else read(setting)


def exchange_of(settings: Mapping[str, Any], training: str, reconnect: float) -> Exchange:
    """How rounds are asked for."""
    return Exchange(training=training, reconnect=reconnect, deadline=float(settings["deadline"]))


def connection(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a run notes, so that it can be resumed without being told again."""
    return {name: settings[name] for name in ("superlink", "certificate", "patience", "deadline")}


def noting(flower_run: str, settings: Mapping[str, Any]) -> Callable[[Begun, Path], None]:
    """Note at the start of the rounds which run on Flower they are, for who follows it."""
    return lambda begun, folder: RunFolder(folder).note(flower_run=flower_run, **connection(settings))


def tell(settings: Mapping[str, Any], error: SordinoError) -> None:
    """Leave word for who follows the run, where there is a folder for it."""
    folder = Path(str(settings["folder"]))
    if str(settings["folder"]) and folder.is_dir():
        write_whole(folder / OUTCOME, json.dumps({"error": str(error), "exit_code": error.exit_code}).encode())


def nothing(*_: object) -> None:
    """Nobody watches here: who follows the run reads its folder."""

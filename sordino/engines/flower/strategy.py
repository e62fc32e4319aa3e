"""Sordino's strategy: where Flower expects a strategy, the loop of `federation/loop.py` runs, on the machines of a grid."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from sordino.engines.choice import SuperLink
from sordino.engines.flower.agreement import refuse_across_machines
from sordino.engines.flower.engine import Exchange, FlowerEngine
from sordino.engines.flower.messages import records_of
from sordino.engines.flower.registry import read_clients
from sordino.engines.flower.roster import Identities, Roster
from sordino.engines.flower.signing import Signer
from sordino.engines.run_folders import made_folder
from sordino.engines.training import begin, checked_every, go_on, reported, scored_every
from sordino.federation.folder import RunFolder
from sordino.federation.run import Run
from sordino.federation.setup import Setup, prepare
from sordino.privacy.published import find_withheld, published_metrics
from sordino.protocol import Protocol, UserError

LOCKED = 90.0  # seconds that the process of a killed SuperLink may hold a run after its end


@dataclass(frozen=True, kw_only=True)
class OnFlower:
    """The engine across machines, as a run notes it."""

    grid: Grid
    roster: Roster
    exchange: Exchange
    facts: Mapping[str, Any] = field(default_factory=dict)

    name = "flower"
    reason = "it was asked for"
    fingerprint = None

    def start(self, setup: Setup, *, workers: int | None, device: str) -> FlowerEngine:
        """The engine itself."""
        return FlowerEngine(setup, self.grid, self.roster, self.exchange)


class SordinoStrategy(Strategy):
    """Trains a protocol, or goes on with a run, with ledger, checkpoints and report in a run folder on this machine.

    Example:
        >>> SordinoStrategy(protocol, superlink=superlink).start(grid)  # doctest: +SKIP
    """

    def __init__(
        self,
        protocol: Protocol | None,
        *,
        superlink: SuperLink,
        folder: Path | None = None,
        evaluate_every: int | None = None,
        keep_uploads: int = 0,
        report: bool = True,
    ) -> None:
        """Say what is run.

        Args:
            protocol: what is run; None: the run in `folder` goes on.
            superlink: noted in the run, so that it can be resumed; its patience and its deadline hold here.
            folder: where the run is kept; by default `runs/<data>-<n>`.
            evaluate_every: rounds between two scorings on the test records, public or not; 0 for none; by default about 50 in a run.
            keep_uploads: keep what the server receives in every so many rounds, and in the last, for attacks; 0 for never.
            report: whether report.html is written at the end.
        """
        self._protocol, self._superlink, self._folder = protocol, superlink, folder
        self._every, self._keep, self._report = (
            evaluate_every,
            checked_every("keep-uploads", keep_uploads),
            report,
        )

    def start(  # type: ignore[override, unused-ignore]
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        **options: Any,
    ) -> Result:
        """Run it. The model, the rounds and the deadline are the protocol's and the SuperLink's, and cannot be given here."""
        if initial_arrays is not None or num_rounds is not None or options:
            raise UserError(
                "the protocol says which model is trained and for how many rounds: call start(grid) and nothing more."
            )
        run = self._begun(grid) if self._protocol is not None else self._resumed(grid)
        if self._report:
            reported(run)
        return as_result(run)

    def summary(self) -> None:
        """Nothing: a run folder says it all."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Not called: `start` runs the rounds."""
        raise NotImplementedError("Sordino's rounds are run by `start`")

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Not called: `start` runs the rounds."""
        raise NotImplementedError("Sordino's rounds are run by `start`")

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nobody is asked: scores on private records are covered by no guarantee."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """See `configure_evaluate`."""
        return None

    def _begun(self, grid: Grid) -> Run:
        protocol = self._protocol
        if protocol is None:
            raise TypeError("there is no protocol")
        refuse_across_machines(protocol)
        identities = self._identities()
        records = agreed_records(protocol)
        roster = Roster(grid, protocol.clients, identities, records)
        training = secrets.token_hex(16)
        setup = server_setup(protocol, roster.all_sizes(self._superlink.patience))
        choice = OnFlower(
            grid=grid,
            roster=roster,
            exchange=self._exchange(training, identities),
            facts={"training": training, **self._connection},
        )
        every = scored_every(self._every, protocol)
        place = lambda: made_folder(self._folder, setup.protocol)  # noqa: E731
        return begin(
            setup,
            choice,
            place,
            every,
            self._keep,
            protocol.clients,
            "cpu",
            self._noting(grid, roster),
            nothing,
        )

    def _resumed(self, grid: Grid) -> Run:
        if self._folder is None:
            raise UserError("a run that goes on needs its folder.")
        place = RunFolder.existing(self._folder)
        identities = self._identities()
        begun = place.protocol()
        roster = Roster(grid, begun.clients, identities, agreed_records(begun))

        def prepared(protocol: Protocol) -> tuple[Setup, OnFlower]:
            facts = place.facts()
            roster.wait(range(protocol.clients), self._superlink.patience)
            exchange = self._exchange(facts["training"], identities)
            choice = OnFlower(grid=grid, roster=roster, exchange=exchange)
            return server_setup(protocol, facts["sizes"]), choice

        noting = self._noting(grid, roster)
        return go_on(place, prepared, None, "cpu", noting, nothing, nothing, patience=LOCKED)

    def _identities(self) -> Identities:
        """Returns who the parties are, from the folder in which ca.crt lies.

        Raises:
            UserError: the SuperLink is secured, and no client was registered for it.
        """
        if self._superlink.certificate is None:
            return Identities()
        folder = Path(self._superlink.certificate).parent
        keys = read_clients(folder)
        if not keys:
            raise UserError(
                f"{folder} lists no clients: register their keys with `sordino flower register`, "
                "on this machine, so that each is known by its key."
            )
        return Identities(signer=Signer.read(folder), keys=keys)

    @property
    def _connection(self) -> dict[str, Any]:
        """What a run notes, so that it can be resumed without being told again."""
        link = self._superlink
        return {
            "superlink": link.address,
            "certificate": link.certificate,
            "patience": link.patience,
            "deadline": link.deadline,
        }

    def _exchange(self, training: str, identities: Identities) -> Exchange:
        return Exchange(
            training=training,
            patience=self._superlink.patience,
            deadline=self._superlink.deadline,
            signer=identities.signer,
        )

    def _noting(self, grid: Grid, roster: Roster) -> Callable[[Any, Path], None]:
        """Returns what notes, at the start of the rounds, which run on Flower they are.

        From then on nodes that claim to be another's client are noted in the run as well.
        """

        def note(_: Any, folder: Path) -> None:
            place = RunFolder(folder)
            place.note(flower_run=str(grid.run.run_id), **self._connection)

            def reject(reason: str) -> None:
                place.note(rejected=[*place.facts().get("rejected", []), reason])

            roster.tell_rejections(reject)

        return note


def agreed_records(protocol: Protocol) -> int | None:
    """Returns how many records every client has; None where the protocol does not say."""
    return None if protocol.data is None else protocol.data.records


def server_setup(protocol: Protocol, sizes: list[int]) -> Setup:
    """A protocol made concrete on the server, which holds test records alone: of the clients' records it knows how many there are."""
    return prepare(protocol, parts=[np.arange(size) for size in sizes])


def as_result(run: Run) -> Result:
    """A run as Flower's strategies return it: the model, and the scores that may be published."""
    result = Result()
    metrics = published_metrics(run.metrics, find_withheld(run.protocol))
    if run.state is not None:
        result.arrays = records_of({name: tensor.numpy() for name, tensor in run.state.items()})
    for place, number in enumerate(metrics["round"]):
        scores = MetricRecord()
        for name in ("loss", "accuracy"):
            if np.isfinite(metrics[name][place]):
                scores[name] = float(metrics[name][place])
        result.evaluate_metrics_serverapp[int(number) + 1] = scores
    return result


def nothing(*_: object) -> None:
    """Nobody watches here: who follows the run reads its folder."""

"""A Flower strategy that runs Sordino's training on the machines of a grid."""

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
from sordino.engines.run_lifecycle import resume_run, start_run
from sordino.engines.run_options import RunOptions, Watch
from sordino.engines.train_one import check_interval, find_scoring_interval, report_run
from sordino.federation.setup import Setup, prepare
from sordino.federation.store.run import Run
from sordino.federation.store.run_folder import RunFolder
from sordino.flower.agreement import refuse_unsupported
from sordino.flower.client_keys import read_clients
from sordino.flower.connected_clients import ConnectedClients, Identities
from sordino.flower.engine import FlowerEngine
from sordino.flower.exchange import Exchange
from sordino.flower.local_work import describe_inputs
from sordino.flower.messages import pack_arrays
from sordino.flower.signing import Signer
from sordino.privacy.published import find_withheld, publish_metrics
from sordino.protocol import Protocol, UserError

# Seconds that the process of a killed SuperLink may still hold the run folder.
LOCK_PATIENCE = 90.0


@dataclass(frozen=True, kw_only=True)
class OnFlower:
    """Describes the engine across machines, for the run folder and for the training loop.

    Attributes:
        grid: Flower's connection to the nodes.
        connected: Which node is which client.
        exchange: How rounds are requested.
        facts: What the run folder notes in addition to the engine's name.
    """

    grid: Grid
    connected: ConnectedClients
    exchange: Exchange
    facts: Mapping[str, Any] = field(default_factory=dict)

    name = "flower"
    reason = "it was requested"
    fingerprint = None

    def start(self, setup: Setup, *, workers: int | None, device: str) -> FlowerEngine:
        """Returns the engine itself.

        Args:
            setup: The protocol with its model.
            workers: Not used: the work is done on the clients' machines.
            device: Not used.
        """
        return FlowerEngine(setup, self.grid, self.connected, self.exchange)


class SordinoStrategy(Strategy):
    """Trains a protocol, or resumes a run, with its run folder on this machine.

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
        signer: str = "",
        report: bool = True,
    ) -> None:
        """Creates the strategy.

        Args:
            protocol: The protocol to train; None to resume the run in `folder`.
            superlink: The SuperLink, noted in the run so that it can be resumed.
            folder: The run folder; by default `runs/<data>-<n>`.
            evaluate_every: Rounds between two scorings on the test records; 0 for none; by
                default about 50 scorings in a run.
            keep_uploads: Rounds between two whose uploads are kept for attacks; 0 for never.
            signer: Fingerprint of the key that signs the run when it has ended, noted in the run;
                empty for none.
            report: Whether report.html is written at the end.
        """
        self._protocol = protocol
        self._superlink = superlink
        self._folder = folder
        self._every = evaluate_every
        self._keep = check_interval("keep-uploads", keep_uploads)
        self._signer = signer
        self._report = report

    def start(  # type: ignore[override, unused-ignore]
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        **options: Any,
    ) -> Result:
        """Trains to the end.

        Args:
            grid: Flower's connection to the nodes.
            initial_arrays: Must be None: the protocol decides the model.
            num_rounds: Must be None: the protocol decides the number of rounds.
            **options: Must be empty.

        Returns:
            The model and the scores that may be published.

        Raises:
            UserError: Anything but the grid was given.
        """
        # Other values than the protocol's would train something that no guarantee is about.
        if initial_arrays is not None or num_rounds is not None or options:
            raise UserError(
                "the protocol says which model is trained and for how many rounds: call "
                "start(grid) and nothing more."
            )
        if self._protocol is None:
            run = self._resume_run(grid)
        else:
            run = self._begin_run(grid, self._protocol)
        if self._report:
            report_run(run)
        return make_result(run)

    def summary(self) -> None:
        """Prints nothing: the run folder has it all."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Is never called: `start` runs the rounds.

        Args:
            server_round: Number of the round, as Flower counts it.
            arrays: The global model.
            config: Config of the round.
            grid: The connected nodes.
        """
        raise NotImplementedError("Sordino's rounds are run by `start`")

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Is never called: `start` runs the rounds.

        Args:
            server_round: Number of the round, as Flower counts it.
            replies: Replies of the nodes.
        """
        raise NotImplementedError("Sordino's rounds are run by `start`")

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Requests no scores: scores on private records are covered by no guarantee.

        Args:
            server_round: Number of the round, as Flower counts it.
            arrays: The global model.
            config: Config of the round.
            grid: The connected nodes.
        """
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Returns None; see `configure_evaluate`.

        Args:
            server_round: Number of the round, as Flower counts it.
            replies: Replies of the nodes.
        """
        return None

    def _begin_run(self, grid: Grid, protocol: Protocol) -> Run:
        refuse_unsupported(protocol)
        identities = self._identities()
        records = find_stated_records(protocol)
        connected = ConnectedClients(grid, protocol.clients, identities, records)
        # A random name: clients bind their budgets to one training, and two must never look the
        # same.
        training = secrets.token_hex(16)
        # All clients must be there at the start, since prices depend on their numbers of records.
        setup = prepare_server(protocol, connected.wait_for_sizes(self._superlink.patience))
        # Before the first round: nothing is charged for a client whose file does not fit.
        misfits = connected.require_inputs(describe_inputs(setup.input_shape))
        if len(connected.sizes) < protocol.clients:
            raise UserError(" ".join(misfits))
        choice = OnFlower(
            grid=grid,
            connected=connected,
            exchange=self._make_exchange(training, identities),
            facts={"training": training, **self._connection},
        )
        options = RunOptions(
            evaluate_every=find_scoring_interval(self._every, protocol),
            keep_uploads=self._keep,
            # Every client computes on its own machine, so there are as many workers as clients.
            workers=protocol.clients,
            signer=self._signer,
        )
        watch = Watch(on_start=self._make_start_listener(grid, connected))
        return start_run(setup, choice, self._folder, options, watch)

    def _resume_run(self, grid: Grid) -> Run:
        if self._folder is None:
            raise UserError("a run that continues needs its folder.")
        place = RunFolder.existing(self._folder)
        identities = self._identities()
        begun = place.protocol()
        connected = ConnectedClients(grid, begun.clients, identities, find_stated_records(begun))

        def prepared(protocol: Protocol) -> tuple[Setup, OnFlower]:
            facts = place.facts()
            # The numbers of records are in the run folder, so clients need not all be asked
            # again.
            connected.wait(range(protocol.clients), self._superlink.patience)
            exchange = self._make_exchange(facts["training"], identities)
            choice = OnFlower(grid=grid, connected=connected, exchange=exchange)
            setup = prepare_server(protocol, facts["sizes"])
            connected.require_inputs(describe_inputs(setup.input_shape))
            return setup, choice

        watch = Watch(on_start=self._make_start_listener(grid, connected))
        # The process of a killed SuperLink lives on for a moment and still holds the folder.
        options = RunOptions(signer=self._signer)
        return resume_run(place, prepared, options, watch, patience=LOCK_PATIENCE)

    def _identities(self) -> Identities:
        """Returns the keys of coordinator and clients, from the folder of ca.crt.

        Raises:
            UserError: The SuperLink is secured, and no client was registered for it, or the folder
                is not to be seen from its processes.
        """
        if self._superlink.certificate is None:
            return Identities()
        folder = Path(self._superlink.certificate).parent
        # The terminal that named it found it. A service or a container shows its own files.
        if not folder.is_dir():
            raise UserError(
                f"the SuperLink's processes do not see {folder}. Under systemd or in a container "
                "they have their own files: keep certificates, data and run folders in the "
                "coordinator's folder, and type the command where `sordino flower up` runs."
            )
        keys = read_clients(folder)
        # Without keys any node could say that it is any client.
        if not keys:
            raise UserError(
                f"{folder} lists no clients: register their keys with `sordino flower register`, "
                "on this machine, so that each is known by its key."
            )
        return Identities(signer=Signer.read(folder), keys=keys)

    @property
    def _connection(self) -> dict[str, Any]:
        """What the run folder notes, so that a run can be resumed without naming the SuperLink."""
        link = self._superlink
        return {
            "superlink": link.address,
            "certificate": link.certificate,
            "patience": link.patience,
            "deadline": link.deadline,
        }

    def _make_exchange(self, training: str, identities: Identities) -> Exchange:
        return Exchange(
            training=training,
            patience=self._superlink.patience,
            deadline=self._superlink.deadline,
            signer=identities.signer,
        )

    def _make_start_listener(
        self, grid: Grid, connected: ConnectedClients
    ) -> Callable[[Any, Path], None]:
        """Returns a callback for the start of the rounds, which notes the run on Flower.

        From then on, nodes that claim to be another client are noted in the run as well.
        """

        def note(_: Any, folder: Path) -> None:
            place = RunFolder(folder)
            # Noted at once: the process that follows the run recognises its run by this number.
            place.note(flower_run=str(grid.run.run_id), **self._connection)

            def reject(reason: str) -> None:
                place.note(rejected=[*place.facts().get("rejected", []), reason])

            connected.report_rejections(reject)

        return note


def find_stated_records(protocol: Protocol) -> dict[int, int]:
    """Returns the numbers of records that a protocol states.

    Args:
        protocol: The federation that the machines train.

    Returns:
        The number of each client for which it is stated.
    """
    if protocol.data is None:
        return {}
    stated = {}
    for client in range(protocol.clients):
        records = protocol.data.records_of(client)
        if records is not None:
            stated[client] = records
    return stated


def prepare_server(protocol: Protocol, sizes: list[int]) -> Setup:
    """Returns a protocol made concrete on the server, which holds no records of clients.

    Args:
        protocol: The federation that the machines train.
        sizes: How many records every client has.
    """
    # Places stand in for records that the server does not have: only their numbers are used.
    return prepare(protocol, parts=[np.arange(size) for size in sizes])


def make_result(run: Run) -> Result:
    """Returns a run in the form of Flower's strategies.

    Args:
        run: The run.

    Returns:
        The model, and the scores that may be published.
    """
    result = Result()
    # What the guarantee does not cover stays in the run folder.
    metrics = publish_metrics(run.metrics, find_withheld(run.protocol))
    if run.state is not None:
        result.arrays = pack_arrays({name: tensor.numpy() for name, tensor in run.state.items()})
    for index, round_index in enumerate(metrics["round"]):
        scores = MetricRecord()
        for name in ("loss", "accuracy"):
            # A round without a score has nan, which Flower's records would pass on as a number.
            if np.isfinite(metrics[name][index]):
                scores[name] = float(metrics[name][index])
        # Flower counts rounds from 1.
        result.evaluate_metrics_serverapp[int(round_index) + 1] = scores
    return result

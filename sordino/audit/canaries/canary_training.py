"""Trains once with canaries: many records with a coin each, or clients that send random directions.

The training is the real one, with the model and the data of the protocol. `one_run_bounds` derives
lower bounds from canary records, `canary_clients` an estimate from canary clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from sordino.audit.canaries.canary_clients import (
    CanaryEstimate,
    estimate_all_rounds,
    estimate_final,
    find_cosines,
    find_largest_cosines,
)
from sordino.audit.canaries.canary_records import make_canary
from sordino.audit.canaries.one_run_bounds import (
    GuessCount,
    bound_epsilon,
    bound_mu,
    count_guesses,
    refutes_tradeoff,
    split_guesses,
)
from sordino.audit.engine_check import EngineCheck
from sordino.audit.lower_bounds import CONFIDENCE, REFUTING
from sordino.audit.verdict import Finding, Judgement
from sordino.engines.choice import choose_engine
from sordino.federation.client import ClientWork
from sordino.federation.round import RoundRecord, RoundTask, play_training
from sordino.federation.rules.local_training import UNCOUNTED
from sordino.federation.setup import Setup
from sordino.federation.upload import Upload, noisy_upload
from sordino.models.flat import FlatModel
from sordino.models.task_losses import module_loss
from sordino.privacy import sensitivity
from sordino.privacy.bounds.question import has_own_noise
from sordino.privacy.guarantee import Guarantee
from sordino.protocol import FedAvg, FedProx, LocalRule, Registry, Scaffold, UserError, View
from sordino.randomness import Purpose

OnRound = Callable[[int, int], None]  # rounds done, of how many
Records = tuple[Tensor, Tensor]  # inputs and targets, one record per row


@dataclass(frozen=True, kw_only=True)
class CanaryOptions:
    """Holds the options of one training with canaries.

    Attributes:
        canaries: The number of canary records or clients.
        rounds: The number of rounds that are trained.
        delta: The delta at which epsilon is measured.
        seed: The seed of the canaries and their coins.
        caps: The most rounds in which each client with a personal budget may take part.
        engine: "native", "torch", or "auto" for the engine that would train the protocol.
        on_round: Called after every round.
    """

    canaries: int
    rounds: int
    delta: float = 1e-5
    seed: int = 0
    caps: Mapping[int, int] | None = None
    engine: str = "auto"
    on_round: OnRound = lambda done, of: None


@dataclass(frozen=True, kw_only=True, eq=False)
class CanarySlots:
    """Holds the slots of the data in which a canary takes the place of a record, or does not.

    Attributes:
        clients: The client of every slot.
        zero: The original records.
        one: The canaries.
        coins: For every slot, 0 if it holds the record and 1 if it holds the canary.
        setup: The federation with the records that the coins chose.
    """

    clients: np.ndarray
    zero: Records
    one: Records
    coins: np.ndarray
    setup: Setup


def place_canaries(
    setup: Setup, canaries: int, kind: str, generator: np.random.Generator
) -> CanarySlots:
    """Replaces records by canaries, each with probability 1/2.

    The slots are spread evenly over the clients.

    Args:
        setup: The federation with its data.
        canaries: The number of slots.
        kind: How canaries are made.
        generator: The source of random choices.

    Raises:
        UserError: Fewer than two slots, or more than there are records.
    """
    room = int(setup.sizes.sum())
    if canaries < 2 or canaries > room:
        raise UserError(
            f"--canaries {canaries}: expected at least 2 and at most {room}, the number of records "
            "of all clients."
        )
    clients = []
    rows = []
    for turn in range(int(setup.sizes.max())):
        for client, part in enumerate(setup.parts):
            if turn < len(part):
                clients.append(client)
                rows.append(int(part[turn]))
    places = torch.tensor(rows[:canaries])
    made = [make_canary(kind, setup, row, generator) for row in rows[:canaries]]
    one = (torch.stack([x for x, _ in made]), torch.stack([y for _, y in made]))
    coins = generator.integers(0, 2, size=canaries)
    replaced = torch.from_numpy(coins == 1)
    x = setup.train.x.clone()
    y = setup.train.y.clone()
    x[places[replaced]] = one[0][replaced]
    y[places[replaced]] = one[1][replaced]
    return CanarySlots(
        clients=np.array(clients[:canaries]),
        zero=(setup.train.x[places], setup.train.y[places]),
        one=one,
        coins=coins,
        setup=replace(setup, train=replace(setup.train, x=x, y=y)),
    )


def refuse_unscored(setup: Setup) -> None:
    """Refuses federations that one training cannot score.

    Scores need the sender of each upload, and canaries replace records.

    Args:
        setup: The federation.

    Raises:
        UserError: Neighbours add or remove a unit, senders are hidden, or not every client adds the
            same noise.
    """
    protocol = setup.protocol
    if protocol.adjacency != "replace-one":
        raise UserError(
            'privacy.adjacency = "add-or-remove": an audit by one training replaces records or '
            'clients. Audit it with "replace-one".'
        )
    direct = protocol.channel.names_senders and not protocol.release.at_server
    if not direct or has_own_noise(protocol):
        raise UserError(
            "an audit by one training needs the sender of every upload, and the same noise at "
            "every client: it works without a shuffler or secure aggregation, without noise at "
            "the server and without the Harmonizer."
        )


def audit_with_records(
    setup: Setup, certified: Guarantee, options: CanaryOptions, *, kind: str = "mislabelled"
) -> Finding:
    """Trains once with many canary records and bounds mu and epsilon (Steinke et al. 2023).

    The bounds follow from how well the coins are guessed. The one on mu is the f-DP form
    (Mahloujifar et al. 2024), the one on epsilon needs no assumptions. Both hold at 95 %; one
    training shows less than thousands do.

    Args:
        setup: The federation with its data.
        certified: The guarantee.
        options: How the training runs.
        kind: How canaries are made.

    Returns:
        The finding.

    Raises:
        UserError: One training cannot score the federation.

    Example:
        >>> options = CanaryOptions(canaries=1000, rounds=50)
        >>> audit_with_records(setup, certified, options)  # doctest: +SKIP
    """
    refuse_unscored(setup)
    canaries = options.canaries
    slots = place_canaries(setup, canaries, kind, np.random.default_rng(options.seed))
    scorer = SlotScores(slots, certified.view)
    chosen = choose_engine(slots.setup, options.engine)
    with chosen.start(slots.setup, workers=None, device="cpu") as engine:
        for record in play_training(slots.setup, engine, options.rounds, caps=options.caps):
            scorer.see(record)
            options.on_round(record.after.round, options.rounds)
    high, low = split_guesses(canaries)
    result = count_guesses(np.nan_to_num(scorer.scores), slots.coins, high=high, low=low)
    best = GuessCount(canaries=canaries, guesses=result.guesses, correct=result.guesses)
    delta = options.delta
    return Finding(
        certified=certified,
        mu_lower=bound_mu(result, delta=delta, confidence=CONFIDENCE).mu_lower,
        epsilon_lower=bound_epsilon(result, delta=delta, confidence=CONFIDENCE).epsilon_lower,
        delta=delta,
        trainings=1,
        most=bound_mu(best, delta=delta, confidence=CONFIDENCE).mu_lower,
        verdict=judge_guesses(result, best, certified),
        description=(
            f"one training with {canaries:,} canary records ({kind}), "
            f"{result.correct} of {result.guesses} guesses right"
        ),
        engine=EngineCheck.without_game(chosen.name),
    )


def judge_guesses(result: GuessCount, best: GuessCount, certified: Guarantee) -> Judgement:
    """Returns the verdict on the certified bound, "refuted" at 99.99 % confidence.

    Args:
        result: The guesses.
        best: The guesses if all were right.
        certified: The bound.

    Returns:
        "not tested" if not even guesses that are all right would have refuted the bound.
    """
    if refutes_tradeoff(result, certified.beta, confidence=REFUTING):
        return "refuted"
    if refutes_tradeoff(best, certified.beta, confidence=REFUTING):
        return "holds"
    return "not tested"


class SlotScores:
    """Scores all slots by what a view shows; a high score speaks for the canary.

    Args:
        slots: The canaries.
        view: The adversary.

    Attributes:
        scores: One score per slot, summed over the rounds seen.
    """

    def __init__(self, slots: CanarySlots, view: View) -> None:
        self._slots = slots
        self._view = view
        self._model = FlatModel(slots.setup.module)
        self._loss = module_loss(slots.setup.module, slots.setup.train.y)
        self.scores = np.zeros(len(slots.coins))

    def see(self, record: RoundRecord) -> None:
        """Takes in one round.

        A slot's score is how far the model moved towards lowering the canary's loss instead of the
        record's.

        Args:
            record: The round.
        """
        before = record.before.weights
        if self._view == View.FINAL:
            self._see_last(record.after.weights)
            return
        self._model.load(torch.from_numpy(before))
        uploads = {upload.client: upload.vector for upload in record.uploads}
        for slot, client in enumerate(self._slots.clients.tolist()):
            if client not in uploads:
                continue
            moved = uploads[client] if self._view == View.SERVER else record.joined
            pull = self._gradient(self._slots.zero, slot) - self._gradient(self._slots.one, slot)
            self.scores[slot] += float(np.dot((moved - before).astype(np.float64), pull))

    def _see_last(self, after: np.ndarray) -> None:
        """Scores the last model; every later round overwrites the scores."""
        self._model.load(torch.from_numpy(after))
        for slot in range(len(self._slots.clients)):
            record = self._loss_of(self._slots.zero, slot)
            self.scores[slot] = record - self._loss_of(self._slots.one, slot)

    def _batch(self, side: Records, slot: int) -> Records:
        """Returns one record as a batch, scaled as the model expects it."""
        train = self._slots.setup.train
        inputs = side[0][slot : slot + 1].to(torch.float32) * train.scale + train.shift
        return inputs, side[1][slot : slot + 1]

    def _loss_of(self, side: Records, slot: int) -> float:
        inputs, targets = self._batch(side, slot)
        return float(self._loss(self._model.predict(inputs), targets))

    def _gradient(self, side: Records, slot: int) -> np.ndarray:
        """Returns the clipped gradient of one record."""
        inputs, targets = self._batch(side, slot)
        self._model.loss_gradient(inputs, targets, self._loss)
        gradient = self._model.gradients.double().numpy()
        clip = self._slots.setup.release.clip
        return gradient * min(1.0, clip / max(float(np.linalg.norm(gradient)), 1e-300))


def estimate_with_clients(setup: Setup, view: View, options: CanaryOptions) -> CanaryEstimate:
    """Trains once with some clients that send random directions (Andrew et al. 2024).

    Each direction has the largest length that is allowed. The result is an estimate, not a bound.

    Args:
        setup: The federation with its data.
        view: The adversary, `final` or `rounds`.
        options: How the training runs.

    Raises:
        UserError: The view does not show global models, the rule cannot have such clients, or their
            number is out of range.

    Example:
        >>> options = CanaryOptions(canaries=20, rounds=50)
        >>> estimate_with_clients(setup, View.FINAL, options)  # doctest: +SKIP
    """
    refuse_unscored(setup)
    rule = find_direction_rule(setup, view)
    clients = setup.protocol.clients
    if not 2 <= options.canaries <= clients:
        raise UserError(
            f"--canaries {options.canaries}: expected at least 2 and at most "
            f"federation.clients = {clients}."
        )
    start = setup.initial_weights()
    generator = np.random.default_rng(options.seed)
    draws = generator.standard_normal((2 * options.canaries, start.size))
    directions = draws / np.linalg.norm(draws, axis=1, keepdims=True)
    used = directions[: options.canaries]
    unused = directions[options.canaries :]
    engine = CanaryClients(setup, rule, used)
    moves: list[np.ndarray] = []
    for record in play_training(setup, engine, options.rounds, caps=options.caps):
        if view == View.ROUNDS:
            move = record.joined - record.before.weights
        else:
            # Only the whole move to the last model is seen.
            move = record.after.weights - start
            moves.clear()
        moves.append(move.astype(np.float64))
        options.on_round(record.after.round, options.rounds)
    if view == View.FINAL:
        cosines = find_cosines(moves[-1], used)
        return estimate_final(cosines, dimension=start.size, delta=options.delta)
    return estimate_all_rounds(
        find_largest_cosines(moves, used), find_largest_cosines(moves, unused), delta=options.delta
    )


# Whether clients send what their clipped steps add to the global model, as a canary client can.
SENDS_UPDATES: Registry[bool] = Registry("upload of a canary client", "local rule", LocalRule)
SENDS_UPDATES.register(FedAvg, FedProx, Scaffold)(True)
SENDS_UPDATES.register_others(False)


def find_direction_rule(setup: Setup, view: View) -> FedAvg:
    """Returns the local rule, if canary clients can send directions under it.

    Args:
        setup: The federation.
        view: The adversary.

    Raises:
        UserError: They cannot, or the view does not show global models.
    """
    rule = setup.protocol.local
    if view not in (View.FINAL, View.ROUNDS):
        raise UserError(
            f"view {view}: canary clients are searched for in global models. Use rounds or final."
        )
    if not SENDS_UPDATES.of(rule):
        raise UserError(
            f"local.rule = {rule.tag!r}: canary clients send a clipped direction from the global "
            "model, as fedavg, fedprox and scaffold do."
        )
    if setup.protocol.keeps_models:
        raise UserError(
            "federation.personalization: canary clients begin at the global model, and here "
            "clients begin at models that they keep. Use --one-run records."
        )
    return cast(FedAvg, rule)


class CanaryClients:
    """An engine whose first clients send one direction each; torch trains the others."""

    def __init__(self, setup: Setup, rule: FedAvg, directions: np.ndarray) -> None:
        """Prepares the clients.

        Args:
            setup: The federation.
            rule: The local rule, which says how far a client's steps can lead.
            directions: A direction of length 1 for each canary, one a row.
        """
        self._setup = setup
        self._rule = rule
        self._directions = directions
        self._work = ClientWork(setup)

    @property
    def absent(self) -> Mapping[int, str]:
        """Nobody: clients that are simulated always answer."""
        return {}

    def train(self, task: RoundTask) -> Iterator[Upload]:
        """Yields the uploads of a round, in the order of the participants.

        Args:
            task: The round, with its participants.
        """
        for client in task.participants.tolist():
            if client < len(self._directions):
                yield self._send_direction(client, task)
            else:
                yield self._work.upload(
                    client=client,
                    round_index=task.round_index,
                    weights=task.broadcast,
                    kept=task.kept_of(client),
                )

    def _send_direction(self, client: int, task: RoundTask) -> Upload:
        start = task.broadcast if task.broadcast.ndim == 1 else task.broadcast[0]
        length = measure_reach(self._rule, task.round_index)
        model = torch.from_numpy(start + length * self._directions[client])
        stream = self._setup.noise_key.stream(
            Purpose.UPLOAD_NOISE,
            training=self._setup.training,
            client=client,
            round_index=task.round_index,
        )
        vector = noisy_upload(model, self._setup.release.noise, stream)
        return Upload(client=client, vector=vector, steps=UNCOUNTED)


def measure_reach(rule: FedAvg, round_index: int) -> float:
    """Returns how far a client's steps can lead from the global model (docs/theory.md#a8).

    It is half the largest distance of two uploads that begin at the same model.

    Args:
        rule: The local rule.
        round_index: The number of the round, from 0.
    """
    rates = rule.schedule.rates(round=round_index, steps=rule.steps)
    return sensitivity.bound_upload(rates, rule.clip, proximal=rule.pull) / 2

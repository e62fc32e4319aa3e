"""Audits that need one training only: many canary records with a coin each, or some clients that send random directions.

The training is the real one, with the model and the data of the protocol. What its one outcome says is worked out in `one_run` (lower
bounds from canary records) and `canary_clients` (an estimate from canary clients).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sordino.audit.bounds import CONFIDENCE, REFUTING
from sordino.audit.canary import make_canary
from sordino.audit.canary_clients import (
    CanaryEstimate,
    cosines,
    estimate_all_rounds,
    estimate_final,
    largest_cosines,
)
from sordino.audit.one_by_one import Seen, in_turn, rounds_seen
from sordino.audit.one_run import Tally, default_split, epsilon_bound, mu_bound, refutes, tally
from sordino.audit.verdict import Finding, Judgement
from sordino.engines.choice import choose
from sordino.federation.assignment import Upload
from sordino.federation.client import ClientWork
from sordino.federation.local import noisy_upload
from sordino.federation.many import UNCOUNTED
from sordino.federation.models.flat import FlatModel
from sordino.federation.models.losses import module_loss
from sordino.federation.personal import Kept
from sordino.federation.randomness import Purpose
from sordino.federation.setup import Setup
from sordino.privacy import sensitivity
from sordino.privacy.certify import harmonized
from sordino.privacy.guarantee import Guarantee
from sordino.protocol import Bezier, FedAvg, FedProx, UserError, View

OnRound = Callable[[int, int], None]  # rounds done, of how many


@dataclass(frozen=True, kw_only=True, eq=False)
class Slots:
    """Places for canary records: whose client each is, its two alternatives, and the coin that chose."""

    clients: np.ndarray
    zero: tuple[Tensor, Tensor]
    one: tuple[Tensor, Tensor]
    coins: np.ndarray
    setup: Setup


def sown(setup: Setup, canaries: int, kind: str, generator: np.random.Generator) -> Slots:
    """Records of the clients, shared out evenly, each of which a fair coin replaces by a canary or leaves."""
    room = int(setup.sizes.sum())
    if canaries < 2 or canaries > room:
        raise UserError(
            f"--canaries {canaries}: expected at least 2 and at most {room}, the number of records of all clients."
        )
    places = [
        (client, int(row))
        for turn in range(int(setup.sizes.max()))
        for client, part in enumerate(setup.parts)
        for row in part[turn : turn + 1]
    ]
    places = places[:canaries]
    rows = torch.tensor([row for _, row in places])
    made = [make_canary(kind, setup, row, generator) for _, row in places]
    one = torch.stack([x for x, _ in made]), torch.stack([y for _, y in made])
    coins = generator.integers(0, 2, size=canaries)
    x, y = setup.train.x.clone(), setup.train.y.clone()
    chosen = torch.from_numpy(coins == 1)
    x[rows[chosen]], y[rows[chosen]] = one[0][chosen], one[1][chosen]
    changed = replace(setup, train=replace(setup.train, x=x, y=y))
    zero = setup.train.x[rows], setup.train.y[rows]
    return Slots(
        clients=np.array([client for client, _ in places]),
        zero=zero,
        one=one,
        coins=coins,
        setup=changed,
    )


def refuse_unscored(setup: Setup) -> None:
    """One training is scored by who sent which upload, and its records are exchanged."""
    if setup.protocol.adjacency != "replace-one":
        raise UserError(
            'privacy.adjacency = "add-or-remove": one training exchanges records or clients. Audit it with "replace-one".'
        )
    if (
        setup.protocol.channel != "direct"
        or setup.protocol.noise.where != "client"
        or harmonized(setup.protocol)
    ):
        raise UserError(
            "one training is scored by who sent which upload with noise: no shuffler, and one noise for all, at the client."
        )


def audit_with_records(
    setup: Setup,
    certified: Guarantee,
    *,
    canaries: int,
    kind: str = "mislabelled",
    rounds: int,
    delta: float = 1e-5,
    seed: int = 0,
    caps: Mapping[int, int] | None = None,
    on_round: OnRound = lambda done, of: None,
) -> Finding:
    """Train once with many canary records and bound mu and epsilon by how well the coins are guessed (Steinke et al. 2023).

    The lower bound on mu is the f-DP form (Mahloujifar et al. 2024), that on epsilon is free of assumptions. Both hold at 95 %; one
    training shows less than thousands do.

    Example:
        >>> audit_with_records(setup, certified, canaries=1000, rounds=50)  # doctest: +SKIP
    """
    refuse_unscored(setup)
    slots = sown(setup, canaries, kind, np.random.default_rng(seed))
    scorer = SlotScores(slots, certified.view)
    with choose(slots.setup, "auto").start(slots.setup, workers=None, device="cpu") as engine:
        for seen in rounds_seen(slots.setup, engine.uploads, rounds, caps or {}):
            scorer.see(seen)
            on_round(seen.round + 1, rounds)
    high, low = default_split(canaries)
    result = tally(np.nan_to_num(scorer.scores), slots.coins, high=high, low=low)
    best = Tally(canaries=canaries, guesses=result.guesses, correct=result.guesses)
    return Finding(
        certified=certified,
        mu_lower=mu_bound(result, delta=delta, confidence=CONFIDENCE).mu_lower,
        epsilon_lower=epsilon_bound(result, delta=delta, confidence=CONFIDENCE).epsilon_lower,
        delta=delta,
        trainings=1,
        most=mu_bound(best, delta=delta, confidence=CONFIDENCE).mu_lower,
        verdict=one_run_verdict(result, best, certified),
        description=f"one training with {canaries:,} canary records ({kind}), {result.correct} of {result.guesses} guesses right",
    )


def one_run_verdict(result: Tally, best: Tally, certified: Guarantee) -> Judgement:
    """Refuted at 99.99 %; not tested if not even guesses that are all right would have refuted it."""
    if refutes(result, certified.beta, confidence=REFUTING):
        return "refuted"
    return "holds" if refutes(best, certified.beta, confidence=REFUTING) else "not tested"


class SlotScores:
    """Scores of all slots by what a view shows; high speaks for the canary. It holds sums over the rounds seen."""

    def __init__(self, slots: Slots, view: View) -> None:
        self._slots, self._view = slots, view
        self._model = FlatModel(slots.setup.module)
        self._loss = module_loss(slots.setup.module, slots.setup.train.y)
        self.scores = np.zeros(len(slots.coins))

    def see(self, seen: Seen) -> None:
        """Take in one round: how far did what is seen move towards lowering the canary's loss, rather than the record's."""
        self._model.load(torch.from_numpy(seen.after if self._view == View.FINAL else seen.before))
        for slot, client in enumerate(self._slots.clients.tolist()):
            if self._view == View.FINAL:
                record, canary = (
                    self._value(side, slot) for side in (self._slots.zero, self._slots.one)
                )
                self.scores[slot] = record - canary  # of the last model, once all rounds were seen
                continue
            moved = (
                seen.uploads.get(client)
                if self._view == View.SERVER
                else seen.after
                if client in seen.uploads
                else None
            )
            if moved is not None:
                pull = self._gradient(self._slots.zero, slot) - self._gradient(
                    self._slots.one, slot
                )
                self.scores[slot] += float(np.dot((moved - seen.before).astype(np.float64), pull))

    def _batch(self, side: tuple[Tensor, Tensor], slot: int) -> tuple[Tensor, Tensor]:
        train = self._slots.setup.train
        return side[0][slot : slot + 1].to(torch.float32) * train.scale + train.shift, side[1][
            slot : slot + 1
        ]

    def _value(self, side: tuple[Tensor, Tensor], slot: int) -> float:
        inputs, targets = self._batch(side, slot)
        return float(self._loss(self._model.predict(inputs), targets))

    def _gradient(self, side: tuple[Tensor, Tensor], slot: int) -> np.ndarray:
        inputs, targets = self._batch(side, slot)
        self._model.loss_gradient(inputs, targets, self._loss)
        gradient = self._model.gradients.double().numpy()
        clip = self._slots.setup.protocol.local.clip
        return gradient * min(1.0, clip / max(float(np.linalg.norm(gradient)), 1e-300))


def estimate_with_clients(
    setup: Setup,
    view: View,
    *,
    canaries: int,
    rounds: int,
    delta: float = 1e-5,
    seed: int = 0,
    caps: Mapping[int, int] | None = None,
    on_round: OnRound = lambda done, of: None,
) -> CanaryEstimate:
    """Train once with some clients that send random directions of the largest length allowed (Andrew et al. 2024): an estimate.

    Raises:
        UserError: a view in which directions are not looked for, a rule that has no such clients, or too many of them.

    Example:
        >>> estimate_with_clients(setup, View.FINAL, canaries=20, rounds=50)  # doctest: +SKIP
    """
    refuse_unscored(setup)
    rule = setup.protocol.local
    if view not in (View.FINAL, View.ROUNDS):
        raise UserError(
            f"view {view}: canary clients are looked for in global models. Use rounds or final."
        )
    if not isinstance(rule, FedAvg) or isinstance(rule, Bezier) or setup.protocol.keeps_models:
        raise UserError(
            f"local.rule = {rule.tag!r}: canary clients send a clipped direction from the global model, as fedavg and fedprox do."
        )
    if not 2 <= canaries <= setup.protocol.clients:
        raise UserError(
            f"--canaries {canaries}: expected at least 2 and at most federation.clients = {setup.protocol.clients}."
        )
    start = setup.initial_weights()
    draws = np.random.default_rng(seed).standard_normal((2 * canaries, start.size))
    directions = draws / np.linalg.norm(draws, axis=1, keepdims=True)
    used, unused = directions[:canaries], directions[canaries:]
    work, moves = ClientWork(setup), []

    def upload(*, client: int, round: int, weights: np.ndarray, kept: Kept | None = None) -> Upload:
        if client >= canaries:
            return work.upload(client=client, round=round, weights=weights, kept=kept)
        world = weights if weights.ndim == 1 else weights[0]
        model = torch.from_numpy(world + direction_length(rule, round) * used[client])
        stream = setup.noise_key.stream(
            Purpose.UPLOAD_NOISE, training=setup.training, client=client, round=round
        )
        return Upload(
            client=client, vector=noisy_upload(model, setup.protocol.noise, stream), steps=UNCOUNTED
        )

    for seen in rounds_seen(setup, in_turn(upload), rounds, caps or {}):
        moves.append(
            (seen.after - (seen.before if view == View.ROUNDS else start)).astype(np.float64)
        )
        moves = moves if view == View.ROUNDS else moves[-1:]
        on_round(seen.round + 1, rounds)
    if view == View.FINAL:
        return estimate_final(cosines(moves[-1], used), dimension=start.size, delta=delta)
    return estimate_all_rounds(
        largest_cosines(moves, used), largest_cosines(moves, unused), delta=delta
    )


def direction_length(rule: FedAvg, round: int) -> float:
    """How far a client's steps can take it: half the distance of two uploads from one start (THEORY A8)."""
    proximal = rule.proximal if isinstance(rule, FedProx) else 0.0
    return (
        sensitivity.upload(
            rule.schedule.rates(round=round, steps=rule.steps), rule.clip, proximal=proximal
        )
        / 2
    )

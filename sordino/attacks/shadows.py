"""Trains shadow models: federations like the attacked one, on half of the candidates.

They show how a model answers about records that it was trained on. Shadows 2k and 2k + 1 take
opposite ends of the same shuffled candidates. Where half of the candidates were trained on, that is
each half once, so every candidate is inside as many shadows as outside (Carlini et al. 2022;
Zarifzadeh et al. 2024).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from sordino.attacks.attack import Tick
from sordino.attacks.observed import ObservedMembership, ObservedRecords
from sordino.attacks.reading import predict_answers
from sordino.data import Dataset
from sordino.engines.many_trainings import train_many
from sordino.federation.round_metrics import RoundMetrics
from sordino.federation.store.files import arrays_digest, pack, unpack, write_whole, writing
from sordino.federation.store.run import Trained
from sordino.models.flat import FlatModel
from sordino.protocol import Data, Iid, Privacy, Protocol, UserError, dumps

# Seeds that no user chooses, so that no shadow has the noise of the attacked run.
FIRST_SEED = 0x5AD0_0000_0000
# How many shadows one call trains, which is all that an interruption can cost.
SHADOWS_PER_CALL = 4
# A data set needs test records, although no shadow is ever scored.
TEST_RECORDS = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class Shadows:
    """The attacker's models, and the records that each was trained on.

    Attributes:
        models: Their parameters, of shape (shadows, parameters).
        inside: Whether each shadow was trained on each record, of shape (shadows, records).
    """

    models: np.ndarray
    inside: np.ndarray

    def select_records(self, rows: np.ndarray) -> Shadows:
        """Returns the same models, and some of the records.

        Args:
            rows: Which records.
        """
        return Shadows(models=self.models, inside=self.inside[:, rows])

    def __len__(self) -> int:
        return len(self.models)


@dataclass(frozen=True, kw_only=True, eq=False)
class MembershipEvidence:
    """What the attacked model and every shadow answer about some records, as logits.

    Attributes:
        labels: The classes of the records, of shape (records,).
        target: Answers of the attacked model, of shape (records, classes).
        shadows: Answers of the shadows, of shape (shadows, records, classes).
        inside: Whether each shadow was trained on each record, of shape (shadows, records).
    """

    labels: Tensor
    target: Tensor
    shadows: Tensor
    inside: np.ndarray


def train_shadows(seen: ObservedMembership, count: int, tick: Tick) -> Shadows:
    """Returns shadow models, trained side by side, or read where they were trained before.

    They begin at the run's initial model, which is public, and have as many records, clients and
    rounds. Each is stored in the attacker's folder as soon as it is trained.

    Args:
        seen: What the attacker is given.
        count: How many shadows.
        tick: Called with the share of the work that is done.

    Returns:
        The shadows, and which candidates each was trained on.
    """
    plan = make_shadow_protocol(seen)
    candidates = len(seen.candidates)
    store = ShadowStore(seen.workshop / f"{seen.round:06d}", digest_plan(plan, seen))
    missing = [number for number in range(count) if store.read(number) is None]
    # Shadows of an earlier call count as done, so that progress does not restart at zero.
    rounds_done = (count - len(missing)) * seen.round

    def report_round(place: int, metrics: RoundMetrics) -> None:
        """Reports the share of all rounds that are done.

        Args:
            place: The place of the shadow among those of one call.
            metrics: The metrics of its round.
        """
        nonlocal rounds_done
        rounds_done += 1
        tick(rounds_done / (count * seen.round))

    for start in range(0, len(missing), SHADOWS_PER_CALL):
        numbers = missing[start : start + SHADOWS_PER_CALL]
        train_some_shadows(seen, plan, numbers, store, report_round)
    # Membership is computed again from the seed, for stored shadows too: the file holds the model
    # alone.
    inside = np.zeros((count, candidates), dtype=bool)
    for number in range(count):
        inside[number, choose_shadow_records(candidates, seen.held, number)] = True
    models = np.stack([store.read_trained(number) for number in range(count)])
    return Shadows(models=models, inside=inside)


def train_some_shadows(
    seen: ObservedMembership,
    plan: Protocol,
    numbers: list[int],
    store: ShadowStore,
    on_round: Callable[[int, RoundMetrics], None],
) -> None:
    """Trains some shadows in one call, and stores each.

    Args:
        seen: What the attacker is given.
        plan: The protocol of the shadows.
        numbers: Which shadows.
        store: Where they are stored.
        on_round: Called with the place of the shadow in `numbers` after each of its rounds.
    """
    datasets = []
    for number in numbers:
        rows = choose_shadow_records(len(seen.candidates), seen.held, number)
        datasets.append(make_shadow_dataset(seen.candidates, rows, seen.federation.classes))
    flat = FlatModel(seen.federation.module)

    def store_shadow(place: int, trained: Trained) -> None:
        """Writes the model of a training that has ended.

        Args:
            place: The place of the shadow in `numbers`.
            trained: The finished training.
        """
        store.write(numbers[place], flat.from_state(trained.state or {}).numpy())

    # A clipped linear model is built by its rule, and takes no module.
    module: nn.Module | None = seen.federation.module
    if plan.local.makes_model:
        module = None
    train_many(
        [replace(plan, seed=FIRST_SEED + number) for number in numbers],
        data=datasets,
        model=module,
        evaluate_every=0,
        on_round=on_round,
        on_end=store_shadow,
    )


class ShadowStore:
    """Stores shadows in a file each, which is whole or absent.

    Files are its only state, and those of another plan do not count.
    """

    def __init__(self, folder: Path, plan: str) -> None:
        """Opens a folder, which need not exist yet.

        Args:
            folder: Where the files are.
            plan: The digest of all that the shadows depend on.
        """
        self._folder = folder
        self._plan = plan

    def write(self, number: int, model: np.ndarray) -> None:
        """Writes a model.

        Args:
            number: Which shadow.
            model: Its parameters.
        """
        path = self._path(number)
        # A shadow costs minutes. It is written whole or not at all, so that an interruption costs
        # only those under way.
        with writing(path):
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, pack({"model": model}, {"plan": self._plan}))

    def read(self, number: int) -> np.ndarray | None:
        """Returns a model, or None where it is absent, damaged, or of another plan.

        Args:
            number: Which shadow.
        """
        try:
            arrays, facts = unpack(self._path(number).read_bytes())
            # Shadows of another plan would be evidence about another federation.
            if facts["plan"] != self._plan:
                return None
            return arrays["model"]
        # Anything unreadable counts as absent: the shadow is trained again.
        except (OSError, ValueError, KeyError):
            return None

    def read_trained(self, number: int) -> np.ndarray:
        """Returns a model that must be there.

        Args:
            number: Which shadow.

        Raises:
            UserError: The file is missing or damaged.
        """
        model = self.read(number)
        if model is None:
            raise UserError(
                f"{self._path(number)} is missing or damaged. "
                "Attack again: missing models are trained."
            )
        return model

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:05d}.safetensors"


def digest_plan(plan: Protocol, seen: ObservedMembership) -> str:
    """Returns a digest of all that shadows depend on.

    Args:
        plan: Their protocol.
        seen: What the attacker is given.
    """
    arrays = {
        "inputs": seen.candidates.inputs.numpy(),
        "labels": seen.candidates.labels.numpy(),
        "held": np.array(seen.held),
        "initial": FlatModel(seen.federation.module).weights.numpy(),
    }
    return hashlib.sha256(dumps(plan).encode() + arrays_digest(arrays).encode()).hexdigest()


def make_shadow_protocol(seen: ObservedMembership) -> Protocol:
    """Returns the protocol of the shadows.

    It is the attacked protocol up to the attacked round, with as many records, partitioned in the
    same way, and with no budget.

    Args:
        seen: What the attacker is given.
    """
    protocol = seen.federation.protocol
    data = protocol.data
    if data is None:
        data = Data(name="candidates")
    partition = data.partition
    # The attacker does not know the columns of the candidates.
    if partition.by_column:
        partition = Iid()
    records = seen.held // protocol.clients
    return replace(
        # The shadow represents the attacked model at this round, so it is trained exactly as long.
        protocol,
        rounds=seen.round,
        data=replace(data, name="candidates", partition=partition, records=records, sizes=None),
        # The noise is seeded: nobody's privacy depends on a shadow, and an interrupted attack has
        # to continue with the same ones.
        noise=replace(protocol.noise, secure=False),
        # Budgets would end a shadow before the attacked round.
        privacy=Privacy(adjacency=protocol.privacy.adjacency),
    )


def choose_shadow_records(candidates: int, held: int, number: int) -> np.ndarray:
    """Returns the candidates that a shadow is trained on.

    They are one end or the other of a shuffled list that two shadows share.

    Args:
        candidates: How many candidates there are.
        held: How many of them a federation holds.
        number: Which shadow.

    Returns:
        Rows of the candidates, in ascending order.

    Example:
        >>> first = choose_shadow_records(6, 3, 0)
        >>> np.union1d(first, choose_shadow_records(6, 3, 1)).tolist()
        [0, 1, 2, 3, 4, 5]
    """
    shuffled = np.random.default_rng((FIRST_SEED, number // 2)).permutation(candidates)
    # Both of a pair share the shuffle: what one takes from the front, the other takes from the
    # back.
    if number % 2 == 0:
        return np.sort(shuffled[:held])
    return np.sort(shuffled[-held:])


def make_shadow_dataset(
    candidates: ObservedRecords, rows: np.ndarray, classes: tuple[str, ...]
) -> Dataset:
    """Returns some of the candidates as a data set.

    Args:
        candidates: Every record that may have been trained on.
        rows: Which of them.
        classes: The names of the classes.
    """
    inputs = candidates.inputs.numpy()[rows]
    labels = candidates.labels.numpy()[rows]
    return Dataset(
        name="candidates",
        x_train=inputs,
        y_train=labels,
        # Training records serve, since nothing that is measured on them is ever read.
        x_test=inputs[:TEST_RECORDS],
        y_test=labels[:TEST_RECORDS],
        classes=classes,
    )


def collect_evidence(
    seen: ObservedMembership, shadows: Shadows, records: ObservedRecords
) -> MembershipEvidence:
    """Returns what all models answer about some records.

    Args:
        seen: What the attacker is given.
        shadows: The attacker's models, with their `inside` about the same records.
        records: The records.
    """
    # One model is loaded with every set of weights in turn: hundreds of shadows fit no memory.
    flat = FlatModel(seen.federation.module)
    answers = []
    for weights in (seen.model, *shadows.models):
        flat.load(torch.from_numpy(weights.astype(np.float32)))
        answers.append(predict_answers(flat, records.inputs))
    return MembershipEvidence(
        labels=records.labels,
        target=answers[0],
        shadows=torch.stack(answers[1:]),
        inside=shadows.inside,
    )


def refuse_few_shadows(shadows: int, least: int) -> None:
    """Refuses a number of shadows from which nothing can be learnt.

    Args:
        shadows: The number that was given.
        least: The least number that is allowed.

    Raises:
        UserError: The number is too small, odd or not whole.
    """
    # Python's True is an int, and would pass as one shadow.
    is_whole = isinstance(shadows, int) and not isinstance(shadows, bool)
    if not is_whole or shadows < least or shadows % 2 != 0:
        raise UserError(
            f"--shadows {shadows}: too few, or odd. Shadow models come in pairs, and how models "
            f"answer about members is learnt from at least {least}; 16 do well, 64 better. "
            "Attack with --shadows 16."
        )

"""Shadow models: federations like the attacked one, trained by the attacker on halves of the candidates, to learn how members look.

Shadows 2k and 2k + 1 take opposite ends of the same shuffled candidates. Where half of the candidates were trained on, that is each half
once, and every candidate is inside as many shadows as outside (Carlini et al. 2022; Zarifzadeh et al. 2024).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sordino.attacks.game import Tick
from sordino.attacks.observed import ObservedMembership, ObservedRecords
from sordino.attacks.reading import answers_of
from sordino.engines.many_trainings import train_many
from sordino.federation.data import Dataset
from sordino.federation.loop import RoundMetrics
from sordino.federation.models.flat import FlatModel
from sordino.federation.storage import arrays_digest, pack, unpack, write_whole, writing
from sordino.protocol import ByColumn, ClippedGlm, Data, Iid, Privacy, Protocol, UserError, dumps

FIRST_SEED = 0x5AD0_0000_0000  # seeds that no user chooses, so that no shadow has the noise of the attacked run
TOGETHER = 4  # shadows of one call: what a kill costs at most
TESTED = 2  # a data set needs test records; shadows are never scored


@dataclass(frozen=True, kw_only=True, eq=False)
class Shadows:
    """The attacker's own models, (shadows, parameters), and which of some records each was trained on, (shadows, records)."""

    models: np.ndarray
    inside: np.ndarray

    def about(self, rows: np.ndarray) -> Shadows:
        """The same models, and some of the records."""
        return Shadows(models=self.models, inside=self.inside[:, rows])

    def some(self, chosen: np.ndarray) -> Shadows:
        """Some of the models, and the same records."""
        return Shadows(models=self.models[chosen], inside=self.inside[chosen])

    def __len__(self) -> int:
        return len(self.models)


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """What the attacked model and every shadow answer about some records, as logits.

    Attributes:
        labels: the classes of the records, (n,).
        target: answers of the attacked model, (n, classes).
        shadows: answers of the shadows, (shadows, n, classes).
        inside: whether each shadow was trained on each record, (shadows, n).
    """

    labels: Tensor
    target: Tensor
    shadows: Tensor
    inside: np.ndarray


def trained_shadows(seen: ObservedMembership, count: int, tick: Tick) -> Shadows:
    """So many shadows, trained side by side, each kept in the attacker's folder when it is done; those that are there are read.

    They begin at the run's initial model, which is public, and have as many records, clients and rounds.
    """
    plan, candidates = shadow_protocol(seen), len(seen.candidates)
    shelf = Shelf(seen.workshop / f"{seen.round:06d}", identity(plan, seen))
    missing = [number for number in range(count) if shelf.read(number) is None]
    done = (count - len(missing)) * seen.round

    def note(place: int, metrics: RoundMetrics) -> None:
        nonlocal done
        done += 1
        tick(done / (count * seen.round))

    for start in range(0, len(missing), TOGETHER):
        train_some(seen, plan, missing[start : start + TOGETHER], shelf, note)
    inside = np.zeros((count, candidates), dtype=bool)
    for number in range(count):
        inside[number, shadow_rows(candidates, seen.held, number)] = True
    return Shadows(models=np.stack([shelf.model(number) for number in range(count)]), inside=inside)


def train_some(
    seen: ObservedMembership,
    plan: Protocol,
    numbers: list[int],
    shelf: Shelf,
    on_round: Callable[[int, RoundMetrics], None],
) -> None:
    """Train some shadows in one call and keep them."""
    rows = [shadow_rows(len(seen.candidates), seen.held, number) for number in numbers]
    flat = FlatModel(seen.federation.module)
    train_many(
        [replace(plan, seed=FIRST_SEED + number) for number in numbers],
        data=[shadow_data(seen.candidates, chosen, seen.federation.classes) for chosen in rows],
        model=None if isinstance(plan.local, ClippedGlm) else seen.federation.module,
        evaluate_every=0,
        on_round=on_round,
        on_end=lambda place, trained: shelf.keep(
            numbers[place], flat.from_state(trained.state or {}).numpy()
        ),
    )


class Shelf:
    """Where shadows are kept, a file each, whole or absent. Files are its only state; those of another plan do not count."""

    def __init__(self, folder: Path, plan: str) -> None:
        self._folder, self._plan = folder, plan

    def _place(self, number: int) -> Path:
        return self._folder / f"{number:05d}.safetensors"

    def keep(self, number: int, model: np.ndarray) -> None:
        """Write a model."""
        with writing(self._place(number)):
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._place(number), pack({"model": model}, {"plan": self._plan}))

    def read(self, number: int) -> np.ndarray | None:
        """A model, or None where it is not there, or is damaged, or another's."""
        try:
            arrays, facts = unpack(self._place(number).read_bytes())
            return arrays["model"] if facts["plan"] == self._plan else None
        except (OSError, ValueError, KeyError):
            return None

    def model(self, number: int) -> np.ndarray:
        """A model that must be there.

        Raises:
            UserError: it is not.
        """
        model = self.read(number)
        if model is None:
            raise UserError(
                f"{self._place(number)} is missing or damaged. Attack again: what is missing is trained."
            )
        return model


def identity(plan: Protocol, seen: ObservedMembership) -> str:
    """A digest of all that shadows depend on."""
    arrays = {
        "inputs": seen.candidates.inputs.numpy(),
        "labels": seen.candidates.labels.numpy(),
        "held": np.array(seen.held),
    }
    weights = FlatModel(seen.federation.module).weights.numpy()
    return hashlib.sha256(
        dumps(plan).encode() + arrays_digest({**arrays, "initial": weights}).encode()
    ).hexdigest()


def shadow_protocol(seen: ObservedMembership) -> Protocol:
    """What shadows run: the attacked protocol up to the attacked round, with records dealt as there, and with no budget."""
    protocol = seen.federation.protocol
    data = protocol.data if protocol.data is not None else Data(name="candidates")
    dealt = (
        Iid() if isinstance(data.partition, ByColumn) else data.partition
    )  # columns of the candidates are not known
    return replace(
        protocol,
        rounds=seen.round,
        data=replace(
            data, name="candidates", partition=dealt, records=seen.held // protocol.clients
        ),
        noise=replace(protocol.noise, secure=False),
        privacy=Privacy(adjacency=protocol.privacy.adjacency),
    )


def shadow_rows(candidates: int, held: int, number: int) -> np.ndarray:
    """The candidates that a shadow is trained on: one end or the other of a shuffled list that two shadows share.

    Example:
        >>> np.union1d(shadow_rows(6, 3, 0), shadow_rows(6, 3, 1)).tolist()
        [0, 1, 2, 3, 4, 5]
    """
    shuffled = np.random.default_rng((FIRST_SEED, number // 2)).permutation(candidates)
    return np.sort(shuffled[:held] if number % 2 == 0 else shuffled[-held:])


def shadow_data(candidates: ObservedRecords, rows: np.ndarray, classes: tuple[str, ...]) -> Dataset:
    """Some of the candidates as a data set."""
    x, y = candidates.inputs.numpy()[rows], candidates.labels.numpy()[rows]
    return Dataset(
        name="candidates",
        x_train=x,
        y_train=y,
        x_test=x[:TESTED],
        y_test=y[:TESTED],
        classes=classes,
    )


def evidence_on(seen: ObservedMembership, shadows: Shadows, records: ObservedRecords) -> Evidence:
    """What all models answer about some records, to which the shadows' `inside` refers."""
    flat, answers = FlatModel(seen.federation.module), []
    for weights in (seen.model, *shadows.models):
        flat.load(torch.from_numpy(weights.astype(np.float32)))
        answers.append(answers_of(flat, records.inputs))
    return Evidence(
        labels=records.labels,
        target=answers[0],
        shadows=torch.stack(answers[1:]),
        inside=shadows.inside,
    )


def refuse_few(shadows: int, least: int) -> None:
    """Refuse so few shadows that nothing can be learnt from them."""
    if (
        isinstance(shadows, bool)
        or not isinstance(shadows, int)
        or shadows < least
        or shadows % 2 != 0
    ):
        raise UserError(
            f"--shadows {shadows}: too few, or odd. Shadow models come in pairs, and how members look is learnt from at least {least}; "
            f"16 do well, 64 better. Attack with --shadows 16."
        )

"""A run from both sides: the referee hands attackers what a view shows, and scorers what is true."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch

from sordino.attacks.observed import (
    ObservedFederation,
    ObservedModel,
    ObservedRecords,
    ObservedRound,
    ObservedUpload,
)
from sordino.attacks.reading import Reader
from sordino.attacks.truth import TruthBatch, TruthModel, TruthRecords, TruthSenders
from sordino.federation.assignment import minibatches
from sordino.federation.channel import shuffled_order
from sordino.federation.data import Dataset, load_data
from sordino.federation.models.flat import FlatModel
from sordino.federation.randomness import Purpose
from sordino.federation.run import Run
from sordino.federation.setup import DataSource, ModelSource, Tensors, prepare
from sordino.federation.uploads import KeptRound, kept_rounds, read_round
from sordino.privacy.ledger import RoundCharged
from sordino.privacy.sizes import size_of
from sordino.protocol import ByColumn, Data, FedAvg, NoisySgd, Protocol, Scaffold, UserError
from sordino.protocol.errors import typed


class Referee:
    """Knows a run, the records of its clients and every draw. It holds the data; nothing of the run is changed.

    Records that no client holds are the attackers' own: the training records that were dealt to nobody and half of the test records.
    The other half of the test records is for scoring.

    Raises:
        UserError: the run is not finished, its clients' records are elsewhere, or its data or its model are not those it was trained with.
    """

    def __init__(
        self, run: Run, *, data: DataSource | None = None, model: ModelSource | None = None
    ) -> None:
        if run.status == "unfinished":
            raise UserError(
                f"{run.folder} is not finished: go on with `{typed('resume', run.folder)}`, then attack it."
            )
        if run.facts["engine"] == "flower":
            raise UserError(
                f"{run.folder} was trained across machines: its clients' records are with them, and nobody here can say what an attack got "
                "right. Train the same protocol on one machine, on records like theirs, and attack that run."
            )
        self.run, self.protocol = run, run.protocol
        self.dataset = self._found(data)
        self._setup = prepare(
            run.protocol, data=self.dataset, model=model if model is not None else run.source
        )
        if self._setup.data_digest != run.facts["data_digest"]:
            raise UserError(
                f"the data of {run.folder} are not those it was trained on. Put them back, or train again."
            )

    def _found(self, data: DataSource | None) -> Dataset:
        if isinstance(data, Dataset):
            return data
        spec = self.protocol.data
        if data is None and (spec is None or spec.name.startswith("python:")):
            raise UserError(
                f"the data of {self.run.folder} were handed over in Python: hand them over again, as data=..."
            )
        return load_data(spec if spec is not None else Data(name=str(data)), data)

    @property
    def noise(self) -> float:
        """How much noise there is: its parameter, as the protocol has it."""
        return size_of(self.protocol.noise)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes.

        Raises:
            UserError: the data have quantities to predict, and no classes.
        """
        if self.dataset.classes is None:
            raise UserError(
                f"{self.dataset.name} has no classes, which this attack is about. Attack a run on data with classes."
            )
        return self.dataset.classes

    @cached_property
    def kept(self) -> list[int]:
        """The rounds whose uploads are kept.

        Raises:
            UserError: there are none.
        """
        rounds = kept_rounds(self.run.folder)
        if not rounds:
            raise UserError(
                f"{self.run.folder} has no uploads, and this attack needs what the server received. "
                "Train again with `sordino train --keep-uploads`."
            )
        return rounds

    def federation(self, records: int | ObservedRecords) -> ObservedFederation:
        """What everybody knows, and the attacker's own records, given or at most so many."""
        own = records if isinstance(records, ObservedRecords) else self.auxiliary(records)
        public = replace(self.protocol, seed=None)
        return ObservedFederation(
            protocol=public, module=self._setup.module, classes=self.classes, auxiliary=own
        )

    def auxiliary(self, records: int) -> ObservedRecords:
        """At most so many records that no client holds, evenly spread over all such."""
        train, test = (
            self.unheld(len(self._setup.train.y)),
            np.arange(0, len(self._setup.test.y), 2),
        )
        if len(train) + len(test) == 0:
            raise self._without_test("the attacker has no records")
        chosen = even(np.arange(len(train) + len(test)), records)
        parts = (
            some(self._setup.train, train[chosen[chosen < len(train)]]),
            some(self._setup.test, test[chosen[chosen >= len(train)] - len(train)]),
        )
        inputs, labels = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
        return ObservedRecords(inputs=inputs, labels=labels)

    def scoring(self, weights: np.ndarray, records: int) -> TruthModel:
        """Returns what a model answers about at most so many test records that no attacker has.

        Raises:
            UserError: there are none.
        """
        if len(self._setup.test.y) < 2:
            raise self._without_test("what an attack got is held against answers about records")
        inputs, labels = some(
            self._setup.test, even(np.arange(1, len(self._setup.test.y), 2), records)
        )
        return TruthModel(
            inputs=inputs, labels=labels, answers=self.reader(weights).read(inputs)[1]
        )

    def models(self, count: int) -> list[tuple[int, np.ndarray]]:
        """At most so many global models after so many rounds each, evenly spread: the initial one, those before kept rounds, the last."""
        done = len(self.run.metrics["round"])
        ends = {0: self.initial_model, done: self.last_model}
        rounds = spread(
            sorted({*ends, *(t for t in kept_rounds(self.run.folder) if t < done)}), count
        )
        return [(t, ends[t]() if t in ends else self.round(t).model) for t in rounds]

    def model(
        self, federation: ObservedFederation, round: int, weights: np.ndarray, rows: np.ndarray
    ) -> ObservedModel:
        """A global model as an attacker sees it who overhears what it makes of some clients' records."""
        embeddings, answers = self.reader(weights).read(self.private(rows).inputs)
        return ObservedModel(
            federation=federation,
            round=round,
            model=weights,
            answers=answers,
            embeddings=embeddings,
        )

    def reader(self, weights: np.ndarray) -> Reader:
        """The model of the run at these weights."""
        return Reader(self._setup.module, weights, self._setup.train.inputs(slice(0, 1)))

    def last_model(self) -> np.ndarray:
        """The model that the run ended with."""
        if self.run.state is None:
            raise UserError(
                f"{self.run.folder} has no model: its budget did not allow one to be released."
            )
        return FlatModel(self._setup.module).from_state(self.run.state).numpy().copy()

    def initial_model(self) -> np.ndarray:
        """The model before the first round, which has seen no records."""
        return self._setup.initial_weights()

    def round(self, round: int) -> KeptRound:
        """What the server saw of a round."""
        return read_round(self.run.folder, round)

    def upload(self, federation: ObservedFederation, round: int, place: int) -> ObservedUpload:
        """The upload at a place of a round, as the server sees it."""
        kept = self.round(round)
        return ObservedUpload(
            federation=federation, round=round, model=kept.model, upload=kept.uploads[place]
        )

    def sender(self, round: int, place: int) -> int:
        """Who sent the upload at a place of a round."""
        charged = [
            event.clients
            for event in self.run.ledger
            if isinstance(event, RoundCharged) and event.round == round
        ]
        clients = np.array(charged[-1], dtype=np.int64)
        if self.protocol.channel == "direct":
            return int(clients[place])
        return int(
            clients[
                shuffled_order(
                    len(clients), self._setup.draw_key.stream(Purpose.SHUFFLER, round=round)
                )[place]
            ]
        )

    def intercepted(
        self, federation: ObservedFederation, round: int, targets: int, records: int
    ) -> ObservedRound:
        """All uploads of a round without their senders, and records of some clients that sent one."""
        kept, order, asked = (
            self.round(round),
            self._mixed(round),
            self._in_question(round, targets),
        )
        theirs = (
            some(self._setup.train, even(self._setup.parts[self.sender(round, place)], records))
            for place in asked
        )
        return ObservedRound(
            federation=federation,
            round=round,
            model=kept.model,
            uploads=kept.uploads[order],
            targets=tuple(
                ObservedRecords(inputs=inputs, labels=labels) for inputs, labels in theirs
            ),
        )

    def senders(self, round: int, targets: int) -> TruthSenders:
        """At which places of `intercepted` the clients in question stand."""
        order = self._mixed(round)
        return TruthSenders(
            places=np.argsort(order)[self._in_question(round, targets)], uploads=len(order)
        )

    def _in_question(self, round: int, targets: int) -> np.ndarray:
        """At most so many uploads of a round, whose senders are to be found."""
        return even(np.arange(len(self.round(round).uploads)), targets)

    def _mixed(self, round: int) -> np.ndarray:
        """An order of the uploads of a round that says nothing."""
        return np.random.default_rng((0, round)).permutation(len(self.round(round).uploads))

    def batch(self, round: int, place: int) -> TruthBatch:
        """The records that the sender of an upload drew."""
        rows = np.concatenate(
            minibatches(
                self._setup, self.gradient_rule(), client=self.sender(round, place), round=round
            )
        )
        inputs, labels = some(self._setup.train, rows)
        return TruthBatch(inputs=inputs, labels=labels)

    def private_rows(self, count: int) -> np.ndarray:
        """At most so many records that clients hold, evenly spread over the clients, as rows of the training records."""
        return even(np.concatenate(self._setup.parts), count)

    def private(self, rows: np.ndarray) -> TruthRecords:
        """Clients' records."""
        return TruthRecords(inputs=some(self._setup.train, rows)[0])

    def unheld(self, count: int) -> np.ndarray:
        """At most so many training records that were dealt to nobody, as rows."""
        return even(
            np.setdiff1d(np.arange(len(self._setup.train.y)), np.concatenate(self._setup.parts)),
            count,
        )

    def candidates(self) -> tuple[ObservedRecords, np.ndarray]:
        """The clients' records among as many others, in an order that says nothing; and which of them are the clients'.

        The others are training records that were dealt to nobody, and if these are too few, test records that no attacker has.

        Raises:
            UserError: there are not even half as many others.
        """
        train, test = self._setup.train, self._setup.test
        held = np.concatenate(self._setup.parts)
        spare = self.unheld(len(held))
        more = even(np.arange(1, len(test.y), 2), len(held) - len(spare))
        others = len(spare) + len(more)
        if 2 * others < len(held):
            raise UserError(
                f"clients hold {len(held)} records, and there are {others} others to tell them from; half as many are needed at least. "
                f"Attack a run {self._with_more_others(len(held) + others)}."
            )
        parts = some(train, held), some(train, spare), some(test, more)
        order = np.random.default_rng(0).permutation(len(held) + others)
        inputs, labels = (
            torch.cat(pieces)[torch.from_numpy(order)] for pieces in zip(*parts, strict=True)
        )
        return ObservedRecords(inputs=inputs, labels=labels), order < len(held)

    def _with_more_others(self, records: int) -> str:
        """In words, a run with so few records at the clients that there are enough others."""
        if self.run.facts.get("tested_on") == "none":
            return 'with a test part: without data.test = "none"'
        few = f"data.records of at most {2 * records // 3 // self.protocol.clients}"
        if self.protocol.data is None or not isinstance(self.protocol.data.partition, ByColumn):
            return f"with {few}"
        # Who goes by a column holds all training records: data.records cannot be set.
        halves = "more than half are test records (split in a .csv, x_test in an .npz)"
        return f"on data of which {halves}, or one with another partition and {few}"

    def _without_test(self, needed: str) -> UserError:
        """Returns the error for an attack that needs test records where there are none, or one at most."""
        found = len(self._setup.test.y)
        why = f"{self.run.folder} has {found} test records"
        advice = "Attack a run on data with more of them."
        if self.run.facts.get("tested_on") == "none":
            why = f'{self.run.folder} was trained with data.test = "none", and has no test records'
            advice = 'Attack a run of the same protocol without data.test = "none".'
        return UserError(f"{why}: {needed} that no client holds. {advice}")

    def population(self, count: int) -> ObservedRecords:
        """Returns at most so many test records of the attackers' own, on which nobody trained.

        Raises:
            UserError: there are none.
        """
        if len(self._setup.test.y) == 0:
            raise self._without_test("the attacker measures by records on which nobody trained")
        inputs, labels = some(
            self._setup.test, even(np.arange(0, len(self._setup.test.y), 2), count)
        )
        return ObservedRecords(inputs=inputs, labels=labels)

    def known(self, rows: np.ndarray, attributes: Mapping[str, np.ndarray]) -> ObservedRecords:
        """Training records that nobody holds, as the attacker's own, whose attributes it knows."""
        inputs, labels = some(self._setup.train, rows)
        return ObservedRecords(
            inputs=inputs,
            labels=labels,
            attributes={name: values[rows] for name, values in attributes.items()},
        )

    def gradient_rule(self) -> FedAvg | NoisySgd:
        """The local rule, where an upload is the global model moved along gradients.

        Raises:
            UserError: it is something else, or the draws that decided the batches were never written down.
        """
        rule = self.protocol.local
        if self.protocol.noise.secure:
            raise UserError(
                f"{self.run.folder} drew its batches from the operating system, so nobody can say which records were in an upload. "
                "Attack a run with noise.secure = false."
            )
        if isinstance(rule, FedAvg | NoisySgd) and sends_gradients(self.protocol):
            return rule
        raise UserError(
            f"local.rule = {rule.tag!r}: this attack reads gradients out of uploads that begin at the global model, which fedavg, "
            "fedprox and noisy-sgd (sgd, fixed batches) without personalization or penalty send. Attack such a run."
        )


def sends_gradients(protocol: Protocol) -> bool:
    """Whether an upload is the global model moved along gradients of batches whose size is public, and nothing else."""
    rule = protocol.local
    plain = isinstance(rule, FedAvg) or (
        isinstance(rule, NoisySgd) and (rule.optimizer, rule.sampling) == ("sgd", "fixed")
    )
    return (
        plain
        and not isinstance(rule, Scaffold)
        and not protocol.keeps_models
        and not protocol.penalty
    )


def some(records: Tensors, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and answers of some records."""
    chosen = torch.from_numpy(rows)
    return records.inputs(chosen), records.y.index_select(0, chosen)


def even(rows: np.ndarray, count: int) -> np.ndarray:
    """At most so many of the rows, at even distances.

    Example:
        >>> even(np.arange(9), 3).tolist(), even(np.arange(2), 3).tolist()
        ([0, 4, 8], [0, 1])
    """
    return np.asarray(
        rows[np.linspace(0, len(rows) - 1, min(count, len(rows))).round().astype(int)]
    )


def spread(values: list[int], count: int) -> list[int]:
    """At most so many of the values, from first to last at even distances; one alone is the last.

    Example:
        >>> spread([0, 1, 2, 3, 4], 3), spread([0, 1, 2], 1), spread([5], 3)
        ([0, 2, 4], [2], [5])
    """
    if count == 1:
        return values[-1:]
    return [values[place] for place in even(np.arange(len(values)), count)]

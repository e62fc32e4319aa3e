"""The referee of an attack knows both sides of a run.

It gives attackers what a view shows, and scorers the truth.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from sordino.attacks.attacked_run import AttackedRun, spread_rounds, spread_rows
from sordino.attacks.observed import (
    ObservedFederation,
    ObservedModel,
    ObservedRecords,
    ObservedRound,
    ObservedUpload,
)
from sordino.attacks.truth import TruthBatch, TruthModel, TruthRecords, TruthSenders
from sordino.federation.assignment import minibatches
from sordino.federation.channels.shuffler import shuffled_order
from sordino.federation.record_tensors import Tensors
from sordino.federation.store.upload_archive import kept_rounds, read_round
from sordino.privacy.ledger_lines import RoundCharged
from sordino.protocol import Direct, Gaussian, Protocol, UserError
from sordino.randomness import Purpose


class Referee(AttackedRun):
    """Knows a run, the records of its clients and every draw.

    Records that no client holds are the attackers' own: the training records that were assigned to
    no client, and every second test record. The other test records are for scoring.
    """

    # What attackers are given.

    def public_federation(self, records: int | ObservedRecords) -> ObservedFederation:
        """Returns the public knowledge, and the attacker's own records.

        Args:
            records: The attacker's records, or how many it has at most.
        """
        if isinstance(records, int):
            records = self.attacker_records(records)
        return ObservedFederation(
            # The seed would give away the noise and all draws.
            protocol=replace(self._describe_federation(), seed=None),
            module=self._setup.module,
            classes=self.classes,
            auxiliary=records,
        )

    def _describe_federation(self) -> Protocol:
        """Returns the protocol as it appears to an attacker.

        A secure sum appears as the upload of one client with everybody's batches and noise.
        """
        protocol = self.protocol
        batch = protocol.local.batch
        if protocol.release.secure_sum is None or batch is None:
            return protocol
        clients = protocol.clients
        data = protocol.data
        if data is not None:
            data = replace(data, records=None, sizes=None)
        return replace(
            protocol,
            clients=1,
            channel=Direct(),
            local=replace(protocol.local, batch=batch * clients),
            noise=Gaussian(sigma=self.noise / math.sqrt(clients)),
            privacy=replace(protocol.privacy, budget=None),
            data=data,
        )

    def attacker_records(self, count: int) -> ObservedRecords:
        """Returns records that no client holds, evenly spread over all such records.

        Args:
            count: How many at most.

        Raises:
            UserError: There are none.
        """
        train_rows = self.unassigned_rows(len(self._setup.train.y))
        # Test records are divided: even rows are the attacker's, odd rows are the scorer's. A
        # record of both would be judged by what the attacker learnt from it.
        test_rows = np.arange(0, len(self._setup.test.y), 2)
        total = len(train_rows) + len(test_rows)
        if total == 0:
            raise self._missing_test_records("the attacker has no records")
        # Evenly over both sources, since data sets may be sorted by class.
        chosen = spread_rows(np.arange(total), count)
        from_train = train_rows[chosen[chosen < len(train_rows)]]
        from_test = test_rows[chosen[chosen >= len(train_rows)] - len(train_rows)]
        return join_records([(self._setup.train, from_train), (self._setup.test, from_test)])

    def population_records(self, count: int) -> ObservedRecords:
        """Returns test records of the attacker, on which no model was trained.

        Args:
            count: How many at most.

        Raises:
            UserError: There are none.
        """
        if len(self._setup.test.y) == 0:
            raise self._missing_test_records(
                "the attacker measures by records on which no model was trained"
            )
        rows = spread_rows(np.arange(0, len(self._setup.test.y), 2), count)
        return join_records([(self._setup.test, rows)])

    def attribute_records(
        self, rows: np.ndarray, attribute: str, values: np.ndarray
    ) -> ObservedRecords:
        """Returns training records of the attacker, whose attribute it knows.

        Args:
            rows: Rows of the training records that no client holds.
            attribute: The name of the attribute.
            values: Its value for every training record.
        """
        records = join_records([(self._setup.train, rows)])
        return replace(records, attributes={attribute: values[rows]})

    def mix_candidates(self) -> tuple[ObservedRecords, np.ndarray]:
        """Returns the clients' records among as many others, in a random order.

        The others are training records that were assigned to no client. If these are too few, test
        records are added that no attacker has.

        Returns:
            The records, and which of them are the clients'.

        Raises:
            UserError: There are not even half as many others.
        """
        client_rows = np.concatenate(self._setup.parts)
        held = len(client_rows)
        # Training records that no client holds come first: test records may be distributed
        # otherwise, and an attack that only tells the two apart would pass for membership
        # inference.
        spare_rows = self.unassigned_rows(held)
        scoring_rows = np.arange(1, len(self._setup.test.y), 2)
        test_rows = spread_rows(scoring_rows, held - len(spare_rows))
        others = len(spare_rows) + len(test_rows)
        # Shadows are trained on half of the candidates: with fewer others, most records would be
        # inside all of them.
        if 2 * others < held:
            raise UserError(
                f"clients hold {held} records, and there are {others} others to tell them from; "
                "half as many are needed at least. "
                f"Attack a run {self._describe_smaller_run(held + others)}."
            )
        train = self._setup.train
        records = join_records(
            [(train, client_rows), (train, spare_rows), (self._setup.test, test_rows)]
        )
        # Members come first in the joined records, so the number of a row would give them away.
        order = np.random.default_rng(0).permutation(held + others)
        shuffled = torch.from_numpy(order)
        mixed = ObservedRecords(inputs=records.inputs[shuffled], labels=records.labels[shuffled])
        return mixed, order < held

    def global_models(self, count: int) -> list[tuple[int, np.ndarray]]:
        """Returns global models, evenly spread: the initial one, those of kept rounds, the last.

        Args:
            count: How many at most.

        Returns:
            For each model, how many rounds it was trained for, and its parameters.
        """
        rounds_trained = len(self.run.metrics["round"])
        ends: dict[int, Callable[[], np.ndarray]] = {
            0: self.initial_model,
            rounds_trained: self.last_model,
        }
        # The archive keeps the model that a round began with; the one after the last round is in
        # the run.
        kept = [one for one in kept_rounds(self.run.folder) if one < rounds_trained]
        models = []
        for round_index in spread_rounds(sorted({*ends, *kept}), count):
            if round_index in ends:
                models.append((round_index, ends[round_index]()))
            else:
                models.append((round_index, self.read_round(round_index).model))
        return models

    def observe_model(
        self,
        federation: ObservedFederation,
        round_index: int,
        weights: np.ndarray,
        rows: np.ndarray,
    ) -> ObservedModel:
        """Returns a global model, with what an attacker overhears of its work on some records.

        Args:
            federation: Public knowledge.
            round_index: How many rounds the model was trained for.
            weights: Its parameters.
            rows: Rows of the clients' records.
        """
        embeddings, answers = self.open_model(weights).read(self.reveal_records(rows).inputs)
        return ObservedModel(
            federation=federation,
            round=round_index,
            model=weights,
            answers=answers,
            embeddings=embeddings,
        )

    def observe_upload(
        self, federation: ObservedFederation, round_index: int, place: int
    ) -> ObservedUpload:
        """Returns one upload as the server sees it.

        Args:
            federation: Public knowledge.
            round_index: Number of the round, from 0.
            place: Which upload of the round.
        """
        kept = self.read_round(round_index)
        return ObservedUpload(
            federation=federation, round=round_index, model=kept.model, upload=kept.uploads[place]
        )

    def observe_round(
        self, federation: ObservedFederation, round_index: int, targets: int, records: int
    ) -> ObservedRound:
        """Returns all uploads of a round without their senders, and records of some senders.

        Args:
            federation: Public knowledge.
            round_index: Number of the round, from 0.
            targets: How many clients are in question at most.
            records: How many records of each the attacker knows at most.
        """
        kept = self.read_round(round_index)
        target_records = []
        for place in self._choose_places(round_index, targets):
            rows = self._setup.parts[self.find_sender(round_index, place)]
            target_records.append(join_records([(self._setup.train, spread_rows(rows, records))]))
        return ObservedRound(
            federation=federation,
            round=round_index,
            model=kept.model,
            # Senders are hidden, as by a shuffler; `reveal_senders` repeats the same permutation.
            uploads=kept.uploads[self._shuffle_places(round_index)],
            targets=tuple(target_records),
        )

    # What scorers are given.

    def reveal_answers(self, weights: np.ndarray, count: int) -> TruthModel:
        """Returns what a model answers about test records that no attacker has.

        Args:
            weights: The model's parameters.
            count: How many records at most.

        Raises:
            UserError: There are none.
        """
        if len(self._setup.test.y) < 2:
            raise self._missing_test_records(
                "the result of an attack is held against answers about records"
            )
        rows = spread_rows(np.arange(1, len(self._setup.test.y), 2), count)
        records = join_records([(self._setup.test, rows)])
        _, answers = self.open_model(weights).read(records.inputs)
        return TruthModel(inputs=records.inputs, labels=records.labels, answers=answers)

    def reveal_batch(self, round_index: int, place: int) -> TruthBatch:
        """Returns the records that the sender of an upload drew; of a sum, those of all senders.

        Args:
            round_index: Number of the round, from 0.
            place: Which upload of the round.
        """
        senders = [self.find_sender(round_index, place)]
        if self.protocol.release.secure_sum is not None:
            senders = self._find_contributors(round_index)
        # Draws are repeated from the seed, so nothing about batches is ever stored in the run's
        # folder.
        drawn = [
            minibatches(self._setup, client=sender, round_index=round_index) for sender in senders
        ]
        # Step by step, as the attacker takes them for the batches of one client.
        steps = [np.concatenate(batches) for batches in zip(*drawn, strict=True)]
        records = join_records([(self._setup.train, np.concatenate(steps))])
        return TruthBatch(inputs=records.inputs, labels=records.labels)

    def reveal_records(self, rows: np.ndarray) -> TruthRecords:
        """Returns clients' records.

        Args:
            rows: Rows of the training records.
        """
        return TruthRecords(inputs=join_records([(self._setup.train, rows)]).inputs)

    def reveal_senders(self, round_index: int, targets: int) -> TruthSenders:
        """Returns the places in `observe_round` of the uploads of the clients in question.

        Args:
            round_index: Number of the round, from 0.
            targets: How many clients are in question at most.
        """
        order = self._shuffle_places(round_index)
        # The inverse permutation leads from a place in the archive to the place that the attacker
        # saw.
        places = np.argsort(order)[self._choose_places(round_index, targets)]
        return TruthSenders(places=places, uploads=len(order))

    def find_sender(self, round_index: int, place: int) -> int:
        """Returns the client that sent the upload at a place of a round.

        Args:
            round_index: Number of the round, from 0.
            place: Which upload of the round.
        """
        charged = [
            event.clients
            for event in self.run.ledger
            if isinstance(event, RoundCharged) and event.round == round_index
        ]
        # A round that was interrupted is charged again: its last charge names who sent.
        clients = np.array(charged[-1], dtype=np.int64)
        # The protocol's own shuffler came first: the archive is in its order and not in the
        # ledger's.
        if self.protocol.release.shuffled:
            stream = self._setup.draw_key.stream(Purpose.SHUFFLER, round_index=round_index)
            clients = clients[shuffled_order(len(clients), stream)]
        return int(clients[place])

    def _find_contributors(self, round_index: int) -> list[int]:
        """Returns whose uploads are in the sum of a kept round."""
        clients = read_round(self.run.folder, round_index).clients
        return [] if clients is None else [int(client) for client in clients]

    def _choose_places(self, round_index: int, targets: int) -> np.ndarray:
        """Returns the uploads of a round whose senders are in question."""
        return spread_rows(np.arange(len(self.read_round(round_index).uploads)), targets)

    def _shuffle_places(self, round_index: int) -> np.ndarray:
        """Returns a random order of the uploads of a round, the same in every call."""
        generator = np.random.default_rng((0, round_index))
        return generator.permutation(len(self.read_round(round_index).uploads))

    def _describe_smaller_run(self, records: int) -> str:
        """Returns words for a run whose clients hold so few records that enough others are left."""
        if self.run.facts.get("tested_on") == "none":
            return 'with a test part: without data.test = "none"'
        fewer = f"data.records of at most {2 * records // 3 // self.protocol.clients}"
        data = self.protocol.data
        if data is None or not data.partition.by_column:
            return f"with {fewer}"
        # A partition by a column uses all training records: data.records cannot be set.
        halves = "more than half are test records (split in a .csv, x_test in an .npz)"
        return f"on data of which {halves}, or one with another partition and {fewer}"

    def _missing_test_records(self, needed: str) -> UserError:
        """Returns the error for an attack that needs more test records than there are."""
        if self.run.facts.get("tested_on") == "none":
            return UserError(
                f'{self.run.folder} was trained with data.test = "none", and has no test records: '
                f"{needed} that no client holds. "
                'Attack a run of the same protocol without data.test = "none".'
            )
        return UserError(
            f"{self.run.folder} has {len(self._setup.test.y)} test records: "
            f"{needed} that no client holds. Attack a run on data with more of them."
        )


def join_records(parts: list[tuple[Tensors, np.ndarray]]) -> ObservedRecords:
    """Returns some records of one or more tables, one after another.

    Args:
        parts: Tables of records, and the rows that are taken from each.
    """
    inputs: list[Tensor] = []
    labels: list[Tensor] = []
    for table, rows in parts:
        chosen = torch.from_numpy(rows)
        inputs.append(table.inputs(chosen))
        labels.append(table.y.index_select(0, chosen))
    return ObservedRecords(inputs=torch.cat(inputs), labels=torch.cat(labels))

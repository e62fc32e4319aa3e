"""A client or the coordinator is killed at every write and at every wave of a secure sum, and starts again."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from sordino.flower import (
    client_store,
    connected_clients,
    kept_answers,
    reply_collection,
    sum_states,
)
from sordino.flower.messages import SUMS, UPLOAD, VECTOR
from sordino.flower.sum_forms import decode_body
from sordino.flower.sum_messages import MaskCall
from sordino.privacy.ledger import Ledger
from sordino.privacy.ledger_lines import Answered, KeyGiven, SharesGiven
from tests.flower.summing import Summing, summed_plan, wave_of

CLIENTS = 3
VICTIM = 2


@pytest.fixture(autouse=True)
def in_no_hurry(monkeypatch) -> None:
    monkeypatch.setattr(reply_collection, "POLL", 0.0)
    monkeypatch.setattr(connected_clients, "POLL", 0.0)
    monkeypatch.setattr(os, "fsync", lambda handle: None)


class Killed(BaseException):
    """Nothing catches it, as nothing catches a power cut."""


class Writes:
    """Counts what one client writes, and kills it before or after one of its writes."""

    def __init__(self, monkeypatch) -> None:
        self.count = 0
        self.counting = False
        self.deadly = -1
        self.written = True
        for place, name in (
            (sum_states, "write_whole"),
            (client_store, "write_whole"),
            (kept_answers, "write_whole"),
            (Ledger, "_append_line"),
        ):
            monkeypatch.setattr(place, name, self.watch(getattr(place, name)))

    def watch(self, genuine: Any) -> Any:
        def write(*given: Any, **named: Any) -> Any:
            if not self.counting:
                return genuine(*given, **named)
            self.count += 1
            if self.count - 1 != self.deadly:
                return genuine(*given, **named)
            if self.written:
                genuine(*given, **named)
            raise Killed

        return write


class Consortium(Summing):
    """Three clients, of whom one may be killed; it holds every upload that left that one."""

    def __init__(self, folder: Path, writes: Writes) -> None:
        folder.mkdir(exist_ok=True)
        super().__init__(folder, summed_plan(clients=CLIENTS, threshold=2))
        self.left: dict[str, set[bytes]] = {}
        genuine = self.grid.answer

        def answer(client: int, message: Any) -> Any:
            if client != VICTIM:
                return genuine(client, message)
            asked = str(message.metadata.message_type) == "train" and message.content[SUMS]["body"]
            before = self.vectors[VICTIM]
            worked = len(self.grid.work)
            # Each computation has other noise: two vectors under the same masks would differ.
            self.vectors[VICTIM] = before + 1
            writes.counting = True
            try:
                reply = genuine(client, message)
            except Killed:
                return None
            finally:
                writes.counting = False
                if len(self.grid.work) == worked:
                    self.vectors[VICTIM] = before
            if asked and reply.has_content():
                label = str(decode_body(MaskCall, asked).label)
                vector = reply.content[UPLOAD][VECTOR].numpy().tobytes()
                self.left.setdefault(label, set()).add(vector)
            return reply

        self.grid.answer = answer

    def sum_exactly(self, round_index: int) -> set[int]:
        """Who is not in the sum of a round, which is that of all others."""
        opened = self.sum(round_index)
        absent = set(opened.absent)
        np.testing.assert_array_equal(
            opened.total, self.true_sum(set(range(CLIENTS)) - absent), strict=True
        )
        return absent


def count_writes(folder: Path, writes: Writes) -> int:
    consortium = Consortium(folder, writes)
    assert consortium.sum_exactly(0) == set()
    return writes.count


@pytest.mark.slow
@pytest.mark.parametrize("written", [False, True])
def test_a_client_that_is_killed_at_any_write_gives_everything_once_and_comes_back(
    tmp_path, monkeypatch, written
) -> None:
    writes = Writes(monkeypatch)
    count = count_writes(tmp_path / "all", writes)
    assert count >= 12
    for deadly in range(count):
        writes.count, writes.deadly, writes.written = 0, deadly, written
        consortium = Consortium(tmp_path / str(deadly), writes)
        assert consortium.sum_exactly(0) <= {VICTIM}
        writes.deadly = -1
        # At the latest in the second round after it: its key may have been asked for too early.
        again = [consortium.sum_exactly(1), consortium.sum_exactly(2)]
        assert again[-1] == set(), deadly
        store = consortium.store(VICTIM)
        assert all(len(vectors) == 1 for vectors in consortium.left.values())
        labels = [(one.round, one.attempt) for one in store.events if isinstance(one, Answered)]
        assert len(set(labels)) == len(labels)
        assert max(Counter(store.rounds_paid).values()) == 1
        assert store.refusals == []
        assert sum(isinstance(one, KeyGiven) for one in store.events) == 1
        shared = [(one.round, one.attempt) for one in store.events if isinstance(one, SharesGiven)]
        assert len(set(shared)) == len(shared)


WAVES = ("key", "prepare", "mask", "unmask")


@pytest.mark.slow
@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("wave", WAVES)
def test_a_coordinator_that_is_killed_in_any_wave_goes_on_with_the_others(
    tmp_path, monkeypatch, wave, heard
) -> None:
    """Half of the clients have answered by then, and one of these is away when it is back."""
    consortium = Consortium(tmp_path, Writes(monkeypatch))
    genuine = consortium.grid.push_messages

    def push(messages: Any) -> list[str]:
        if not any(wave_of(message) == wave for message in messages):
            return genuine(messages)
        if heard:
            genuine(list(messages)[:2])
        raise Killed

    if wave in ("mask", "unmask"):
        assert consortium.sum_exactly(0) == set()
    consortium.grid.push_messages = push
    with pytest.raises(Killed):
        consortium.sum(1)
    consortium.grid.push_messages = genuine
    consortium.start()
    consortium.grid.lost = lambda client, sent: client == 0 and sent != ""
    assert consortium.sum_exactly(1) == {0}
    consortium.grid.lost = lambda client, sent: False
    assert consortium.sum_exactly(2) == set()

"""A coordinator that asks whatever it likes, of clients that crash and get old copies of a file back, never holds what would show one vector."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from flwr.app import Message

from sordino.flower.messages import SUMS, UPLOAD, VECTOR, request_message
from sordino.flower.sum_forms import decode_body, encode_body
from sordino.flower.sum_messages import (
    ConfirmReply,
    KeyCall,
    KeyReply,
    Label,
    MaskCall,
    PrepareCall,
    PrepareReply,
    UnmaskCall,
    UnmaskReply,
    sum_message,
)
from sordino.flower.sum_states import FILE
from sordino.flower.upload_requests import MODEL
from sordino.protocol import dumps
from sordino.secure_sums import members
from sordino.secure_sums.key_roster import SignedKey, encode_identity
from sordino.secure_sums.masks import derive_round_key
from tests.flower.summing import TRAINING, Summing, identity, summed_plan
from tests.flower.test_secure_crashes import Killed, Writes

CLIENTS = 4
THRESHOLD = 3
EVERYONE = range(CLIENTS)
# A client and a label.
Place = tuple[int, Label]


@pytest.fixture(autouse=True)
def in_no_hurry(monkeypatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@dataclass(frozen=True)
class Masks:
    """What hides a vector: its own seed, and a secret with each other participant.

    Attributes:
        own: The seed of its own mask.
        key: The seed of the key by which it has secrets with others.
        pairs: By the name of each secret with another participant, the seeds that give it away.
    """

    own: bytes
    key: bytes
    pairs: dict[tuple[frozenset[bytes], bytes], set[bytes]]


class Secrets:
    """What no coordinator sees: which seed a share is of, and what hides a vector."""

    def __init__(self, monkeypatch) -> None:
        self.seed_of: dict[bytes, bytes] = {}
        self.masks_of: dict[bytes, Masks] = {}
        split, mask, expand = members.split_seed, members.Member.mask, members.expand_pair_mask
        # From the public key of a round to its seed.
        seeds: dict[bytes, bytes] = {}
        pairs: list[tuple[bytes, bytes, bytes]] = []

        def split_and_note(seed: bytes, *given: Any) -> dict[int, bytes]:
            shares = split(seed, *given)
            self.seed_of.update(dict.fromkeys(shares.values(), seed))
            seeds[derive_round_key(seed).public_key().public_bytes_raw()] = seed
            return shares

        def expand_and_note(mine: Any, theirs: Any, *, context: bytes, **named: Any) -> Any:
            ends = (mine.public_key().public_bytes_raw(), theirs.public_bytes_raw())
            pairs.append((*ends, context))
            return expand(mine, theirs, context=context, **named)

        def mask_and_note(member: Any, vector: Any, prepared: Any, *given: Any) -> Any:
            pairs.clear()
            kept, sent = mask(member, vector, prepared, *given)
            named = {
                (frozenset({mine, theirs}), context): {seeds[mine], seeds[theirs]}
                for mine, theirs, context in pairs
            }
            masks = Masks(prepared.own_seed, prepared.key_seed, named)
            self.masks_of[sent.residues.tobytes()] = masks
            return kept, sent

        monkeypatch.setattr(members, "split_seed", split_and_note)
        monkeypatch.setattr(members, "expand_pair_mask", expand_and_note)
        monkeypatch.setattr(members.Member, "mask", mask_and_note)


def find_open_sums(vectors: list[Masks], is_open: Callable[[bytes], bool]) -> list[int]:
    """Of how many vectors each sum is that is known once all open masks are taken off."""
    together = [{place} for place in range(len(vectors))]
    hidden = {place for place, one in enumerate(vectors) if not is_open(one.own)}
    for place, one in enumerate(vectors):
        for name, keys in one.pairs.items():
            if any(is_open(key) for key in keys):
                continue
            others = [other for other, two in enumerate(vectors) if name in two.pairs]
            if others == [place]:
                # Nothing else has this mask, which nobody knows.
                hidden.add(place)
            joined = set().union(*(together[other] for other in others))
            for other in joined:
                together[other] = joined
    parts = {frozenset(part) for part in together}
    return [len(part) for part in parts if not part & hidden]


@dataclass
class Knowledge:
    """What a coordinator was given, by client and label."""

    keys: dict[int, SignedKey] = field(default_factory=dict)
    prepared: defaultdict[Place, list[PrepareReply]] = field(
        default_factory=lambda: defaultdict(list)
    )
    vectors: defaultdict[Place, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    signatures: defaultdict[Place, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    # From a seed to the clients that gave a share of it.
    givers: defaultdict[bytes, set[int]] = field(default_factory=lambda: defaultdict(set))


class Coordinator:
    """Asks at random. It holds what it was given, and old copies of clients' files."""

    def __init__(self, summing: Summing, writes: Writes, secrets: Secrets, seed: int) -> None:
        self.summing = summing
        self.writes = writes
        self.secrets = secrets
        self.rng = random.Random(seed)
        self.known = Knowledge()
        self.numbers = iter(range(10**9))
        self.labels = [
            Label(round=round, attempt=attempt) for attempt in range(2) for round in range(4)
        ]
        self.copies: defaultdict[int, list[bytes]] = defaultdict(list)
        self.answered: defaultdict[str, int] = defaultdict(int)
        self.group = list(EVERYONE)

    def send(self, client: int, message: Message) -> Any:
        """The content of the reply; None where there is none, also since the client was killed."""
        message.metadata.__dict__["_message_id"] = f"question-{next(self.numbers)}"
        path = self.summing.store(client).folder / FILE
        if path.exists():
            self.copies[client].append(path.read_bytes())
        # One message in twenty meets a power cut at one of the next writes.
        self.writes.count = 0
        self.writes.deadly = self.rng.randrange(6) if self.rng.random() < 0.05 else -1
        self.writes.written = self.rng.random() < 0.5
        self.writes.counting = True
        try:
            reply = self.summing.grid.answer(client, message)
        except Killed:
            return None
        finally:
            self.writes.counting = False
        return reply.content if reply.has_content() else None

    def ask(self, client: int, call: Any, kind: Any) -> Any:
        content = self.send(client, sum_message(call, node=1000 + client, ttl=60))
        if content is None:
            return None
        self.answered[kind.__name__] += 1
        return decode_body(kind, content[SUMS]["body"])

    def choose_group(self, client: int) -> list[int]:
        # Mostly the one that others were asked for as well, or nothing would ever be opened.
        if self.rng.random() < 0.95:
            return self.group
        group = set(self.rng.sample(EVERYONE, self.rng.choice([THRESHOLD, CLIENTS])))
        if self.rng.random() < 0.9:
            group.add(client)
        return sorted(group)

    def play_label(self, label: Label) -> None:
        """A round as it should be, of some clients, with a fifth of other requests in between."""
        self.group = sorted(
            self.rng.sample(EVERYONE, self.rng.choice([THRESHOLD, CLIENTS, CLIENTS]))
        )
        others = [self.key, self.prepare, self.mask, self.unmask]
        for move in (self.prepare, self.mask, self.unmask, self.unmask):
            for client in self.rng.choices(EVERYONE, k=2 * CLIENTS):
                if self.rng.random() < 0.15:
                    self.put_back(client)
                move(client, label)
                if self.rng.random() < 0.15:
                    other = self.rng.choice(others)
                    other(self.rng.choice(EVERYONE), self.rng.choice([label, *self.labels]))
                self.check()

    def key(self, client: int, label: Label) -> None:
        call = KeyCall(training=TRAINING, protocol=dumps(self.summing.protocol))
        reply = self.ask(client, call, KeyReply)
        if reply is None:
            return
        found = SignedKey(
            client=client,
            identity=encode_identity(identity(client)),
            public=reply.public,
            signature=reply.signature,
        )
        # A client that lost its state never gives a second key.
        assert self.known.keys.setdefault(client, found).public == found.public

    def prepare(self, client: int, label: Label) -> None:
        chosen = self.choose_group(client)
        keys = {one: key for one, key in self.known.keys.items() if one in chosen}
        if self.rng.random() < 0.5:
            keys = self.known.keys
        call = PrepareCall(training=TRAINING, label=label, keys=keys)
        self.take_preparation(client, label, self.ask(client, call, PrepareReply))

    def take_preparation(self, client: int, label: Label, reply: PrepareReply | None) -> None:
        if reply is None:
            return
        self.known.prepared[client, label].append(reply)

    def mask(self, client: int, label: Label) -> None:
        participants = self.choose_group(client)
        letters = {}
        for other in participants:
            sent = self.known.prepared[other, label]
            if other != client and sent:
                # The last one mostly: others are of seeds that were drawn before a crash.
                chosen = sent[-1] if self.rng.random() < 0.9 else self.rng.choice(sent)
                letter = chosen.letters.get(client)
                if letter is not None:
                    letters[other] = letter
        call = MaskCall(label=label, participants=tuple(participants), letters=letters)
        model = self.summing.model + (self.rng.random() < 0.03)
        request = self.summing.request(
            client,
            label.round,
            encode_body(call),
            attempt=next(self.numbers),
            arrays={MODEL: model.astype("float32")},
        )
        # Each computation has other noise: two vectors under the same masks would differ.
        self.summing.vectors[client] = self.summing.vectors[client] + 1
        content = self.send(client, request_message(request, node=1000 + client, ttl=60))
        if content is None:
            return
        self.answered["vector"] += 1
        self.known.vectors[client, label].add(content[UPLOAD][VECTOR].numpy().tobytes())
        body = decode_body(ConfirmReply, content[SUMS]["body"])
        self.known.signatures[client, label].add(body.signature)

    def unmask(self, client: int, label: Label) -> None:
        survivors = {}
        # Clients are named alive and, to others or later, dead.
        missing = self.rng.choice([None] * CLIENTS + list(EVERYONE))
        for other in self.choose_group(client):
            signatures = self.known.signatures[other, label]
            if signatures and other != missing:
                survivors[other] = self.rng.choice(sorted(signatures))
        following = None
        if self.rng.random() < 0.1:
            following = self.rng.choice(self.labels)
        call = UnmaskCall(
            training=TRAINING,
            label=label,
            survivors=survivors,
            confirmations={},
            following=following,
        )
        reply = self.ask(client, call, UnmaskReply)
        if reply is None:
            return
        for share in [*reply.own_shares.values(), *reply.key_shares.values()]:
            self.known.givers[self.secrets.seed_of[share]].add(client)
        if following is not None:
            self.take_preparation(client, following, reply.following)

    def put_back(self, client: int) -> None:
        """An old copy of what the client keeps of secure sums, mostly one of the last."""
        if self.copies[client]:
            path = self.summing.store(client).folder / FILE
            path.write_bytes(self.rng.choice(self.copies[client][-4:]))

    def is_open(self, seed: bytes) -> bool:
        return len(self.known.givers[seed]) >= THRESHOLD

    def check(self) -> None:
        """One vector under a label and under its seeds, and never both of these."""
        left = [one for vectors in self.known.vectors.values() for one in vectors]
        assert all(len(vectors) <= 1 for vectors in self.known.vectors.values())
        masks = [self.secrets.masks_of[one] for one in left]
        seeds = [seed for one in masks for seed in (one.own, one.key)]
        assert len(set(seeds)) == len(seeds)
        for one in masks:
            assert not (self.is_open(one.own) and self.is_open(one.key))
            assert not self.known.givers[one.own] & self.known.givers[one.key]
        # What can be opened is at most one sum, of no fewer than the threshold.
        for label in self.labels:
            vectors = [
                self.secrets.masks_of[one]
                for client in EVERYONE
                for one in self.known.vectors[client, label]
            ]
            sums = find_open_sums(vectors, self.is_open)
            assert len(sums) <= 1
            assert all(size >= THRESHOLD for size in sums)
        for client in EVERYONE:
            sent = sum(len(self.known.vectors[client, label]) for label in self.labels)
            assert len(self.summing.store(client).rounds_paid) >= sent


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(6))
def test_no_order_of_requests_and_crashes_shows_one_vector(tmp_path, monkeypatch, seed) -> None:
    writes = Writes(monkeypatch)
    secrets = Secrets(monkeypatch)
    totals: defaultdict[str, int] = defaultdict(int)
    for trial in range(4):
        folder = tmp_path / str(trial)
        folder.mkdir()
        summing = Summing(folder, summed_plan(clients=CLIENTS, threshold=THRESHOLD))
        coordinator = Coordinator(summing, writes, secrets, seed=10 * seed + trial)
        for client in EVERYONE:
            coordinator.key(client, coordinator.labels[0])
        for label in coordinator.labels:
            coordinator.play_label(label)
        for kind, count in coordinator.answered.items():
            totals[kind] += count
    # Else nothing was tried: what is asked for is mostly refused.
    assert totals["vector"] > 20
    assert totals["UnmaskReply"] > 5

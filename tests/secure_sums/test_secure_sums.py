"""Sums are exact whoever drops out, and a server that deviates is refused or gets nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from math import comb

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.protocol.errors import InvalidValue
from sordino.secure_sums import key_roster
from sordino.secure_sums.key_roster import (
    SIGNATURE,
    Roster,
    SecureSumRefused,
    SignedKey,
    refuse_threshold,
    verify_keys,
)
from sordino.secure_sums.letters import (
    Letter,
    LetterAddress,
    join_shares,
    seal_letter,
    split_seed,
)
from sordino.secure_sums.masks import derive_key, expand_mask
from sordino.secure_sums.members import (
    Masked,
    MaskedVector,
    MaskRequest,
    Member,
    Preparation,
    Prepared,
    Shares,
)
from sordino.secure_sums.opening import TooFewContributions, forward_letters, open_sum

# Points of Curve25519 whose order is no multiple of the large prime (RFC 7748, section 6.1).
SMALL_ORDER = [
    bytes(32),
    (1).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
]
LABEL = "round 3, attempt 1"
COUNT = 33
IDENTITIES = {client: ec.generate_private_key(ec.SECP384R1()) for client in range(6)}


def public_der(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def roster_of(
    clients: int = 5,
    threshold: int = 4,
    training: str = "one",
    identities: dict[int, ec.EllipticCurvePrivateKey] = IDENTITIES,
) -> Roster:
    prints = [
        hashlib.sha256(public_der(identities[client])).hexdigest() for client in range(clients)
    ]
    return Roster(training=training, fingerprints=tuple(prints), threshold=threshold)


class Federation:
    """Members that have met, prepared and are about to mask. Tests take it from there."""

    def __init__(
        self,
        roster: Roster,
        identities: dict[int, ec.EllipticCurvePrivateKey] = IDENTITIES,
    ) -> None:
        self.roster = roster
        self.members = {
            client: Member(roster=roster, client=client, identity=identities[client])
            for client in roster.clients
        }
        keys = [member.signed_key for member in self.members.values()]
        for member in self.members.values():
            member.meet(keys)
        self.candidates = list(roster.clients)
        self.prepared: dict[int, Prepared] = {}
        self.sent: dict[int, Preparation] = {}
        for client in self.candidates:
            kept, sent = self.members[client].prepare(LABEL)
            self.prepared[client] = kept
            self.sent[client] = sent
        rng = np.random.default_rng(3)
        self.vectors = {
            client: rng.integers(0, 2**32, COUNT, dtype=np.uint32) for client in self.candidates
        }

    def request(self, participants: list[int]) -> MaskRequest:
        return MaskRequest(label=LABEL, participants=tuple(participants), request=b"digest")

    def mask(self, client: int, asked: MaskRequest) -> tuple[Masked, MaskedVector]:
        letters = forward_letters(self.sent[one] for one in asked.participants)[client]
        member = self.members[client]
        return member.mask(self.vectors[client], self.prepared[client], asked, letters)

    def mask_all(self, asked: MaskRequest) -> dict[int, tuple[Masked, MaskedVector]]:
        return {client: self.mask(client, asked) for client in asked.participants}

    def open(
        self, asked: MaskRequest, arrived: list[MaskedVector], answers: list[Shares]
    ) -> np.ndarray:
        return open_sum(
            self.roster,
            asked=asked,
            preparations=self.sent,
            graph=self.members[0].graph,
            vectors={one.client: one.residues for one in arrived},
            answers=answers,
        )

    def true_sum(self, clients: Iterable[int]) -> np.ndarray:
        total = np.zeros(COUNT, np.uint32)
        for client in clients:
            total += self.vectors[client]
        return total


def signed(
    masked: dict[int, tuple[Masked, MaskedVector]], clients: Iterable[int]
) -> dict[int, bytes]:
    """Returns a list of survivors as the server sends it, with their signatures."""
    return {client: masked[client][1].signature for client in clients}


def subsets(clients: list[int], least: int) -> list[list[int]]:
    return [
        list(chosen)
        for size in range(least, len(clients) + 1)
        for chosen in combinations(clients, size)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [3, 4])
def test_every_subset_of_dropouts_at_every_phase_gives_the_exact_sum(threshold) -> None:
    """All ways in which 5 clients can fall silent: before masking, before sending, before answering."""
    federation = Federation(roster_of(5, threshold))
    assert federation.roster.needs_confirmation == (threshold == 3)
    opened = 0
    for participants in subsets(federation.candidates, threshold):
        asked = federation.request(participants)
        masked = federation.mask_all(asked)
        for survivors in subsets(participants, threshold):
            named = signed(masked, survivors)
            arrived = [masked[client][1] for client in survivors]
            expected = federation.true_sum(survivors)
            confirmed = {
                client: federation.members[client].confirm(masked[client][0], named)
                for client in survivors
            }
            for answering in subsets(survivors, threshold):
                confirmations = {client: confirmed[client] for client in answering}
                answers = [
                    federation.members[client].unmask(masked[client][0], named, confirmations)
                    for client in answering
                ]
                np.testing.assert_array_equal(federation.open(asked, arrived, answers), expected)
                opened += 1
    # The number of chains of subsets, counted by another rule.
    chains = sum(
        comb(5, p) * comb(p, u) * comb(u, a)
        for p in range(threshold, 6)
        for u in range(threshold, p + 1)
        for a in range(threshold, u + 1)
    )
    assert opened == chains


def test_below_the_threshold_nothing_is_opened() -> None:
    federation = Federation(roster_of(5, 4))
    asked = federation.request([0, 1, 2, 3])
    masked = federation.mask_all(asked)
    with pytest.raises(SecureSumRefused, match="fewer than the threshold"):
        federation.members[0].unmask(masked[0][0], signed(masked, [0, 1, 2]))
    named = signed(masked, asked.participants)
    answers = [federation.members[client].unmask(masked[client][0], named) for client in (0, 1, 2)]
    with pytest.raises(TooFewContributions):
        federation.open(asked, [pair[1] for pair in masked.values()], answers)


@given(clients=st.integers(2, 40), threshold=st.integers(-1, 45), colluders=st.integers(-1, 45))
@settings(max_examples=300, deadline=None)
def test_thresholds_are_allowed_exactly_where_two_sums_cannot_be_opened(
    clients, threshold, colluders
) -> None:
    """Two groups of honest clients, each large enough with the colluders, must overlap."""
    honest = clients - colluders
    disjoint = any(
        first + colluders >= threshold and honest - first + colluders >= threshold
        for first in range(max(honest, 0) + 1)
    )
    allowed = 2 <= threshold <= clients and 0 <= colluders < threshold and not disjoint
    if allowed:
        refuse_threshold(clients=clients, threshold=threshold, colluders=colluders)
        return
    with pytest.raises(InvalidValue):
        refuse_threshold(clients=clients, threshold=threshold, colluders=colluders)


def most_opened_keys(clients: int, threshold: int, colluders: int) -> int:
    """Returns how many honest clients' keys a server can have opened by lists that differ.

    Each honest client leaves out at most clients - threshold others, itself never; a key is opened by
    threshold - colluders honest clients that leave its owner out.
    """
    honest = clients - colluders
    left_out = clients - threshold
    found = 0
    for keys in range(1, honest + 1):
        needed = keys * (threshold - colluders)
        given = (honest - keys) * min(left_out, keys) + keys * min(left_out, keys - 1)
        if needed <= given and threshold - colluders <= honest - 1:
            found = keys
    return found


@given(clients=st.integers(2, 60), data=st.data())
@settings(max_examples=400, deadline=None)
def test_without_a_confirmation_the_honest_in_a_sum_are_still_enough(clients, data) -> None:
    """Lists of survivors that differ cannot bring the sum below threshold - colluders honest ones."""
    threshold = data.draw(st.integers(clients // 2 + 1, clients))
    colluders = data.draw(st.integers(0, min(threshold - 1, 2 * threshold - clients - 1)))
    roster = Roster(
        training="one",
        fingerprints=("a",) * clients,
        threshold=threshold,
        colluders=colluders,
    )
    left = clients - colluders - most_opened_keys(clients, threshold, colluders)
    if not roster.needs_confirmation:
        assert left >= threshold - colluders


def test_with_many_left_out_lists_that_differ_would_shrink_the_sum() -> None:
    """Why a confirmation is asked for: ten clients, threshold 6, and four would be left."""
    assert 10 - most_opened_keys(10, 6, 0) < 6
    assert roster_of(5, 3).needs_confirmation
    assert not roster_of(5, 4).needs_confirmation


class TestServerThatDeviates:
    """Each is refused by the client, or gives the server residues that look uniform."""

    def federation(self) -> Federation:
        return Federation(roster_of(5, 4))

    def test_a_key_of_the_servers_own(self) -> None:
        roster = roster_of()
        own = Member(roster=roster, client=1, identity=IDENTITIES[5]).signed_key
        honest = [
            Member(roster=roster, client=client, identity=IDENTITIES[client]).signed_key
            for client in (0, 2, 3, 4)
        ]
        with pytest.raises(SecureSumRefused, match="client 1 is not the one that was agreed to"):
            verify_keys(roster, [*honest, own])
        claimed = replace(own, identity=public_der(IDENTITIES[1]))
        with pytest.raises(SecureSumRefused, match="client 1 is not signed"):
            verify_keys(roster, [*honest, claimed])

    def test_a_missing_signature(self) -> None:
        federation = self.federation()
        keys = [member.signed_key for member in federation.members.values()]
        keys[2] = replace(keys[2], signature=b"")
        with pytest.raises(SecureSumRefused, match="client 2 is not signed"):
            federation.members[0].meet(keys)

    def test_a_key_of_another_training(self) -> None:
        federation = self.federation()
        other = Member(roster=roster_of(training="two"), client=2, identity=IDENTITIES[2])
        keys = [member.signed_key for member in federation.members.values()]
        keys[2] = other.signed_key
        with pytest.raises(SecureSumRefused, match="client 2 is not signed"):
            federation.members[0].meet(keys)

    def test_an_older_key_of_the_client_itself(self) -> None:
        federation = self.federation()
        member = Member(roster=federation.roster, client=0, identity=IDENTITIES[0])
        keys = [one.signed_key for one in federation.members.values()]
        with pytest.raises(SecureSumRefused, match="another key for this client"):
            member.meet(keys)

    def test_an_invented_client(self) -> None:
        federation = self.federation()
        wider = roster_of(6, 4)
        invented = Member(roster=wider, client=5, identity=IDENTITIES[5]).signed_key
        keys = [member.signed_key for member in federation.members.values()]
        with pytest.raises(SecureSumRefused, match="not in the roster"):
            federation.members[0].meet([*keys, invented])

    def test_fewer_keys_than_the_threshold(self) -> None:
        """One may be missing, and holds no shares then; with two missing no sum could be opened."""
        federation = self.federation()
        keys = [member.signed_key for member in federation.members.values()]
        verify_keys(federation.roster, keys[:-1])
        with pytest.raises(SecureSumRefused, match="keys of 3 clients were shown, fewer than"):
            federation.members[0].meet(keys[:-2])

    def test_a_second_key_of_a_client_that_was_met(self) -> None:
        """A colluder signs two keys: letters are sealed for the first one, and the graph rests on it."""
        federation = self.federation()
        second = Member(roster=federation.roster, client=4, identity=IDENTITIES[4]).signed_key
        keys = [member.signed_key for member in federation.members.values()]
        with pytest.raises(SecureSumRefused, match="another key was shown for client 4 before"):
            federation.members[0].meet([*keys[:4], second])

    @pytest.mark.parametrize("point", SMALL_ORDER, ids=["order 4", "order 1", "order 8"])
    def test_a_key_whose_secrets_everybody_knows(self, point) -> None:
        """A colluder's key of small order: every exchange with it gives zeros (RFC 7748, section 6)."""
        federation = self.federation()
        statement = key_roster._make_key_statement(federation.roster, 4, point)
        weak = SignedKey(
            client=4,
            identity=public_der(IDENTITIES[4]),
            public=point,
            signature=IDENTITIES[4].sign(statement, SIGNATURE),
        )
        keys = [member.signed_key for member in federation.members.values()]
        with pytest.raises(SecureSumRefused, match="key for letters of client 4 is one whose"):
            federation.members[0].meet([*keys[:4], weak])
        letter = Letter(mask_public=point, own_share=bytes(16), key_share=bytes(16))
        address = LetterAddress(roster=federation.roster, label=LABEL, sender=4, receiver=0)
        colluder = federation.members[4].letter_key
        receiver = federation.members[0].letter_key.public_key()
        letters = forward_letters(federation.sent.values())[0]
        letters[4] = seal_letter(letter, address, colluder, receiver)
        asked = federation.request([0, 1, 2, 3, 4])
        with pytest.raises(SecureSumRefused, match="key of the round of client 4 is one whose"):
            federation.members[0].mask(
                federation.vectors[0], federation.prepared[0], asked, letters
            )

    def test_a_letter_without_the_shares_that_its_receiver_holds(self) -> None:
        federation = self.federation()
        address = LetterAddress(roster=federation.roster, label=LABEL, sender=4, receiver=0)
        letter = Letter(mask_public=federation.sent[4].mask_public)
        receiver = federation.members[0].letter_key.public_key()
        letters = forward_letters(federation.sent.values())[0]
        letters[4] = seal_letter(letter, address, federation.members[4].letter_key, receiver)
        asked = federation.request([0, 1, 2, 3, 4])
        with pytest.raises(SecureSumRefused, match="letter of client 4 has a share too few"):
            federation.members[0].mask(
                federation.vectors[0], federation.prepared[0], asked, letters
            )

    def test_one_client_with_two_keys(self) -> None:
        federation = self.federation()
        keys = [member.signed_key for member in federation.members.values()]
        with pytest.raises(SecureSumRefused, match="client 0 has two keys"):
            federation.members[0].meet([*keys, keys[0]])

    def test_a_roster_with_another_threshold(self) -> None:
        """A server that got 3 of 5 agreed elsewhere cannot use those signatures here."""
        assert roster_of(5, 3).digest != roster_of(5, 4).digest

    @pytest.mark.parametrize("named", [[0, 1, 2], [1, 2, 3, 4], [0, 1, 2, 9], [0, 1, 2, 2, 3], []])
    def test_participants_that_cannot_be(self, named) -> None:
        federation = self.federation()
        letters = forward_letters(federation.sent.values())[0]
        with pytest.raises(SecureSumRefused):
            federation.members[0].mask(
                federation.vectors[0], federation.prepared[0], federation.request(named), letters
            )

    @pytest.mark.parametrize("named", [[0, 1, 2], [1, 2, 3, 4], [0, 1, 2, 9], []])
    def test_survivors_that_cannot_be(self, named) -> None:
        federation = self.federation()
        masked = federation.mask_all(federation.request([0, 1, 2, 3, 4]))
        signatures = {client: masked[client % 5][1].signature for client in named}
        with pytest.raises(SecureSumRefused):
            federation.members[0].unmask(masked[0][0], signatures)
        with pytest.raises(SecureSumRefused):
            federation.members[0].confirm(masked[0][0], signatures)

    def test_a_preparation_for_another_round(self) -> None:
        federation = self.federation()
        asked = MaskRequest(label="round 4, attempt 1", participants=(0, 1, 2, 3), request=b"")
        letters = forward_letters(federation.sent.values())[0]
        with pytest.raises(SecureSumRefused, match="prepared for"):
            federation.members[0].mask(
                federation.vectors[0], federation.prepared[0], asked, letters
            )

    def test_survivors_of_another_round(self) -> None:
        """Signatures of round 3 do not make anybody a survivor of round 4."""
        federation = self.federation()
        old = federation.mask_all(federation.request([0, 1, 2, 3]))
        later = Federation(federation.roster)
        asked = MaskRequest(label=LABEL, participants=(0, 1, 2, 3), request=b"round 4")
        masked = later.mask_all(asked)
        named = signed(old, [1, 2, 3]) | signed(masked, [0])
        with pytest.raises(SecureSumRefused, match="request of client 1 is not signed"):
            later.members[0].unmask(masked[0][0], named)

    def test_a_changed_letter_and_one_of_another_round_or_client(self) -> None:
        federation = self.federation()
        asked = federation.request([0, 1, 2, 3])
        letters = forward_letters(federation.sent.values())[0]
        flipped = bytes([letters[1][0] ^ 1]) + letters[1][1:]
        _, later = federation.members[1].prepare("round 4, attempt 1")
        to_another = federation.sent[1].letters[2]
        for wrong in (flipped, later.letters[0], to_another, b"", letters[2]):
            with pytest.raises(SecureSumRefused, match="letter of client 1"):
                federation.members[0].mask(
                    federation.vectors[0], federation.prepared[0], asked, {**letters, 1: wrong}
                )

    def test_a_letter_that_is_missing(self) -> None:
        federation = self.federation()
        letters = forward_letters(federation.sent.values())[0]
        del letters[3]
        with pytest.raises(SecureSumRefused, match="no letter of client 3"):
            federation.members[0].mask(
                federation.vectors[0],
                federation.prepared[0],
                federation.request([0, 1, 2, 3]),
                letters,
            )

    @pytest.mark.parametrize(
        "other",
        [
            MaskRequest(label=LABEL, participants=(0, 1, 2, 3), request=b"digest"),
            MaskRequest(label=LABEL, participants=(0, 1, 2, 3, 4), request=b"another model"),
        ],
    )
    def test_clients_that_were_asked_different_things_open_nothing(self, other) -> None:
        """Client 0 is shown other participants, or another model, than the rest."""
        federation = self.federation()
        asked = federation.request([0, 1, 2, 3, 4])
        masked = federation.mask_all(asked)
        masked[0] = federation.mask(0, other)
        for client in (1, 2, 3):
            with pytest.raises(SecureSumRefused, match="request of client 0 is not signed"):
                federation.members[client].unmask(masked[client][0], signed(masked, range(4)))
        with pytest.raises(SecureSumRefused, match="request of client 1 is not signed"):
            federation.members[0].unmask(masked[0][0], signed(masked, range(4)))

    def test_different_requests_give_noise_even_if_everybody_answered(self) -> None:
        """Were the signatures not looked at, the masks of client 0 would still not cancel."""
        federation = self.federation()
        asked = federation.request([0, 1, 2, 3, 4])
        masked = federation.mask_all(asked)
        answers = [
            federation.members[client].unmask(masked[client][0], signed(masked, range(5)))
            for client in range(5)
        ]
        other = MaskRequest(label=LABEL, participants=asked.participants, request=b"another model")
        vectors = [pair[1] for pair in masked.values()]
        np.testing.assert_array_equal(
            federation.open(asked, vectors, answers), federation.true_sum(range(5))
        )
        vectors[0] = federation.mask(0, other)[1]
        opened = federation.open(asked, vectors, answers)
        assert not np.any(opened == federation.true_sum(range(5)))

    def test_a_small_group_cannot_be_opened_by_clients_that_masked_for_another_one(self) -> None:
        """Ten clients, threshold 6: clients 0 to 2 mask among themselves and 3 to 5, and the others
        are to call 3 to 5 absent and 0 to 2 alive. Without signatures the sum of three would open."""
        identities = {client: ec.generate_private_key(ec.SECP384R1()) for client in range(10)}
        federation = Federation(roster_of(10, 6, identities=identities), identities=identities)
        everyone = federation.request(list(range(10)))
        masked = federation.mask_all(everyone)
        few = federation.request([0, 1, 2, 3, 4, 5])
        for client in (0, 1, 2):
            masked[client] = federation.mask(client, few)
        alive = [0, 1, 2, 6, 7, 8, 9]
        with pytest.raises(SecureSumRefused, match="request of client 0 is not signed"):
            federation.members[6].unmask(masked[6][0], signed(masked, alive))

    def test_two_lists_of_survivors_are_not_both_confirmed(self) -> None:
        """Where a confirmation is needed, shares are given for a list that enough have signed."""
        federation = Federation(roster_of(5, 3))
        masked = federation.mask_all(federation.request([0, 1, 2, 3, 4]))
        first = signed(masked, [0, 1, 2])
        second = signed(masked, [2, 3, 4])
        members = federation.members
        confirmed = {client: members[client].confirm(masked[client][0], first) for client in (0, 1)}
        other = {client: members[client].confirm(masked[client][0], second) for client in (3, 4)}
        for named, confirmations in ((first, confirmed), (second, other), (first, {})):
            with pytest.raises(SecureSumRefused, match="fewer than the threshold, 3"):
                members[2].unmask(masked[2][0], named, confirmations)
        mixed = confirmed | {2: members[2].confirm(masked[2][0], second)}
        with pytest.raises(SecureSumRefused, match="list of survivors of client 2 is not signed"):
            members[0].unmask(masked[0][0], first, mixed)

    def test_two_lists_of_survivors_open_no_seed_twice(self) -> None:
        """Clients 0 and 1 are shown that 3 is absent, 2 and 3 that it survived; 4 helps the server.

        With threshold 4, five clients and one colluder, 2t > n + c: the server has three shares of
        each of client 3's seeds, one too few for either.
        """
        federation = self.federation()
        masked = federation.mask_all(federation.request([0, 1, 2, 3, 4]))
        members = federation.members
        without = signed(masked, [0, 1, 2, 4])
        first = [members[client].unmask(masked[client][0], without) for client in (0, 1)]
        everyone = signed(masked, range(5))
        second = [members[client].unmask(masked[client][0], everyone) for client in (2, 3)]
        colluder = masked[4][0]
        own = {one.client: one.survivors[3] for one in second} | {4: colluder.own_shares[3]}
        key = {one.client: one.absent[3] for one in first} | {4: colluder.key_shares[3]}
        assert len(own) == len(key) == 3
        assert join_shares(own, federation.candidates, 3) != federation.prepared[3].own_seed
        assert join_shares(key, federation.candidates, 3) != federation.prepared[3].key_seed

    def test_an_answer_never_has_both_shares_of_a_client(self) -> None:
        federation = self.federation()
        masked = federation.mask_all(federation.request([0, 1, 2, 3, 4]))
        for survivors in subsets([1, 2, 3, 4], 3):
            named = signed(masked, [0, *survivors])
            shares = federation.members[0].unmask(masked[0][0], named)
            assert not set(shares.survivors) & set(shares.absent)
            assert set(shares.survivors) | set(shares.absent) == set(range(5))


def test_a_masked_vector_is_uniform_whatever_it_hides() -> None:
    """Zeros and ones under fresh masks: bits of every place are fair, within 6 deviations."""
    federation = Federation(roster_of(5, 4))
    asked = federation.request([0, 1, 2, 3])
    letters = forward_letters(federation.sent.values())[0]
    for value in (0, 1, 2**31):
        vector = np.full(20_000, value, np.uint32)
        _, sent = federation.members[0].mask(vector, federation.prepared[0], asked, letters)
        ones = np.unpackbits(sent.residues.view(np.uint8)).mean()
        assert abs(ones - 0.5) < 6 * 0.5 / np.sqrt(32 * len(vector))


def test_shares_below_the_threshold_say_nothing() -> None:
    """Whatever the secret, any two of three shares are the same in law: here by their mean."""
    rng = np.random.default_rng(0)
    for secret in (bytes(16), b"\xff" * 16):
        drawn = [split_seed(secret, 3, [0, 1, 2, 3])[1] for _ in range(400)]
        ones = np.unpackbits(np.frombuffer(b"".join(drawn), np.uint8)).mean()
        assert abs(ones - 0.5) < 6 * 0.5 / np.sqrt(400 * 128)
    seed = rng.bytes(16)
    shares = split_seed(seed, 3, [5, 7, 8, 9])
    assert join_shares({k: shares[k] for k in (9, 5, 8)}, [5, 7, 8, 9], 3) == seed


class TestKnownAnswers:
    """The primitives are the standards' own."""

    @pytest.mark.parametrize(
        ("times", "expected"),
        [
            (1, "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"),
            (1000, "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"),
        ],
    )
    def test_x25519_as_in_rfc_7748(self, times, expected) -> None:
        """Section 5.2: the scalar becomes the point, and what comes out the next scalar."""
        scalar = point = (9).to_bytes(32, "little")
        for _ in range(times):
            private = X25519PrivateKey.from_private_bytes(scalar)
            result = private.exchange(X25519PublicKey.from_public_bytes(point))
            point = scalar
            scalar = result
        assert scalar.hex() == expected

    def test_chacha20_as_in_rfc_8439(self) -> None:
        key = bytes(32)
        first = expand_mask(key, 4, np.dtype(np.uint32)).tobytes()
        assert first == bytes.fromhex("76b8e0ada0f13d90405d6ae55386bd28")

    def test_hkdf_as_in_rfc_5869(self) -> None:
        secret = bytes.fromhex("0b" * 22)
        expected = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
        assert derive_key(secret, b"").hex() == expected

"""Plays the waves of a round for the coordinator of secure sums, and opens the round's sum.

In a round, clients are sent two messages: the request for their masked uploads, and the list of
survivors, to which they reply with shares and a preparation for the next round. Before the first
round come two more, for keys and a preparation. Where a roster needs it, a round has a third, for
confirmations.

A client that is absent when keys are exchanged takes no part until a later round finds it
connected; then keys are exchanged again, and everyone prepares again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from sordino.federation.integer_uploads import WrappedSum, open_residues
from sordino.flower.connected_clients import ConnectedClients
from sordino.flower.exchange import Exchange, expect_content
from sordino.flower.messages import SUMS, UPLOAD, MalformedMessage, read_upload
from sordino.flower.reply_collection import ReplyCollector
from sordino.flower.sum_forms import encode_body
from sordino.flower.sum_keys import LetterKeys
from sordino.flower.sum_messages import (
    ConfirmCall,
    ConfirmReply,
    Label,
    MaskCall,
    PrepareCall,
    PrepareReply,
    SumCall,
    UnmaskCall,
    UnmaskReply,
    read_sum_reply,
)
from sordino.flower.sum_waves import Waves
from sordino.protocol import Protocol, SecureAggregation
from sordino.secure_sums.key_roster import (
    SecureSumRefused,
    refuse_weak_key,
    verify_statement,
)
from sordino.secure_sums.members import MaskRequest, Preparation, Shares
from sordino.secure_sums.opening import TooFewContributions, forward_letters, open_sum

# Why a client cannot be summed with.
FEW_HOLDERS = "too few of those that hold its shares were left"
# Returns the request for a client's upload at a node, with how the upload is to be masked.
MakeRequest = Callable[[int, int, bytes], Message]


class _TooFewLeft(Exception):
    """Ends a round in which fewer clients than the threshold are left."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenedSum:
    """Holds what a round's secure sum came to.

    Attributes:
        total: The sum of the survivors' uploads, as residues; None where it was not opened.
        absent: The participants that are not in it, with the reasons.
    """

    total: np.ndarray | None
    absent: Mapping[int, str]


@dataclass(kw_only=True)
class SumRound:
    """Holds a round's secure sum under way. It grows from wave to wave.

    Attributes:
        label: The round.
        prepared: What clients have prepared for it.
        asked: What participants are asked, which they sign.
        vectors: The masked uploads that have come.
        signatures: Their senders' signatures over the request.
        absent: Participants that fell silent or refused, with the reasons.
    """

    label: Label
    prepared: Mapping[int, Preparation]
    asked: MaskRequest
    vectors: dict[int, np.ndarray] = field(default_factory=dict)
    signatures: dict[int, bytes] = field(default_factory=dict)
    absent: dict[int, str] = field(default_factory=dict)


class SecureRounds:
    """Opens one sum in a round. It holds the clients' keys and what they have prepared."""

    def __init__(
        self,
        protocol: Protocol,
        secure: SecureAggregation,
        grid: Grid,
        connected: ConnectedClients,
        exchange: Exchange,
    ) -> None:
        """Begins without keys; the first round exchanges them.

        Args:
            protocol: The federation that the machines train.
            secure: Its secure aggregation.
            grid: Flower's connection to the nodes.
            connected: Which node is which client.
            exchange: How rounds are requested.
        """
        self._protocol = protocol
        self._secure = secure
        self._grid = grid
        self._connected = connected
        self._exchange = exchange
        self._waves = Waves(grid, connected, exchange, secure.threshold)
        self._keys = LetterKeys(protocol, secure, connected, exchange, self._waves)
        self._attempt = -1
        # Rounds that were begun, so that a second try gets a label that no client has seen.
        self._tried: set[int] = set()
        # What clients have prepared, for the one round that it is for.
        self._label: Label | None = None
        self._prepared: dict[int, Preparation] = {}

    def sum_round(
        self,
        clients: Collection[int],
        round_index: int,
        common_digest: bytes,
        size: int,
        make_request: MakeRequest,
    ) -> OpenedSum:
        """Has clients' uploads summed.

        Args:
            clients: The participants that are connected.
            round_index: Number of the round, from 0.
            common_digest: Digest of what all of them are asked in common.
            size: The number of values in an upload.
            make_request: Makes the request for an upload.

        Returns:
            The sum; or none where too few were left, and the round is lost.
        """
        absent: dict[int, str] = {}
        try:
            under_way = self._begin_round(clients, round_index, common_digest, absent)
            self._collect_uploads(under_way, size, make_request)
            self._choose_survivors(under_way)
            answers = self._unmask(under_way, self._confirm(under_way))
            total = self._open(under_way, answers)
        except _TooFewLeft:
            return self._lose_round(clients, absent)
        # One client that misbehaves costs the round, which is charged, and not the training.
        except (TooFewContributions, WrappedSum) as error:
            return self._lose_round(clients, absent, f"the sum was not opened: {error}")
        return OpenedSum(total=total, absent=absent)

    def _begin_round(
        self,
        clients: Collection[int],
        round_index: int,
        common_digest: bytes,
        absent: dict[int, str],
    ) -> SumRound:
        """Has clients prepare, and fixes who takes part; notes who is absent, with the reasons."""
        newcomers = self._keys.find_newcomers()
        if newcomers:
            # What others have prepared has no letter to a newcomer, so a new label begins. A run
            # that is resumed continues after all labels that clients know.
            self._attempt = 1 + max(self._attempt, *newcomers)
        missing = self._keys.missing
        absent.update({client: missing[client] for client in clients if client in missing})
        self._require_threshold(set(clients) - set(absent))
        label = self._choose_label(round_index)
        absent.update(self._prepare([one for one in clients if one not in absent], label))
        ready = self._keys.graph.drop_thin(set(clients) - set(absent))
        for client in set(clients) - set(absent) - set(ready):
            absent[client] = FEW_HOLDERS
        self._require_threshold(ready)
        # From here on the participants are fixed: the list is in every mask and every signature.
        asked = MaskRequest(label=str(label), participants=tuple(ready), request=common_digest)
        return SumRound(label=label, prepared=self._prepared, asked=asked, absent=absent)

    def _require_threshold(self, left: Collection[Any]) -> None:
        """Ends the round if fewer are left than the threshold."""
        if len(left) < self._secure.threshold:
            raise _TooFewLeft

    def _choose_label(self, round_index: int) -> Label:
        """Returns the label of a round: another one each time that the round is tried."""
        if round_index in self._tried:
            self._attempt += 1
        self._tried.add(round_index)
        return Label(round=round_index, attempt=self._attempt)

    def _prepare(self, clients: Collection[int], label: Label) -> dict[int, str]:
        """Has clients prepare for a round; returns those that still have not, with the reasons."""
        if self._label != label:
            self._expect(label)
        lacking = [client for client in clients if client not in self._prepared]
        if not lacking:
            return {}
        # A client that lacks a preparation may lack the keys as well.
        call = PrepareCall(training=self._exchange.training, label=label, keys=self._keys.known)
        replies, absent = self._waves.ask(dict.fromkeys(lacking, call))
        for client, reply in replies.items():
            self._take_preparation(client, reply)
        for client in set(lacking) - set(self._prepared):
            absent.setdefault(client, "what it prepared is not for all its neighbours")
        return absent

    def _expect(self, label: Label) -> None:
        """Begins to collect preparations for a round; those for another one are forgotten."""
        self._label = label
        self._prepared = {}

    def _take_preparation(self, client: int, reply: PrepareReply) -> None:
        """Takes a client's preparation, if its neighbours can mask with it."""
        # A participant that gets no letter from this client refuses to mask, and the round is lost.
        # There may be more letters: clients write to all whose keys they know, also to one that is
        # absent since this process has been restarted.
        if not set(self._keys.graph.find_neighbours(client)) <= set(reply.letters):
            return
        try:
            refuse_weak_key(reply.mask_public, client, "key of the round")
        except SecureSumRefused:
            return
        self._prepared[client] = Preparation(
            client=client, mask_public=reply.mask_public, letters=reply.letters
        )

    def _collect_uploads(self, under_way: SumRound, size: int, make_request: MakeRequest) -> None:
        """Requests masked uploads, and takes those that are as they must be."""
        participants = under_way.asked.participants
        letters = forward_letters(under_way.prepared[client] for client in participants)
        # Letters differ from client to client; the request that they sign is the same.
        bodies = {}
        for client in participants:
            call = MaskCall(
                label=under_way.label, participants=participants, letters=letters[client]
            )
            bodies[client] = encode_body(call)
        collector = ReplyCollector(self._grid, self._connected, self._exchange.deadline)
        replies = collector.collect(
            participants, lambda client, node: make_request(client, node, bodies[client])
        )
        for client in participants:
            try:
                self._take_upload(under_way, client, replies.get(client), size)
            except (MalformedMessage, SecureSumRefused) as error:
                under_way.absent[client] = str(error)

    def _take_upload(
        self, under_way: SumRound, client: int, reply: Message | None, size: int
    ) -> None:
        """Takes one masked upload with its sender's signature, or raises an error with a reason."""
        arrived = expect_content(reply, self._exchange.deadline)
        records = frozenset({UPLOAD, SUMS})
        # Of the agreed width alone: another type would wrap around at another modulus.
        kind: np.dtype[Any] = np.dtype(f"uint{self._secure.bits}")
        vector = read_upload(arrived, size=size, dtype=kind, allowed=records)
        signed = read_sum_reply(arrived, ConfirmReply, set(records))
        # The other participants would refuse a list with a wrong signature on it.
        statement = under_way.asked.make_statement(self._keys.roster)
        verify_statement(self._keys.known[client], statement, signed.signature, "request")
        under_way.vectors[client] = vector
        under_way.signatures[client] = signed.signature

    def _choose_survivors(self, under_way: SumRound) -> None:
        """Leaves those out whose masks too few of the others could open, or ends the round."""
        # Where all are neighbours, each has too few holders if the threshold is not left. That is
        # no reason of any single client's, so it is looked at first.
        self._require_threshold(under_way.vectors)
        left = set(self._keys.graph.drop_thin(under_way.vectors))
        for client in set(under_way.vectors) - left:
            under_way.absent[client] = FEW_HOLDERS
            del under_way.vectors[client]
            del under_way.signatures[client]
        self._require_threshold(left)
        # A round that is repeated whole must not be opened in part.
        if self._protocol.missing == "repeat" and under_way.absent:
            raise _TooFewLeft

    def _confirm(self, under_way: SumRound) -> dict[int, bytes]:
        """Has survivors sign their list, where the roster needs it."""
        if not self._keys.roster.needs_confirmation:
            return {}
        call = ConfirmCall(
            training=self._exchange.training,
            label=under_way.label,
            survivors=under_way.signatures,
        )
        survivors = frozenset(under_way.vectors)
        replies, _ = self._waves.ask(dict.fromkeys(survivors, call), enough_of=survivors)
        # With fewer confirmations no client would give its shares (docs/theory.md#a19).
        self._require_threshold(replies)
        return {client: reply.signature for client, reply in replies.items()}

    def _unmask(self, under_way: SumRound, confirmations: Mapping[int, bytes]) -> list[Shares]:
        """Asks survivors for their shares; those and idle clients prepare for the next round."""
        label = under_way.label
        following = self._find_following(label)
        survivors = frozenset(under_way.vectors)
        calls: dict[int, SumCall] = {}
        if following is not None:
            # Those that sat this round out may be drawn for the next, and must prepare too.
            idle = set(self._connected.nodes) & set(self._keys.known)
            idle -= set(under_way.asked.participants)
            prepare = PrepareCall(
                training=self._exchange.training, label=following, keys=self._keys.known
            )
            # An absent client is not waited for a second time.
            calls.update(dict.fromkeys(idle - set(under_way.absent), prepare))
            # Before the wave is sent: its replies bring the preparations.
            self._expect(following)
        unmask = UnmaskCall(
            training=self._exchange.training,
            label=label,
            survivors=under_way.signatures,
            confirmations=confirmations,
            following=following,
        )
        calls.update(dict.fromkeys(survivors, unmask))
        replies, _ = self._waves.ask(calls, enough_of=survivors)
        answers = []
        for client, reply in replies.items():
            preparation = reply if client not in survivors else reply.following
            if preparation is not None:
                self._take_preparation(client, preparation)
            # A reply that lacks a share does not open the sum; the threshold of others will do.
            if client in survivors and self._has_all_shares(under_way, client, reply):
                answers.append(
                    Shares(client=client, survivors=reply.own_shares, absent=reply.key_shares)
                )
        self._require_threshold(answers)
        return answers

    def _has_all_shares(self, under_way: SumRound, client: int, reply: UnmaskReply) -> bool:
        """Returns whether a reply has a share for each that its sender holds for, and no other."""
        held = {one for one in under_way.asked.participants if self._keys.graph.holds(client, one)}
        survivors = set(under_way.vectors)
        return (set(reply.own_shares), set(reply.key_shares)) == (
            held & survivors,
            held - survivors,
        )

    def _find_following(self, label: Label) -> Label | None:
        """Returns the label of the next round; None after the last."""
        if label.round + 1 >= self._protocol.rounds:
            return None
        return Label(round=label.round + 1, attempt=label.attempt)

    def _open(self, under_way: SumRound, answers: list[Shares]) -> np.ndarray:
        """Returns the sum, as residues, or raises an error where it is none."""
        total = open_sum(
            self._keys.roster,
            asked=under_way.asked,
            preparations=under_way.prepared,
            graph=self._keys.graph,
            vectors=under_way.vectors,
            answers=answers,
        )
        if self._protocol.grid is not None:
            # A sum beyond what updates can reach would end the training where it is joined.
            open_residues(total, self._protocol.grid)
        return total

    def _lose_round(
        self, clients: Collection[int], absent: Mapping[int, str], reason: str = ""
    ) -> OpenedSum:
        """Returns that a round's sum is not opened: everybody counts as absent."""
        left = len(clients) - len(absent)
        reason = reason or (
            f"its upload stayed under masks: of {len(clients)} clients {left} were left, and the "
            f"threshold is {self._secure.threshold}"
        )
        return OpenedSum(total=None, absent=dict.fromkeys(clients, reason) | dict(absent))

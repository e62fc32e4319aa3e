"""Reads and writes a client's folder, which is on the client's own machine.

agreement.toml   what was agreed to in addition to the protocol: budget, data, the app that may run
protocol.toml    the protocol that was agreed to
accepted.json    the training that uses the agreement, and how many rounds the budget allows
ledger.jsonl     what was spent and what was refused
answers/         the last uploads with what the client keeps, each whole or absent
secure_sums.json keys and seeds of secure sums, and the shares that were given

The order of writes is: decide, bind, charge, work, keep, note the upload's digest in the ledger,
send. A round that is charged and has no digest was never sent, so it may be computed. One with a
digest is sent again bit for bit while the upload is kept, and refused when it is not: no round
ever gets noise twice. A refusal changes nothing but the list of refusals.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sordino.federation.store.files import (
    hold_lock,
    write_whole,
    writing,
)
from sordino.flower.agreement import (
    Agreement,
    make_own_budget,
    read_agreement,
    state_model_size,
)
from sordino.flower.client_folder import ANSWERS, LEDGER, make_client_folder
from sordino.flower.foreign_words import print_safely
from sordino.flower.kept_answers import Answer, KeptAnswers
from sordino.flower.ledger_counter import (
    check_counter,
    require_writable,
    write_counter,
)
from sordino.flower.upload_requests import Request, RequestRefused
from sordino.privacy.ledger import Ledger, read_ledger
from sordino.privacy.ledger_lines import (
    Answered,
    Event,
    Refused,
    RoundCharged,
    SharesGiven,
    SumEvent,
)
from sordino.protocol import Protocol, UserError, dumps, loads_kept, read_protocol
from sordino.protocol.arithmetic import read_as_kept

if TYPE_CHECKING:
    from sordino.privacy.guarantee import Guarantee

# Refusals that are written down. A server that asks for nonsense must not fill the disk, or make
# the ledger slow to read.
LOGGED_REFUSALS = 1000
# Characters of a refusal's reason that are written down.
REASON_LENGTH = 300
# Seconds that a refusal waits for another process that holds the folder.
REFUSAL_PATIENCE = 60.0


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """Describes the training that an agreement is used for.

    Attributes:
        training: Its name.
        protocol: Its protocol, as TOML.
        terms: Digest of the agreement, so that a changed budget is noticed.
        cap: How many rounds the client's budget allows.
    """

    training: str
    protocol: str
    terms: str
    cap: int


class ClientStore:
    """Reads and writes a client's folder. Hold the folder with `hold_folder` while writing."""

    def __init__(self, folder: Path) -> None:
        """Opens a folder.

        Args:
            folder: The client's folder.

        Raises:
            UserError: It holds no agreement that can be read.
        """
        self.folder = folder
        self.agreement = read_agreement(folder)
        self.answers = KeptAnswers(folder / ANSWERS)
        self.agreed = read_as_kept(read_protocol(folder / "protocol.toml"))

    @classmethod
    def create(cls, folder: Path, agreement: Agreement, protocol: Protocol) -> ClientStore:
        """Creates the folder of a client that agrees to a protocol.

        Args:
            folder: The folder.
            agreement: What the client agrees to.
            protocol: The protocol that it agrees to.

        Returns:
            The store.

        Raises:
            UserError: The folder holds an agreement already, or noise from a seed was not allowed.
        """
        make_client_folder(folder, agreement, protocol)
        return cls(folder)

    @property
    def events(self) -> tuple[Event, ...]:
        """All entries of the client's ledger."""
        return read_ledger(self.folder / LEDGER).events

    @property
    def rounds_paid(self) -> list[int]:
        """The rounds that were charged, in order."""
        return [event.round for event in self.events if isinstance(event, RoundCharged)]

    @property
    def refusals(self) -> list[Refused]:
        """The requests that were refused."""
        return [event for event in self.events if isinstance(event, Refused)]

    @property
    def upload_digests(self) -> dict[int, str]:
        """The digest of every upload that was, or was about to be, sent, by its round."""
        return {event.round: event.upload for event in self.events if isinstance(event, Answered)}

    @property
    def shares_given(self) -> list[SharesGiven]:
        """The secure sums for which shares were, or were about to be, given."""
        return [event for event in self.events if isinstance(event, SharesGiven)]

    def has_open_charge(self, round_index: int) -> bool:
        """Returns whether a round was charged for an upload that was never noted, nor sent.

        Args:
            round_index: Number of the round, from 0.
        """
        charged = self.rounds_paid.count(round_index)
        noted = [event.round for event in self.events if isinstance(event, Answered)]
        return charged > noted.count(round_index)

    @contextmanager
    def hold_folder(self, *, patience: float = 0.0) -> Iterator[None]:
        """Holds the folder, so that one process answers at a time.

        Args:
            patience: Seconds to wait for another process to let go of it.

        Yields:
            Nothing.

        Raises:
            UserError: Another process holds it.
        """
        # Two processes could otherwise both find a round unpaid, and add noise to it twice.
        with hold_lock(self.folder, patience=patience):
            yield

    def charge_round(self, round_index: int) -> None:
        """Writes the charge of a round to the ledger.

        Args:
            round_index: Number of the round, from 0.
        """
        with self._open_ledger() as ledger:
            ledger.charge(round=round_index, clients=[self.agreement.client])

    def refuse(self, round_index: int, reason: str) -> RequestRefused:
        """Writes a refusal to the ledger. The folder must be held.

        Args:
            round_index: The round that was requested.
            reason: Why it is refused.

        Returns:
            The error to raise.
        """
        # It may quote what the server sent, and is shown on this machine's terminals.
        words = print_safely(reason, len(reason))
        with self._open_ledger() as ledger:
            # Requests beyond the limit are refused all the same; only the list stops growing.
            if sum(isinstance(event, Refused) for event in ledger.events) < LOGGED_REFUSALS:
                ledger.note_refusal(round=round_index, reason=words[:REASON_LENGTH])
        return RequestRefused(words)

    def refuse_unheld(self, reason: str) -> RequestRefused:
        """Holds the folder and writes a refusal to the ledger.

        Args:
            reason: Why the request is refused.

        Returns:
            The error to raise, also where the folder cannot be held to write it down.
        """
        try:
            with self.hold_folder(patience=REFUSAL_PATIENCE):
                return self.refuse(0, reason)
        # A refusal must be sent even while another process works in the folder.
        except UserError:
            return RequestRefused(reason)

    @contextmanager
    def _open_ledger(self) -> Iterator[Ledger]:
        path = self.folder / LEDGER
        # Checked at every opening: a folder that was restored while a node runs is noticed as well.
        self.check_counter()
        with writing(path), Ledger.resume(path) as ledger:
            yield ledger
        self._update_counter()

    def _update_counter(self) -> None:
        """Notes in the second place how far the ledger has come."""
        if self.agreement.counter is not None:
            write_counter(Path(self.agreement.counter), self.folder / LEDGER)

    def check_counter(self) -> None:
        """Checks that the folder is not an older copy of itself.

        Raises:
            RequestRefused: It is. Nothing is written down: the ledger cannot be trusted.
        """
        if self.agreement.counter is None:
            return
        try:
            check_counter(Path(self.agreement.counter), self.folder / LEDGER)
        except UserError as error:
            raise RequestRefused(str(error)) from None

    def check_second_place(self) -> None:
        """Checks, before a node is started, that it would answer: its counter fits and can be kept.

        Raises:
            UserError: The ledger is not the one that its counter knows, or the counter is gone or
                cannot be written.
        """
        if self.agreement.counter is None:
            return
        counter = Path(self.agreement.counter)
        check_counter(counter, self.folder / LEDGER)
        require_writable(counter)

    def keep_answer(
        self,
        request: Request,
        run: str,
        vector: np.ndarray,
        kept: Mapping[str, np.ndarray],
        sum_attempt: int | None = None,
    ) -> Answer:
        """Keeps an upload and notes its digest, before it is sent.

        Args:
            request: The request that it answers.
            run: The run on Flower.
            vector: The upload.
            kept: What the client keeps after it.
            sum_attempt: The attempt at the round's secure sum; None without masks.

        Returns:
            The answer.
        """
        answer = Answer(
            round=request.round,
            request=request.digest,
            run=run,
            attempt=request.attempt,
            vector=vector,
            kept=kept,
            sum_attempt=sum_attempt,
        )
        # Kept before it is noted: a digest without an upload would lose the round for good.
        self.answers.write(answer)
        self.note_answer(answer)
        self.answers.forget_older(answer.round)
        return answer

    def note_answer(self, answer: Answer) -> None:
        """Writes the digest of an upload to the ledger.

        Args:
            answer: The upload.
        """
        with self._open_ledger() as ledger:
            ledger.note_answer(round=answer.round, upload=answer.digest, attempt=answer.sum_attempt)

    def note_sum(self, event: SumEvent) -> None:
        """Writes to the ledger what the client is about to give for a secure sum.

        Args:
            event: The training that a key is given in, the list that is signed, or the sum that
                shares are given for.
        """
        with self._open_ledger() as ledger:
            ledger.note_sum(event)

    def renew_answer(self, answer: Answer, run: str, attempt: int) -> Answer:
        """Returns a kept upload for another request of the same round.

        Args:
            answer: The upload.
            run: The run on Flower that requests it again.
            attempt: How often it had been requested before in that run.
        """
        # The second place may have been full when the digest was noted: nothing leaves before it
        # is up to date.
        self.check_counter()
        self._update_counter()
        renewed = replace(answer, run=run, attempt=attempt)
        self.answers.write(renewed)
        return renewed

    def read_state(self) -> dict[str, np.ndarray]:
        """Returns what the client has kept from its last round."""
        rounds = self.answers.rounds
        if not rounds:
            return {}
        return dict(self.answers.read(max(rounds)).kept)

    @property
    def terms(self) -> str:
        """Digest of the agreement and of the protocol that was agreed to."""
        agreement = (self.folder / "agreement.toml").read_bytes()
        return hashlib.sha256(agreement + dumps(self.agreed).encode()).hexdigest()

    def read_accepted(self) -> Accepted | None:
        """Returns the training that the agreement is bound to.

        Returns:
            The training; None before the first charge.

        Raises:
            UserError: Its file is damaged, or gone though rounds were charged.
        """
        path = self.folder / "accepted.json"
        if not path.exists():
            # Another training would price what was spent under this one by its own noise.
            if self.rounds_paid:
                raise UserError(
                    f"{path} is gone, which says under which protocol rounds were charged. Put it "
                    "back; without it this client answers nothing."
                )
            return None
        try:
            return Accepted(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError):
            raise UserError(
                f"{path} is damaged. Put it back; without it this client answers nothing."
            ) from None

    def write_accepted(self, accepted: Accepted) -> None:
        """Binds the agreement to a training.

        Args:
            accepted: The training.
        """
        if accepted == self.read_accepted():
            return
        path = self.folder / "accepted.json"
        with writing(path):
            write_whole(path, (json.dumps(vars(accepted), indent=2) + "\n").encode())

    def compute_guarantee(self, rounds: Sequence[int] | None = None) -> Guarantee:
        """Returns what the server learns at most from the client's uploads.

        Args:
            rounds: The rounds; by default those that were charged.
        """
        # It takes a while to load, and most requests do not need it.
        from sordino.privacy.participation_caps import own_guarantee

        accepted = self.read_accepted()
        protocol = self.agreed
        if accepted is not None:
            protocol = loads_kept(accepted.protocol)
        if rounds is None:
            rounds = self.rounds_paid
        protocol = state_model_size(protocol, self.agreement)
        budget = make_own_budget(self.agreement, protocol)
        return own_guarantee(protocol, budget, rounds, self.agreement.records)

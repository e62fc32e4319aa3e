"""A client's folder, on the client's own machine: what it agreed to, what it has spent, what it has sent, what it keeps.

agreement.toml   what was agreed to beside the protocol: budget, data, which code may run
protocol.toml    the protocol that was agreed to
accepted.json    the training that the agreement is being used for, and how many rounds the budget allows
ledger.jsonl     what was spent and what was refused; a round's line is on disk before its upload is computed
answers/         the last uploads with what the client keeps, whole or absent; on disk before an upload is sent

The order is: decide, bind, charge, work, keep, note the upload's digest in the ledger, send. A round that is charged and has no digest was
never sent, so it may be computed. One with a digest is sent again bit for bit while the upload is kept, and is refused when it is not: no
round is ever noised twice. Whatever is refused changes nothing but the list of refusals.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sordino.engines.flower.agreement import (
    Agreement,
    limits_on,
    own_budget,
    read_agreement,
    refuse_across_machines,
    weaker,
    write_agreement,
)
from sordino.engines.flower.counter import check_counter, write_counter
from sordino.engines.flower.requests import HELPER, MODEL_TYPE, Request, RequestRefused
from sordino.federation.folder import as_json, protocol_digest
from sordino.federation.randomness import GENERATOR
from sordino.federation.storage import arrays_digest, held, pack, unpack, write_whole, writing
from sordino.privacy.ledger import Answered, Event, Ledger, Opened, Refused, RoundCharged
from sordino.privacy.ledger import read as read_ledger
from sordino.protocol import Attention, Protocol, Scaffold, UserError, dumps, loads, read
from sordino.protocol.version import own_version

if TYPE_CHECKING:
    from sordino.privacy.guarantee import Guarantee

ANSWERS = 2  # uploads that are kept: a server may go back to its checkpoint before the last
REFUSALS = 1000  # that are written down: a server that asks for nonsense must not fill the disk, or make the ledger slow to read
PATIENCE = 60.0  # seconds that a refusal waits for a client that is at work
VECTOR, KEPT = "vector", "kept/"


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """The training that an agreement is used for: its name, its protocol, and how many rounds the client's budget allows.

    `terms` is a digest of what was agreed to, so that a budget that the client changes is looked at again.
    """

    training: str
    protocol: str
    terms: str
    cap: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """An upload that was computed, for which request, in which run on Flower, and what the client keeps after it."""

    round: int
    request: str
    run: str
    attempt: int
    vector: np.ndarray
    kept: Mapping[str, np.ndarray]

    @property
    def digest(self) -> str:
        """SHA-256 of the upload."""
        return arrays_digest({VECTOR: self.vector})


class Custodian:
    """Decides for one client what it answers. It holds the client's folder: use `at_work` as a context."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agreement = read_agreement(folder)
        self.agreed = read(folder / "protocol.toml")

    @classmethod
    def create(cls, folder: Path, agreement: Agreement, protocol: Protocol) -> Custodian:
        """Make the folder of a client that agrees to a protocol; one that holds an agreement already is refused."""
        refuse_across_machines(protocol)
        if not protocol.noise.secure and not agreement.seeded:
            raise UserError(
                "noise.secure = false: whoever knows the seed can subtract the noise. Set noise.secure = true, or for a test agree to it "
                "with --seeded."
            )
        if (folder / "ledger.jsonl").exists():
            raise UserError(
                f"{folder} holds an agreement already: choose another folder. What it spent is in its ledger."
            )
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            (folder / "answers").mkdir(exist_ok=True)
            write_whole(folder / "protocol.toml", dumps(protocol).encode())
            write_agreement(agreement, folder)
            noise = "fresh" if protocol.noise.secure else "seeded"
            opened = Opened(protocol=protocol_digest(protocol), generator=GENERATOR, noise=noise)
            Ledger.create(folder / "ledger.jsonl", opened).close()
            if agreement.counter is not None:
                write_counter(Path(agreement.counter), folder / "ledger.jsonl")
        return cls(folder)

    @property
    def events(self) -> tuple[Event, ...]:
        """All entries of the client's ledger."""
        return read_ledger(self.folder / "ledger.jsonl").events

    @property
    def rounds_paid(self) -> list[int]:
        """The rounds that were paid for, in order."""
        return [event.round for event in self.events if isinstance(event, RoundCharged)]

    @property
    def refusals(self) -> list[Refused]:
        """What was asked for and refused."""
        return [event for event in self.events if isinstance(event, Refused)]

    @contextmanager
    def at_work(self, *, patience: float = 0.0) -> Iterator[None]:
        """Hold the folder: one process answers at a time. Another one is given `patience` seconds to end."""
        with held(self.folder, patience=patience):
            yield

    def admit(self, request: Request, run: str) -> Answer | None:
        """Decide on a request: pay for it (None: compute the upload), find the upload that was sent before, or refuse.

        Args:
            request: what is asked.
            run: the run on Flower in which it is asked.

        Raises:
            RequestRefused: the reason is in the ledger by then.
        """
        accepted = self._accepted(request)
        earlier = self._earlier(request, run)
        if earlier is not None:
            return earlier
        self._refuse_unfit(request, loads(accepted.protocol))
        # A crash may have come between the charge and the upload: it is not charged again.
        if request.round not in self.rounds_paid:
            self.pay(request.round, accepted)
        return None

    def pay(self, round: int, accepted: Accepted) -> None:
        """Binds the agreement to a training and charges a round of it.

        Args:
            round: the round.
            accepted: the training, with the number of rounds that the client's budget allows.

        Raises:
            RequestRefused: the budget is spent. Nothing is bound then.
        """
        cap = accepted.cap
        if len(self.rounds_paid) >= cap:
            epsilon, delta = self.agreement.epsilon, self.agreement.delta
            limit = (
                "agreement"
                if epsilon is None
                else f"budget (epsilon = {epsilon} at delta = {delta:g})"
            )
            raise self.refused(
                round,
                f"its {limit} allows {cap} rounds{', and they are spent' if cap > 0 else ' of this'}",
            )
        self._bind(accepted)
        with self._ledger() as ledger:
            ledger.charge(round=round, clients=[self.agreement.client])

    def _refuse_unfit(self, request: Request, protocol: Protocol) -> None:
        """Refuses models that cannot be trained on, before anything is bound or charged."""
        size = self.agreement.parameters
        for name, array in request.arrays.items():
            fits = array.ndim > 0 and array.size > 0 and size in (None, array.shape[-1])
            shaped = array.dtype == MODEL_TYPE and array.shape[:-1] in rows_allowed(protocol, name)
            if not (fits and shaped) or not np.isfinite(array).all():
                wanted = "" if size is None else f"{size} "
                raise self.refused(
                    request.round,
                    f"a {name} of {array.dtype} numbers of shape {array.shape} was sent; expected "
                    f"are {wanted}finite {MODEL_TYPE} numbers",
                )
        from sordino.engines.flower.work import refuse_coarse  # brings torch, as the work will

        received = list(request.arrays.values())
        try:
            refuse_coarse(protocol, request.round, self.agreement.records or 1, received)
        except UserError as error:
            raise self.refused(request.round, str(error)) from None

    def refused(self, round: int, reason: str) -> RequestRefused:
        """Write down what was asked for and is not answered; returns what is to be raised. The folder must be held."""
        with self._ledger() as ledger:
            if sum(isinstance(event, Refused) for event in ledger.events) < REFUSALS:
                ledger.refuse(round=round, reason=reason[:300])
        return RequestRefused(reason)

    def turned_away(self, reason: str) -> RequestRefused:
        """As `refused`, for who does not hold the folder. It is refused all the same where the folder cannot be had to write it down."""
        try:
            with self.at_work(patience=PATIENCE):
                return self.refused(0, reason)
        except UserError:
            return RequestRefused(reason)

    @contextmanager
    def _ledger(self) -> Iterator[Ledger]:
        path = self.folder / "ledger.jsonl"
        self.check_counter()
        with writing(path), Ledger.resume(path) as ledger:
            yield ledger
        self._note_head()

    def _note_head(self) -> None:
        """Notes in the second place how far the ledger has come."""
        if self.agreement.counter is not None:
            write_counter(Path(self.agreement.counter), self.folder / "ledger.jsonl")

    def check_counter(self) -> None:
        """Checks that the folder is not an older copy of itself.

        Raises:
            RequestRefused: it is. Nothing is written down: the ledger is not to be trusted.
        """
        if self.agreement.counter is None:
            return
        try:
            check_counter(Path(self.agreement.counter), self.folder / "ledger.jsonl")
        except UserError as error:
            raise RequestRefused(str(error)) from None

    def keep(
        self, request: Request, run: str, vector: np.ndarray, kept: Mapping[str, np.ndarray]
    ) -> Answer:
        """Keep an upload and what the client keeps with it, and note its digest, before it is sent."""
        answer = Answer(
            round=request.round,
            request=request.digest,
            run=run,
            attempt=request.attempt,
            vector=vector,
            kept=kept,
        )
        self._write(answer)
        self._note_answered(answer)
        for old in sorted(self._rounds_kept())[:-ANSWERS]:
            self._answer_path(old).unlink()
        return answer

    def _note_answered(self, answer: Answer) -> None:
        with self._ledger() as ledger:
            ledger.answer(round=answer.round, upload=answer.digest)

    @property
    def _answered(self) -> dict[int, str]:
        """The digest of every upload that was, or was about to be, sent, by its round."""
        return {event.round: event.upload for event in self.events if isinstance(event, Answered)}

    def state(self) -> dict[str, np.ndarray]:
        """What the client has kept from its last round."""
        rounds = self._rounds_kept()
        return dict(self._read(max(rounds)).kept) if rounds else {}

    def judge(self, training: str, protocol: str, round: int = 0) -> Accepted:
        """Decides whether a training is one that was agreed to. Nothing is written but refusals.

        Args:
            training: its name.
            protocol: its protocol, as TOML.
            round: the round that is asked for, for the ledger.

        Returns:
            The training that the agreement is bound to already, unless its terms have changed
            since, or else this one.

        Raises:
            RequestRefused: the protocol is weaker than agreed.
        """
        known = self._read_accepted()
        if known is not None and known.terms == self._terms():
            return known
        if (
            known is not None
        ):  # the client has changed its mind: the training goes on under the new terms, or not at all
            training, protocol = known.training, known.protocol
        try:
            asked = loads(protocol)
        except UserError as error:
            raise self.refused(round, f"its protocol cannot be read: {error}") from None
        reason = weaker(self.agreed, asked, self.agreement)
        if reason is not None:
            raise self.refused(round, reason)
        if not asked.noise.secure and not self.agreement.seeded:
            raise self.refused(
                round,
                "noise.secure = False was asked for: whoever knows the seed could subtract the noise",
            )
        return Accepted(
            training=training, protocol=protocol, terms=self._terms(), cap=self.afforded(asked)
        )

    def _bind(self, accepted: Accepted) -> None:
        """Writes down the training that is about to be paid for."""
        if accepted == self._read_accepted():
            return
        with writing(self.folder / "accepted.json"):
            write_whole(self.folder / "accepted.json", as_json(vars(accepted)))

    def _accepted(self, request: Request) -> Accepted:
        """The training that is paid for, if this request belongs to it."""
        asked = request.round
        if request.client != self.agreement.client:
            raise self.refused(
                asked,
                f"client {request.client} was asked for, and this is client {self.agreement.client}",
            )
        version = self.agreement.version
        if version is not None and version != own_version():
            raise self.refused(
                asked,
                f"this machine runs Sordino {own_version()}, and the agreement was made with "
                f"{version}: its operator must look at the protocol again",
            )
        known = self.judge(request.training, request.protocol, asked)
        if request.training != known.training:
            raise self.refused(asked, "the agreement is for one training, and this is another")
        if request.protocol != known.protocol:
            raise self.refused(
                asked,
                f"the protocol was changed: {self._changed(request.protocol, known.protocol)}",
            )
        if asked >= loads(known.protocol).rounds:
            raise self.refused(asked, f"round {asked} is past the last one")
        return known

    def afforded(self, protocol: Protocol) -> int:
        """How many rounds of a protocol the client's budgets allow, against a server that sees its uploads."""
        budgets = limits_on(self.agreement, protocol)
        if not budgets:
            return protocol.rounds
        from sordino.privacy.caps import (
            capped_rounds,
        )  # takes a while to load, and is asked once in a training

        return min(capped_rounds(protocol, budget, self.agreement.records) for budget in budgets)

    def guarantee(self, rounds: Sequence[int] | None = None) -> Guarantee:
        """What the server learns at most from these rounds; by default from those that were paid for."""
        from sordino.privacy.caps import own_guarantee

        accepted = self._read_accepted()
        protocol = self.agreed if accepted is None else loads(accepted.protocol)
        paid = self.rounds_paid if rounds is None else rounds
        return own_guarantee(
            protocol, own_budget(self.agreement, protocol), paid, self.agreement.records
        )

    def _changed(self, asked: str, accepted: str) -> str:
        try:
            reason = weaker(loads(accepted), loads(asked), self.agreement)
        except UserError:
            reason = None
        return reason or "it is not the one that this training began with"

    def _earlier(self, request: Request, run: str) -> Answer | None:
        """The upload that was computed for this very request, asked for again by a server that lost it.

        In one run the server must say that it asks again; whatever else asks twice for a round is refused.
        """
        asked, last = request.round, max(self.rounds_paid, default=-1)
        if asked in self._rounds_kept():
            answer = self._read(asked)
            noted = self._answered.get(asked)
            if noted is None:
                self._note_answered(answer)  # a crash came between the two
            elif noted != answer.digest:
                raise self.refused(asked, f"what is kept of round {asked} is not what was sent")
            again = answer.run != run or request.attempt > answer.attempt
            if answer.request == request.digest and again:
                return self._sent_again(answer, run, request.attempt)
            raise self.refused(asked, f"round {asked} was answered already")
        if asked < last or asked in self._answered:
            once = asked in self.rounds_paid
            reason = (
                "was answered already, and what was sent is no longer kept"
                if once
                else f"is over: round {last} was answered already"
            )
            raise self.refused(asked, f"round {asked} {reason}")
        return None

    def _sent_again(self, answer: Answer, run: str, attempt: int) -> Answer:
        # The second place may have been full when the digest was noted: nothing leaves before it knows.
        self.check_counter()
        self._note_head()
        renewed = Answer(**{**vars(answer), "run": run, "attempt": attempt})
        self._write(renewed)
        return renewed

    def _terms(self) -> str:
        return hashlib.sha256(
            (self.folder / "agreement.toml").read_bytes() + dumps(self.agreed).encode()
        ).hexdigest()

    def _read_accepted(self) -> Accepted | None:
        path = self.folder / "accepted.json"
        if not path.exists():
            return None
        try:
            return Accepted(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError):
            raise UserError(
                f"{path} is damaged. Put it back; without it this client answers nothing."
            ) from None

    def _answer_path(self, round: int) -> Path:
        return self.folder / "answers" / f"{round}.safetensors"

    def _rounds_kept(self) -> list[int]:
        return [int(path.stem) for path in (self.folder / "answers").glob("*.safetensors")]

    def _write(self, answer: Answer) -> None:
        facts: dict[str, Any] = {
            "round": answer.round,
            "request": answer.request,
            "run": answer.run,
            "attempt": answer.attempt,
        }
        arrays = {
            VECTOR: answer.vector,
            **{KEPT + name: array for name, array in answer.kept.items()},
        }
        with writing(self._answer_path(answer.round)):
            write_whole(self._answer_path(answer.round), pack(arrays, facts))

    def _read(self, round: int) -> Answer:
        path = self._answer_path(round)
        try:
            arrays, facts = unpack(path.read_bytes())
            kept = {
                name.removeprefix(KEPT): array
                for name, array in arrays.items()
                if name.startswith(KEPT)
            }
            return Answer(**facts, vector=arrays[VECTOR], kept=kept)
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(
                f"{path} is damaged. Put it back; without it this client answers nothing."
            ) from None


def rows_allowed(protocol: Protocol, name: str) -> tuple[tuple[int, ...], ...]:
    """Returns the shapes, but for the number of weights, of what a server of a protocol sends.

    A vector has none; beside a model, a second row has the client's correction or the leader's model.

    Args:
        protocol: what is run.
        name: of the array.
    """
    if name == HELPER:
        return ((),) if isinstance(protocol.personalization, Attention) else ()
    if isinstance(protocol.local, Scaffold):
        return ((2,),)
    return ((), (2,)) if protocol.penalty else ((),)

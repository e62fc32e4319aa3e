"""For any Flower app: one mod that clips what a client sends, adds noise, keeps the client's ledger and stops at its budget.

    app = ClientApp(mods=[private_updates(clip=1.0, sigma=4.0, epsilon=8.0, folder="~/privacy")])

A reply to `train` leaves with the model and the number of examples, and nothing else; every other message is refused, since what is
computed from private records there is covered by nothing. The ledger outlives runs: a second training on the same records goes on where
the first one stopped.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode

from sordino.engines.flower.messages import arrays_of, records_of
from sordino.federation.folder import as_json, protocol_digest
from sordino.federation.randomness import GENERATOR, Key, Purpose
from sordino.federation.storage import held, write_whole, writing
from sordino.privacy.ledger import Event, Ledger, Opened, RoundCharged
from sordino.privacy.ledger import read as read_ledger
from sordino.protocol import ClientBudget, Constant, FedAvg, Gaussian, NoisySgd, Protocol, SordinoError, UserError

LOG = logging.getLogger("flwr")
PUBLIC = ("num-examples",)  # what Flower's strategies weigh by; a size is public where one record is replaced by another


def private_updates(
    *, clip: float, sigma: float, folder: str | Path, epsilon: float | None = None, delta: float = 1e-5, most: int = 10_000
) -> PrivacyMod:
    """Mod for any ClientApp: the update of a round is clipped as a whole, and gets normal noise from this machine's own entropy.

    All records of the client are hidden, and so is each of them.

    Args:
        clip: largest l2 norm of an update.
        sigma: standard deviation of the noise on every coordinate; replacing the client moves an update by up to 2 clip.
        folder: where the client's ledger is kept.
        epsilon: the client answers no more once the next round would pass it; None: no limit.
        delta: at this delta.
        most: rounds that are ever answered.

    Example:
        >>> app = ClientApp(mods=[private_updates(clip=1.0, sigma=4.0, epsilon=8.0, folder="~/privacy")])  # doctest: +SKIP
    """
    rule = FedAvg(steps=1, batch=1, clip=clip, clip_target="update", schedule=Constant(rate=1.0))
    protocol = Protocol(clients=1, rounds=most, local=rule, noise=Gaussian(sigma=sigma, secure=True))
    return PrivacyMod(protocol, folder, epsilon=epsilon, delta=delta, unit="client", records=None)


def private_steps(
    *,
    steps: int,
    batch: int,
    records: int,
    multiplier: float,
    folder: str | Path,
    sampling: str = "poisson",
    unit: str = "record",
    epsilon: float | None = None,
    delta: float = 1e-5,
    most: int = 10_000,
) -> PrivacyMod:
    """Mod for a ClientApp that trains by noisy steps of its own (DP-SGD, as Opacus does): each round is priced, and the budget kept.

    The noise is in the app's steps, and that it is there is vouched for by the app. Model buffers that no noise touches must not be sent.

    Args:
        steps: noisy steps in a round.
        batch: examples in a step; expected ones, if drawn by Poisson sampling.
        records: records of the client.
        multiplier: noise on a sum of clipped gradients over their norm bound; over twice that bound for sampling "fixed".
        folder: where the client's ledger is kept.
        sampling: "poisson" or "fixed".
        unit: what is hidden: "record" or "client".
        epsilon: the client answers no more once the next round would pass it; None: no limit.
        delta: at this delta.
        most: rounds that are ever answered.

    Example:
        >>> app = ClientApp(mods=[private_steps(steps=50, batch=32, records=600, multiplier=1.1, folder="~/privacy")])  # doctest: +SKIP
    """
    rule = NoisySgd(steps=steps, batch=batch, clip=1.0, schedule=Constant(rate=1.0), sampling=sampling)
    protocol = Protocol(clients=1, rounds=most, local=rule, noise=Gaussian(multiplier=multiplier, secure=True))
    return PrivacyMod(protocol, folder, epsilon=epsilon, delta=delta, unit=unit, records=records)


class ReleaseRefused(SordinoError):
    """The client does not answer; the reason is in its ledger."""


class PrivacyMod:
    """A Flower mod around any ClientApp. What it holds is on disk, in the client's folder."""

    def __init__(
        self, protocol: Protocol, folder: str | Path, *, epsilon: float | None, delta: float, unit: str, records: int | None
    ) -> None:
        self._protocol, self._records = protocol, records
        self._folder = Path(folder).expanduser()
        self._budget = None if epsilon is None else ClientBudget(id=0, epsilon=epsilon, delta=delta, unit=unit)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """See Flower's mods."""
        try:
            self._open()
            with held(self._folder):
                return self._answered(message, context, call_next)
        except ReleaseRefused as refusal:
            LOG.warning("refused: %s", refusal)
            return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, f"it refused: {refusal}"), reply_to=message)
        except Exception as error:
            # What went wrong may show in its words what is in the client's records, so the words stay here.
            LOG.error("the client failed: %s", error, exc_info=None if isinstance(error, SordinoError) else error)
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "it failed; its own log says why"), reply_to=message)

    @property
    def events(self) -> tuple[Event, ...]:
        """All entries of the client's ledger."""
        return read_ledger(self._ledger_path).events

    @property
    def releases(self) -> int:
        """How many rounds were paid for, in all runs."""
        return sum(isinstance(event, RoundCharged) for event in self.events)

    @property
    def cap(self) -> int:
        """How many rounds the budget allows, in all runs."""
        if self._budget is None:
            return self._protocol.rounds
        path, terms = self._folder / "cap.json", hashlib.sha256(repr((self._protocol, self._budget, self._records)).encode()).hexdigest()
        if path.exists() and (known := json.loads(path.read_bytes()))["terms"] == terms:
            return int(known["cap"])
        from sordino.privacy.caps import capped_rounds  # takes a while to load, and is asked once

        cap = capped_rounds(self._protocol, self._budget, self._records)
        write_whole(path, as_json({"terms": terms, "cap": cap}))
        return cap

    @property
    def _ledger_path(self) -> Path:
        return self._folder / "ledger.jsonl"

    def _open(self) -> None:
        digest = protocol_digest(self._protocol)
        if not self._ledger_path.exists():
            with writing(self._folder):
                self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                Ledger.create(self._ledger_path, Opened(protocol=digest, generator=GENERATOR, noise="fresh")).close()
        opened = self.events[0]
        if not isinstance(opened, Opened) or opened.protocol != digest:
            raise UserError(f"{self._folder} holds the ledger of another mechanism. Choose another folder; what both spend adds up.")

    def _answered(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if message.metadata.message_type != MessageType.TRAIN:
            raise self._refused(f"a message of the type {message.metadata.message_type!r} is not covered by any noise")
        received = model_in(message.content)
        self._pay(f"{context.run_id} {server_round(message)}")
        reply = call_next(message, context)
        if not reply.has_content():
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "it failed; its own log says why"), reply_to=message)
        name, sent = next(iter(array_records(reply.content).items()))
        if len(array_records(reply.content)) != 1 or set(sent) != set(received):
            raise UserError("the app must reply with one ArrayRecord, under the names of the model that it received.")
        trained = {key: array for key, array in arrays_of(sent).items() if received[key].dtype.kind == "f"}
        noisy = trained if isinstance(self._protocol.local, NoisySgd) else self._noisy(received, trained)
        # What is not a real number, such as a counter of batches, stays as it was received: no noise would hide it.
        return Message(RecordDict({name: records_of({**received, **noisy}), **public_metrics(reply.content)}), reply_to=message)

    def _pay(self, asked: str) -> None:
        """Charge a release, once for every round of every run, before anything is computed."""
        path = self._folder / "asked.txt"
        known = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if asked in known:
            raise self._refused("the same round of the same run was asked for twice")
        if self.releases >= self.cap:
            raise self._refused(f"the budget allows {self.cap} rounds, and they are spent")
        with writing(self._ledger_path), Ledger.resume(self._ledger_path) as ledger:
            ledger.charge(round=self.releases, clients=[0])
            write_whole(path, "".join(f"{line}\n" for line in [*known, asked]).encode())

    def _refused(self, reason: str) -> ReleaseRefused:
        with writing(self._ledger_path), Ledger.resume(self._ledger_path) as ledger:
            ledger.refuse(round=self.releases, reason=reason)
        return ReleaseRefused(reason)

    def _noisy(self, before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The model with its whole update clipped and noised."""
        import torch

        from sordino.federation.local import clipped_step, noisy_upload

        names = sorted(after)
        for name in names:
            if after[name].shape != before[name].shape or after[name].dtype.kind != "f":
                raise UserError(f"the app replied with another shape of {name}: {after[name].shape} for {before[name].shape}.")
        start, end = (joined(model[name] for name in names) for model in (before, after))
        update = torch.zeros(start.size, dtype=torch.float64)
        rule, noise = self._protocol.local, self._protocol.noise
        clipped_step(update, torch.from_numpy(start - end), 1.0, rule.clip)  # an update that is not finite becomes zero
        noisy = start + noisy_upload(update, noise, Key.from_system().stream(Purpose.UPLOAD_NOISE))
        cuts = np.cumsum([before[name].size for name in names])[:-1]
        parts = zip(names, np.split(noisy, cuts), strict=True)
        return {name: part.reshape(before[name].shape).astype(before[name].dtype) for name, part in parts}


def joined(arrays: Iterable[np.ndarray]) -> np.ndarray:
    """Arrays of any shape, single numbers too, as one vector."""
    return np.concatenate([np.ravel(array).astype(np.float64) for array in arrays])


def array_records(content: RecordDict) -> dict[str, ArrayRecord]:
    """The records of a message that hold arrays."""
    return {name: record for name, record in content.items() if isinstance(record, ArrayRecord)}


def model_in(content: RecordDict) -> dict[str, np.ndarray]:
    """The one model in a message."""
    found = list(array_records(content).values())
    if len(found) != 1:
        raise UserError(f"a message with {len(found)} ArrayRecords was received; expected is one, the model.")
    model = arrays_of(found[0])
    if not any(array.dtype.kind == "f" and array.size > 0 for array in model.values()):
        raise UserError("the model that was received has no real numbers.")
    return model


def server_round(message: Message) -> str:
    """Which round the server says it is; where it says nothing, the message's own name."""
    for record in message.content.values():
        if isinstance(record, ConfigRecord) and "server-round" in record:
            return str(record["server-round"])
    return message.metadata.group_id or message.metadata.message_id


def public_metrics(content: RecordDict) -> dict[str, MetricRecord]:
    """What may leave beside the model: the number of examples."""
    kept = {}
    for name, record in content.items():
        if isinstance(record, MetricRecord):
            kept[name] = MetricRecord({key: value for key, value in record.items() if key in PUBLIC})
    return kept

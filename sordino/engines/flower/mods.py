"""For any Flower app: one mod that clips what a client sends, adds noise, keeps the client's ledger and stops at its budget.

    app = ClientApp(mods=[private_updates(clip=1.0, sigma=4.0, epsilon=8.0, folder="~/privacy")])

A reply to `train` leaves with the model and the number of examples, and nothing else; every other message is refused, since what is
computed from private records there is covered by nothing. The folder is a client's as in `custody`: its ledger outlives runs, so that a
second training on the same records goes on where the first one stopped, and `sordino flower spent` says what was spent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp.typing import ClientAppCallable

from sordino.engines.flower.agreement import FILE, Agreement, write_agreement
from sordino.engines.flower.custody import Custodian
from sordino.engines.flower.messages import answered, arrays_of, records_of
from sordino.federation.randomness import Key, Purpose
from sordino.federation.storage import write_whole, writing
from sordino.protocol import Constant, FedAvg, Gaussian, NoisySgd, Protocol, UserError, dumps

PUBLIC = (
    "num-examples",
)  # what Flower's strategies weigh by; a size is public where one record is replaced by another


def private_updates(
    *,
    clip: float,
    sigma: float,
    folder: str | Path,
    epsilon: float | None = None,
    delta: float = 1e-5,
    most: int = 10_000,
) -> PrivacyMod:
    """Mod for any ClientApp: the update of a round is clipped as a whole, and gets normal noise from this machine's own entropy.

    All records of the client are hidden, and so is each of them.

    Args:
        clip: largest l2 norm of an update.
        sigma: standard deviation of the noise on every coordinate; replacing the client moves an update by up to 2 clip.
        folder: where the client's ledger is kept; "{partition-id}" in it is what the node's configuration says.
        epsilon: the client answers no more once the next round would pass it; None: no limit.
        delta: at this delta.
        most: rounds that are ever answered.

    Example:
        >>> app = ClientApp(mods=[private_updates(clip=1.0, sigma=4.0, epsilon=8.0, folder="~/privacy")])  # doctest: +SKIP
    """
    rule = FedAvg(steps=1, batch=1, clip=clip, clip_target="update", schedule=Constant(rate=1.0))
    protocol = Protocol(
        clients=1, rounds=most, local=rule, noise=Gaussian(sigma=sigma, secure=True)
    )
    return PrivacyMod(
        protocol, folder, Agreement(client=0, epsilon=epsilon, delta=delta, unit="client")
    )


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
        folder: where the client's ledger is kept; "{partition-id}" in it is what the node's configuration says.
        sampling: "poisson" or "fixed".
        unit: what is hidden: "record" or "client".
        epsilon: the client answers no more once the next round would pass it; None: no limit.
        delta: at this delta.
        most: rounds that are ever answered.

    Example:
        >>> app = ClientApp(mods=[private_steps(steps=50, batch=32, records=600, multiplier=1.1, folder="~/privacy")])  # doctest: +SKIP
    """
    rule = NoisySgd(
        steps=steps, batch=batch, clip=1.0, schedule=Constant(rate=1.0), sampling=sampling
    )
    protocol = Protocol(
        clients=1, rounds=most, local=rule, noise=Gaussian(multiplier=multiplier, secure=True)
    )
    return PrivacyMod(
        protocol,
        folder,
        Agreement(client=0, records=records, epsilon=epsilon, delta=delta, unit=unit),
    )


class PrivacyMod:
    """A Flower mod around any ClientApp. What it holds is on disk, in the client's folder."""

    def __init__(self, protocol: Protocol, folder: str | Path, agreement: Agreement) -> None:
        self._protocol, self._folder, self._agreement = protocol, str(folder), agreement

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """See Flower's mods."""

        def answer() -> Message:
            custodian = self.custodian(context.node_config)
            with custodian.at_work():
                return self._released(custodian, message, context, call_next)

        return answered(message, answer)

    def custodian(self, settings: Mapping[str, Any] | None = None) -> Custodian:
        """Who keeps the client's folder, which is made where there is none; `settings` are those of the node.

        Raises:
            UserError: the folder belongs to another mechanism, or has a name that the node's settings do not fill.
        """
        try:
            folder = Path(self._folder.format_map(settings or {})).expanduser()
        except (KeyError, ValueError, IndexError):
            raise UserError(
                f"folder = {self._folder!r}: the node's configuration does not say what is in braces."
            ) from None
        if not (folder / FILE).exists():
            return Custodian.create(folder, self._agreement, self._protocol)
        found = Custodian(folder)
        if found.agreed != self._protocol:
            raise UserError(
                f"{folder} holds the ledger of another mechanism. Choose another folder; what both spend adds up."
            )
        if (
            found.agreement != self._agreement
        ):  # the app says now what the budget is; what was spent stays
            write_agreement(self._agreement, folder)
        return Custodian(folder)

    def _released(
        self, custodian: Custodian, message: Message, context: Context, call_next: ClientAppCallable
    ) -> Message:
        """The app's reply, paid for before it is computed, and rid of all that no noise covers."""
        number = len(custodian.rounds_paid)
        if message.metadata.message_type != MessageType.TRAIN:
            raise custodian.refused(
                number,
                f"a message of the type {message.metadata.message_type!r} is not covered by any noise",
            )
        received = model_in(message.content)
        note_asked(custodian, f"{context.run_id} {server_round(message)}")
        custodian.pay(number, custodian.judge("every run", dumps(self._protocol)))
        reply = call_next(message, context)
        if not reply.has_content():
            raise UserError("the app gave no reply.")
        name, sent = next(iter(array_records(reply.content).items()), ("", {}))
        if len(array_records(reply.content)) != 1 or set(sent) != set(received):
            raise UserError(
                "the app must reply with one ArrayRecord, under the names of the model that it received."
            )
        trained = {
            key: array for key, array in arrays_of(sent).items() if received[key].dtype.kind == "f"
        }
        noisy = (
            trained
            if isinstance(self._protocol.local, NoisySgd)
            else self._noisy(received, trained)
        )
        # What is not a real number, such as a counter of batches, stays as it was received: no noise would hide it.
        return Message(
            RecordDict({name: records_of({**received, **noisy}), **public_metrics(reply.content)}),
            reply_to=message,
        )

    def _noisy(
        self, before: dict[str, np.ndarray], after: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The model with its whole update clipped and noised."""
        import torch

        from sordino.federation.local import clipped_step, noisy_upload

        names = sorted(after)
        for name in names:
            if after[name].shape != before[name].shape or after[name].dtype.kind != "f":
                raise UserError(
                    f"the app replied with another shape of {name}: {after[name].shape} for {before[name].shape}."
                )
        start, end = (joined(model[name] for name in names) for model in (before, after))
        update = torch.zeros(start.size, dtype=torch.float64)
        rule, noise = self._protocol.local, self._protocol.noise
        clipped_step(
            update, torch.from_numpy(start - end), 1.0, rule.clip
        )  # an update that is not finite becomes zero
        noisy = start + noisy_upload(update, noise, Key.from_system().stream(Purpose.UPLOAD_NOISE))
        cuts = np.cumsum([before[name].size for name in names])[:-1]
        parts = zip(names, np.split(noisy, cuts), strict=True)
        return {
            name: part.reshape(before[name].shape).astype(before[name].dtype)
            for name, part in parts
        }


def note_asked(custodian: Custodian, asked: str) -> None:
    """Note a round of a run, which is answered once."""
    path = custodian.folder / "asked.txt"
    known = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    if asked in known:
        raise custodian.refused(
            len(custodian.rounds_paid), "the same round of the same run was asked for twice"
        )
    with writing(path):
        write_whole(path, "".join(f"{line}\n" for line in [*known, asked]).encode())


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
        raise UserError(
            f"a message with {len(found)} ArrayRecords was received; expected is one, the model."
        )
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
            kept[name] = MetricRecord(
                {key: value for key, value in record.items() if key in PUBLIC}
            )
    return kept

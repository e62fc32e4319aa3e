"""Makes any Flower app private by one mod.

    app = ClientApp(mods=[private_updates(clip=1.0, sigma=4.0, epsilon=8.0, folder="~/privacy")])

The mod clips what a client sends, adds noise, keeps the client's ledger and stops at its budget. A
reply to `train` leaves with the model and the number of examples, and nothing else; every other
message is refused, since no noise covers values computed from private records there. The folder
is a client's as in `client_store`: its ledger outlives runs, so that a second training on the same
records continues where the first one stopped, and `sordino flower spent` prints what was spent.
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

from sordino.federation.store.files import write_whole, writing
from sordino.flower.admission import charge_training, judge_training
from sordino.flower.agreement import FILE, Agreement, write_agreement
from sordino.flower.client_store import ClientStore
from sordino.flower.messages import pack_arrays, reply_safely, unpack_arrays
from sordino.protocol import Constant, FedAvg, Gaussian, NoisySgd, Protocol, UserError, dumps
from sordino.protocol.release import release_of
from sordino.randomness import Key, Purpose

# Metrics that may leave a client. Flower's strategies weigh by this one; the number of records is
# public where one record is replaced by another.
PUBLIC_METRICS = ("num-examples",)
# The name of all trainings to a client's folder: its budget is for all of them together.
EVERY_RUN = "every run"
# The file of the rounds that were answered, each of which is answered once in its run.
REQUESTS = "asked.txt"


def private_updates(
    *,
    clip: float,
    sigma: float,
    folder: str | Path,
    epsilon: float | None = None,
    delta: float = 1e-5,
    most: int = 10_000,
) -> PrivacyMod:
    """Returns a mod that clips the update of a round as a whole and adds normal noise.

    The noise comes from this machine's entropy. All records of the client are hidden, and so is
    each of them.

    Args:
        clip: Largest l2 norm of an update.
        sigma: Standard deviation of the noise on every coordinate; replacing the client moves an
            update by up to twice the clip.
        folder: Folder of the client's ledger; "{partition-id}" in it is replaced by the node's
            setting of that name.
        epsilon: The client answers no round that would exceed it; None for no limit.
        delta: The delta of `epsilon`.
        most: Rounds that are ever answered.

    Returns:
        The mod.

    Example:
        >>> mod = private_updates(clip=1.0, sigma=4.0, epsilon=8.0, folder="~/privacy")
        >>> app = ClientApp(mods=[mod])  # doctest: +SKIP
    """
    rule = FedAvg(steps=1, batch=1, clip=clip, clip_target="update", schedule=Constant(rate=1.0))
    protocol = Protocol(
        clients=1,
        rounds=most,
        local=rule,
        # Updates of other people's apps lie on no grid.
        noise=Gaussian(sigma=sigma, secure=True, arithmetic="floats"),
    )
    return PrivacyMod(
        protocol, folder, Agreement(client=0, epsilon=epsilon, delta=delta, unit="client")
    )


def private_steps(  # noqa: PLR0913
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
    """Returns a mod for an app whose steps are noisy already (DP-SGD, as by Opacus).

    Each round is priced, and the budget is enforced. That the noise is in the steps is vouched
    for by the app. Model buffers that no noise touches must not be sent.

    Args:
        steps: Noisy steps in a round.
        batch: Examples in a step; their expected number with Poisson sampling.
        records: Records of the client.
        multiplier: Noise on a sum of clipped gradients over their norm bound; over twice that
            bound for the sampling "fixed".
        folder: Folder of the client's ledger; "{partition-id}" in it is replaced by the node's
            setting of that name.
        sampling: "poisson" or "fixed".
        unit: The unit of privacy: "record" or "client".
        epsilon: The client answers no round that would exceed it; None for no limit.
        delta: The delta of `epsilon`.
        most: Rounds that are ever answered.

    Returns:
        The mod.

    Example:
        >>> mod = private_steps(
        ...     steps=50, batch=32, records=600, multiplier=1.1, folder="~/privacy"
        ... )
        >>> app = ClientApp(mods=[mod])  # doctest: +SKIP
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
    """A Flower mod around any ClientApp. Its state is on disk, in the client's folder."""

    def __init__(self, protocol: Protocol, folder: str | Path, agreement: Agreement) -> None:
        """Creates the mod.

        Args:
            protocol: The mechanism, as a protocol of one client.
            folder: The client's folder.
            agreement: The client's budget.
        """
        self._protocol = protocol
        self._folder = str(folder)
        self._agreement = agreement

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answers a message; see Flower's mods.

        Args:
            message: What the server sent.
            context: The node's settings.
            call_next: The app.

        Returns:
            The reply.
        """

        def answer() -> Message:
            store = self.open_store(context.node_config)
            with store.hold_folder():
                return self._answer_message(store, message, context, call_next)

        return reply_safely(message, answer)

    def open_store(self, settings: Mapping[str, Any] | None = None) -> ClientStore:
        """Returns the client's folder, which is created where there is none.

        Args:
            settings: The node's settings.

        Raises:
            UserError: The folder belongs to another mechanism, or its name has a setting that the
                node does not have.
        """
        try:
            folder = Path(self._folder.format_map(settings or {})).expanduser()
        except (KeyError, ValueError, IndexError):
            raise UserError(
                f"folder = {self._folder!r}: the node's configuration does not say what is in "
                "braces."
            ) from None
        if not (folder / FILE).exists():
            return ClientStore.create(folder, self._agreement, self._protocol)
        found = ClientStore(folder)
        if found.agreed != self._protocol:
            raise UserError(
                f"{folder} holds the ledger of another mechanism. Choose another folder; what both "
                "spend adds up."
            )
        if found.agreement != self._agreement:
            # The app has a new budget; what was spent stays.
            write_agreement(self._agreement, folder)
        return ClientStore(folder)

    def _answer_message(
        self, store: ClientStore, message: Message, context: Context, call_next: ClientAppCallable
    ) -> Message:
        """Returns the app's reply, charged before it is computed, without what no noise covers."""
        round_index = len(store.rounds_paid)
        kind = message.metadata.message_type
        if kind != MessageType.TRAIN:
            raise store.refuse(
                round_index, f"a message of the type {kind!r} is not covered by any noise"
            )
        received = find_model(message.content)
        request = f"{context.run_id} {find_server_round(message)}"
        known = list_requests(store)
        if request in known:
            raise store.refuse(round_index, "the same round of the same run was requested twice")
        charge_training(store, round_index, judge_training(store, EVERY_RUN, dumps(self._protocol)))
        # Noted once it is paid for: a server that asks on when the budget is spent fills no disk.
        write_requests(store, [*known, request])
        reply = call_next(message, context)
        if not reply.has_content():
            raise UserError("the app gave no reply.")
        records = select_array_records(reply.content)
        if len(records) != 1 or set(next(iter(records.values()))) != set(received):
            raise UserError(
                "the app must reply with one ArrayRecord, under the names of the model that it "
                "received."
            )
        [(name, sent)] = records.items()
        trained = {}
        for key, array in unpack_arrays(sent).items():
            if received[key].dtype.kind == "f":
                trained[key] = array
        if not release_of(self._protocol).in_steps:
            trained = self._add_noise(received, trained)
        # Anything but real numbers, such as a counter of batches, stays as it was received: no
        # noise would hide it.
        content = RecordDict({name: pack_arrays({**received, **trained})})
        content.update(select_public_metrics(reply.content))
        return Message(content, reply_to=message)

    def _add_noise(
        self, before: dict[str, np.ndarray], after: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Returns a model with its whole update clipped and noised."""
        import torch

        from sordino.federation.rules.clipped_steps import clipped_step
        from sordino.federation.upload import noisy_upload

        names = sorted(after)
        for name in names:
            if after[name].shape != before[name].shape or after[name].dtype.kind != "f":
                raise UserError(
                    f"the app replied with another shape of {name}: {after[name].shape} for "
                    f"{before[name].shape}."
                )
        start = join_arrays(before[name] for name in names)
        end = join_arrays(after[name] for name in names)
        update = torch.zeros(start.size, dtype=torch.float64)
        # An update that is not finite becomes zero.
        clipped_step(update, torch.from_numpy(start - end), 1.0, self._protocol.release.clip)
        stream = Key.from_system().stream(Purpose.UPLOAD_NOISE)
        noisy = start + noisy_upload(update, self._protocol.noise, stream)
        model = {}
        begin = 0
        for name in names:
            array = before[name]
            part = noisy[begin : begin + array.size]
            model[name] = part.reshape(array.shape).astype(array.dtype)
            begin += array.size
        return model


def list_requests(store: ClientStore) -> list[str]:
    """Returns the rounds that were answered, each with its run.

    Args:
        store: The client's folder.
    """
    path = store.folder / REQUESTS
    if not path.exists():
        return []
    return path.read_text(encoding="utf-8").splitlines()


def write_requests(store: ClientStore, requests: Iterable[str]) -> None:
    """Writes the rounds that were answered, each with its run.

    Args:
        store: The client's folder, which must be held.
        requests: The run and the round of each.
    """
    path = store.folder / REQUESTS
    with writing(path):
        write_whole(path, "".join(f"{request}\n" for request in requests).encode())


def join_arrays(arrays: Iterable[np.ndarray]) -> np.ndarray:
    """Returns arrays of any shape, single numbers too, as one vector.

    Args:
        arrays: The arrays.
    """
    return np.concatenate([np.ravel(array).astype(np.float64) for array in arrays])


def select_array_records(content: RecordDict) -> dict[str, ArrayRecord]:
    """Returns the records of a message that hold arrays.

    Args:
        content: The content of the message.
    """
    return {name: record for name, record in content.items() if isinstance(record, ArrayRecord)}


def find_model(content: RecordDict) -> dict[str, np.ndarray]:
    """Returns the one model in a message.

    Args:
        content: The content of the message.

    Raises:
        UserError: There is none, there are several, or it has no real numbers.
    """
    found = list(select_array_records(content).values())
    if len(found) != 1:
        raise UserError(
            f"a message with {len(found)} ArrayRecords was received; expected is one, the model."
        )
    model = unpack_arrays(found[0])
    if not any(array.dtype.kind == "f" and array.size > 0 for array in model.values()):
        raise UserError("the model that was received has no real numbers.")
    return model


def find_server_round(message: Message) -> str:
    """Returns the round that a message names; the message's own name where it names none.

    Args:
        message: The message.
    """
    for record in message.content.values():
        if isinstance(record, ConfigRecord) and "server-round" in record:
            return str(record["server-round"])
    group: str = message.metadata.group_id or message.metadata.message_id
    return group


def select_public_metrics(content: RecordDict) -> dict[str, MetricRecord]:
    """Returns the metrics that may leave with the model: the number of examples.

    Args:
        content: The content of the app's reply.
    """
    selected = {}
    for name, record in content.items():
        if isinstance(record, MetricRecord):
            public = {key: value for key, value in record.items() if key in PUBLIC_METRICS}
            selected[name] = MetricRecord(public)
    return selected

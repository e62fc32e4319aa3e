"""The local work of one round, on the client's own machine and records: what `federation/client.py` does, for one client."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sordino.engines.flower.agreement import Agreement
from sordino.engines.flower.requests import HELPER, MODEL, Request
from sordino.engines.torch_engine import single_threaded
from sordino.federation import personal
from sordino.federation.assignment import Upload
from sordino.federation.client import ClientWork
from sordino.federation.data import (
    Dataset,
    agreed_classes,
    load_dataset,
    refuse_other_columns,
)
from sordino.federation.local import INSIDE
from sordino.federation.personal import Kept, keeps_state
from sordino.federation.setup import Setup, prepare
from sordino.protocol import (
    ClippedGlm,
    FedAvg,
    Mean,
    ModeConnectivity,
    NoisySgd,
    Protocol,
    UserError,
    loads,
)

ROUNDINGS = 4  # of a step: the pull, the step, the correction, and half a unit more for what they add to the weights


def local_upload(request: Request, agreement: Agreement, kept: Mapping[str, np.ndarray]) -> Upload:
    """Train on the client's records, clip, and add noise. With `noise.secure` the noise comes from this machine's own entropy."""
    setup = own_setup(loads(request.protocol), agreement)
    weights, expected = request.arrays[MODEL], setup.initial_weights()
    for given in request.arrays.values():
        if (
            given.dtype != expected.dtype
            or given.shape[-1:] != expected.shape
            or given.ndim > 2
            or not np.isfinite(given).all()
        ):
            raise UserError(
                f"a model of shape {given.shape} was received; expected are {expected.size} finite {expected.dtype} numbers."
            )
    records = int(setup.sizes[agreement.client])
    refuse_coarse(setup.protocol, request.round, records, list(request.arrays.values()))
    own: Kept | None = None
    if keeps_state(setup.protocol):
        limit = largest_weight(setup.protocol, request.round, records, expected.size)
        helper = {personal.HELPER: request.arrays[HELPER]} if HELPER in request.arrays else {}
        own = {**bounded(kept, limit), **helper}
    with single_threaded():
        return ClientWork(setup).upload(
            client=agreement.client, round=request.round, weights=weights, kept=own
        )


def refuse_coarse(
    protocol: Protocol, round: int, records: int, arrays: Sequence[np.ndarray]
) -> None:
    """Refuses models so large that a step is rounded against them by more than clipping leaves room for.

    What the client has kept is not looked at: it comes from its records, and a refusal is seen.

    Args:
        protocol: what is run.
        round: the round.
        records: how many records the client has.
        arrays: all that was received.

    Raises:
        UserError: they are too large.
    """
    largest = sum(float(np.abs(array).max()) for array in arrays)
    if not largest <= largest_weight(protocol, round, records, arrays[0].shape[-1]):
        raise UserError(
            f"a model with weights of up to {largest:.3g} was received: steps of norm {protocol.local.clip:g} would be rounded against it."
        )


def largest_weight(protocol: Protocol, round: int, records: int, size: int) -> float:
    """Returns how large weights may be for steps not to be rounded against them by too much.

    Clipped steps are added, in float64, to what the server sends, and noise only then. To a server that sends weights of 1e15 a step
    would show as the next multiple of 1/8, which may be further than was priced. Where clients keep
    models, half of the room is for what was received and half for what was kept.
    """
    rule = protocol.local
    if isinstance(rule, NoisySgd):  # its noise is in every step before the step meets the weights
        return math.inf
    rates = rule.schedule.rates(round=round, steps=rule.steps)
    by_coordinate = isinstance(rule, FedAvg) and rule.clip_norm == "l1"
    whole_update = isinstance(rule, FedAvg) and rule.clip_target == "update"
    shared_by = (rule.batch or records) if isinstance(rule, ClippedGlm) else 1
    room = (1.0 - INSIDE) * rule.clip * (1.0 if whole_update else min(rates)) / shared_by
    roundings = ROUNDINGS * 2.0**-53 * max(1.0, sum(rates))
    parts = 2 if protocol.keeps_models else 1
    return room / (roundings * (size if by_coordinate else math.sqrt(size))) / parts


def bounded(kept: Mapping[str, np.ndarray], limit: float) -> dict[str, np.ndarray]:
    """Returns what a client has kept, within a limit; a little inside, as it is rounded to float32."""
    if math.isinf(limit):
        return dict(kept)
    return {name: np.clip(array, -limit * INSIDE, limit * INSIDE) for name, array in kept.items()}


def own_setup(protocol: Protocol, agreement: Agreement) -> Setup:
    """A protocol made concrete on a client's machine. The client's own records stand for everyone's: it never does others' work.

    Raises:
        UserError: the records are not as many as was agreed.
    """
    if isinstance(protocol.aggregation, ModeConnectivity):
        protocol = replace(
            protocol, aggregation=Mean()
        )  # joining uploads is the server's affair, and so are its public records
    if agreement.data is None:
        setup = prepare(protocol)
    else:
        dataset = own_dataset(protocol, agreement.data)
        count = (
            protocol.data.records
            if protocol.data is not None and protocol.data.records is not None
            else len(dataset.y_train)
        )
        if count > len(dataset.y_train):
            raise UserError(
                f"{agreement.data} has {len(dataset.y_train)} records; data.records = {count} are needed."
            )
        setup = prepare(protocol, data=dataset, parts=(np.arange(count),) * protocol.clients)
    if setup.sizes[agreement.client] != agreement.records:
        raise UserError(
            f"there are {setup.sizes[agreement.client]} records; {agreement.records} were agreed to."
        )
    return setup


def own_dataset(protocol: Protocol, path: str) -> Dataset:
    """Loads a client's own file, with the classes that all parties agreed to in the protocol.

    Raises:
        UserError: the protocol lists no classes and the file has labels, or a label that is none of the classes.
    """
    spec = protocol.data
    classes = agreed_classes(spec) if spec is not None else None
    dataset = load_dataset(path, classes=classes, test=spec.test if spec is not None else None)
    if dataset.classes is not None and classes is None:
        raise UserError(
            f"{path} has the classes {', '.join(dataset.classes[:20])}, and the protocol lists none: parties whose classes differ "
            "would train different models. Have data.classes = [...] added to the protocol that all agree to."
        )
    columns = spec.columns if spec is not None else None
    refuse_other_columns(path, dataset.inputs, columns)
    if dataset.inputs is not None and columns is None:
        raise UserError(
            f"{path} has the input columns {', '.join(dataset.inputs[:20])}, and the protocol lists none: parties whose columns differ "
            "would take one for another. Have data.columns = [...] added to the protocol that all agree to."
        )
    return dataset


def own_records(protocol: Protocol, client: int, data: Path | None) -> int:
    """How many records a client has: of its own file, or its share of the protocol's data."""
    if client >= protocol.clients:
        raise UserError(
            f"client {client} is none of the protocol's: its clients are 0 to {protocol.clients - 1}."
        )
    if data is None:
        return int(prepare(protocol).sizes[client])
    count = len(own_dataset(protocol, str(data)).y_train)
    wanted = protocol.data.records if protocol.data is not None else None
    return count if wanted is None else wanted


def own_parameters(protocol: Protocol, agreement: Agreement) -> int:
    """Returns the number of weights of the model that a client will be sent.

    Args:
        protocol: what is agreed to.
        agreement: which client, and its data.

    Raises:
        UserError: the model does not fit the client's records, or the records the protocol.
    """
    return int(own_setup(protocol, agreement).initial_weights().size)

"""Computes the upload of one round on the client's own machine, from the client's own records."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sordino.data import (
    Dataset,
    find_agreed_classes,
    load_dataset,
    refuse_other_columns,
)
from sordino.federation import personal
from sordino.federation.broadcast_state import FARTHEST_CLIP
from sordino.federation.client import ClientWork
from sordino.federation.personal import keeps_state
from sordino.federation.processors import single_threaded
from sordino.federation.rules.local_training import ClientState
from sordino.federation.setup import Setup, prepare
from sordino.federation.upload import Upload
from sordino.flower.agreement import Agreement
from sordino.flower.upload_requests import HELPER, MODEL, Request
from sordino.models.clipping import CLIP_FRACTION
from sordino.protocol import (
    Aggregation,
    Bezier,
    ClippedGlm,
    DpSgd,
    FedAvg,
    FedProx,
    LocalRule,
    Mean,
    ModeConnectivity,
    NoisySgd,
    Protocol,
    Scaffold,
    UserError,
    loads_kept,
)
from sordino.protocol.registry import Registry
from sordino.protocol.release import release_of

# A step is rounded when the pull, the step and the correction are added to the weights, and half a
# unit in the last place is left for the sum of them.
ROUNDINGS = 4
# Names that an error message lists at most.
LISTED_NAMES = 20

# Joining uploads is the server's work, and so are the public records that it needs for that.
CLIENT_AGGREGATIONS: Registry[Callable[[Any], Aggregation]] = Registry(
    "aggregation for a client's own setup", "aggregation", Aggregation
)


@CLIENT_AGGREGATIONS.register_others
def _keep_aggregation(rule: Aggregation) -> Aggregation:
    return rule


@CLIENT_AGGREGATIONS.register(ModeConnectivity)
def _leave_curves_to_server(rule: ModeConnectivity) -> Aggregation:
    return Mean()


STEP_DIVISORS: Registry[Callable[[Any, int], int]] = Registry(
    "number of records over which a step's clip is divided", "local rule", LocalRule
)


@STEP_DIVISORS.register(FedAvg, FedProx, Scaffold, Bezier)
def _clip_whole_steps(rule: FedAvg, records: int) -> int:
    return 1


@STEP_DIVISORS.register_others
def _refuse_rule(rule: LocalRule, records: int) -> int:
    raise UserError(
        f'local.rule = "{rule.tag}": nobody has said how precise its steps are across machines. '
        "Train it on one machine."
    )


@STEP_DIVISORS.register(ClippedGlm, DpSgd, NoisySgd)
def _clip_examples(rule: ClippedGlm | DpSgd | NoisySgd, records: int) -> int:
    return rule.batch or records


def compute_upload(
    request: Request, agreement: Agreement, kept: Mapping[str, np.ndarray]
) -> Upload:
    """Trains on the client's records, clips, and adds noise.

    With `noise.secure` the noise comes from the entropy of this machine.

    Args:
        request: The round, with the models that the server sent.
        agreement: What the client agreed to.
        kept: What the client kept after its last round.

    Returns:
        The upload, and what the client keeps after this round.

    Raises:
        UserError: The models do not fit the protocol or the client's records.
    """
    # A forked process must not wait for threads of its parent, so the setup runs on one as well.
    with single_threaded():
        setup = prepare_client(loads_kept(request.protocol), agreement)
        _refuse_misfits(request, setup)
        records = int(setup.sizes[agreement.client])
        models = list(request.arrays.values())
        refuse_coarse_models(setup.protocol, request.round, records, models)
        own: ClientState | None = None
        if keeps_state(setup.protocol):
            size = setup.initial_weights().size
            limit = find_largest_weight(setup.protocol, request.round, records, size)
            own = bound_arrays(kept, limit)
            if HELPER in request.arrays:
                own[personal.HELPER] = request.arrays[HELPER]
        return ClientWork(setup).upload(
            client=agreement.client,
            round_index=request.round,
            weights=request.arrays[MODEL],
            kept=own,
        )


def _refuse_misfits(request: Request, setup: Setup) -> None:
    """Refuses models of another type or size than the protocol's, or that are not finite."""
    expected = setup.initial_weights()
    for given in request.arrays.values():
        shaped = given.ndim <= 2 and given.shape[-1:] == expected.shape
        if given.dtype != expected.dtype or not shaped or not np.isfinite(given).all():
            raise UserError(
                f"a model of shape {given.shape} was received; expected are {expected.size} "
                f"finite {expected.dtype} numbers."
            )
    if setup.release.adaptive is not None:
        refuse_strange_clip(setup.release.clip, request.arrays[MODEL])


def refuse_strange_clip(start: float, received: np.ndarray) -> None:
    """Refuses a clip that no training comes to.

    Args:
        start: The clip that the training began with.
        received: The model, and the clip in every place of a second entry.

    Raises:
        UserError: It is none, or farther from the start than a clip may go.
    """
    clips = received[-1] if received.ndim > 1 else np.zeros(1)
    # Rounded to float32 it may lie a little beyond.
    low = start / FARTHEST_CLIP * CLIP_FRACTION
    high = start * FARTHEST_CLIP / CLIP_FRACTION
    if not (clips == clips[0]).all() or not low <= float(clips[0]) <= high:
        raise UserError(
            f"a clip from {clips.min():.3g} to {clips.max():.3g} was received; expected is one "
            f"number from {low:.3g} to {high:.3g}, in every place of a second entry."
        )


def refuse_coarse_models(
    protocol: Protocol, round_index: int, records: int, arrays: Sequence[np.ndarray]
) -> None:
    """Refuses models so large that steps are rounded against them by more than is priced.

    What the client has kept is not looked at: it is computed from records, and a refusal is seen.

    Args:
        protocol: The federation that the machines train.
        round_index: Number of the round, from 0.
        records: Number of records of the client.
        arrays: Everything that was received.

    Raises:
        UserError: They are too large.
    """
    largest = sum(float(np.abs(array).max()) for array in arrays)
    limit = find_largest_weight(protocol, round_index, records, arrays[0].shape[-1])
    # Written so that a weight that is not a number is refused too.
    if not largest <= limit:
        raise UserError(
            f"a model with weights of up to {largest:.3g} was received: steps of norm "
            f"{protocol.release.clip:g} would be rounded against it."
        )


def find_largest_weight(protocol: Protocol, round_index: int, records: int, size: int) -> float:
    """Returns the largest weight against which steps are rounded by no more than is priced.

    Clipped steps are added, in float64, to what the server sends, and noise only afterwards. To a
    server that sends weights of 1e15 a step would show as the next multiple of 1/8, which may be
    further than was priced. Where clients keep models, half of the room is for what was received
    and half for what was kept.

    Args:
        protocol: The federation that the machines train.
        round_index: Number of the round, from 0.
        records: Number of records of the client.
        size: Number of weights of the model.

    Returns:
        The largest absolute value; infinity where noise is added before a step meets the weights.
    """
    release = release_of(protocol)
    if release.in_steps:
        return math.inf
    rule = protocol.local
    rates = rule.schedule.rates(round=round_index, steps=rule.steps)
    # Clipping aims a little inside the clip; the difference is the room for roundings.
    room = (1.0 - CLIP_FRACTION) * release.clip / STEP_DIVISORS.of(rule)(rule, records)
    if not release.clips_update:
        room *= min(rates)
    rounding = ROUNDINGS * 2.0**-53 * max(1.0, sum(rates))
    # Roundings of single coordinates add up to this norm.
    norm = math.sqrt(size)
    if release.clip_norm == "l1":
        norm = size
    parts = 1
    if protocol.keeps_models:
        parts = 2
    return room / (rounding * norm) / parts


def bound_arrays(kept: Mapping[str, np.ndarray], limit: float) -> dict[str, np.ndarray]:
    """Returns what a client has kept, clipped to a largest absolute value.

    Args:
        kept: The arrays.
        limit: The largest value; clipping aims a little below, since float32 rounds.

    Returns:
        The clipped arrays.
    """
    if math.isinf(limit):
        return dict(kept)
    bound = limit * CLIP_FRACTION
    return {name: np.clip(array, -bound, bound) for name, array in kept.items()}


def prepare_client(protocol: Protocol, agreement: Agreement) -> Setup:
    """Returns a protocol made concrete on a client's machine.

    The client's own records stand in for everyone's: a client never does the work of others.

    Args:
        protocol: The federation that the machines train.
        agreement: Which client this is, and the file of its records.

    Returns:
        The setup.

    Raises:
        UserError: There are other numbers of records than agreed, or the file does not fit.
    """
    aggregation = CLIENT_AGGREGATIONS.of(protocol.aggregation)(protocol.aggregation)
    protocol = replace(protocol, aggregation=aggregation)
    if agreement.data is None:
        setup = prepare(protocol)
    else:
        dataset = load_own_dataset(protocol, agreement.data)
        count = _count_used_records(protocol, agreement.client, len(dataset.y_train))
        if count > len(dataset.y_train):
            raise UserError(
                f"{agreement.data} has {len(dataset.y_train)} records; the {count} that "
                "the protocol's data.records or data.sizes says are needed."
            )
        setup = prepare(protocol, data=dataset, parts=(np.arange(count),) * protocol.clients)
    if setup.sizes[agreement.client] != agreement.records:
        raise UserError(
            f"there are {setup.sizes[agreement.client]} records; {agreement.records} were "
            "agreed to."
        )
    return setup


def _count_used_records(protocol: Protocol, client: int, available: int) -> int:
    """Returns how many records a client trains on: the number in the protocol, or all."""
    stated = None
    if protocol.data is not None:
        stated = protocol.data.records_of(client)
    if stated is None:
        return available
    return stated


def load_own_dataset(protocol: Protocol, path: str) -> Dataset:
    """Loads a client's own file, with the classes and columns that the protocol lists.

    Args:
        protocol: The protocol that all parties agreed to.
        path: The file.

    Returns:
        The records.

    Raises:
        UserError: The file has names that the protocol does not list, or other ones.
    """
    spec = protocol.data
    classes = None
    test = None
    columns = None
    described = None
    if spec is not None:
        classes = find_agreed_classes(spec)
        test = spec.test
        columns = spec.input_columns
        described = spec.described_columns
    dataset = load_dataset(path, classes=classes, test=test, columns=described)
    if dataset.classes is not None and classes is None:
        raise UserError(
            f"{path} has the classes {', '.join(dataset.classes[:LISTED_NAMES])}, and the "
            "protocol lists none: parties whose classes differ would train different models. "
            "Have data.classes = [...] added to the protocol that all agree to."
        )
    refuse_other_columns(path, dataset.inputs, columns)
    if dataset.inputs is not None and columns is None and described is None:
        raise UserError(
            f"{path} has the input columns {', '.join(dataset.inputs[:LISTED_NAMES])}, and the "
            "protocol lists none: parties whose columns differ would take one for another. "
            "Have data.columns = [...] added to the protocol that all agree to."
        )
    return dataset


def count_own_records(protocol: Protocol, client: int, data: Path | None) -> int:
    """Returns how many records a client has.

    Args:
        protocol: The federation that the machines train.
        client: Number of the client.
        data: The client's own file; None for its share of the protocol's data.

    Returns:
        The number of records that it trains on.

    Raises:
        UserError: The protocol has no such client, or the file does not fit.
    """
    if client >= protocol.clients:
        raise UserError(
            f"client {client} is none of the protocol's: its clients are 0 to "
            f"{protocol.clients - 1}."
        )
    if data is None:
        return int(prepare(protocol).sizes[client])
    available = len(load_own_dataset(protocol, str(data)).y_train)
    return _count_used_records(protocol, client, available)


def measure_model(protocol: Protocol, agreement: Agreement) -> Agreement:
    """Returns an agreement that names the sizes of the model that a client will be sent.

    Args:
        protocol: The federation that the machines train.
        agreement: Which client, and its data.

    Returns:
        The agreement with the number of weights and of inputs.

    Raises:
        UserError: The model does not fit the client's records, or the records the protocol.
    """
    setup = prepare_client(protocol, agreement)
    return replace(
        agreement,
        parameters=int(setup.initial_weights().size),
        inputs=describe_inputs(setup.input_shape),
    )


def describe_inputs(shape: Sequence[int]) -> str:
    """Returns how many inputs a record has, axis by axis.

    Args:
        shape: The shape of a record.
    """
    return " x ".join(str(length) for length in shape)

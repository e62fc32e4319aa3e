"""From a protocol to everything that a round needs: data shared out to clients, a model that fits them, keys. All checks are here."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol as Interface

import numpy as np
import torch
from torch import nn

from sordino.federation.data import (
    IN_PYTHON,
    KNOWN,
    Dataset,
    Shares,
    digest,
    load_data,
    load_dataset,
    partition,
    without_test,
)
from sordino.federation.data.classes import refuse_other_classes
from sordino.federation.models import build_model, check_model
from sordino.federation.models.bounded import BoundedLogistic
from sordino.federation.models.flat import FlatModel
from sordino.federation.randomness import Key, Purpose
from sordino.privacy.harmonizer import own_protocol, with_found_noise
from sordino.privacy.mechanisms import refuse_unpriced
from sordino.protocol import ClippedGlm, Data, ModeConnectivity, Model, Noise, Protocol, UserError

DataSource = str | Dataset
ModelSource = str | nn.Module | Callable[..., nn.Module]


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """The records as tensors, shared by all workers; `inputs` makes a model's input of some rows."""

    x: torch.Tensor
    y: torch.Tensor
    scale: torch.Tensor
    shift: torch.Tensor

    def inputs(self, rows: torch.Tensor | slice) -> torch.Tensor:
        """Records in the form the model sees."""
        chosen = self.x.index_select(0, rows) if isinstance(rows, torch.Tensor) else self.x[rows]
        return chosen.to(torch.float32).mul(self.scale).add_(self.shift)

    def to(self, device: torch.device) -> Tensors:
        """The same on another device."""
        return Tensors(
            x=self.x.to(device),
            y=self.y.to(device),
            scale=self.scale.to(device),
            shift=self.shift.to(device),
        )


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A protocol made concrete. Workers get it whole; nothing in it changes during a run."""

    protocol: Protocol
    train: Tensors
    test: Tensors
    parts: tuple[np.ndarray, ...]
    classification: bool
    outputs: int
    input_shape: tuple[int, ...]
    module: nn.Module
    key: Key
    noise_key: Key
    draw_key: Key  # who takes part and which records a step draws: fresh where the noise is, or a repeated round would not be independent
    data_digest: str
    tested_on: str = "brought"  # whose records the test part holds (federation/data/dataset.py)
    public: Tensors | None = None  # records of the server's own, for mode connectivity
    shares: Shares | None = None  # who has what, where real data were shared out
    training: int = 0  # which of the trainings that share the keys this is; audits train many times

    @property
    def sizes(self) -> np.ndarray:
        """Number of records of every client."""
        return np.array([len(part) for part in self.parts])

    @cached_property
    def noises(self) -> tuple[Noise, ...]:
        """The noise of every client."""
        sizes = self.sizes.tolist()
        own = {
            budget.id: own_protocol(self.protocol, budget, sizes[budget.id]).noise
            for budget in self.protocol.client
        }
        return tuple(
            own.get(client, self.protocol.noise) for client in range(self.protocol.clients)
        )

    @cached_property
    def _flat(self) -> FlatModel:
        return FlatModel(self.module)

    def __getstate__(self) -> dict[str, object]:
        return {
            name: value for name, value in self.__dict__.items() if name != "_flat"
        }  # each process makes its own

    def initial_weights(self) -> np.ndarray:
        """The model before the first round, as one vector."""
        return self._flat.weights.numpy().copy()

    def state(self, weights: np.ndarray) -> dict[str, torch.Tensor]:
        """The tensors of the model with these weights, as a file stores them."""
        return self._flat.to_state(torch.from_numpy(weights))

    def client_state(self, own: np.ndarray) -> dict[str, torch.Tensor]:
        """Returns the tensors of a client's own model as a file stores them: in the model's precision, not in that of its rounds."""
        return self.state(own.astype(self.initial_weights().dtype))


class Begun(Interface):
    """What is known of a run that begins; a `Setup` says it, and so does who follows a run from elsewhere."""

    @property
    def protocol(self) -> Protocol:
        """The protocol, resolved."""

    @property
    def sizes(self) -> np.ndarray:
        """Number of records of every client."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Loaded:
    """A data set in the form that trainings share, whatever they do with it."""

    dataset: Dataset
    train: Tensors
    test: Tensors
    digest: str


def loaded(source: Data | Dataset, settings: Data | None = None) -> Loaded:
    """Loads a data set once; a training of many asks for it with `prepare(load=...)`.

    Args:
        source: what is loaded: by name, with the classes and the test part that a protocol wants, or as it is.
        settings: for data that were handed over, the classes and the test part that a protocol wants.

    Raises:
        UserError: data that cannot be had, or whose classes are not the protocol's.

    Example:
        >>> loaded(Data(name="digits")).dataset.outputs
        10
    """
    dataset = load_data(source) if isinstance(source, Data) else source
    if settings is not None:
        refuse_other_classes(dataset.name, dataset.classes, settings.classes)
        if settings.test is not None:
            dataset = without_test(dataset)
    return Loaded(
        dataset=dataset,
        train=tensors(dataset, "train"),
        test=tensors(dataset, "test"),
        digest=digest(dataset),
    )


def prepare(
    protocol: Protocol,
    *,
    data: DataSource | None = None,
    model: ModelSource | None = None,
    parts: Sequence[np.ndarray] | None = None,
    load: Callable[[Data | Dataset, Data | None], Loaded] = loaded,
) -> Setup:
    """Load, share out, build and check. Everything that a person can have got wrong is refused here, before anything is written.

    Args:
        protocol: what is run.
        data: a name, a path or a `Dataset`, in place of `protocol.data.name`.
        model: a name, a module or a factory, in place of `protocol.model.name`.
        parts: the records of every client, where the protocol's partition does not say: across machines each client has its own.
        load: how data are loaded; it may remember what it loaded, since nothing in it depends on the protocol.

    Raises:
        UserError: no data or model named, data that cannot be found, a batch larger than a client's records, a model that does
            not fit the data, and the like.

    Example:
        >>> setup = prepare(protocol, data="digits", model="mlp")  # doctest: +SKIP
    """
    protocol = resolved(protocol, data, model)
    spec, net = protocol.data, protocol.model
    if spec is None or net is None or protocol.seed is None:
        raise UserError(
            "data.name or model.name is missing: say what is trained on what, such as data.name='digits', model.name='mlp'."
        )
    key = Key.from_seed(protocol.seed)
    found = load(*_source_of(spec, data))
    dataset = found.dataset
    shared_out = parts is None
    parts = partition(dataset, spec, protocol.clients, key) if parts is None else tuple(parts)
    refuse_small_clients(parts, protocol.local.batch or 1)
    if (
        isinstance(protocol.local, ClippedGlm)
        and protocol.local.batch is not None
        and len({len(part) for part in parts}) > 1
    ):
        raise UserError(
            "local.batches = 'cyclic' needs clients of one size: the fixed batches are a public part of the protocol."
        )
    protocol = with_public_size(protocol, parts)
    source = (
        model if model is not None and not isinstance(model, str) else _findable(net.name, "model")
    )
    seed = key.stream(Purpose.INITIAL_MODEL).seed()
    module = protocol_model(
        protocol, source, dataset.input_shape, dataset.outputs, classes=dataset.classes, seed=seed
    )
    check_model(module, invented_inputs(dataset.input_shape), dataset.outputs, net.parameters)
    protocol = with_public_dimension(protocol, module)
    refuse_unpriced(protocol)
    protocol = with_found_noise(protocol, [len(part) for part in parts])
    fresh = Key.from_system() if protocol.noise.secure else key
    return Setup(
        protocol=protocol,
        train=found.train,
        test=found.test,
        parts=parts,
        classification=dataset.classes is not None,
        outputs=dataset.outputs,
        input_shape=dataset.input_shape,
        module=module,
        key=key,
        noise_key=fresh,
        draw_key=fresh,
        data_digest=shares_digest(found.digest, parts),
        tested_on=dataset.test,
        public=public_records(protocol, dataset),
        shares=Shares.of(dataset, parts) if shared_out else None,
    )


def _source_of(spec: Data, data: DataSource | None) -> tuple[Data | Dataset, Data | None]:
    """Returns what is to be loaded, with nothing in it that loading does not depend on: equal questions have one answer."""
    if isinstance(data, Dataset):
        return data, Data(name=data.name, classes=spec.classes, test=spec.test)
    return Data(name=_findable(spec.name, "data"), classes=spec.classes, test=spec.test), None


def invented_inputs(shape: tuple[int, ...]) -> torch.Tensor:
    """Two records to try a model on. They are made up: whether a client answers must not depend on what its records are."""
    return torch.from_numpy(np.random.default_rng(0).standard_normal((2, *shape), dtype=np.float32))


def public_records(protocol: Protocol, private: Dataset) -> Tensors | None:
    """The server's own records, which must be of the kind that the clients have."""
    if not isinstance(protocol.aggregation, ModeConnectivity):
        return None
    known = None if protocol.aggregation.public in KNOWN else private.classes
    public = load_dataset(protocol.aggregation.public, classes=known)
    alike = (
        public.input_shape == private.input_shape
        and public.outputs == private.outputs
        and public.classes == private.classes
    )
    if not alike:
        raise UserError(
            f"federation.aggregation.mode-connectivity.public = {public.name!r} has records of shape {public.input_shape} and classes "
            f"{public.classes}; the clients' have {private.input_shape} and {private.classes}. A bend trained on other classes is no bend."
        )
    lacking = [
        name
        for label, name in enumerate(public.classes or ())
        if not (public.y_train == label).any()
    ]
    if lacking:
        raise UserError(
            f"federation.aggregation.mode-connectivity.public = {public.name!r} has no training record of class {lacking[0]!r}, which the "
            "clients have. A bend trained without it would forget it."
        )
    if public.name == private.name:
        raise UserError(
            f"{public.name!r} is what the clients hold: it is not public. Name other records of the same kind, such as a file."
        )
    return tensors(public, "train")


def resolved(protocol: Protocol, data: DataSource | None, model: ModelSource | None) -> Protocol:
    """The complete protocol of a run: with its seed, and with the names of the data and the model that were given."""
    if data is not None:
        name = data if isinstance(data, str) else IN_PYTHON + data.name
        spec = replace(protocol.data, name=name) if protocol.data is not None else Data(name=name)
        if isinstance(data, Dataset) and data.test == "none":
            spec = replace(spec, test="none")  # there is nothing to score on
        protocol = replace(protocol, data=spec)
    if model is not None:
        name = (
            model
            if isinstance(model, str)
            else IN_PYTHON + getattr(model, "__name__", type(model).__name__)
        )
        protocol = replace(
            protocol,
            model=replace(protocol.model, name=name)
            if protocol.model is not None
            else Model(name=name),
        )
    if protocol.seed is None:
        protocol = replace(protocol, seed=int.from_bytes(Key.from_system().secret[:6], "little"))
    return protocol


def with_public_size(protocol: Protocol, parts: tuple[np.ndarray, ...]) -> Protocol:
    """The number of records per client spelled out, where all clients have the same: prices depend on it."""
    data, sizes = protocol.data, {len(part) for part in parts}
    if data is None or data.records is not None or len(sizes) > 1:
        return protocol
    return replace(protocol, data=replace(data, records=sizes.pop()))


def with_public_dimension(protocol: Protocol, module: nn.Module) -> Protocol:
    """The number of parameters spelled out, where the price of the noise depends on it."""
    kinds = {protocol.noise.tag, *(budget.mechanism or "gaussian" for budget in protocol.client)}
    if kinds == {"gaussian"} or protocol.model is None or protocol.model.parameters is not None:
        return protocol
    return replace(
        protocol, model=replace(protocol.model, parameters=FlatModel(module).weights.numel())
    )


def protocol_model(
    protocol: Protocol,
    source: ModelSource,
    shape: tuple[int, ...],
    outputs: int,
    *,
    seed: int,
    classes: tuple[str, ...] | None,
) -> nn.Module:
    """The module that a protocol trains. The rule clipped-glm trains one model only, on two classes only."""
    if not isinstance(protocol.local, ClippedGlm):
        return build_model(source, shape, outputs, seed=seed)
    if classes is None or outputs != 2:
        raise UserError(
            f"local.rule = 'clipped-glm' needs data of two classes; these have {outputs} outputs. Use fedavg."
        )
    if source != "logistic":
        raise UserError(
            f"model.name = {source!r}: the rule clipped-glm trains 'logistic' and nothing else."
        )
    return BoundedLogistic(math.prod(shape), protocol.local.feature_norm)


def _findable(name: str, what: str) -> str:
    if name.startswith(IN_PYTHON):
        given = name.removeprefix(IN_PYTHON)
        raise UserError(
            f"the {what} {given!r} was handed over in Python, not by name: hand it over again, as {what}=..."
        )
    return name


def refuse_small_clients(parts: tuple[np.ndarray, ...], batch: int) -> None:
    """A step draws distinct records, so the smallest client must hold a batch."""
    smallest = min(range(len(parts)), key=lambda client: len(parts[client]))
    if len(parts[smallest]) < batch:
        raise UserError(
            f"local.batch = {batch}: client {smallest} has {len(parts[smallest])} records, and a step draws distinct records. "
            f"Lower local.batch to {len(parts[smallest])}, or give clients more records."
        )


def tensors(dataset: Dataset, which: str) -> Tensors:
    """The training or the test records of a data set as tensors."""
    x, y = (
        (dataset.x_train, dataset.y_train) if which == "train" else (dataset.x_test, dataset.y_test)
    )
    arrays = (x, y, dataset.scale, dataset.shift)
    made = [torch.from_numpy(array if array.flags.writeable else array.copy()) for array in arrays]
    return Tensors(x=made[0], y=made[1], scale=made[2], shift=made[3])


def shares_digest(records: str, parts: tuple[np.ndarray, ...]) -> str:
    """What a resumed run must find again: the same records (by their digest) in the same hands."""
    joined = hashlib.sha256(records.encode())
    for part in parts:
        joined.update(part.astype("<i8").tobytes() + b"|")
    return joined.hexdigest()

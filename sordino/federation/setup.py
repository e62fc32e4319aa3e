"""Makes everything that a round needs of a protocol: shared-out data, a fitting model, and keys.

Whatever can be wrong with a protocol, its data or its model is refused here, before anything is
written.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from typing import Protocol as Interface

import numpy as np
import torch
from torch import nn

from sordino.data import (
    IN_PYTHON,
    KNOWN,
    Dataset,
    LabelShares,
    digest,
    load_data,
    load_dataset,
    partition,
    without_test,
)
from sordino.data.classes import refuse_other_classes
from sordino.data.from_python import accept_data
from sordino.models import build_model, check_model, parameter_count
from sordino.models.bounded import build_bounded_model
from sordino.models.flat import FlatModel
from sordino.models.public_features import apply_features
from sordino.privacy.noise_releases import refuse_unpriced
from sordino.privacy.own_noise import own_protocol, with_found_noise
from sordino.protocol import ClippedGlm, Data, Grid, Model, Noise, Protocol, UserError
from sordino.protocol.release import Release
from sordino.randomness import Key, Purpose

DataSource = str | Dataset
ModelSource = str | nn.Module | Callable[..., nn.Module]


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """Holds the records as tensors, which all workers share.

    Attributes:
        x: the features as they are stored, bytes where the data are bytes.
        y: the labels or targets.
        scale: what stored features are multiplied by to become a model's input.
        shift: the number added to them after that.
    """

    x: torch.Tensor
    y: torch.Tensor
    scale: torch.Tensor
    shift: torch.Tensor

    def inputs(self, rows: torch.Tensor | slice) -> torch.Tensor:
        """Returns some records in the form that the model reads.

        Args:
            rows: the numbers of the records, or a range of them.

        Returns:
            The inputs, in float32.
        """
        chosen = self.x.index_select(0, rows) if isinstance(rows, torch.Tensor) else self.x[rows]
        return chosen.to(torch.float32).mul(self.scale).add_(self.shift)

    def to(self, device: torch.device) -> Tensors:
        """Returns the same records on another device.

        Args:
            device: where the copies go.

        Returns:
            New tensors; where they are on the device already, the same ones.
        """
        return Tensors(
            x=self.x.to(device),
            y=self.y.to(device),
            scale=self.scale.to(device),
            shift=self.shift.to(device),
        )


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Describes a protocol made concrete. Workers get it whole; nothing in it changes during a run.

    Attributes:
        protocol: the protocol, resolved and complete.
        train: the training records of all clients.
        test: the test records, of which there may be none.
        parts: the rows of `train` that each client has.
        classification: whether labels are classes.
        outputs: how many outputs the model has.
        input_shape: the shape of one record.
        module: the model before the first round.
        key: what seeded draws come from that are not part of a privacy mechanism.
        noise_key: what the noise comes from.
        draw_key: what cohorts and minibatches come from.
        data_digest: the digest of the records and of how they were shared out.
        tested_on: whose records the test part holds (data/dataset.py).
        public: the server's public records, for mode connectivity.
        shares: which client has which labels, where real data were shared out.
        training: which of the trainings with these keys this is; audits train many times.
    """

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
    # Fresh where the noise is fresh: amplification by sampling counts on independent draws, which a
    # repeated round with the same cohort and the same minibatches would not be.
    draw_key: Key
    data_digest: str
    tested_on: str = "brought"
    public: Tensors | None = None
    shares: LabelShares | None = None
    training: int = 0

    @property
    def sizes(self) -> np.ndarray:
        """Number of records of every client."""
        return np.array([len(part) for part in self.parts])

    @cached_property
    def release(self) -> Release:
        """What leaves a client in a round, under which noise."""
        return self.protocol.release

    @cached_property
    def grid(self) -> Grid:
        """The grid that uploads lie on.

        Raises:
            ValueError: they are floating-point numbers.
        """
        if self.protocol.grid is None:
            raise ValueError("uploads of this protocol lie on no grid")
        return self.protocol.grid

    @cached_property
    def sum_weights(self) -> np.ndarray:
        """What each client's update is multiplied by before it is summed: at most 1."""
        if not self.protocol.aggregation.weighs_records:
            return np.ones(self.protocol.clients)
        # By sizes that the protocol says: clients have to know them without being told.
        weights: np.ndarray = self.sizes / self.sizes.max()
        return weights

    @cached_property
    def noises(self) -> tuple[Noise, ...]:
        """The noise of every client."""
        sizes = self.sizes.tolist()
        own = {
            budget.id: own_protocol(self.protocol, budget, sizes[budget.id]).noise
            for budget in self.protocol.client
        }
        return tuple(own.get(client, self.release.noise) for client in range(self.protocol.clients))

    def find_draw_rate(self, client: int) -> float:
        """Returns the probability that a batch of random size holds a record of a client.

        Args:
            client: the client.
        """
        records = len(self.parts[client])
        lot = self.release.lot
        if lot is None:
            return (self.protocol.local.batch or records) / records
        # The file knows all clients' sizes where a machine knows its own alone.
        sizes = self.protocol.stated_sizes or self.sizes.tolist()
        return lot.find_rate(records, sum(sizes) / len(sizes))

    @cached_property
    def _flat(self) -> FlatModel:
        return FlatModel(self.module)

    def __getstate__(self) -> dict[str, object]:
        # The flat model's parameters are views into one vector, and copies of views are no views:
        # each process makes its own.
        return {name: value for name, value in self.__dict__.items() if name != "_flat"}

    def initial_weights(self) -> np.ndarray:
        """Returns the model before the first round, as one vector."""
        # A copy: the flat model goes on computing with this memory.
        return self._flat.weights.numpy().copy()

    def state(self, weights: np.ndarray) -> dict[str, torch.Tensor]:
        """Returns the tensors of the model with some weights, as a file stores them.

        Args:
            weights: the parameters as one vector.

        Returns:
            Each tensor under its name.
        """
        return self._flat.to_state(torch.from_numpy(weights))

    def client_state(self, own: np.ndarray) -> dict[str, torch.Tensor]:
        """Returns the tensors of a client's personal model, as a file stores them.

        Args:
            own: its parameters as one vector, which rounds may keep in double precision.

        Returns:
            Each tensor under its name, in the precision of the model.
        """
        return self.state(own.astype(self.initial_weights().dtype))


class Begun(Interface):
    """Describes a run that begins; a `Setup` does, and so does a follower on another machine."""

    @property
    def protocol(self) -> Protocol:
        """The protocol, resolved."""

    @property
    def sizes(self) -> np.ndarray:
        """Number of records of every client."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Loaded:
    """Holds a data set in the form that trainings share, whatever they do with it.

    Attributes:
        dataset: the data set.
        train: its training records.
        test: its test records.
        digest: the digest of all records.
    """

    dataset: Dataset
    train: Tensors
    test: Tensors
    digest: str


def loaded(source: Data | Dataset, settings: Data | None = None) -> Loaded:
    """Loads a data set once; many trainings ask for it with `prepare(load=...)`.

    Args:
        source: a data set, or the name of one with the classes and the test part of a protocol.
        settings: for a data set that was handed over, the classes, test part and features of a
            protocol.

    Returns:
        The data set with its features, its tensors and its digest.

    Raises:
        UserError: data that cannot be had, or whose classes are not the protocol's.

    Example:
        >>> loaded(Data(name="digits")).dataset.outputs
        10
    """
    dataset = load_data(source) if isinstance(source, Data) else source
    features = source.features if isinstance(source, Data) else None
    if settings is not None:
        refuse_other_classes(dataset.name, dataset.classes, settings.classes)
        if settings.test is not None:
            dataset = without_test(dataset)
        features = settings.features
    # The digest is of the records: another machine may round their features otherwise.
    records = digest(dataset)
    if features is not None:
        records = hashlib.sha256(f"{records} features {features}".encode()).hexdigest()
        dataset = apply_features(dataset, features)
    return Loaded(
        dataset=dataset,
        train=tensors(dataset, "train"),
        test=tensors(dataset, "test"),
        digest=records,
    )


def prepare(
    protocol: Protocol,
    *,
    data: Any = None,
    model: ModelSource | None = None,
    parts: Sequence[np.ndarray] | None = None,
    load: Callable[[Data | Dataset, Data | None], Loaded] = loaded,
) -> Setup:
    """Loads the data, shares them out, builds the model and checks everything.

    Everything that a person can have got wrong is refused here, before anything is written.

    Args:
        protocol: the protocol.
        data: a name, a path, arrays (x, y), a DataFrame or a `Dataset`, in place of
            `protocol.data.name`.
        model: a name, a module or a factory, in place of `protocol.model.name`.
        parts: the records of every client, where the protocol's partition does not apply: across
            machines each client brings its records.
        load: how data are loaded; it may remember what it loaded, since nothing in it depends on
            the protocol.

    Returns:
        All that a round needs.

    Raises:
        UserError: no data or model named, data that cannot be found, a batch larger than a client's
            records, a model that does not fit the data, and the like.

    Example:
        >>> setup = prepare(protocol, data="digits", model="mlp")  # doctest: +SKIP
    """
    data = accept_data(data, protocol.data)
    protocol = resolved(protocol, data, model)
    spec = protocol.data
    net = protocol.model
    if spec is None or net is None or protocol.seed is None:
        raise UserError(
            "data.name or model.name is missing: say what is trained on what, such as "
            "data.name='digits', model.name='mlp'."
        )
    key = Key.from_seed(protocol.seed)
    found = load(*_source_of(spec, data))
    dataset = found.dataset
    shared_out = parts is None
    parts = partition(dataset, spec, protocol.clients, key) if parts is None else tuple(parts)
    if protocol.draws_coins:
        refuse_large_lot(parts, protocol.local.batch or 1)
    else:
        refuse_small_clients(parts, protocol.local.batch or 1)
    if (
        not protocol.local.draws_batches
        and protocol.local.batch is not None
        and len({len(part) for part in parts}) > 1
    ):
        raise UserError(
            "local.batches = 'cyclic' needs clients of one size: the fixed batches are a public "
            "part of the protocol."
        )
    # Sizes come first, then the dimension: the search for the noise below prices the protocol, and
    # prices depend on both.
    protocol = with_public_size(protocol, parts)
    source = (
        model if model is not None and not isinstance(model, str) else _findable(net.name, "model")
    )
    # The initial model has a stream of its own, so that it does not move when other draws change.
    seed = key.stream(Purpose.INITIAL_MODEL).draw_seed()
    module = protocol_model(
        protocol, source, dataset.input_shape, dataset.outputs, classes=dataset.classes, seed=seed
    )
    check_model(module, invented_inputs(dataset.input_shape), dataset.outputs, net.parameters)
    protocol = with_public_dimension(protocol, module)
    # A mechanism without a price must not train: there would be nothing to charge to the ledger.
    refuse_unpriced(protocol)
    protocol = with_found_noise(protocol, [len(part) for part in parts])
    # Secure noise never comes from the seed, which the run folder tells: a reader of it could
    # subtract noise that was drawn from it.
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
        shares=LabelShares.of(dataset, parts) if shared_out else None,
    )


def _source_of(spec: Data, data: DataSource | None) -> tuple[Data | Dataset, Data | None]:
    """Returns the data set to be loaded, with nothing in it that loading does not depend on.

    Equal questions then have one answer, which a cache can give again.
    """
    kept = Data(
        name=spec.name,
        classes=spec.classes,
        columns=spec.columns,
        test=spec.test,
        features=spec.features,
    )
    if isinstance(data, Dataset):
        return data, replace(kept, name=data.name)
    return replace(kept, name=_findable(spec.name, "data")), None


def invented_inputs(shape: tuple[int, ...]) -> torch.Tensor:
    """Returns two made-up records to try a model on.

    Args:
        shape: the shape of one record.

    Returns:
        A batch of two, always the same.
    """
    # Made up, and not drawn from the data: whether a client answers must not depend on its records.
    return torch.from_numpy(np.random.default_rng(0).standard_normal((2, *shape), dtype=np.float32))


def public_records(protocol: Protocol, private: Dataset) -> Tensors | None:
    """Returns the server's public records, which must be of the kind that the clients have.

    Args:
        protocol: the protocol; only mode connectivity has public records.
        private: the clients' data.

    Returns:
        The public training records; None where the protocol has none.

    Raises:
        UserError: they have another shape or other classes, lack a class, or are the clients' data.
    """
    name = protocol.aggregation.public
    if name is None:
        return None
    # A built-in data set says which classes it has. A file is read with the clients' classes, so
    # that equal labels get equal numbers.
    known = None if name in KNOWN else private.classes
    features = None
    columns = None
    if protocol.data is not None:
        features = protocol.data.features
        columns = None if name in KNOWN else protocol.data.described_columns
    public = apply_features(load_dataset(name, classes=known, columns=columns), features)
    alike = (
        public.input_shape == private.input_shape
        and public.outputs == private.outputs
        and public.classes == private.classes
    )
    if not alike:
        raise UserError(
            f"federation.aggregation.mode-connectivity.public = {public.name!r} has records of "
            f"shape {public.input_shape} and classes {public.classes}; the clients' have "
            f"{private.input_shape} and {private.classes}. A bend trained on other classes is no "
            "bend."
        )
    lacking = [
        name
        for label, name in enumerate(public.classes or ())
        if not (public.y_train == label).any()
    ]
    if lacking:
        raise UserError(
            f"federation.aggregation.mode-connectivity.public = {public.name!r} has no training "
            f"record of class {lacking[0]!r}, which the clients have. A bend trained without it "
            "would forget it."
        )
    # The guarantee does not cover public records: private ones in their place would be released
    # unprotected.
    if public.name == private.name:
        raise UserError(
            f"{public.name!r} is what the clients hold: it is not public. Name other records of "
            "the same kind, such as a file."
        )
    return tensors(public, "train")


def resolved(protocol: Protocol, data: DataSource | None, model: ModelSource | None) -> Protocol:
    """Returns the complete protocol of a run, with its seed and the names of its data and model.

    Args:
        protocol: the protocol as it was written.
        data: data that were given in place of the protocol's.
        model: a model that was given in place of the protocol's.

    Returns:
        The protocol that the run folder keeps.
    """
    if data is not None:
        name = data if isinstance(data, str) else IN_PYTHON + data.name
        spec = replace(protocol.data, name=name) if protocol.data is not None else Data(name=name)
        if isinstance(data, Dataset) and data.test == "none":
            # There is nothing to score on, and a resumed run has to know that.
            spec = replace(spec, test="none")
        protocol = replace(protocol, data=spec)
    if model is not None:
        name = (
            model
            if isinstance(model, str)
            else IN_PYTHON + getattr(model, "__name__", type(model).__name__)
        )
        net = Model(name=name)
        if protocol.model is not None:
            net = replace(protocol.model, name=name)
        protocol = replace(protocol, model=net)
    if protocol.seed is None:
        # Six bytes: a number that every JSON reader keeps exactly, which 53 bits allow and 64 do
        # not.
        protocol = replace(protocol, seed=int.from_bytes(Key.from_system().secret[:6], "little"))
    return protocol


def with_public_size(protocol: Protocol, parts: tuple[np.ndarray, ...]) -> Protocol:
    """Returns the protocol with the records per client spelled out, where all clients have as many.

    Prices depend on this number, so a run folder has to say it.

    Args:
        protocol: the protocol.
        parts: the records of every client.

    Returns:
        The protocol; unchanged where sizes differ, or where the protocol lists them.
    """
    data = protocol.data
    sizes = {len(part) for part in parts}
    if data is None or data.distinct_sizes or len(sizes) > 1:
        return protocol
    return replace(protocol, data=replace(data, records=sizes.pop()))


def with_public_dimension(protocol: Protocol, module: nn.Module) -> Protocol:
    """Returns the protocol with the number of parameters spelled out, where prices depend on it.

    Args:
        protocol: the protocol.
        module: its model.

    Returns:
        The protocol; unchanged where all noise is normal, whose price knows no dimension.
    """
    kinds = {protocol.noise.tag, *(budget.mechanism or "gaussian" for budget in protocol.client)}
    without = kinds == {"gaussian"} and not protocol.release.integers
    if without or protocol.model is None or protocol.model.parameters is not None:
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
    """Returns the module that a protocol trains.

    The rule clipped-glm trains linear models of bounded records alone, since its sensitivity is
    known for nothing else.

    Args:
        protocol: the protocol.
        source: a name, a module or a factory.
        shape: the shape of one record.
        outputs: how many outputs the data need.
        seed: what initial weights are drawn from.
        classes: the names of the classes; None for a regression.

    Returns:
        A new module.

    Raises:
        UserError: clipped-glm with another model, or with data whose classes do not fit its loss.
    """
    rule = protocol.local
    if type(rule) is not ClippedGlm:
        return build_model(source, shape, outputs, seed=seed)
    if classes is None:
        raise UserError("local.rule = 'clipped-glm' needs data with classes. Use fedavg.")
    if rule.loss == "logistic" and outputs != 2:
        raise UserError(
            "local.rule = 'clipped-glm' with local.loss = 'logistic' needs data of two classes; "
            f"these have {outputs} outputs. Use local.loss = 'softmax' without a clip, or "
            "'one-against-rest'."
        )
    if source != "logistic":
        raise UserError(
            f"model.name = {source!r}: the rule clipped-glm trains 'logistic' and nothing else."
        )
    return build_bounded_model(rule.loss, math.prod(shape), outputs, rule.feature_norm)


def _findable(name: str, what: str) -> str:
    if name.startswith(IN_PYTHON):
        given = name.removeprefix(IN_PYTHON)
        raise UserError(
            f"the {what} {given!r} was handed over in Python, not by name: hand it over again, as "
            f"{what}=..."
        )
    return name


def refuse_small_clients(parts: tuple[np.ndarray, ...], batch: int) -> None:
    """Refuses clients that hold less than a batch: a step draws distinct records.

    Args:
        parts: the records of every client.
        batch: how many records a step draws.

    Raises:
        UserError: it names the smallest client and the largest batch that it allows.
    """
    smallest = min(range(len(parts)), key=lambda client: len(parts[client]))
    if len(parts[smallest]) < batch:
        raise UserError(
            f"local.batch = {batch}: client {smallest} has {len(parts[smallest])} records, and a "
            f"step draws distinct records. Lower local.batch to {len(parts[smallest])}, or give "
            "clients more records."
        )


def refuse_large_lot(parts: tuple[np.ndarray, ...], batch: int) -> None:
    """Refuses a lot of more records than there are.

    Args:
        parts: the records of every client.
        batch: how many records a client draws on average.

    Raises:
        UserError: it names the largest number that the clients' records allow.
    """
    mean = sum(len(part) for part in parts) / len(parts)
    if mean < batch:
        raise UserError(
            f"local.batch = {batch}: clients have {mean:g} records on average, and each is drawn "
            f"with probability local.batch / {mean:g}. Lower local.batch to {int(mean)}."
        )


def tensors(dataset: Dataset, which: str) -> Tensors:
    """Returns the training or the test records of a data set as tensors.

    Args:
        dataset: the data set.
        which: "train" or "test".

    Returns:
        The records; they share memory with the data set where it may be written.
    """
    x = dataset.x_test
    y = dataset.y_test
    if which == "train":
        x = dataset.x_train
        y = dataset.y_train
    # torch warns about memory that it may not write, so such arrays are copied.
    arrays = (x, y, dataset.scale, dataset.shift)
    made = [torch.from_numpy(array if array.flags.writeable else array.copy()) for array in arrays]
    return Tensors(x=made[0], y=made[1], scale=made[2], shift=made[3])


def shares_digest(records: str, parts: tuple[np.ndarray, ...]) -> str:
    """Returns the digest that a resumed run must find again: the same records in the same hands.

    Args:
        records: the digest of all records.
        parts: the records of every client.

    Returns:
        A SHA-256 as hexadecimal digits.
    """
    joined = hashlib.sha256(records.encode())
    for part in parts:
        # Little-endian on every machine, and with a mark between clients: [1, 2], [3] is not [1],
        # [2, 3].
        joined.update(part.astype("<i8").tobytes() + b"|")
    return joined.hexdigest()


def with_parameter_count(protocol: Protocol) -> Protocol:
    """Returns a protocol that says how many parameters its model has.

    Args:
        protocol: any; where it names a model and data but no number, the model is built to count.

    Returns:
        The protocol, with the number where it can be known.
    """
    model = protocol.model
    if model is None or protocol.data is None or model.parameters is not None:
        return protocol
    count = parameter_count(prepare(protocol).module)
    return replace(protocol, model=replace(model, parameters=count))

"""Makes everything that a round needs of a protocol: shared-out data, a fitting model, and keys.

Whatever can be wrong with a protocol, its data or its model is refused here, before anything is
written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from typing import Protocol as Interface

import numpy as np
import torch
from torch import nn

from sordino.data import (
    Dataset,
    LabelShares,
    partition,
)
from sordino.data.from_python import accept_data
from sordino.federation.complete_protocol import (
    DataSource,
    ModelSource,
    protocol_model,
    require_name,
    resolve_protocol,
    with_public_dimension,
    with_public_size,
)
from sordino.federation.record_tensors import Loaded, Tensors, loaded, public_records
from sordino.models import check_model, parameter_count
from sordino.models.flat import FlatModel
from sordino.privacy.noise_releases import refuse_unpriced
from sordino.privacy.own_noise import own_protocol, with_found_noise
from sordino.protocol import Data, Grid, Model, Noise, Protocol, UserError
from sordino.protocol.release import Release
from sordino.randomness import Key, Purpose


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Describes a protocol made concrete. Workers get it whole; nothing in it changes during a run.

    Attributes:
        protocol: The protocol, resolved and complete.
        train: The training records of all clients.
        test: The test records, of which there may be none.
        parts: The rows of `train` that each client has.
        classification: Whether labels are classes.
        outputs: How many outputs the model has.
        input_shape: The shape of one record.
        module: The model before the first round.
        key: What seeded draws come from that are not part of a privacy mechanism.
        noise_key: What the noise comes from.
        draw_key: What cohorts and minibatches come from.
        data_digest: The digest of the records and of how they were shared out.
        tested_on: Whose records the test part holds (data/dataset.py).
        public: The server's public records, for mode connectivity.
        shares: Which client has which labels, where real data were shared out.
        training: Which of the trainings with these keys this is; audits train many times.
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
            ValueError: They are floating-point numbers.
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
        """The noise of every client; equal ones are one object."""
        sizes = self.sizes.tolist()
        own = {
            budget.id: own_protocol(self.protocol, budget, sizes[budget.id]).noise
            for budget in self.protocol.client
        }
        shared: dict[Noise, Noise] = {}
        noises = (own.get(client, self.release.noise) for client in range(self.protocol.clients))
        return tuple(shared.setdefault(noise, noise) for noise in noises)

    def find_draw_rate(self, client: int) -> float:
        """Returns the probability that a batch of random size holds a record of a client.

        Args:
            client: Number of the client, from 0.
        """
        records = len(self.parts[client])
        lot = self.release.lot
        if lot is None:
            return (self.protocol.local.batch or records) / records
        # The file knows all clients' sizes where a machine knows only its own.
        sizes = self.protocol.stated_sizes or self.sizes.tolist()
        return lot.find_rate(records, sum(sizes) / len(sizes))

    @cached_property
    def _flat(self) -> FlatModel:
        return FlatModel(self.module)

    def __getstate__(self) -> dict[str, object]:
        # The flat model's parameters are views into one vector, and copies of views are not views:
        # each process makes its own.
        return {name: value for name, value in self.__dict__.items() if name != "_flat"}

    def initial_weights(self) -> np.ndarray:
        """Returns the model before the first round, as one vector."""
        # A copy: the flat model continues to compute with this memory.
        return self._flat.weights.numpy().copy()

    def state(self, weights: np.ndarray) -> dict[str, torch.Tensor]:
        """Returns the tensors of the model with some weights, as a file stores them.

        Args:
            weights: The parameters as one vector.

        Returns:
            Each tensor under its name.
        """
        return self._flat.to_state(torch.from_numpy(weights))

    def client_state(self, own: np.ndarray) -> dict[str, torch.Tensor]:
        """Returns the tensors of a client's personal model, as a file stores them.

        Args:
            own: Its parameters as one vector, which rounds may keep in double precision.

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
        protocol: The federation whose rounds are played.
        data: A name, a path, arrays (x, y), a DataFrame or a `Dataset`, in place of
            `protocol.data.name`.
        model: A name, a module or a factory, in place of `protocol.model.name`.
        parts: The records of every client, where the protocol's partition does not apply: across
            machines each client brings its records.
        load: How data are loaded; it may remember what it loaded, since nothing in it depends on
            the protocol.

    Returns:
        All that a round needs.

    Raises:
        UserError: No data or model named, data that cannot be found, a batch larger than a client's
            records, a model that does not fit the data, and the like.

    Example:
        >>> setup = prepare(protocol, data="digits", model="mlp")  # doctest: +SKIP
    """
    data = accept_data(data, protocol.data)
    protocol = resolve_protocol(protocol, data, model)
    spec = protocol.data
    net = protocol.model
    if spec is None or net is None or protocol.seed is None:
        raise UserError(
            "data.name or model.name is missing: name the data and the model, such as "
            "data.name='digits', model.name='mlp'."
        )
    key = Key.from_seed(protocol.seed)
    found = load(*_source_of(spec, data))
    dataset = found.dataset
    shared_out = parts is None
    parts = partition(dataset, spec, protocol.clients, key) if parts is None else tuple(parts)
    refuse_unfit_parts(protocol, parts)
    # Sizes come first, then the dimension: the search for the noise below prices the protocol, and
    # prices depend on both.
    protocol = with_public_size(protocol, parts)
    module = build_initial_model(protocol, net, model, dataset, key)
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


def refuse_unfit_parts(protocol: Protocol, parts: tuple[np.ndarray, ...]) -> None:
    """Refuses clients whose records do not fill the batches of the local rule.

    Args:
        protocol: The federation whose rounds are played.
        parts: The records of every client.

    Raises:
        UserError: A batch is larger than a client's records, or fixed batches meet clients of
            different sizes.
    """
    batch = protocol.local.batch
    if protocol.draws_coins:
        refuse_large_lot(parts, batch or 1)
    else:
        refuse_small_clients(parts, batch or 1)
    fixed = batch is not None and not protocol.local.draws_batches
    if fixed and len({len(part) for part in parts}) > 1:
        raise UserError(
            "local.batches = 'cyclic' needs clients of one size: the fixed batches are a public "
            "part of the protocol."
        )


def build_initial_model(
    protocol: Protocol, net: Model, model: ModelSource | None, dataset: Dataset, key: Key
) -> nn.Module:
    """Builds the initial model and checks that it fits the data.

    Args:
        protocol: The federation whose rounds are played.
        net: What the protocol says of its model.
        model: A module or a factory that was passed in Python; a name, or None, for the model
            that the protocol names.
        dataset: The records that the model is for.
        key: The key of all draws that follow from the seed.

    Raises:
        UserError: The model does not fit the data, or has another number of parameters than stated.
    """
    source: ModelSource
    if model is None or isinstance(model, str):
        source = require_name(net.name, "model")
    else:
        source = model
    # The initial model has its own stream, so that it does not move when other draws change.
    seed = key.stream(Purpose.INITIAL_MODEL).draw_seed()
    module = protocol_model(
        protocol, source, dataset.input_shape, dataset.outputs, classes=dataset.classes, seed=seed
    )
    check_model(module, invented_inputs(dataset.input_shape), dataset.outputs, net.parameters)
    return module


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
    return replace(kept, name=require_name(spec.name, "data")), None


def invented_inputs(shape: tuple[int, ...]) -> torch.Tensor:
    """Returns two made-up records to try a model on.

    Args:
        shape: The shape of one record.

    Returns:
        A batch of two, always the same.
    """
    # Made up, and not drawn from the data: whether a client answers must not depend on its records.
    return torch.from_numpy(np.random.default_rng(0).standard_normal((2, *shape), dtype=np.float32))


def refuse_small_clients(parts: tuple[np.ndarray, ...], batch: int) -> None:
    """Refuses clients that hold less than a batch: a step draws distinct records.

    Args:
        parts: The records of every client.
        batch: How many records a step draws.

    Raises:
        UserError: It names the smallest client and the largest batch that it allows.
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
        parts: The records of every client.
        batch: How many records a client draws on average.

    Raises:
        UserError: It names the largest number that the clients' records allow.
    """
    mean = sum(len(part) for part in parts) / len(parts)
    if mean < batch:
        raise UserError(
            f"local.batch = {batch}: clients have {mean:g} records on average, and each is drawn "
            f"with probability local.batch / {mean:g}. Lower local.batch to {int(mean)}."
        )


def shares_digest(records: str, parts: tuple[np.ndarray, ...]) -> str:
    """Returns the digest that a resumed run must find again: the same records in the same hands.

    Args:
        records: The digest of all records.
        parts: The records of every client.

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
        protocol: Any; where it names a model and data but no number, the model is built to count.

    Returns:
        The protocol, with the number where it can be known.
    """
    model = protocol.model
    if model is None or protocol.data is None or model.parameters is not None:
        return protocol
    count = parameter_count(prepare(protocol).module)
    return replace(protocol, model=replace(model, parameters=count))

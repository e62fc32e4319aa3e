"""Records as tensors that trainings and their workers share, and how they are loaded."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

from sordino.data import (
    KNOWN,
    Dataset,
    digest,
    drop_test_part,
    load_data,
    load_dataset,
)
from sordino.data.classes import refuse_other_classes
from sordino.models.public_features import apply_features
from sordino.protocol import Data, Protocol, UserError


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """Holds the records as tensors, which all workers share.

    Attributes:
        x: The features as they are stored, bytes where the data are bytes.
        y: The labels or targets.
        scale: What stored features are multiplied by to become a model's input.
        shift: The number added to them after that.
    """

    x: torch.Tensor
    y: torch.Tensor
    scale: torch.Tensor
    shift: torch.Tensor

    def inputs(self, rows: torch.Tensor | slice) -> torch.Tensor:
        """Returns some records in the form that the model reads.

        Args:
            rows: The numbers of the records, or a range of them.

        Returns:
            The inputs, in float32.
        """
        chosen = self.x.index_select(0, rows) if isinstance(rows, torch.Tensor) else self.x[rows]
        return chosen.to(torch.float32).mul(self.scale).add_(self.shift)

    def to(self, device: torch.device) -> Tensors:
        """Returns the same records on another device.

        Args:
            device: Where the copies go.

        Returns:
            New tensors; where they are on the device already, the same ones.
        """
        return Tensors(
            x=self.x.to(device),
            y=self.y.to(device),
            scale=self.scale.to(device),
            shift=self.shift.to(device),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Loaded:
    """Holds a data set in the form that trainings share, whatever they do with it.

    Attributes:
        dataset: The data set.
        train: Its training records.
        test: Its test records.
        digest: The digest of all records.
    """

    dataset: Dataset
    train: Tensors
    test: Tensors
    digest: str


def loaded(source: Data | Dataset, settings: Data | None = None) -> Loaded:
    """Loads a data set once; many trainings ask for it with `prepare(load=...)`.

    Args:
        source: A data set, or the name of one with the classes and the test part of a protocol.
        settings: For a data set that was handed over, the classes, test part and features of a
            protocol.

    Returns:
        The data set with its features, its tensors and its digest.

    Raises:
        UserError: Data that cannot be had, or whose classes are not the protocol's.

    Example:
        >>> loaded(Data(name="digits")).dataset.outputs
        10
    """
    dataset = load_data(source) if isinstance(source, Data) else source
    features = source.features if isinstance(source, Data) else None
    if settings is not None:
        refuse_other_classes(dataset.name, dataset.classes, settings.classes)
        if settings.test is not None:
            dataset = drop_test_part(dataset)
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


def public_records(protocol: Protocol, private: Dataset) -> Tensors | None:
    """Returns the server's public records, which must be of the kind that the clients have.

    Args:
        protocol: The protocol; only mode connectivity has public records.
        private: The clients' data.

    Returns:
        The public training records; None where the protocol has none.

    Raises:
        UserError: They have another shape or other classes, lack a class, or are the clients' data.
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
            f"{private.input_shape} and {private.classes}. A bend cannot be trained on other "
            "classes."
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


def tensors(dataset: Dataset, which: str) -> Tensors:
    """Returns the training or the test records of a data set as tensors.

    Args:
        dataset: The data set.
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

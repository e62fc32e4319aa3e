"""Public features: a fixed function of a single record, applied before everything else.

Neighbouring data sets stay neighbours under a function of one record, so no price changes
(docs/theory.md#a20). A function that looks at several records would carry one record
into the features of others, and every promise about one record would be false. That is tested here
on invented records, as far as a test can see it.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sordino.data import Dataset
from sordino.models.factories import find_object, import_from_here
from sordino.models.feature_cache import load_or_compute
from sordino.models.nets import Shape
from sordino.models.random_filters import RandomFilters
from sordino.models.scattering import Scattering
from sordino.protocol import UserError

Transform = Callable[[Tensor], Tensor]
BUILT_IN: dict[str, Callable[[Shape], Transform]] = {
    "scattering": Scattering,
    "random-filters": RandomFilters,
}
# How many records pass through a transform together: few, so that temporaries stay small.
CHUNK = 64
# How many invented records a transform is tried on.
PROBES = 7
# Two results for one record may differ by roundings, and by nothing else.
TOLERANCE = 1e-4


class TriedTransform(NamedTuple):
    """A transform that passed its test.

    Attributes:
        name: The name of the transform in the protocol.
        apply: Computes the features of a batch of records.
        output_shape: The shape of one record's features.
        fingerprint: A digest of its code and of the features of invented records.
        threads: How many batches may be transformed at a time.
    """

    name: str
    apply: Transform
    output_shape: Shape
    fingerprint: str
    threads: int


def apply_features(dataset: Dataset, features: str | None) -> Dataset:
    """Returns a data set whose records are the features of the given ones.

    Args:
        dataset: The records.
        features: The transform, as `data.features` names it; None for no transform.

    Returns:
        The data set with float32 features; without `features`, the same one.

    Raises:
        UserError: The transform cannot be found, does not fit the records, or was seen to look at
            more than one record.

    Example:
        >>> from sordino.data import load_dataset
        >>> os.environ["SORDINO_CACHE"] = "none"
        >>> apply_features(load_dataset("digits"), "scattering").input_shape
        (81, 2, 2)
    """
    if features is None:
        return dataset
    transform = find_transform(features, dataset.input_shape)
    return replace(
        dataset,
        x_train=transform_records(dataset, dataset.x_train, transform),
        x_test=transform_records(dataset, dataset.x_test, transform),
        # Features are inputs already: nothing is left to scale.
        scale=np.ones((), dtype=np.float32),
        shift=np.zeros((), dtype=np.float32),
        inputs=None,
    )


def find_transform(features: str, input_shape: Shape) -> TriedTransform:
    """Returns a transform, after its test.

    Args:
        features: A built-in name, or "package.module:factory".
        input_shape: The shape of one record.

    Raises:
        UserError: The transform cannot be found, raises an error, or fails the test.
    """
    if features in BUILT_IN:
        made: Transform = BUILT_IN[features](input_shape)
        return try_transform(features, made, input_shape, code="", threads=os.cpu_count() or 1)
    with import_from_here():
        factory = find_object(features, "data.features")
        try:
            made = factory(input_shape)
        except Exception as error:
            # A user's factory may raise anything.
            raise UserError(
                f"data.features = {features!r}: the factory raised {type(error).__name__}: "
                f"{error}. It is called with the shape of a record, and returns a function of a "
                "batch of records."
            ) from error
    if isinstance(made, nn.Module):
        # Layers such as batch normalisation look at the batch only while they are trained.
        made = made.eval()
    # Nobody knows whether a user's function may run in two threads.
    return try_transform(features, made, input_shape, code=read_code(factory), threads=1)


def read_code(factory: Callable[..., object]) -> str:
    """Returns the source of the module that a factory is in; empty where there is none.

    Args:
        factory: The factory of a transform.
    """
    module = inspect.getmodule(factory)
    try:
        return inspect.getsource(module) if module is not None else ""
    except (OSError, TypeError):
        return ""


def try_transform(
    features: str,
    transform: Transform,
    input_shape: Shape,
    *,
    code: str,
    threads: int,
) -> TriedTransform:
    """Tries a transform on invented records: each alone, all together, reversed, and once more.

    Real records are not used: whether a client answers must not depend on its records.

    Args:
        features: The name of the transform in the protocol.
        transform: The transform.
        input_shape: The shape of one record.
        code: The source of the transform, as far as it is known.
        threads: How many batches may be transformed at a time.

    Raises:
        UserError: The transform raises an error, returns something else than features, or a
            record's features depend on other records or on earlier calls.
    """
    generator = np.random.default_rng(0)
    drawn = generator.standard_normal((PROBES, *input_shape), dtype=np.float32)
    # Of different sizes, so that means over a batch do not happen to agree.
    sizes = np.arange(1, PROBES + 1, dtype=np.float32).reshape(-1, *(1 for _ in input_shape))
    records = torch.from_numpy(drawn * sizes / PROBES)
    together = transform_batch(features, transform, records)
    alone = torch.cat([transform_batch(features, transform, one) for one in records.split(1)])
    reverse = transform_batch(features, transform, records.flip(0)).flip(0)
    again = transform_batch(features, transform, records)
    limit = TOLERANCE * (1 + float(together.abs().max()))
    for other in (alone, reverse, again):
        if other.shape != together.shape or float((other - together).abs().max()) > limit:
            raise UserError(
                f"data.features = {features!r}: the features of a record depend on the records "
                "next to it, or on earlier calls. They must be a fixed function of one record: "
                "otherwise one person's record would be in the features of others, and no promise "
                "would hold. Use constants that are known beforehand, not means over a batch."
            )
    fingerprint = hashlib.sha256(f"{features}\0{code}\0".encode())
    fingerprint.update(together.numpy().tobytes())
    return TriedTransform(
        name=features,
        apply=transform,
        output_shape=tuple(together.shape[1:]),
        fingerprint=fingerprint.hexdigest(),
        threads=threads,
    )


def transform_batch(features: str, transform: Transform, records: Tensor) -> Tensor:
    """Returns the features of some records, checked.

    Args:
        features: The name of the transform in the protocol.
        transform: The transform.
        records: The records as float32, one a row.

    Raises:
        UserError: The transform raises an error, or returns anything but finite numbers, a row for
            each record.
    """
    try:
        with torch.no_grad():
            made = transform(records)
    except Exception as error:
        # A user's transform may raise anything.
        raise UserError(
            f"data.features = {features!r}: the transform raised {type(error).__name__}: {error}"
        ) from error
    rows = isinstance(made, Tensor) and made.ndim >= 2 and len(made) == len(records)
    if not rows or made.numel() == 0 or not bool(torch.isfinite(made).all()):
        given = f"shape {tuple(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
        raise UserError(
            f"data.features = {features!r} returned {given} for records of shape "
            f"{tuple(records.shape)}; it must return a tensor of finite numbers, a row for each "
            "record."
        )
    return made.to(torch.float32)


def transform_records(dataset: Dataset, x: np.ndarray, transform: TriedTransform) -> np.ndarray:
    """Returns the features of stored records, from the cache if it has them.

    Args:
        dataset: The data set, whose scale and shift make inputs of stored records.
        x: The records, as they are stored.
        transform: The transform.
    """
    shape = (len(x), *transform.output_shape)
    if len(x) == 0:
        return np.empty(shape, dtype=np.float32)
    total = hashlib.sha256(transform.fingerprint.encode())
    for array in (x, dataset.scale, dataset.shift):
        total.update(f"{array.dtype.str} {array.shape}".encode())
        total.update(np.ascontiguousarray(array).data)
    fill = partial(fill_features, dataset, x, transform)
    return load_or_compute(total.hexdigest(), shape, fill)


def fill_features(
    dataset: Dataset,
    x: np.ndarray,
    transform: TriedTransform,
    target: np.ndarray,
) -> None:
    """Computes the features of records, some batches at a time.

    Args:
        dataset: The data set, whose scale and shift make inputs of stored records.
        x: The records, as they are stored.
        transform: The transform.
        target: The array that the features are written to.
    """

    def fill_chunk(start: int) -> None:
        """Writes the features of some records."""
        stored = x[start : start + CHUNK].astype(np.float32)
        inputs = torch.from_numpy(stored * dataset.scale + dataset.shift)
        made = transform_batch(transform.name, transform.apply, inputs)
        target[start : start + CHUNK] = made.numpy()

    before = torch.get_num_threads()
    # Batches share the cores better than the operators of one batch do.
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(
            transform.threads, initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            # Every result is looked at, so that an error of any batch is raised.
            for _ in pool.map(fill_chunk, range(0, len(x), CHUNK)):
                pass
    finally:
        torch.set_num_threads(before)

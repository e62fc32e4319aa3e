"""Scores the model of a run on test records: in all, class by class, and client by client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from sordino.data import (
    KNOWN,
    Dataset,
    client_tests,
    find_agreed_classes,
    load_data,
    load_dataset,
    partition,
)
from sordino.federation.complete_protocol import DataSource
from sordino.federation.record_tensors import Tensors, tensors
from sordino.federation.store.run import Run
from sordino.models import evaluate_batch, mean_predictor_loss
from sordino.models.public_features import apply_features
from sordino.protocol import UserError
from sordino.randomness import Key


def evaluate_run(run: Run, data: DataSource | None = None, *, chunk: int = 500) -> dict[str, Any]:
    """Returns how well the model of a run does on the test records of some data.

    For a regression `baseline` is the loss of always predicting the mean of these records.

    Args:
        run: A finished run.
        data: A name, a path or a `Dataset`; by default the data of the run.
        chunk: How many records are scored at once, which bounds the memory.

    Returns:
        The loss, and for a classification the accuracy in all and of every class.

    Raises:
        UserError: The model does not fit the data.

    Example:
        >>> evaluate_run(Run.load("runs/digits-1"))["accuracy"]  # doctest: +SKIP
        0.93
    """
    dataset = scored_data(run, data)
    refuse_other_shape(run, dataset)
    records = tensors(dataset, "test")
    loss, correct = score_records(run.model, records, chunk)
    targets = records.y.numpy()
    classes = None
    if dataset.classes is not None:
        # A class without a test record has no accuracy: a mean over nothing would be NaN in the
        # JSON.
        present = [label for label in range(len(dataset.classes)) if (targets == label).any()]
        classes = {
            dataset.classes[label]: float(correct[targets == label].mean()) for label in present
        }
    return {
        "run": str(run.folder),
        "data": dataset.name,
        "records": len(targets),
        "tested_on": dataset.test,
        "loss": loss,
        "baseline": mean_predictor_loss(records.y),
        "accuracy": float(correct.mean()) if classes is not None else None,
        "classes": classes,
    }


def evaluate_clients(
    run: Run, data: DataSource | None = None, *, size: int = 200, personal: bool = False
) -> np.ndarray:
    """Returns every client's accuracy on test records drawn by its label distribution.

    Args:
        run: A finished run.
        data: In place of the data of the run.
        size: Test records per client.
        personal: Whether every client's personal model is scored in place of the global one; a
            client that never took part has the global one.

    Returns:
        One accuracy per client.

    Raises:
        UserError: It is not known which labels a client has.

    Example:
        >>> evaluate_clients(Run.load("runs/digits-1")).mean()  # doctest: +SKIP
        0.91
    """
    spec = run.protocol.data
    if spec is None or run.protocol.seed is None:
        raise UserError(f"{run.folder} does not say which data it was trained on.")
    if run.engine == "flower":
        raise UserError(
            f"{run.folder} was trained across machines: only a client itself knows which labels "
            "it has."
        )
    dataset = scored_data(run, data)
    if dataset.classes is None:
        raise UserError(f"{dataset.name} has no labels: clients cannot be distinguished by them.")
    key = Key.from_seed(run.protocol.seed)
    # The partition is drawn again from the run's seed: the folder keeps counts of labels, not
    # records.
    parts = partition(dataset, spec, run.protocol.clients, key)
    tests = client_tests(dataset, parts, key, size)
    records = tensors(dataset, "test")
    # All records are scored once, and clients pick theirs: many clients draw the same ones.
    _, correct = score_records(run.model, records, chunk=500)
    scores = np.array([correct[rows].mean() for rows in tests])
    if not personal:
        return scores
    for client in run.personal:
        drawn = select_records(records, tests[client])
        _, correct = score_records(run.client_model(client), drawn, chunk=500)
        scores[client] = correct.mean()
    return scores


def scored_data(run: Run, data: DataSource | None) -> Dataset:
    """Returns the data set that a run is scored on, with the classes of the run.

    Args:
        run: A finished run.
        data: A name, a path or a `Dataset`; None for the data of the run.

    Returns:
        The data set, with the run's classes in the run's order.

    Raises:
        UserError: There are no test records in it.
    """
    spec = run.protocol.data
    if isinstance(data, Dataset):
        return apply_features(data, None if spec is None else spec.features)
    if spec is None:
        raise UserError(f"{run.folder} does not say which data it was trained on.")
    if data is None:
        dataset = load_data(spec)
    else:
        # A file need not name its classes; read with the run's, its labels get the numbers of the
        # run.
        classes = None if data in KNOWN else find_agreed_classes(spec)
        columns = None if data in KNOWN else spec.described_columns
        dataset = load_dataset(data, classes=classes, columns=columns)
    dataset = apply_features(dataset, spec.features)
    if len(dataset.y_test) == 0:
        raise UserError(
            f'{run.folder} was trained with data.test = "none": nothing was held out to be scored '
            "on. Name other data with test records."
        )
    return dataset


def select_records(records: Tensors, rows: np.ndarray) -> Tensors:
    """Returns some of the records.

    Args:
        records: All of them.
        rows: The numbers of those that are wanted.

    Returns:
        New tensors with only these records.
    """
    chosen = torch.from_numpy(rows)
    return replace(
        records, x=records.x.index_select(0, chosen), y=records.y.index_select(0, chosen)
    )


def score_records(model: torch.nn.Module, records: Tensors, chunk: int) -> tuple[float, np.ndarray]:
    """Returns the mean loss over the records, and for each whether it was classified rightly.

    Args:
        model: The weights that are scored.
        records: What it is scored on.
        chunk: How many records pass through the model at once.

    Returns:
        The loss and one entry per record; in a regression all entries are 0.
    """
    total = 0.0
    correct = []
    with torch.no_grad():
        for start in range(0, len(records.y), chunk):
            rows = slice(start, start + chunk)
            outputs = model(records.inputs(rows))
            targets = records.y[rows]
            # Sums are added, not means: the last chunk may be smaller than the others.
            total += evaluate_batch(outputs, targets).loss_sum
            if targets.is_floating_point():
                correct.append(np.zeros(len(targets)))
            else:
                correct.append((outputs.argmax(dim=1) == targets).numpy())
    return total / len(records.y), np.concatenate(correct)


def refuse_other_shape(run: Run, dataset: Dataset) -> None:
    """Refuses records of another shape, or with other outputs, than a model was made for.

    Args:
        run: The run whose model is scored.
        dataset: The records.

    Raises:
        UserError: It names both shapes and both numbers of outputs.
    """
    made_for = tuple(run.facts["input_shape"]), run.facts["outputs"]
    given = dataset.input_shape, dataset.outputs
    if given != made_for:
        raise UserError(
            f"{dataset.name} has records of shape {given[0]} and {given[1]} outputs; "
            f"the model of {run.folder} was made for {made_for[0]} and {made_for[1]}."
        )

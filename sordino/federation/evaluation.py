"""Scoring the model of a run on test records, class by class, and client by client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from sordino.federation.data import (
    KNOWN,
    Dataset,
    agreed_classes,
    client_tests,
    load_data,
    load_dataset,
    partition,
)
from sordino.federation.models import evaluate_batch, mean_predictor_loss
from sordino.federation.randomness import Key
from sordino.federation.run import Run
from sordino.federation.setup import DataSource, Tensors, tensors
from sordino.protocol import UserError


def evaluate_run(run: Run, data: DataSource | None = None, *, chunk: int = 500) -> dict[str, Any]:
    """Loss, and for classification accuracy in all and per class, of a run's model on the test records of some data.

    For a regression `baseline` is the loss of always predicting the mean of these records.

    Args:
        run: a finished run.
        data: a name, a path or a `Dataset`; by default the data of the run.
        chunk: records scored at once.

    Raises:
        UserError: the model does not fit the data.

    Example:
        >>> evaluate_run(Run.load("runs/digits-1"))["accuracy"]  # doctest: +SKIP
        0.93
    """
    dataset = scored_data(run, data)
    refuse_other_shape(run, dataset)
    records = tensors(dataset, "test")
    loss, correct = scored(run.model, records, chunk)
    targets = records.y.numpy()
    classes = None
    if dataset.classes is not None:
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
    """Accuracy for every client, on test records drawn from that client's own label distribution.

    Args:
        run: a finished run.
        data: in place of the data of the run.
        size: test records per client.
        personal: score every client's own model in place of the global one; a client that never took part has the global one.

    Example:
        >>> evaluate_clients(Run.load("runs/digits-1")).mean()  # doctest: +SKIP
        0.91
    """
    spec = run.protocol.data
    if spec is None or run.protocol.seed is None:
        raise UserError(f"{run.folder} does not say which data it was trained on.")
    if run.engine == "flower":
        raise UserError(
            f"{run.folder} was trained across machines: which labels a client has is known to that client alone."
        )
    dataset = scored_data(run, data)
    if dataset.classes is None:
        raise UserError(f"{dataset.name} has no labels: clients cannot be told apart by them.")
    key = Key.from_seed(run.protocol.seed)
    parts = partition(dataset, spec, run.protocol.clients, key)
    tests, records = client_tests(dataset, parts, key, size), tensors(dataset, "test")
    _, correct = scored(run.model, records, chunk=500)
    scores = np.array([correct[rows].mean() for rows in tests])
    for client in run.personal if personal else ():
        scores[client] = scored(
            run.client_model(client), some_of(records, tests[client]), chunk=500
        )[1].mean()
    return scores


def scored_data(run: Run, data: DataSource | None) -> Dataset:
    """Returns the data set that a run is scored on, with the classes of the run.

    Raises:
        UserError: there are no test records in it.
    """
    if isinstance(data, Dataset):
        return data
    spec = run.protocol.data
    if spec is None:
        raise UserError(f"{run.folder} does not say which data it was trained on.")
    if data is None:
        dataset = load_data(spec)
    else:
        classes = None if data in KNOWN else agreed_classes(spec)
        dataset = load_dataset(data, classes=classes)
    if len(dataset.y_test) == 0:
        raise UserError(
            f'{run.folder} was trained with data.test = "none": nothing was held out to be scored on. Name other data with test '
            "records."
        )
    return dataset


def some_of(records: Tensors, rows: np.ndarray) -> Tensors:
    """Some records only."""
    chosen = torch.from_numpy(rows)
    return replace(
        records, x=records.x.index_select(0, chosen), y=records.y.index_select(0, chosen)
    )


def scored(model: torch.nn.Module, records: Tensors, chunk: int) -> tuple[float, np.ndarray]:
    """Mean loss over the records, and for each whether it was classified rightly."""
    total, correct = 0.0, []
    with torch.no_grad():
        for start in range(0, len(records.y), chunk):
            rows = slice(start, start + chunk)
            outputs, targets = model(records.inputs(rows)), records.y[rows]
            total += evaluate_batch(outputs, targets).loss_sum
            correct.append(
                (outputs.argmax(dim=1) == targets).numpy()
                if not targets.is_floating_point()
                else np.zeros(len(targets))
            )
    return total / len(records.y), np.concatenate(correct)


def refuse_other_shape(run: Run, dataset: Dataset) -> None:
    """A model can be scored only on records of the shape and with the outputs that it was made for."""
    made_for = tuple(run.facts["input_shape"]), run.facts["outputs"]
    given = dataset.input_shape, dataset.outputs
    if given != made_for:
        raise UserError(
            f"{dataset.name} has records of shape {given[0]} and {given[1]} outputs; "
            f"the model of {run.folder} was made for {made_for[0]} and {made_for[1]}."
        )

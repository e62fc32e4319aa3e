"""Warns of a training that taught its model nothing, though it ended as planned."""

from __future__ import annotations

import math

import numpy as np

from sordino.federation.store.run import Run
from sordino.mechanisms import mechanism_of
from sordino.privacy.bounds.question import has_own_noise
from sordino.protocol import Protocol, noisy_steps_of
from sordino.report.number_formats import format_percent
from sordino.report.run_summary import find_last_scores

# Over T rounds, moves add up to T times one and independent noise to sqrt(T) times one: below 1,
# the noise has moved the model further than the data have.
LEAST_OF_UPLOADS = 1.0
# Of steps only the best case is known: all gradients are as long as the clip, in one direction.
# Even so it is a rule of thumb: noise spreads over all coordinates, and what is to be learned over
# few. A network has learned at 3 times, so scores decide first.
LEAST_OF_STEPS = 10.0
# A loss below this share of the loss before training is no luck.
LEARNED = 0.9
# Times the loss before training, at which being right is luck.
ABSURD = 20.0


def find_warnings(run: Run) -> list[str]:
    """Returns in sentences why the model of a run is not worth using; none where it may be.

    Args:
        run: a run that has ended.
    """
    found = []
    worse = describe_fall(run)
    if worse is not None:
        found.append(worse)
    drowned = describe_drowning(run)
    if drowned is not None:
        found.append(drowned)
    return found


def describe_fall(run: Run) -> str | None:
    """Returns how much worse the model is than before training; None where it is not.

    Args:
        run: a run that has ended.
    """
    start = find_number(run, "start_loss")
    last = find_last_scores(run)
    if start is None or run.status == "diverged" or not last["loss"] > start:
        return None
    before = find_number(run, "start_accuracy")
    if before is None:
        return f"The model got worse: its loss is {last['loss']:.4g}, before training {start:.4g}."
    # A model that is sure of itself may lose more and yet be right more often.
    if last["accuracy"] > before and last["loss"] < ABSURD * start:
        return None
    return (
        f"The model got worse: its accuracy is {format_percent(last['accuracy'])} and its loss "
        f"{last['loss']:.4g}, before training {format_percent(before)} and {start:.4g}."
    )


def find_number(run: Run, name: str) -> float | None:
    """Returns a fact of a run; None where there is none, or none that is a number.

    Args:
        run: A run that has ended.
        name: Name of the fact.
    """
    value = run.facts.get(name)
    # Files of runs may come from anywhere: a report does not fail because of one of their facts.
    return value if type(value) in (int, float) else None


def describe_drowning(run: Run) -> str | None:
    """Returns by how much the noise exceeds what the data did; None where it does not.

    Args:
        run: a run that has ended.
    """
    rounds = len(run.metrics["round"])
    # Each client's own noise is another share of what is joined.
    if rounds == 0 or has_own_noise(run.protocol) or has_learned(run):
        return None
    if run.protocol.release.in_steps:
        ratio = bound_step_signal(run.protocol, run.facts["parameters"], rounds)
        if ratio >= LEAST_OF_STEPS:
            return None
        return (
            "The noise hides what there is to learn: if all gradients were as long as the clip and "
            f"pointed the same way, all steps together would move {ratio:.2g} times as far as the "
            f"noise; below {LEAST_OF_STEPS:g} little is learned, if anything."
        )
    ratios = run.metrics["signal_to_noise"]
    ratios = ratios[~np.isnan(ratios)]
    if len(ratios) == 0:
        return None
    total = float(np.median(ratios)) * math.sqrt(rounds)
    if total >= LEAST_OF_UPLOADS:
        return None
    return (
        f"The noise hides what there is to learn: over {rounds:,} rounds the data moved the model "
        f"{total:.2g} times as far as the noise."
    )


def has_learned(run: Run) -> bool:
    """Returns whether the scores show that the model has learned, however much noise there was.

    Args:
        run: A run that has ended.
    """
    start = find_number(run, "start_loss")
    return start is not None and bool(find_last_scores(run)["loss"] < LEARNED * start)


def bound_step_signal(protocol: Protocol, parameters: int, rounds: int) -> float:
    """Returns the most that noisy steps may move a model, over the noise of all of them.

    Args:
        protocol: A protocol with noise in its steps.
        parameters: The number of the model's parameters.
        rounds: The number of rounds that were trained.
    """
    release = noisy_steps_of(protocol)
    noise = mechanism_of(release.sum_noise).deviation * math.sqrt(parameters)
    if noise == 0:
        return math.inf
    clients = protocol.participation.count_expected(clients=protocol.clients)
    best = release.batch * release.clip * math.sqrt(clients)
    return best / noise * math.sqrt(release.steps * rounds)

"""Plots what a protocol guarantees: trade-offs, epsilon against rounds, epsilon against noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sordino.mechanisms import mechanism_of
from sordino.papers.applied import published_bounds
from sordino.privacy.bounds.providers import find_bounds
from sordino.privacy.bounds.question import pose_question
from sordino.privacy.certify import certify
from sordino.privacy.curves import gaussian
from sordino.privacy.guarantee import Guarantee, format_delta
from sordino.privacy.noise_search import resize_noise
from sordino.protocol import Protocol, UserError, View
from sordino.report.run_prices import group_similar_views

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
# The number of points of a curve against rounds or noise. Each needs a price.
POINTS = 9


def draw_certificate(
    protocol: Protocol,
    guarantees: Sequence[Guarantee],
    delta: float,
    path: Path,
) -> None:
    """Draws trade-offs, epsilon against rounds and epsilon against noise into a file.

    Args:
        protocol: The protocol to price.
        guarantees: Its guarantees, one per view.
        delta: Where epsilon is shown.
        path: The file, whose suffix determines the format.

    Raises:
        UserError: The file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 4.6), layout="constrained")
    tradeoff_axes, rounds_axes, noise_axes = figure.subplots(1, 3)
    curves = group_similar_views(guarantees, delta)
    views = [guarantee.view for guarantee in guarantees]
    # The final view has the most to show: theorems about it differ from plain composition.
    view = views[0]
    if View.FINAL in views:
        view = View.FINAL
    draw_certified_tradeoffs(tradeoff_axes, curves)
    draw_rounds(rounds_axes, protocol, view, guarantees[0].unit, delta)
    draw_noise(noise_axes, protocol, curves, delta)
    save_figure(figure, path)


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a figure to a file.

    Args:
        figure: The figure.
        path: The file, whose suffix determines the format.

    Raises:
        UserError: The file cannot be written.
    """
    # `check_plot_path` has refused what can be known to fail before minutes of pricing.
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.") from None


def check_plot_path(path: Path) -> None:
    """Refuses a file that cannot be drawn to, before anything is computed.

    Args:
        path: The file.

    Raises:
        UserError: Its suffix is not that of a picture, or its folder does not exist.
    """
    if path.suffix not in SUFFIXES:
        raise UserError(f"--plot {path}: expected a file that ends in {', '.join(SUFFIXES)}.")
    if not path.parent.is_dir():
        raise UserError(f"--plot {path}: there is no folder {path.parent}.")


def draw_certified_tradeoffs(axes: Any, curves: dict[str, Guarantee]) -> None:
    """Draws the false negatives of the best test against its false positives, per view.

    Args:
        axes: The axes to draw on.
        curves: Guarantees by the names of their views.
    """
    # Points are denser at small rates, which matter most, and everywhere so dense that chords
    # between them, which are above a convex curve, do not show.
    alphas = np.concatenate([np.geomspace(1e-5, 0.05, 13), np.linspace(0.06, 1, 48)])
    for name, guarantee in curves.items():
        axes.plot(alphas, guarantee.curve.betas(alphas), label=name)
    axes.plot([0, 1], [1, 0], color="grey", linestyle=":", label="guessing")
    axes.set(
        xlabel="false positive rate",
        ylabel="false negative rate, at least",
        title="What any test can reach",
    )
    axes.legend()


def draw_rounds(
    axes: Any,
    protocol: Protocol,
    view: View,
    unit: str,
    delta: float,
) -> None:
    """Draws epsilon against rounds: certified, by plain composition, and as published.

    Args:
        axes: The axes to draw on.
        protocol: The protocol to price, with fewer rounds.
        view: What the adversary sees.
        unit: "record" or "client".
        delta: Where epsilon is shown.
    """
    # Rounds on a logarithmic axis; rounding makes the first ones equal.
    counts = np.unique(np.geomspace(1, max(2, protocol.rounds), POINTS).round().astype(int))
    plans = [replace(protocol, rounds=int(count)) for count in counts]
    certified = [certify(plan, view, unit, delta=delta).epsilon(delta) for plan in plans]
    axes.plot(counts, certified, marker="o", label="certified")
    # The first valid bound is always that of plain composition.
    plain = [
        next(iter(find_bounds(pose_question(plan, view, unit, None, None)))).curve.epsilon(delta)
        for plan in plans
    ]
    axes.plot(counts, plain, linestyle="--", label="plain composition")
    # The published theorems are about one record and the last model.
    claims: Iterable[str] = ()
    if view == View.FINAL and unit == "record":
        claims = published_bounds(protocol)
    for claim in claims:
        stated = [gaussian.epsilon(published_bounds(plan)[claim], delta) for plan in plans]
        axes.plot(counts, stated, color="red", linestyle=":", label=f"published, {claim}")
    axes.set(
        xscale="log",
        xlabel="rounds",
        ylabel=f"epsilon at delta = {format_delta(delta)}",
        title=f"Epsilon against rounds, view {view}",
    )
    # From zero, or a curve that hardly grows would look steep.
    axes.set_ylim(bottom=0)
    axes.legend()


def draw_noise(
    axes: Any,
    protocol: Protocol,
    curves: dict[str, Guarantee],
    delta: float,
) -> None:
    """Draws epsilon against the size of the noise, per view, around that of the protocol.

    Args:
        axes: The axes to draw on.
        protocol: The protocol to price, with more and less noise.
        curves: Guarantees by the names of their views; these views and units are priced.
        delta: Where epsilon is shown.
    """
    # A protocol without noise is drawn around a noise of 1.
    centre = mechanism_of(protocol.noise).size or 1.0
    sigmas = np.geomspace(centre / 4, centre * 4, POINTS)
    for name, guarantee in curves.items():
        epsilons = []
        for sigma in sigmas:
            plan = resize_noise(protocol, float(sigma))
            priced = certify(plan, guarantee.view, guarantee.unit, delta=delta)
            epsilon = priced.epsilon(delta)
            # Matplotlib leaves a gap for NaN; infinity would stretch the axis.
            if math.isinf(epsilon):
                epsilon = math.nan
            epsilons.append(epsilon)
        axes.plot(sigmas, epsilons, marker=".", label=name)
    axes.axvline(centre, color="grey", linestyle=":")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel=mechanism_of(protocol.noise).size_words,
        ylabel=f"epsilon at delta = {format_delta(delta)}",
        title="Epsilon against noise",
    )
    axes.set_xticks(sigmas[::2], [f"{sigma:.2g}" for sigma in sigmas[::2]])
    axes.minorticks_off()
    axes.legend()

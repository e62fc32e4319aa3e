"""Plots of a protocol's promises: the trade-off curve of every view, epsilon against rounds, epsilon against noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sordino.papers.applied import published_bounds
from sordino.privacy import gaussian
from sordino.privacy.calibrate import noisy
from sordino.privacy.certify import asked, certify, valid_bounds
from sordino.privacy.guarantee import Guarantee
from sordino.privacy.sizes import size_in_words, size_of
from sordino.protocol import Protocol, UserError, View
from sordino.report.promises import grouped

SUFFIXES = (".png", ".svg", ".pdf")
POINTS = 9


def draw_certificate(
    protocol: Protocol, guarantees: Sequence[Guarantee], delta: float, path: Path
) -> None:
    """Draw the three panels into a file whose suffix says the format.

    Raises:
        UserError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 4.6), layout="constrained")
    tradeoff, rounds, noise = figure.subplots(1, 3)
    curves = grouped(guarantees, delta)
    draw_tradeoffs(tradeoff, curves)
    view = View.FINAL if any(g.view == View.FINAL for g in guarantees) else guarantees[0].view
    draw_rounds(rounds, protocol, view, guarantees[0].unit, delta)
    draw_noise(noise, protocol, curves, delta)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.") from None


def checked_target(path: Path) -> None:
    """Refuse a file that cannot be drawn to, before anything is computed."""
    if path.suffix not in SUFFIXES:
        raise UserError(f"--plot {path}: expected a file that ends in {', '.join(SUFFIXES)}.")
    if not path.parent.is_dir():
        raise UserError(f"--plot {path}: there is no folder {path.parent}.")


def draw_tradeoffs(axes: Any, curves: dict[str, Guarantee]) -> None:
    """False negatives against false positives of the best test, per view; the diagonal is guessing."""
    alphas = np.concatenate([np.geomspace(1e-5, 0.05, 7), np.linspace(0.1, 1, 10)])
    for name, guarantee in curves.items():
        axes.plot(alphas, guarantee.curve.betas(alphas), label=name)
    axes.plot([0, 1], [1, 0], color="grey", linestyle=":", label="guessing")
    axes.set(
        xlabel="false positive rate",
        ylabel="false negative rate, at least",
        title="What any test can reach",
    )
    axes.legend()


def draw_rounds(axes: Any, protocol: Protocol, view: View, unit: str, delta: float) -> None:
    """Epsilon against rounds: certified, plain composition, and what was published for this schedule where something was."""
    counts = np.unique(np.geomspace(1, max(2, protocol.rounds), POINTS).round().astype(int))
    plans = [replace(protocol, rounds=int(count)) for count in counts]
    axes.plot(
        counts,
        [certify(plan, view, unit, delta=delta).epsilon(delta) for plan in plans],
        marker="o",
        label="certified",
    )
    plain = [
        next(iter(valid_bounds(asked(plan, view, unit, None, None)))).curve.epsilon(delta)
        for plan in plans
    ]
    axes.plot(counts, plain, linestyle="--", label="plain composition")
    for claim in published_bounds(protocol) if view == View.FINAL else ():
        stated = [gaussian.epsilon(published_bounds(plan)[claim], delta) for plan in plans]
        axes.plot(counts, stated, color="red", linestyle=":", label=f"published, {claim}")
    axes.set(
        xscale="log",
        xlabel="rounds",
        ylabel=f"epsilon at delta = {delta:g}",
        title=f"Epsilon against rounds, view {view}",
    )
    axes.set_ylim(bottom=0)
    axes.legend()


def draw_noise(axes: Any, protocol: Protocol, curves: dict[str, Guarantee], delta: float) -> None:
    """Epsilon against the size of the noise, per view, around the protocol's own."""
    centre = size_of(protocol.noise) or 1.0
    sigmas = np.geomspace(centre / 4, centre * 4, POINTS)
    for name, guarantee in curves.items():
        epsilons = []
        for sigma in sigmas:
            quiet = noisy(protocol, float(sigma))
            epsilons.append(
                certify(quiet, guarantee.view, guarantee.unit, delta=delta).epsilon(delta)
            )
        axes.plot(
            sigmas,
            [value if math.isfinite(value) else np.nan for value in epsilons],
            marker=".",
            label=name,
        )
    axes.axvline(centre, color="grey", linestyle=":")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel=size_in_words(protocol.noise),
        ylabel=f"epsilon at delta = {delta:g}",
        title="Epsilon against noise",
    )
    axes.set_xticks(sigmas[::2], [f"{sigma:.2g}" for sigma in sigmas[::2]])
    axes.minorticks_off()
    axes.legend()

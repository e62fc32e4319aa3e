"""Tests whether the noise that a replay found is the one that the protocol promises."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from sordino.audit.noise.low_bit_tests import examine_low_bits
from sordino.audit.noise.normal_scores import ROUNDING, ResidualTest
from sordino.audit.noise.residual_tests import FEWEST, ResidualReport, examine_residuals
from sordino.audit.replay import STRAYED
from sordino.audit.round_table import RoundTable
from sordino.federation.setup import Setup
from sordino.mechanisms import mechanism_of
from sordino.mechanisms.noise_law import STANDARD_NORMAL, normal_law
from sordino.protocol import Grid, Noise, Protocol
from sordino.protocol.release import noisy_steps_of

# The seed of the uniform numbers that make discrete noise continuous for the tests.
DITHER = 12


def shows_noise(seen: RoundTable, setup: Setup, count: int) -> bool:
    """Returns whether the released values are precise enough to test the law of their noise.

    Float32 must be fine enough at the size of the values, and nothing may have diverged.

    Args:
        seen: The round.
        setup: The federation.
        count: The number of trainings whose noise is tested, from the first row on.
    """
    if setup.release.in_steps:
        values = [means[:count] for means in seen.means.values()]
        on_sums = min(
            mechanism_of(own).deviation
            for own in list_released_noises(setup.protocol, setup.noises)
        )
        noise = on_sums / noisy_steps_of(setup.protocol).batch
    else:
        values = [seen.uploads[:, :count]]
        noise = min(mechanism_of(own).deviation for own in setup.noises)
    # Unlike the built-in max, numpy's keeps a NaN wherever it stands.
    largest = np.max([np.abs(value).max(initial=0.0) for value in values], initial=0.0)
    return bool(np.isfinite(largest)) and float(np.spacing(np.float32(largest))) < ROUNDING * noise


def report_noise(
    protocol: Protocol,
    noises: tuple[Noise, ...],
    noise: np.ndarray | None,
    strays: np.ndarray | None,
) -> ResidualReport | None:
    """Returns the tests of the noise that was found, and of the values computed from noisy ones.

    Args:
        protocol: The protocol that was trained.
        noises: The promised noise of every client.
        noise: The noise that was found: (trainings, rounds or steps, clients, parameters).
        strays: How far released values are from those that follow from noisy ones: (rounds, clients
            and the server).

    Returns:
        The tests; None if there is nothing to test.
    """
    report = None
    if noise is not None:
        report = examine_noise(protocol, noises, noise)
    sent_on = (
        protocol.penalty
        or protocol.local.corrected
        or protocol.local.adaptive is not None
        or protocol.release.in_steps
        or protocol.personalization.of_uploads
    )
    if strays is None:
        return report
    extra = examine_strays(strays)
    # If only the mean is computed from noisy values, the test is reported only when it fails.
    if not sent_on and extra.p != 0:
        return report
    if report is None and extra.p != 0:
        return None
    if report is None:
        return ResidualReport(law="not looked at", values=0, tests=(extra,))
    return replace(report, tests=(*report.tests, extra))


def examine_noise(
    protocol: Protocol, noises: tuple[Noise, ...], noise: np.ndarray
) -> ResidualReport | None:
    """Returns the tests of the noise's law, in which noisy-sgd has steps in place of rounds.

    Args:
        protocol: The protocol that was trained.
        noises: The promised noise of every client.
        noise: The noise that was found: (trainings, rounds or steps, clients, parameters).

    Returns:
        The tests; None if clients add no noise, its law is unknown, or too few values were found.
    """
    taken = ~np.isnan(noise).all(axis=-1)
    if not protocol.release.at_client or int(taken.sum()) * noise.shape[-1] < FEWEST:
        return None
    if protocol.grid is not None:
        return examine_integers(protocol.grid, noise, taken)
    released = list_released_noises(protocol, noises)
    laws = []
    for own in released:
        mechanism = mechanism_of(own)
        # A client without noise, or with noise of an unknown law, leaves nothing to compare with.
        law = None if mechanism.silent else mechanism.law
        if law is None:
            return None
        laws.append(law)
    if len(set(released)) == 1:
        report = examine_residuals(noise, law=laws[0], taken=taken)
    else:
        # Clients with different noise are brought to one scale: each value becomes the normal
        # score that it has under its client's law.
        scores = [law.scores(noise[:, :, client]) for client, law in enumerate(laws)]
        report = examine_residuals(np.stack(scores, axis=2), law=STANDARD_NORMAL, taken=taken)
        report = replace(report, law="each client's own, as normal scores")
    if protocol.release.in_steps:
        return name_steps(report)
    return report


def list_released_noises(protocol: Protocol, noises: tuple[Noise, ...]) -> tuple[Noise, ...]:
    """Returns every client's noise on the values that it releases: uploads, or sums of noisy steps.

    Args:
        protocol: The protocol that was trained.
        noises: The noise of every client.
    """
    return tuple(protocol.release.find_released_noise(own) for own in noises)


def examine_integers(grid: Grid, noise: np.ndarray, taken: np.ndarray) -> ResidualReport | None:
    """Returns the tests of discrete noise, those of its lowest bits included.

    Discrete Gaussian integers of parameter s, each with a uniform number between -1/2 and 1/2 added
    to it, have the law of a normal of variance s^2 + 1/12 up to a relative 1/(24 s^2), which is too
    little for the tests to detect.

    Args:
        grid: The public grid of integers that updates are rounded to.
        noise: The noise that was found: (trainings, rounds, clients, parameters).
        taken: Which uploads exist.

    Returns:
        The tests; None without noise.
    """
    if grid.digits == 0:
        return None
    steps = np.rint(noise * grid.scale)
    # Equal integers are no fault, but a test of a continuous law would take them for one.
    spread = np.random.default_rng(DITHER).uniform(-0.5, 0.5, size=steps.shape)
    law = normal_law(math.hypot(grid.parameter, math.sqrt(1 / 12)))
    report = examine_residuals(steps + spread, law=law, taken=taken)
    finite = steps[taken & np.isfinite(steps).all(axis=-1)]
    lowest = examine_low_bits(finite.astype(np.int64), grid.parameter)
    return replace(
        report,
        law=f"discrete gaussian, parameter {grid.parameter:.6g} grid steps",
        tests=(*report.tests, lowest),
    )


def name_steps(report: ResidualReport) -> ResidualReport:
    """Returns a report about noisy steps, which speaks of steps in place of rounds.

    They are numbered from the first step of the first round on.

    Args:
        report: The report, in the words of rounds.
    """
    renamed = [
        replace(
            test,
            name=test.name.replace("round", "step"),
            tested=test.tested.replace("round", "step"),
            place=test.place.replace("round", "step"),
        )
        for test in report.tests
    ]
    return replace(report, tests=tuple(renamed))


def examine_strays(strays: np.ndarray) -> ResidualTest:
    """Returns the test of whether released values follow from noisy ones.

    Args:
        strays: How far they are from the ones that follow: (rounds, clients and the server).
    """
    where, client = np.unravel_index(int(np.argmax(strays)), strays.shape)
    # Compared by "<=", so that a NaN fails too.
    largest = float(strays[where, client])
    place = f"round {where}, client {client}"
    if client == strays.shape[1] - 1:
        place = f"round {where}, the server's model"
    return ResidualTest(
        name="post-processing",
        tested="whether models are computed from noisy values alone",
        p=float(largest <= STRAYED),
        place=place,
        found=f"{largest:.3g} of the largest value away from what they make",
    )

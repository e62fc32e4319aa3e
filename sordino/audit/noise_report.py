"""Tests whether replayed uploads, less their known part, are the noise that the protocol says."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from sordino.audit.noise.low_bit_tests import examine_low_bits
from sordino.audit.noise.normal_scores import ROUNDING, ResidualTest
from sordino.audit.noise.residual_tests import FEWEST, ResidualReport, residual_tests
from sordino.audit.replay import DITHER, STRAYED
from sordino.audit.round_table import RoundTable
from sordino.federation.setup import Setup
from sordino.mechanisms import mechanism_of
from sordino.mechanisms.noise_law import STANDARD_NORMAL, normal_law
from sordino.protocol import Grid, Noise, Protocol
from sordino.protocol.release import noisy_steps_of


def shows_noise(seen: RoundTable, setup: Setup, count: int) -> bool:
    """Returns whether the law of the noise can be seen in what was released.

    Float32 must be fine enough at the size of the values, and nothing may have diverged.

    Args:
        seen: The round.
        setup: The federation.
        count: How many of its trainings are looked at.
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
    largest = max((float(np.abs(value).max(initial=0.0)) for value in values), default=0.0)
    return bool(np.isfinite(largest)) and float(np.spacing(np.float32(largest))) < ROUNDING * noise


def noise_report(
    protocol: Protocol,
    noises: tuple[Noise, ...],
    noise: np.ndarray | None,
    strays: np.ndarray | None,
) -> ResidualReport | None:
    """Returns the tests of the noise that the first trainings drew, and of what was made of it.

    Args:
        protocol: What was trained.
        noises: The noise of every client that was trained.
        noise: The noise of the first trainings: (trainings, rounds or steps, clients, parameters).
        strays: How far released values are from what noisy ones make: (rounds, clients).

    Returns:
        The tests; None where there is nothing to test.
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
    extra = stray_test(strays)
    # Where nothing but the mean is made of noisy values, the test is mentioned if it fails.
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
    """Returns the residual tests, in which noisy-sgd has steps in place of rounds.

    Args:
        protocol: What was trained.
        noises: The noise of every client that was trained.
        noise: The noise of the first trainings: (trainings, rounds or steps, clients, parameters).

    Returns:
        The tests; None without noise, or with too little of it.
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
        # One client without noise, or with a law that nobody has written down, ends the test.
        if mechanism.silent:
            return None
        law = mechanism.law
        if law is None:
            return None
        laws.append(law)
    if len(set(released)) == 1:
        report = residual_tests(noise, law=laws[0], taken=taken)
        return name_steps(report) if protocol.release.in_steps else report
    # Clients with different noise are compared on one scale: each value becomes the normal score
    # that it has under its law.
    scores = np.stack([law.scores(noise[:, :, client]) for client, law in enumerate(laws)], axis=2)
    report = replace(
        residual_tests(scores, law=STANDARD_NORMAL, taken=taken),
        law="each client's own, as normal scores",
    )
    return name_steps(report) if protocol.release.in_steps else report


def list_released_noises(protocol: Protocol, noises: tuple[Noise, ...]) -> tuple[Noise, ...]:
    """Returns every client's noise on what it releases: uploads, or sums of noisy steps.

    Args:
        protocol: What was trained.
        noises: The noise of every client.
    """
    return tuple(protocol.release.find_released_noise(own) for own in noises)


def examine_integers(grid: Grid, noise: np.ndarray, taken: np.ndarray) -> ResidualReport | None:
    """Returns the residual tests of discrete noise, and that of its lowest bits.

    With a uniform number between -1/2 and 1/2 added to each, integers of parameter s have the law
    of a normal of variance s^2 + 1/12, to a relative 1/(24 s^2), which the tests do not see.

    Args:
        grid: The public grid of integers that updates are rounded to.
        noise: The noise of the first trainings: (trainings, rounds, clients, parameters).
        taken: Which uploads there are.

    Returns:
        The tests; None without noise.
    """
    if grid.digits == 0:
        return None
    steps = np.rint(noise * grid.scale)
    # Integers coincide, and a test of a continuous law would take that for a fault.
    spread = np.random.default_rng(DITHER).uniform(-0.5, 0.5, size=steps.shape)
    law = normal_law(math.hypot(grid.parameter, math.sqrt(1 / 12)))
    report = residual_tests(steps + spread, law=law, taken=taken)
    finite = steps[taken & np.isfinite(steps).all(axis=-1)]
    lowest = examine_low_bits(finite.astype(np.int64), grid.parameter)
    return replace(
        report,
        law=f"discrete gaussian, parameter {grid.parameter:.6g} grid steps",
        tests=(*report.tests, lowest),
    )


def name_steps(report: ResidualReport) -> ResidualReport:
    """Returns the same report in the words of noisy steps.

    They are numbered from the first step of the first round on.

    Args:
        report: The report, in the words of rounds.
    """
    words = [
        {name: getattr(test, name).replace("round", "step") for name in ("name", "tested", "place")}
        for test in report.tests
    ]
    return replace(
        report,
        tests=tuple(replace(test, **word) for test, word in zip(report.tests, words, strict=True)),
    )


def stray_test(strays: np.ndarray) -> ResidualTest:
    """Returns the test of whether all that was sent is what noisy values make.

    Args:
        strays: How far values are from that: (rounds, clients and the server).
    """
    where, client = np.unravel_index(int(np.argmax(strays)), strays.shape)
    # Not "larger than": a NaN is not what noisy values make, and fails as well.
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

"""Tests the lowest bits of discrete noise, to which tests of its size are blind.

Residues of a discrete Gaussian modulo a number far below its parameter are equally likely, up to
less than 1e-500 (docs/theory.md#a12, Lemma 1). So a bit that is stuck, or that leans to one side,
contradicts the law.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from sordino.audit.noise.normal_scores import ResidualTest

NAME = "lowest bits"
TESTED = "whether residues modulo 2, 4, 8, ... of the noise are equally likely"
# A modulus is tested if the parameter of the noise is at least this many times as large.
LEAST_RATIO = 8
# The most bits that are tested: higher ones show in tests of the values' size.
MOST_BITS = 12


def examine_low_bits(steps: np.ndarray, parameter: float) -> ResidualTest:
    """Returns the test of the lowest bits of noise.

    Every count is compared with its binomial law, which is exact, and the smallest p-value is
    multiplied by the number of comparisons.

    Args:
        steps: The noise in grid steps, as integers.
        parameter: The parameter of the noise's law.

    Example:
        >>> noise = np.rint(np.random.default_rng(0).normal(size=10_000) * 64).astype(int)
        >>> examine_low_bits(noise, 64.0).p > 0.01, examine_low_bits(2 * noise, 128.0).p < 1e-100
        (True, True)
    """
    values = steps.ravel()
    bits = min(MOST_BITS, math.floor(math.log2(parameter / LEAST_RATIO)))
    # Classes with few values would show little and add many comparisons.
    bits = min(bits, max(1, math.floor(math.log2(max(2, len(values) / 32)))))
    best = math.inf
    found = ""
    place = ""
    comparisons = 0
    for bit in range(1, bits + 1):
        classes = 1 << bit
        counts = np.bincount(values & (classes - 1), minlength=classes)
        few = stats.binom.cdf(counts, len(values), 1 / classes)
        many = stats.binom.sf(counts - 1, len(values), 1 / classes)
        p = 2 * np.minimum(few, many)
        worst = int(np.argmin(p))
        comparisons += classes
        if p[worst] < best:
            best = float(p[worst])
            place = f"{worst} modulo {classes}"
            found = f"{counts[worst]} of {len(values)}, {len(values) / classes:.1f} expected"
    return ResidualTest(
        name=NAME, tested=TESTED, p=min(1.0, best * comparisons), place=place, found=found
    )

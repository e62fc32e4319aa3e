"""Simulates audits that look at their verdict after every step: how often they refute what is true, and how soon what is false.

    python -m experiments.anytime_audits [--audits 1000 | --quick]

Scores are normal, so the truth is known: mu = 2. The limits and verdicts are those of the package; the fixed test has as many
trainings as the other may play at most. The false alarms are counted at 95 %, where 1,000 audits can show them, and at 99.99 %.
"""

from __future__ import annotations

import argparse

import numpy as np

from sordino.audit.anytime_limits import AnytimeLimit
from sordino.audit.lower_bounds import FIRM, Scores, choose_threshold, limit_errors, limit_once

TRUTH = 2.0
CHOOSING = 1000
STEP = 250
LOOKS = 16
CLAIMS = (2.0, 1.9, 1.8, 1.6, 1.2)


def draw_scores(generator: np.random.Generator, choosing: int, judging: int) -> Scores:
    """Draws the scores of an audit whose truth is mu = 2."""
    sides = [generator.standard_normal(count) for count in (choosing, choosing, judging, judging)]
    return Scores(choosing=(sides[0], sides[1] + TRUTH), judging=(sides[2], sides[3] + TRUTH))


def mu_at_looks(scores: Scores, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns what is shown at every look by limits that hold at any time, and by limits for one look."""
    threshold = choose_threshold(scores.choosing, "mu", confidence, 1e-5)
    anytime = AnytimeLimit(batch=CHOOSING)
    found = np.empty((2, LOOKS))
    for look in range(LOOKS):
        done = STEP * (look + 1)
        so_far = Scores(
            choosing=scores.choosing,
            judging=(scores.judging[0][:done], scores.judging[1][:done]),
        )
        for row, limit in enumerate((anytime, limit_once)):
            found[row, look] = limit_errors(so_far, threshold, confidence, limit).mu
    return found[0], found[1]


def main() -> None:
    """Prints the two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audits", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="a look, of 50 audits")
    options = parser.parse_args()
    audits = 50 if options.quick else options.audits
    generator = np.random.default_rng(24)
    alarms = dict.fromkeys(("at any time", "for one look, at every look"), 0)
    claims = {claim: [] for claim in CLAIMS}
    fixed = dict.fromkeys(CLAIMS, 0)
    for _ in range(audits):
        scores = draw_scores(generator, CHOOSING, STEP * LOOKS)
        for name, shown in zip(alarms, mu_at_looks(scores, 0.95), strict=True):
            alarms[name] += bool((shown > TRUTH).any())
        shown = mu_at_looks(scores, FIRM)[0]
        half = (CHOOSING + STEP * LOOKS) // 2
        whole = draw_scores(generator, half, half)
        threshold = choose_threshold(whole.choosing, "mu", FIRM, 1e-5)
        once = limit_errors(whole, threshold, FIRM).mu
        for claim in CLAIMS:
            refuted = np.flatnonzero(shown > claim)
            if len(refuted) > 0:
                claims[claim].append(CHOOSING + STEP * (int(refuted[0]) + 1))
            fixed[claim] += once > claim
    print(f"{audits} audits, {LOOKS} looks; true mu = {TRUTH:g}")
    for name, count in alarms.items():
        print(f"95 % limits {name}: above the truth at some look in {count}")
    print(
        "claim | refuted by the fixed test | at any time | trainings a side, mean, of",
        CHOOSING + STEP * LOOKS,
    )
    for claim, stops in claims.items():
        mean = f"{np.mean(stops):,.0f}" if stops else "-"
        print(f"{claim:g} | {fixed[claim]} | {len(stops)} | {mean}")


if __name__ == "__main__":
    main()

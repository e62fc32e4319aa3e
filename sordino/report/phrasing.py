"""Puts protocols, runs and guarantees into plain words, for people who decide about data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.mechanisms import mechanism_of
from sordino.privacy.guarantee import MEANINGFUL, Guarantee, round_up
from sordino.protocol import (
    Bezier,
    ClippedGlm,
    DpSgd,
    FedAvg,
    FedProx,
    Grid,
    LocalRule,
    NoisySgd,
    NoisySteps,
    NoisyUpload,
    Protocol,
    Registry,
    Release,
    Scaffold,
    View,
)
from sordino.protocol.entries import refuse_changed_parts
from sordino.protocol.release import Lot
from sordino.protocol.views import ANY_UNIT_IN_WORDS
from sordino.report.number_formats import format_percent, format_upper_bound

if TYPE_CHECKING:
    # A run needs torch, and words about a protocol do not.
    from sordino.federation.store.run import Run

RULE_NAMES: Registry[str] = Registry("name in words", "local rule", LocalRule)
# A rule without a name in words is called as in the file.
RULE_NAMES.register_others("")
RULE_NAMES.register(FedAvg)("Noisy-FedAvg")
RULE_NAMES.register(FedProx)("Noisy-FedProx")
RULE_NAMES.register(Scaffold)("Noisy-SCAFFOLD")
RULE_NAMES.register(Bezier)("Noisy-FedAvg along Bezier curves")
RULE_NAMES.register(ClippedGlm)("clipped logistic regression")
RULE_NAMES.register(NoisySgd)("noisy SGD")
RULE_NAMES.register(DpSgd)("DP-SGD")

RELEASE_WORDS: Registry[Callable[[Any], str]] = Registry("description", "release", Release)

ENDINGS = {
    "finished": "finished",
    "diverged": "diverged: the model was no longer finite, and the last finite one is kept",
    "budget": "ended by its budget, before the next round would have exceeded it",
    "unfinished": "not finished: this is what was spent so far",
}
TEST_RECORDS = {
    "public": "public test records",
    "brought": "test records that came with the data",
    "held-out": "held-out private records, not covered",
    "none": "no records",
}


def describe_ending(status: str) -> str:
    """Says how a run ended.

    Args:
        status: The status of the run.

    Returns:
        A few words.
    """
    return ENDINGS.get(status, status)


def describe_protocol(protocol: Protocol) -> str:
    """Describes a protocol in one line.

    Args:
        protocol: The federation.

    Returns:
        Model, data, clients, rounds and rule; of a path to data, the last part.
    """
    # A changed part would be described as something that was not priced.
    refuse_changed_parts(protocol)
    model = "?"
    if protocol.model is not None:
        model = protocol.model.name
    data = "?"
    if protocol.data is not None:
        data = Path(protocol.data.name).name
    rule = RULE_NAMES.of(protocol.local) or protocol.local.tag
    if not protocol.server.plain:
        rule += f" with {protocol.server.tag} at the server"
    clients = count_things(protocol.clients, "client")
    rounds = count_things(protocol.rounds, "round")
    return f"{model} on {data}, {clients}, {rounds} of {rule}"


def count_things(number: int, noun: str) -> str:
    """Returns a number with its noun, in the plural where it needs one.

    Args:
        number: How many there are.
        noun: What they are, in the singular, with a plural in s.

    Example:
        >>> count_things(1, "round"), count_things(1200, "round")
        ('1 round', '1,200 rounds')
    """
    ending = "" if number == 1 else "s"
    return f"{number:,} {noun}{ending}"


def describe_noise(protocol: Protocol) -> str:
    """Says how much noise there is, and on what.

    Args:
        protocol: The federation.

    Returns:
        One line.
    """
    release = protocol.release
    words = RELEASE_WORDS.of(release)(release) + describe_own_noise(protocol)
    grid = find_known_grid(protocol)
    return words if grid is None else f"{words} ({grid.in_words})"


def find_known_grid(protocol: Protocol) -> Grid | None:
    """Returns the grid that uploads lie on; None where there is none, or it is not known yet.

    Args:
        protocol: The federation, which may not say how many parameters its model has.
    """
    stated = protocol.model is not None and protocol.model.parameters is not None
    return protocol.grid if stated else None


@RELEASE_WORDS.register(NoisySteps)
def _describe_noisy_steps(release: NoisySteps) -> str:
    mechanism = mechanism_of(release.sum_noise)
    noise = f"{mechanism.words} on each coordinate"
    multiplier = release.noise.multiplier
    if multiplier is not None:
        noise = f"multiplier {multiplier:g}: sigma {round_up(mechanism.deviation)}"
    return f"{noise} on every step's sum of clipped gradients"


@RELEASE_WORDS.register(NoisyUpload)
def _describe_noisy_upload(release: NoisyUpload) -> str:
    noise = mechanism_of(release.noise).words
    if release.lot is not None:
        return _describe_lot_noise(release.lot)
    if not release.at_server:
        return f"{noise} on each coordinate of an upload"
    if not release.at_client:
        return f"{noise} on each coordinate of the mean, added by the server"
    return f"{noise} on an upload, and sigma {release.server_sigma} on the mean"


def _describe_lot_noise(lot: Lot) -> str:
    whole = round_up(lot.multiplier * lot.clip)
    words = f"multiplier {lot.multiplier:g}: sigma {whole} on the sum of all clients' gradients"
    if lot.holders == 1:
        return words
    return f"{words}, in shares of {round_up(lot.share)}"


def describe_own_noise(protocol: Protocol) -> str:
    """Says how many clients have other noise than the protocol's, and of which kind.

    Args:
        protocol: The federation.

    Returns:
        The end of a sentence; empty where all clients have the same noise.

    Example:
        >>> from sordino import ClientBudget, Constant, FedAvg, Gaussian
        >>> rule = FedAvg(steps=1, batch=4, clip=1.0, schedule=Constant(rate=0.1))
        >>> own = (
        ...     ClientBudget(id=0, epsilon=2.0),
        ...     ClientBudget(id=1, epsilon=2.0, mechanism="laplace"),
        ... )
        >>> noise = Gaussian(sigma=0.1)
        >>> describe_own_noise(Protocol(clients=2, rounds=5, local=rule, noise=noise, client=own))
        ', except for 1 of 2 clients, whose noise is calibrated to their budgets (1 laplace)'
    """
    kinds = Counter(client.mechanism for client in protocol.client if client.mechanism is not None)
    if not kinds:
        return ""
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return (
        f", except for {kinds.total()} of {protocol.clients} clients, "
        f"whose noise is calibrated to their budgets ({listed})"
    )


def name_adversary(view: View) -> str:
    """Names the adversary of a view.

    Args:
        view: What the adversary sees.

    Returns:
        The beginning of a sentence.
    """
    words = view.adversary
    return words[0].upper() + words[1:]


def state_headline(guarantee: Guarantee, delta: float) -> str:
    """States what an adversary learns at most, and about what: the headline of a page.

    Args:
        guarantee: The bound.
        delta: Where epsilon is shown.

    Returns:
        A sentence.
    """
    adversary = name_adversary(guarantee.view)
    epsilon = guarantee.epsilon(delta)
    if math.isinf(epsilon):
        return f"{adversary} may learn everything: nothing is promised."
    about = f"about {ANY_UNIT_IN_WORDS[guarantee.unit]}"
    if guarantee.condition:
        about += f", {guarantee.condition}"
    if epsilon > MEANINGFUL:
        return f"{adversary} learns without a meaningful limit {about}."
    # The spaces do not break: a headline never ends a line with "ε =".
    return f"{adversary} learns at most ε\u00a0=\u00a0{format_upper_bound(epsilon)} {about}."


def explain_missing_limit(guarantee: Guarantee) -> str:
    """Returns the reason why a bound is infinite; nothing where its derivation has none.

    Args:
        guarantee: The bound.
    """
    lines = guarantee.derivation
    # With a distance between drawn noise and its law, the derivation ends with that distance, and
    # the reason is the line before.
    if guarantee.total_variation > 0:
        lines = lines[:-1]
    return "".join(lines[-1:])


def find_test_source(run: Run) -> str:
    """Returns whose records a run was scored on.

    Earlier versions did not write it down; they held out of the users' data what was missing.

    Args:
        run: Any run.

    Returns:
        A key of `TEST_RECORDS`.
    """
    # The readers of data are many modules, and a price needs none of them.
    from sordino.data import find_tested_on

    return find_tested_on(run.protocol, run.facts)


def join_test_records(sources: Iterable[str]) -> str:
    """Returns the records that several trainings were scored on, in words.

    Args:
        sources: Keys of `TEST_RECORDS`, in any order.

    Example:
        >>> join_test_records(["public", "held-out", "public"])
        'held-out private records, not covered or public test records'
    """
    return " or ".join(TEST_RECORDS[source] for source in sorted(set(sources)))


def describe_own_scores(scores: Mapping[str, Any]) -> str:
    """Returns how accurate clients' personal models are, in words.

    Args:
        scores: Their mean, worst and spread, as `find_own_scores` returns them.

    Example:
        >>> describe_own_scores({"mean": 0.9, "worst": 0.71, "spread": 0.052})[:47]
        'accuracy 90.0 % on average, 71.0 % at the worst'
    """
    mean = format_percent(scores["mean"])
    worst = format_percent(scores["worst"])
    return (
        f"accuracy {mean} on average, {worst} at the worst client, spread (std) "
        f"{100 * scores['spread']:.1f} points, each on test records with its client's labels; "
        "not covered by any guarantee"
    )


def describe_test_records(run: Run) -> str:
    """Returns the records that a run was scored on, in words.

    Args:
        run: Any run.
    """
    return TEST_RECORDS[find_test_source(run)]

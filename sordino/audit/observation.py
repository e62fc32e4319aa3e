"""What the adversary of a game is given: its view, or more where the bound is proved for more.

Some bounds are proved for an adversary that sees each upload of a client, or each of its noisy
steps. They hold for other views, which show only what is computed from these. Such a bound is
tested where it is proved, and what is measured there is not called a lower bound for the view. The
list of providers says which bound applies, as it does to `certify`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sordino.privacy.amplification.personal_state import carries_noiseless_state
from sordino.privacy.bounds.priced_view import find_shown
from sordino.privacy.bounds.providers import find_observation
from sordino.privacy.bounds.question import Observation, Question
from sordino.protocol import Protocol, View

__all__ = [
    "BATCHES",
    "count_colluders",
    "describe_beyond_view",
    "find_given_observation",
    "hides_batches",
    "may_miss_record",
    "shows_batches",
]

BATCHES = "the records of every batch"
UPDATES = "the joined update of every round"


def find_given_observation(protocol: Protocol, view: View) -> Observation:
    """Returns what the adversary of a view is given.

    Args:
        protocol: The federation that is audited.
        view: The view of the adversary.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> rule = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.1))
        >>> plan = Protocol(clients=2, rounds=3, local=rule, noise=Gaussian(sigma=0.1))
        >>> views = [View.parse(name) for name in ("server", "strong", "final")]
        >>> [find_given_observation(plan, view).name for view in views]
        ['UPLOADS', 'MODELS', 'LAST']
    """
    return find_observation(_ask_about(protocol, view))


def _ask_about(protocol: Protocol, view: View) -> Question:
    return Question(
        protocol=protocol, view=view, unit="record", rounds=np.arange(protocol.rounds), sizes=None
    )


def describe_beyond_view(
    protocol: Protocol, view: View, unit: str = "record", sizes: Sequence[int] | None = None
) -> str:
    """Returns in words what the adversary is given beyond its view.

    Args:
        protocol: The federation that is audited.
        view: The view of the adversary.
        unit: What the data sets differ in.
        sizes: Records of every client; None where they are not stated, and every batch is taken to
            hold all of them.

    Returns:
        A phrase; empty where the adversary is given the view itself.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian, NoisySgd
        >>> schedule = Constant(rate=0.1)
        >>> rule = NoisySgd(steps=2, batch=1, clip=1.0, schedule=schedule)
        >>> plan = Protocol(clients=2, rounds=3, local=rule, noise=Gaussian(multiplier=1.0))
        >>> describe_beyond_view(plan, View.FINAL)
        'every noisy step of the attacked client'
        >>> rule = FedAvg(steps=2, batch=1, clip=1.0, schedule=schedule, minibatches="public")
        >>> plan = Protocol(clients=2, rounds=3, local=rule, noise=Gaussian(sigma=1.0))
        >>> describe_beyond_view(plan, View.SERVER, sizes=(9, 9))
        'the records of every batch'
    """
    shown = find_shown(protocol, view)
    given = find_given_observation(protocol, view)
    beyond = []
    if given != shown:
        beyond.append(given.value)
    # The update between two models does not follow from them under every server optimizer.
    sees_sums = protocol.channel.sums_only and view.is_server
    if given is Observation.MODELS and not protocol.server.invertible and not sees_sums:
        beyond.append(UPDATES)
    if shows_batches(protocol, unit, sizes):
        beyond.append(BATCHES)
    return " and ".join(beyond)


def may_miss_record(protocol: Protocol, unit: str, sizes: Sequence[int] | None) -> bool:
    """Returns whether minibatches may miss the record in which the data sets differ.

    Args:
        protocol: The federation that is audited.
        unit: What the data sets differ in.
        sizes: Records of every client; None where they are not stated.
    """
    batch = protocol.local.batch
    if unit != "record" or sizes is None or batch is None:
        return False
    return protocol.local.draws_batches and batch < max(sizes)


def _has_batches_to_show(protocol: Protocol, unit: str, sizes: Sequence[int] | None) -> bool:
    # The laws of noisy steps and lots count the record's absence: their draw is never shown.
    if protocol.release.in_steps or protocol.release.lot is not None:
        return False
    return may_miss_record(protocol, unit, sizes)


def shows_batches(protocol: Protocol, unit: str, sizes: Sequence[int] | None) -> bool:
    """Returns whether the adversary of a worst case is given the records of every batch.

    Where batches are secret, that is more than its view shows, and what it finds is compared with
    the bound against an adversary that knows them.

    Args:
        protocol: The federation that is audited.
        unit: What the data sets differ in.
        sizes: Records of every client; None where they are not stated.
    """
    if not _has_batches_to_show(protocol, unit, sizes):
        return False
    return not hides_batches(protocol, unit, sizes)


def hides_batches(protocol: Protocol, unit: str, sizes: Sequence[int] | None) -> bool:
    """Returns whether the game is played without showing the batches.

    They must be secret, and the likelihood ratio must be known without them. It is unknown where
    clients carry models over, behind a shuffler, and where the draw of clients is hidden too.

    Args:
        protocol: The federation that is audited.
        unit: What the data sets differ in.
        sizes: Records of every client; None where they are not stated.
    """
    release = protocol.release
    if not _has_batches_to_show(protocol, unit, sizes) or not release.secret_batches:
        return False
    entangled = release.shuffled or carries_noiseless_state(protocol) or protocol.keeps_models
    if entangled or protocol.hides_participants:
        return False
    return protocol.adjacency == "replace-one"


def count_colluders(protocol: Protocol, view: View) -> int:
    """Returns how many clients collude with the adversary, and tell it the noise that they drew.

    Args:
        protocol: The federation that is audited.
        view: The view of the adversary.
    """
    return _ask_about(protocol, view).colluders

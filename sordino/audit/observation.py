"""What the adversary of a game is given: what its view shows, or more where the bound is for more.

Some bounds are proved for an adversary that sees a client's uploads, or its every noisy step, and
hold for all others because they see something made of that. Such a bound is tested where it is
proved. A value measured there is no lower bound for the view itself, and is not called one. Which
bound it is the list of providers says, as it does to `certify`.
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
    "colluders_of",
    "draws_batches",
    "find_given_observation",
    "given_batches",
    "more_than_seen",
    "withheld_batches",
]

BATCHES = "the records of every batch"
UPDATES = "the joined update of every round"


def find_given_observation(protocol: Protocol, view: View) -> Observation:
    """Returns what the adversary of a view is given.

    Args:
        protocol: What runs.
        view: The adversary's.

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


def more_than_seen(
    protocol: Protocol, view: View, unit: str = "record", sizes: Sequence[int] | None = None
) -> str:
    """Returns in words what the adversary is given beyond its view.

    Args:
        protocol: What runs.
        view: The adversary's.
        unit: What the data sets differ in.
        sizes: Records of every client; where they are not stated, every batch holds all of them.

    Returns:
        The words; empty where the adversary is given the view itself.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian, NoisySgd
        >>> schedule = Constant(rate=0.1)
        >>> rule = NoisySgd(steps=2, batch=1, clip=1.0, schedule=schedule)
        >>> plan = Protocol(clients=2, rounds=3, local=rule, noise=Gaussian(multiplier=1.0))
        >>> more_than_seen(plan, View.FINAL)
        'every noisy step of the attacked client'
        >>> rule = FedAvg(steps=2, batch=1, clip=1.0, schedule=schedule, minibatches="public")
        >>> plan = Protocol(clients=2, rounds=3, local=rule, noise=Gaussian(sigma=1.0))
        >>> more_than_seen(plan, View.SERVER, sizes=(9, 9))
        'the records of every batch'
    """
    shown = find_shown(protocol, view)
    given = find_given_observation(protocol, view)
    beyond = []
    if given != shown:
        beyond.append(given.value)
    # Of two models in a row some server optimizers do not show the update between them.
    sees_sums = protocol.channel.sums_only and view.is_server
    if given is Observation.MODELS and not protocol.server.invertible and not sees_sums:
        beyond.append(UPDATES)
    if given_batches(protocol, view, unit, sizes):
        beyond.append(BATCHES)
    return " and ".join(beyond)


def draws_batches(protocol: Protocol, unit: str, sizes: Sequence[int] | None) -> bool:
    """Returns whether minibatches may miss the record in which the data sets differ.

    Batches of noisy steps and lots count in another way: what they hide is never given.

    Args:
        protocol: The federation that is audited.
        unit: What the data sets differ in.
        sizes: Records of every client; None where they are not stated.
    """
    release = protocol.release
    if unit != "record" or sizes is None or release.in_steps or release.lot is not None:
        return False
    batch = protocol.local.batch
    return protocol.local.draws_batches and batch is not None and batch < max(sizes)


def given_batches(protocol: Protocol, view: View, unit: str, sizes: Sequence[int] | None) -> bool:
    """Returns whether the adversary of a worst case is given the records of every batch.

    That is more than the view shows where batches are secret; then the adversary is held against
    the bound for one that knows them.

    Args:
        protocol: The federation that is audited.
        view: The adversary's.
        unit: What the data sets differ in.
        sizes: Records of every client; None where they are not stated.
    """
    if not draws_batches(protocol, unit, sizes):
        return False
    return not withheld_batches(protocol, view, unit, sizes)


def withheld_batches(
    protocol: Protocol, view: View, unit: str, sizes: Sequence[int] | None
) -> bool:
    """Returns whether the game is played without showing the batches.

    They must be secret, and the likelihood ratio known without them. It is not where clients carry
    models over, behind a shuffler, and where the draw of clients is hidden too.

    Args:
        protocol: The federation that is audited.
        view: The adversary's.
        unit: What the data sets differ in.
        sizes: Records of every client; None where they are not stated.
    """
    release = protocol.release
    if not draws_batches(protocol, unit, sizes) or not release.secret_batches:
        return False
    entangled = release.shuffled or carries_noiseless_state(protocol) or protocol.keeps_models
    if entangled or protocol.hides_participants:
        return False
    return protocol.adjacency == "replace-one"


def colluders_of(protocol: Protocol, view: View) -> int:
    """Returns how many clients are on the adversary's side and know their own noise.

    Args:
        protocol: The federation that is audited.
        view: The adversary's.
    """
    return _ask_about(protocol, view).colluders

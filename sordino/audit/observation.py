"""What the adversary of a game is given: what its view shows, or more than that where the bound is one for more.

Some bounds are proved for who sees a client's uploads, or its every noisy step, and hold for all others because they see something made of
that. Such a bound is tested where it is proved. What is measured there is no lower bound for the view itself, and is not called one.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from sordino.privacy.carried import carries
from sordino.privacy.central import hidden
from sordino.privacy.certify import harmonized
from sordino.privacy.joined_steps import adds_up
from sordino.protocol import Attention, FedAvg, Mean, Median, NoisySgd, Protocol, Scaffold, View

BATCHES = "the records of every batch"


class Given(Enum):
    """What the likelihood ratio reads."""

    STEPS = "every noisy step of the attacked client"
    UPLOADS = "every upload of the attacked client"
    MODELS = "every global model"
    LAST = "the last global model"


def given_to(protocol: Protocol, view: View) -> Given:
    """What the adversary of a view is given.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> rule = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.1))
        >>> plan = Protocol(clients=2, rounds=3, local=rule, noise=Gaussian(sigma=0.1))
        >>> [given_to(plan, View.parse(view)).name for view in ("server", "strong", "final")]
        ['UPLOADS', 'MODELS', 'LAST']
    """
    if isinstance(protocol.local, NoisySgd):
        # Where the others' noise adds up in the mean, who sees means alone is promised more than who sees steps.
        return Given.MODELS if adds_up(protocol) and view.kind != "server" else Given.STEPS
    if view == View.SERVER or priced_as_server(protocol):
        return Given.UPLOADS
    return Given.LAST if view == View.FINAL else Given.MODELS


def priced_as_server(protocol: Protocol) -> bool:
    """Whether every view has the server's bound since clients, or the server's rule, see single uploads (`certify.effective_view`)."""
    single = isinstance(protocol.local, Scaffold) or isinstance(protocol.personalization, Attention)
    return single or harmonized(protocol) or not isinstance(protocol.aggregation, (Mean, Median))


def more_than_seen(
    protocol: Protocol, view: View, unit: str = "record", sizes: Sequence[int] | None = None
) -> str:
    """In words, what the adversary is given beyond its view; empty where it is given the view itself.

    Args:
        protocol: what runs.
        view: the adversary's.
        unit: what the data sets differ in.
        sizes: records of every client; where they are not said, every batch holds all of them.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> rule = NoisySgd(steps=2, batch=1, clip=1.0, schedule=Constant(rate=0.1))
        >>> more_than_seen(Protocol(clients=2, rounds=3, local=rule, noise=Gaussian(multiplier=1.0)), View.FINAL)
        'every noisy step of the attacked client'
        >>> rule = FedAvg(steps=2, batch=1, clip=1.0, schedule=Constant(rate=0.1), minibatches="public")
        >>> more_than_seen(Protocol(clients=2, rounds=3, local=rule, noise=Gaussian(sigma=1.0)), View.SERVER, sizes=(9, 9))
        'the records of every batch'
    """
    given = given_to(protocol, view)
    own = (
        Given.UPLOADS if view == View.SERVER else Given.LAST if view == View.FINAL else Given.MODELS
    )
    beyond = [] if given == own else [given.value]
    if given_batches(protocol, view, unit, sizes):
        beyond.append(BATCHES)
    return " and ".join(beyond)


def draws_batches(protocol: Protocol, unit: str, sizes: Sequence[int] | None) -> bool:
    """Whether minibatches of fedavg and its kin may miss the record in which the data sets differ."""
    rule = protocol.local
    return (
        unit == "record"
        and isinstance(rule, FedAvg)
        and sizes is not None
        and rule.batch < max(sizes)
    )


def given_batches(protocol: Protocol, view: View, unit: str, sizes: Sequence[int] | None) -> bool:
    """Whether the adversary of a worst case is told the records of every batch, which is more than the view shows where they are secret.

    Then it is held against the bound for who knows them.
    """
    return draws_batches(protocol, unit, sizes) and not withheld_batches(
        protocol, view, unit, sizes
    )


def withheld_batches(
    protocol: Protocol, view: View, unit: str, sizes: Sequence[int] | None
) -> bool:
    """Whether the game is played without telling the batches: they are secret, and the likelihood ratio is known without them.

    It is not where clients carry models over, behind a shuffler, and where the draw of clients is hidden too.
    """
    rule = protocol.local
    if not draws_batches(protocol, unit, sizes) or getattr(rule, "minibatches", "") != "secret":
        return False
    entangled = protocol.channel == "shuffler" or carries(protocol) or protocol.keeps_models
    return not entangled and not hidden(protocol) and protocol.adjacency == "replace-one"


def colluders_of(protocol: Protocol, view: View) -> int:
    """How many clients are on the adversary's side and know their own noise: one other client is weak, all others are strong."""
    return {View.WEAK: 1, View.STRONG: protocol.clients - 1}.get(view, view.colluders)

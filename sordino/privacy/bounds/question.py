"""Questions about a protocol, their answers, and the contract of a provider of answers.

A question knows nothing of its providers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np

from sordino.privacy.curves.curve import Curve
from sordino.privacy.integer_noise import PricedNoise, price_noise
from sordino.privacy.upload_sensitivity import UploadPrices, distinct_rounds, price_uploads
from sordino.protocol import UNITS, InvalidValue, Protocol, View
from sordino.protocol.value_checks import MOST


class Protection(Enum):
    """The noise that hides a client from the adversary."""

    OWN_NOISE = "each client's own noise"
    STEPS = "noise in every step"
    LOT = "one noise on a sum of clipped gradients over all clients"
    MEAN = "noise that the server adds to the mean, alone or on top of the clients'"
    UPLOADS = "noise that every client adds to its upload"


class Observation(Enum):
    """What the adversary is given against whom a bound is proved."""

    STEPS = "every noisy step of the attacked client"
    UPLOADS = "every upload of the attacked client"
    MODELS = "every global model"
    SOME_MODELS = "some of the global models"
    LAST = "the last global model"


@dataclass(frozen=True, kw_only=True)
class AttackedClients:
    """A kind of client that is attacked, where clients differ in size.

    Attributes:
        share: The largest share that such a client has in the mean.
        visible: The largest ratio of such a client's share to the norm of all honest shares, the
            client's own included.
        records: The fewest records that such a client has.
        most_records: The most records that such a client has.
    """

    share: float
    visible: float
    records: int
    most_records: int


@dataclass(frozen=True, kw_only=True)
class Bound:
    """One valid bound.

    Attributes:
        curve: The privacy curve that is proved.
        method: The name of the method that proves it.
        lines: The derivation, line by line.
        vouched: What the user vouches for and the bound rests on; empty where it holds
            unconditionally.
    """

    curve: Curve
    method: str
    lines: tuple[str, ...]
    vouched: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Question:
    """What an adversary learns from rounds of a protocol.

    Attributes:
        protocol: The federation that is priced.
        view: The adversary.
        unit: The hidden unit, "record" or "client".
        rounds: The rounds that are run; one that was run twice is listed twice.
        sizes: The number of records of every client, where it is known.
        attacked: The kind of client that is attacked; None for the worst of all.
        present: How many clients contributed to each of the rounds, where that is known because the
            attacked client took part in exactly these rounds; None before a run. Where clients
            weigh differently, as many equal ones as hide the attacked client as well.
    """

    protocol: Protocol
    view: View
    unit: str
    rounds: np.ndarray
    sizes: tuple[int, ...] | None
    attacked: AttackedClients | None = None
    present: tuple[float, ...] | None = None

    @property
    def colluders(self) -> int:
        """Clients on the adversary's side, whose noise hides nothing from it."""
        # PriFedSync's definitions: one other client is weak, all others are strong.
        others = {View.WEAK: 1, View.STRONG: self.protocol.clients - 1}
        return others.get(self.view, self.view.colluders)

    @property
    def records(self) -> int | None:
        """Records of the attacked client, or of the smallest: fewer records hide less."""
        if self.attacked is not None:
            return self.attacked.records
        if self.sizes is not None:
            return min(self.sizes)
        return self.protocol.data.records if self.protocol.data is not None else None

    @property
    def most_records(self) -> int | None:
        """Records of the attacked client, or of the largest, all of which a batch may hold."""
        if self.attacked is not None:
            return self.attacked.most_records
        return self.records if self.sizes is None else max(self.sizes)

    @property
    def shares(self) -> np.ndarray | None:
        """Each client's share in a mean over everyone, where it is known."""
        clients = self.protocol.clients
        # Clients with their own noise are priced one by one, whatever their weights.
        if self.protocol.aggregation.weighs_noise:
            return None
        if self.protocol.aggregation.weighs_records:
            if self.sizes is not None:
                return np.array(self.sizes) / sum(self.sizes)
            if self.protocol.data is None or self.protocol.data.records is None:
                return None
        return np.full(clients, 1 / clients)

    @property
    def equal_shares(self) -> bool:
        """Whether all clients are known to weigh the same in a mean over everyone."""
        # Exactly: shares that differ in the last digit differ in the bound, too.
        return self.shares is not None and bool(self.shares.max() == self.shares.min())

    @property
    def knows_present(self) -> bool:
        """Whether the numbers of `present` say how well a mean hides the attacked client."""
        # Of random participants with unequal shares a number says nothing about their shares.
        weighed = self.attacked is not None and not self.protocol.participation.draws
        return self.equal_shares or weighed

    @property
    def chance(self) -> float:
        """Probability that the attacked client takes part in a round."""
        # After a run it is known who took part: nothing is random about it any more.
        if self.present is not None:
            return 1.0
        return self.protocol.participation.find_chance(clients=self.protocol.clients)

    @property
    def protection(self) -> Protection:
        """The noise that hides a client from this adversary."""
        protocol = self.protocol
        release = protocol.release
        # Each client's price rests on its noise alone, whatever else there is.
        if has_own_noise(protocol):
            return Protection.OWN_NOISE
        if release.in_steps:
            return Protection.STEPS
        if release.lot is not None:
            return Protection.LOT
        if not release.at_server:
            return Protection.UPLOADS
        if not release.at_client:
            return Protection.MEAN
        # Both add noise. The server knows its own. Where clients leave with their budgets it is not
        # known how many are left in a mean, and the noise on an upload is what counts.
        if self.view.is_server or protocol.client:
            return Protection.UPLOADS
        return Protection.MEAN

    @cached_property
    def noise(self) -> PricedNoise:
        """The clients' normal noise on uploads, or what hides as much."""
        return price_noise(self.protocol)

    @property
    def spreads_curve(self) -> bool:
        """Whether uploads move as a random point of a curve does, and by nothing else."""
        # Rounding moves them further, wherever the point is.
        return self.protocol.release.on_curve and not self.protocol.release.integers

    @property
    def sees(self) -> str:
        """What the adversary sees, in words."""
        return self.view.describe_seen(sums_only=self.protocol.channel.sums_only)

    @cached_property
    def prices(self) -> UploadPrices:
        """The prices of the uploads, one row for each of the rounds that differ in price."""
        return price_uploads(
            self.protocol, self._distinct[0], self.unit, self.records, self.sum_weight
        )

    @property
    def sum_weight(self) -> float:
        """What a client multiplies its update by before a secure sum; 1 where it is not weighed."""
        if self.attacked is None or self.protocol.release.secure_sum is None:
            return 1.0
        return self.attacked.share

    @property
    def counts(self) -> np.ndarray:
        """How often each of the rounds of `prices` occurs."""
        return self._distinct[1]

    @cached_property
    def _distinct(self) -> tuple[np.ndarray, np.ndarray]:
        # A plan of thousands of equal rounds is priced once.
        return distinct_rounds(self.protocol, self.rounds)


@dataclass(frozen=True, kw_only=True)
class Provider:
    """A source of bounds.

    Attributes:
        applies: Tells whether the provider's bounds hold for a question.
        bounds: Finds all bounds that the provider can prove.
        observes: Says what the adversary is given against whom the bounds are proved.
        event: Makes an event of dp_accounting of the question; None where there is no such event.
    """

    applies: Callable[[Question], bool]
    bounds: Callable[[Question], Iterable[Bound]]
    observes: Callable[[Question], Observation]
    event: Callable[[Question], Any] | None = None


def ask_providers(providers: Sequence[Provider], question: Question) -> Iterator[Bound]:
    """Yields the bounds of all providers that apply, in their order.

    Args:
        providers: The providers to ask, in the order in which their bounds are wanted.
        question: The protocol, view and unit to bound.
    """
    for provider in providers:
        if provider.applies(question):
            yield from provider.bounds(question)


def pose_question(
    protocol: Protocol,
    view: str | View,
    unit: str,
    rounds: Sequence[int] | None = None,
    sizes: Sequence[int] | None = None,
    present: Sequence[float] | None = None,
) -> Question:
    """Checks the parts of a question and returns it.

    Args:
        protocol: The federation that is priced.
        view: The adversary.
        unit: The hidden unit, "record" or "client".
        rounds: The rounds that are run, with repetitions; by default all of the protocol.
        sizes: The number of records of every client; by default as the protocol lists them, if it
            does.
        present: The number of clients that contributed to each of the rounds, where it is known.

    Raises:
        InvalidValue: A view that the protocol does not have, or another part out of its range.
    """
    parsed = View.parse(view)
    if unit not in UNITS:
        raise InvalidValue("unit", unit, '"record" or "client"')
    alone = parsed in (View.WEAK, View.STRONG) and protocol.clients == 1
    # Somebody must be left to be attacked.
    if parsed.colluders >= protocol.clients or alone:
        allowed = "another view: there is one client only"
        if protocol.clients > 1:
            allowed = f"at most coalition:{protocol.clients - 1}, all clients but the attacked one"
        raise InvalidValue("view", str(parsed), allowed)
    refuse_colluders(protocol, parsed)
    return Question(
        protocol=protocol,
        view=parsed,
        unit=unit,
        rounds=np.arange(protocol.rounds) if rounds is None else check_rounds(rounds),
        sizes=_find_sizes(protocol, sizes),
        present=None if present is None else tuple(present),
    )


def refuse_colluders(protocol: Protocol, view: View) -> None:
    """Refuses a server with more helpers than the secure aggregation is made for.

    Args:
        protocol: The federation that is priced.
        view: The adversary.

    Raises:
        InvalidValue: Names the view and the views allowed.
    """
    secure_sum = protocol.release.secure_sum
    if secure_sum is None or not view.is_server or view.colluders <= secure_sum.colluders:
        return
    allowed = f"at most server:{secure_sum.colluders}"
    if secure_sum.colluders == 0:
        allowed = "server without helpers"
    raise InvalidValue(
        "view",
        str(view),
        f"{allowed}, since federation.channel.secure-aggregation.colluders = "
        f"{secure_sum.colluders}",
    )


def check_rounds(rounds: Sequence[int]) -> np.ndarray:
    """Returns rounds as an array, if they are rounds.

    Args:
        rounds: The numbers of the rounds.

    Raises:
        InvalidValue: Something among them is not a whole number of at least 0.

    Example:
        >>> check_rounds(range(2))
        array([0, 1])
    """
    found = np.asarray(rounds)
    # A negative number would index from the end, and price another round.
    whole = found.size == 0 or (np.issubdtype(found.dtype, np.integer) and int(found.min()) >= 0)
    if found.ndim != 1 or not whole:
        raise InvalidValue(
            "rounds",
            rounds,
            "the numbers of rounds, each a whole number of at least 0, such as range(10)",
        )
    return found.astype(np.int64)


def _find_sizes(protocol: Protocol, sizes: Sequence[int] | None) -> tuple[int, ...] | None:
    """Returns the sizes given, or else those that the protocol lists because they differ."""
    # Data in hand say more than the file's plan.
    if sizes is not None:
        return check_sizes(protocol, sizes)
    return None if protocol.data is None else protocol.data.sizes


def check_sizes(protocol: Protocol, sizes: Sequence[int]) -> tuple[int, ...]:
    """Returns numbers of records, if there is one for every client.

    Args:
        protocol: The federation that is priced.
        sizes: The number of records of every client.

    Raises:
        InvalidValue: There are too few or too many, or one of them is not a number of records.
    """
    found = tuple(sizes)
    whole = all(
        # A client without records has nothing to hide, and a rate B / 0.
        isinstance(size, (int, np.integer)) and not isinstance(size, bool) and 0 < size <= MOST
        for size in found
    )
    if not whole or len(found) != protocol.clients:
        raise InvalidValue(
            "sizes",
            sizes,
            f"the numbers of records of {protocol.clients} clients, "
            "each a whole number of at least 1",
        )
    return tuple(int(size) for size in found)


def has_own_noise(protocol: Protocol) -> bool:
    """Returns whether clients have individual noise or pulls, so that each has its own price.

    Args:
        protocol: The federation that is priced.
    """
    return protocol.penalty or any(budget.mechanism is not None for budget in protocol.client)


def visible_share(question: Question, view: View) -> float:
    """Returns the attacked client's share of what a view sees, over the norm of the honest noise.

    The worst client has the largest share, and the worst coalition the largest other shares
    (docs/theory.md#a8, unequal weights).

    Args:
        question: The protocol, view and unit to bound.
        view: The view whose bound is taken; see `priced_view.find_priced_view`.

    Returns:
        The share; 1 where the upload itself is seen.
    """
    shares = question.shares
    if view.is_server or shares is None:
        return 1.0
    if question.attacked is not None:
        return question.attacked.visible
    ordered = np.sort(shares)[::-1]
    # At worst the attacked client weighs most, and those with the next shares collude.
    honest = np.concatenate([ordered[:1], ordered[1 + view.colluders :]])
    return float(ordered[0] / math.sqrt(float(np.square(honest).sum())))

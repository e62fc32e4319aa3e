"""What leaves a client in a round, under which noise.

Price, engine, audit, attack and report ask the release, not the kind of the rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from sordino.protocol.adaptive_clip import AdaptiveClip
from sordino.protocol.arithmetic import sends_integers
from sordino.protocol.channel_kinds import SecureAggregation
from sordino.protocol.dp_sgd_rule import DpSgd
from sordino.protocol.errors import UserError
from sordino.protocol.noise_kinds import Gaussian, Noise
from sordino.protocol.noisy_sgd_rule import NoisySgd
from sordino.protocol.registry import Registry
from sordino.protocol.rule_kinds import LocalRule, UpdateRule

if TYPE_CHECKING:
    from sordino.protocol.values import Protocol


@dataclass(frozen=True, kw_only=True)
class Lot:
    """A sum of clipped example gradients over records of all clients, under one noise.

    Attributes:
        multiplier: Standard deviation of the noise on the sum over all clients, in units of the
            clip.
        clip: The largest norm of an example's gradient.
        batch: B, the records of the lot that one client draws on average; uploads are divided by
            it.
        varying: Whether each record is drawn by a separate coin (Poisson).
        holders: How many clients' shares make up the noise of the sum.
        clients: By how many clients' B the sum is divided.
    """

    multiplier: float
    clip: float
    batch: int
    varying: bool
    holders: float
    clients: float

    @property
    def share(self) -> float:
        """Standard deviation of one client's noise on its sum."""
        return self.multiplier * self.clip / math.sqrt(self.holders)

    def find_rate(self, records: int, mean_records: float) -> float:
        """Returns the probability that a lot holds a record.

        Args:
            records: Records of the client that has it.
            mean_records: Of all clients.

        Example:
            >>> lot = Lot(multiplier=1, clip=1, batch=5, varying=True, holders=2, clients=2)
            >>> lot.find_rate(50, 100.0)
            0.05
        """
        # Coins have one probability for all records of the federation; a fixed number belongs to
        # one client.
        among = mean_records if self.varying else records
        return min(1.0, self.batch / among)


@dataclass(frozen=True, kw_only=True)
class NoisyUpload:
    """One upload a round, with noise on it, on the mean of all uploads, or on both.

    Attributes:
        noise: The mechanism, as the protocol says it; its size is absolute.
        at_client: Whether every client adds noise to its upload.
        at_server: Whether the server adds noise to the mean.
        clip: The largest norm of a clipped gradient or update.
        clip_norm: Which norm that is, "l2" or "l1"; uploads move by a bounded distance in it.
        clips_update: Whether the whole update is clipped, and not each step.
        on_curve: Whether a random point of a curve back to the global model is sent; the point is
            public.
        secret_batches: Whether nobody but the client knows which records its steps draw.
        client_sigma: Standard deviation of each client's normal noise on its upload, or 0.
        server_sigma: Standard deviation of the server's normal noise on the mean, or 0.
        shuffled: Whether the server receives uploads without their senders' names.
        integers: Whether it is an update on a grid of integers, under discrete noise; the
            protocol's `grid` says which.
        secure_sum: The secure aggregation that it is a share of: the server learns the sum of all
            uploads and nothing else; None where it receives the upload.
        reach: The largest norm of the update before noise; infinite where nothing bounds it.
        lot: Its lot, where it is a share of one noisy sum of clipped gradients; None
            where it is an update of its client.
        adaptive: How the clip follows what it clips; None where it stays. Uploads are sent in units
            in which the clip is `clip`, whatever it has become.
    """

    in_steps: ClassVar[Literal[False]] = False
    one_plain_step: ClassVar[bool] = False
    noise: Noise
    at_client: bool
    at_server: bool
    clip: float
    clip_norm: str
    clips_update: bool
    on_curve: bool
    secret_batches: bool
    client_sigma: float
    server_sigma: float
    shuffled: bool
    integers: bool
    secure_sum: SecureAggregation | None
    reach: float
    lot: Lot | None = None
    adaptive: AdaptiveClip | None = None

    @property
    def counted(self) -> int:
        """How many examples or updates a client is expected to count."""
        return 1 if self.lot is None else self.lot.batch

    @property
    def count_length(self) -> float:
        """How long a count of 1 is as a coordinate of the upload; 0 where nothing is counted."""
        if self.adaptive is None:
            return 0.0
        return self.adaptive.find_count_length(self.clip, self.counted)

    @property
    def counts(self) -> int:
        """How many coordinates of an upload are counts, beside those of the model."""
        return 0 if self.adaptive is None else 1

    @property
    def varying_batches(self) -> bool:
        """Whether the size of a batch is random."""
        return self.lot is not None and self.lot.varying

    @property
    def server_noise(self) -> Noise | None:
        """The noise that the server adds to the mean; None where it adds none."""
        # Where both add noise, the server's has another size than the clients'.
        return self.noise.find_server_part()

    @property
    def noise_draws(self) -> int:
        """How many vectors of noise a client draws in a round."""
        return 1

    def find_released_noise(self, noise: Noise) -> Noise:
        """Returns the noise on what a client releases, its size absolute: here on its upload.

        Args:
            noise: The client's mechanism, which may be its own.
        """
        return noise


@dataclass(frozen=True, kw_only=True)
class NoisySteps:
    """An upload made of K noisy steps.

    Each adds noise to a sum of clipped gradients, and the rest is post-processing.

    Attributes:
        noise: The mechanism, as the protocol says it.
        noise_unit: Standard deviation of the noise on a step's sum of clipped gradients, for a
            multiplier of 1.
        steps: K, the number of noisy steps in a round.
        batch: B, the public constant that sums are divided by.
        clip: The largest norm of an example's gradient.
        clip_norm: Which norm that is, "l2" or "l1".
        varying_batches: Whether the size of a batch is random, each record being in it by a
            separate coin (Poisson).
        secret_batches: Whether nobody but the client knows which records its steps draw.
        plain: Whether the upload is computed only from the noisy sums, by no optimizer with a
            state.
    """

    in_steps: ClassVar[Literal[True]] = True
    at_client: ClassVar[bool] = True
    at_server: ClassVar[bool] = False
    clips_update: ClassVar[bool] = False
    on_curve: ClassVar[bool] = False
    shuffled: ClassVar[bool] = False
    integers: ClassVar[bool] = False
    secure_sum: ClassVar[None] = None
    server_noise: ClassVar[None] = None
    lot: ClassVar[None] = None
    adaptive: ClassVar[None] = None
    counts: ClassVar[int] = 0
    noise: Noise
    noise_unit: float
    steps: int
    batch: int
    clip: float
    clip_norm: str
    varying_batches: bool
    secret_batches: bool
    plain: bool

    @cached_property
    def sum_noise(self) -> Noise:
        """The noise on a step's sum of clipped gradients, its size absolute."""
        return self.find_released_noise(self.noise)

    @property
    def noise_draws(self) -> int:
        """How many vectors of noise a client draws in a round."""
        return self.steps

    def find_released_noise(self, noise: Noise) -> Noise:
        """Returns the noise on what a client releases, its size absolute: on a step's sum.

        Args:
            noise: The client's mechanism, which may be its own; a multiplier counts in units of how
                far the sum moves.
        """
        return noise.fit_unit(self.noise_unit)

    @property
    def one_plain_step(self) -> bool:
        """Whether an upload is one noisy sum, so that a mean holds all clients' noise."""
        # After a second step, or in an optimizer's state, the noise has gone through a gradient and
        # no longer adds up (docs/theory.md#a16); of sums of other noise than normal no price is
        # known.
        return self.steps == 1 and self.plain and self.noise.normal


Release = NoisyUpload | NoisySteps


RELEASES: Registry[Callable[[Any, Protocol], Release]] = Registry(
    "release", "local rule", LocalRule
)


def release_of(protocol: Protocol) -> Release:
    """Returns what leaves a client of the protocol in a round.

    Args:
        protocol: The federation, as its file describes it.

    Raises:
        UnknownKind: A local rule about whose release nothing is known.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian, Protocol
        >>> local = FedAvg(steps=5, batch=32, clip=1.0, schedule=Constant(rate=0.1))
        >>> noise = Gaussian(sigma=1.0)
        >>> release = release_of(Protocol(clients=50, rounds=600, local=local, noise=noise))
        >>> release.at_client, release.at_server, release.noise_draws
        (True, False, 1)
    """
    # A registry, so that a rule without an answer is refused and never treated as another one.
    return RELEASES.of(protocol.local)(protocol.local, protocol)


def noisy_upload_of(protocol: Protocol) -> NoisyUpload:
    """Returns the upload of a protocol whose noise joins uploads.

    Args:
        protocol: The federation, as its file describes it.

    Raises:
        TypeError: The noise is in the steps instead.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian, Protocol
        >>> local = FedAvg(steps=5, batch=32, clip=1.0, schedule=Constant(rate=0.1))
        >>> noise = Gaussian(sigma=1.0)
        >>> plan = Protocol(clients=50, rounds=600, local=local, noise=noise)
        >>> noisy_upload_of(plan).client_sigma
        1.0
    """
    release = release_of(protocol)
    if release.in_steps:
        raise TypeError(f"uploads of {protocol.local.tag} carry no noise")
    return release


def noisy_steps_of(protocol: Protocol) -> NoisySteps:
    """Returns the noisy steps of a protocol whose noise is in its steps.

    Args:
        protocol: The federation, as its file describes it.

    Raises:
        TypeError: The noise is on uploads instead.

    Example:
        >>> from sordino.protocol import Constant, Gaussian, NoisySgd, Protocol
        >>> local = NoisySgd(steps=5, batch=4, clip=1.0, schedule=Constant(rate=0.1))
        >>> noise = Gaussian(multiplier=1.0)
        >>> plan = Protocol(clients=5, rounds=6, local=local, noise=noise)
        >>> noisy_steps_of(plan).sum_noise.sigma
        2.0
    """
    release = release_of(protocol)
    if not release.in_steps:
        raise TypeError(f"{protocol.local.tag} has no noisy steps")
    return release


# Made of what the value says of itself, so that a new rule that sends updates needs no line here.
@RELEASES.register(*get_args(UpdateRule))
def _noisy_update(rule: UpdateRule, protocol: Protocol) -> Release:
    return NoisyUpload(
        clip=rule.gradient_norm,
        clip_norm=rule.clip_norm,
        clips_update=rule.clips_update,
        on_curve=rule.on_curve,
        secret_batches=rule.secret_batches,
        reach=rule.reach,
        adaptive=rule.adaptive,
        **_put_on_uploads(protocol, protocol.noise),
    )


@RELEASES.register(NoisySgd)
def _noisy_steps(rule: NoisySgd, protocol: Protocol) -> Release:
    return NoisySteps(
        noise=protocol.noise,
        noise_unit=rule.noise_unit,
        steps=rule.steps,
        batch=rule.batch,
        clip=rule.clip,
        clip_norm=rule.clip_norm,
        # Under Poisson batches a record comes or goes and the sum moves by C; in fixed batches one
        # is replaced and it moves by 2C.
        varying_batches=rule.varying_batches,
        secret_batches=rule.minibatches == "secret",
        plain=rule.optimizer == "sgd",
    )


def adds_at_client(noise: Noise) -> bool:
    """Returns whether every client adds the noise to its upload.

    Args:
        noise: The mechanism; each client may have another.
    """
    return noise.where in ("client", "both")


def adds_at_server(noise: Noise) -> bool:
    """Returns whether the server adds noise to the mean.

    Args:
        noise: The mechanism.
    """
    return noise.where in ("server", "both")


@RELEASES.register(DpSgd)
def _shared_lot(rule: DpSgd, protocol: Protocol) -> Release:
    noise = protocol.noise
    if noise.multiplier is None:
        # `Protocol` refuses this, so no protocol gets here.
        raise UserError(f'local.rule = "{rule.tag}": expected gaussian noise with a multiplier.')
    clients = protocol.participation.count_expected(clients=protocol.clients)
    lot = Lot(
        multiplier=noise.multiplier,
        clip=rule.clip,
        batch=rule.batch,
        varying=rule.varying_batches,
        holders=_count_noise_holders(protocol, clients),
        clients=clients,
    )
    # The client's share on its sum divided by B, or all of it on the mean over clients.
    sigma = lot.share / lot.batch
    if not adds_at_client(noise):
        sigma = lot.multiplier * lot.clip / (lot.batch * clients)
    absolute = Gaussian(
        sigma=sigma,
        where=noise.where,
        secure=noise.secure,
        arithmetic=noise.arithmetic,
        digits=noise.digits,
    )
    return NoisyUpload(
        clip=rule.clip,
        clip_norm=rule.clip_norm,
        clips_update=False,
        on_curve=False,
        secret_batches=True,
        reach=_find_lot_reach(rule, protocol),
        lot=lot,
        adaptive=rule.adaptive,
        **_put_on_uploads(protocol, absolute),
    )


def _count_noise_holders(protocol: Protocol, clients: float) -> float:
    secure_sum = protocol.channel.secure_sum
    if secure_sum is not None:
        # A sum may be opened with no more contributions than these that hide (docs/theory.md#a13).
        return float(secure_sum.threshold - secure_sum.colluders)
    if not adds_at_client(protocol.noise):
        return 1.0
    return clients


def _find_lot_reach(rule: DpSgd, protocol: Protocol) -> float:
    if not rule.varying_batches:
        return rule.clip
    sizes = protocol.stated_sizes
    # A Poisson lot may hold all records of a client.
    return math.inf if sizes is None else max(sizes) * rule.clip / rule.batch


def _put_on_uploads(protocol: Protocol, noise: Noise) -> dict[str, Any]:
    """Returns what a release of uploads says about its noise, whatever the rule."""
    return {
        "noise": noise,
        "at_client": adds_at_client(noise),
        "at_server": adds_at_server(noise),
        "client_sigma": noise.client_sigma,
        "server_sigma": noise.mean_sigma,
        "shuffled": protocol.channel.shuffles,
        "integers": sends_integers(protocol),
        "secure_sum": protocol.channel.secure_sum,
    }

"""What a client does in a round.

Rules whose noise is on one sum of a lot, or in every step, have their own files
(`dp_sgd_rule.py`, `noisy_sgd_rule.py`). `local_rule.py` says what may be asked of a rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from sordino.protocol.adaptive_clip import AdaptiveClip
from sordino.protocol.dp_sgd_rule import DpSgd
from sordino.protocol.entries import Table, Tagged, entry
from sordino.protocol.errors import InvalidValue, UserError
from sordino.protocol.local_rule import RuleKind
from sordino.protocol.noisy_sgd_rule import DRAWS, DRAWS_DOC, NoisySgd
from sordino.protocol.schedules import SCHEDULES, Constant, Schedule
from sordino.protocol.value_checks import Choice, Integer, Maybe, Number

# The rule bezier multiplies an update by (1 - r)(1 + 1.2 r) (udp-fl Eq. 6, see
# `sordino.federation.connectivity`), for an r that is drawn independently of all data. It is 1 at
# r = 0, largest at r = 1/12 and never below 0, so given any r, and hence on average, two updates
# are at most this many times further apart than their steps.
BEZIER_REACH = 121 / 120


@dataclass(frozen=True, kw_only=True)
class FedAvg(RuleKind):
    """K steps of gradient descent from the global model (convergent-dp Eq. 2).

    Each step's minibatch gradient is clipped to norm V.

    Example:
        >>> from sordino.protocol import Constant
        >>> FedAvg(steps=5, batch=32, clip=1, schedule=Constant(rate=0.1)).clip
        1.0
    """

    tag: ClassVar[str] = "fedavg"
    steps: int = entry(Integer(at_least=1), "K: local steps in a round")
    batch: int = entry(
        Integer(at_least=1),
        "B: distinct records of the client that every step draws, fresh and independent",
    )
    clip: float = entry(
        Number(above=0), "V: largest norm of a step's gradient, or of the whole update"
    )
    schedule: Schedule = entry(Tagged(SCHEDULES, "kind"), "learning rate of every step")
    clip_norm: str = entry(Choice(("l2", "l1")), "which norm is clipped", "l2")
    clip_target: str = entry(
        Choice(("step", "update")),
        "what is clipped: every step's gradient, or the round's whole update",
        "step",
    )
    minibatches: str = entry(Choice(DRAWS), DRAWS_DOC, "secret")
    # Public, so it needs no clip; it brings two models closer in every step (docs/theory.md#a32).
    weight_decay: float = entry(
        Number(at_least=0), "lambda: pull of every coordinate to zero, outside the clip", 0.0
    )
    adaptive: AdaptiveClip | None = entry(
        Maybe(Table(AdaptiveClip)),
        "the clip of whole updates follows a quantile of their norms, from local.clip on; left "
        "out: it stays",
        None,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # Steps of one round would be clipped alike whatever their norms: nobody counts them.
        if self.adaptive is not None and not self.clips_update:
            raise InvalidValue("clip-target", self.clip_target, '"update" with an adaptive clip')

    @property
    def clips_update(self) -> bool:
        """Whether the whole update is clipped, and not each step's gradient."""
        return self.clip_target == "update"

    @property
    def pull(self) -> float:
        """Strength of all that pulls a step to public models: here only weight decay."""
        return self.weight_decay

    @property
    def gradient_norm(self) -> float:
        """The largest norm after clipping."""
        return self.clip

    @property
    def secret_batches(self) -> bool:
        """Whether nobody but the client knows which records its steps draw."""
        return self.minibatches == "secret"

    @property
    def reach(self) -> float:
        """How far a round of clipped steps can lead at most."""
        if self.clips_update:
            return self.clip
        distance = 0.0
        # No schedule has larger rates in a later round than in the first.
        for rate in self.schedule.rates(round=0, steps=self.steps):
            distance = abs(1 - rate * self.pull) * distance + rate * self.clip
        return distance


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """Like `FedAvg`, with a pull back to the global model in every step (convergent-dp Eq. 4).

    The pull has strength alpha. Anchored at the start, it goes to the model before the first round,
    which does not drift, and privacy can converge (docs/theory.md#a32).

    Example:
        >>> from sordino.protocol import Constant
        >>> FedProx(steps=5, batch=32, clip=1, schedule=Constant(rate=0.1), proximal=0.1).proximal
        0.1
    """

    tag: ClassVar[str] = "fedprox"
    proximal: float = entry(Number(at_least=0), "alpha: strength of the pull to the global model")
    anchor: str = entry(
        Choice(("global", "start")),
        "where the pull goes: to the round's global model, or to the one before the first round",
        "global",
    )

    @property
    def pull(self) -> float:
        """Strength of all that pulls a step to public models."""
        return self.proximal + self.weight_decay

    @property
    def proximal_pull(self) -> float:
        """Strength of the pull to the model that the round began with."""
        return self.proximal if self.anchor == "global" else 0.0

    @property
    def anchor_pull(self) -> float:
        """Strength of the pull to the model before the first round."""
        return self.proximal - self.proximal_pull


@dataclass(frozen=True, kw_only=True)
class Scaffold(FedAvg):
    """Like `FedAvg`, every clipped step corrected by control variates.

    The server computes them from the noisy uploads.

    Example:
        >>> from sordino.protocol import Constant
        >>> Scaffold(steps=5, batch=32, clip=1, schedule=Constant(rate=0.1)).tag
        'scaffold'
    """

    tag: ClassVar[str] = "scaffold"
    # Control variates made of noisy uploads are post-processing and cost nothing more.
    corrected: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Bezier(FedAvg):
    """Like `FedAvg` with steps of 1/L; a random point of a curve is sent (udp-fl Eq. 6).

    The Bezier curve leads back to the global model. The protocol says L in
    `assumptions.smoothness`. Only the clip bounds what an upload reveals, whatever L is.

    Example:
        >>> from sordino.protocol import Constant
        >>> Bezier(steps=1, batch=32, clip=1, schedule=Constant(rate=0.1)).tag
        'bezier'
    """

    tag: ClassVar[str] = "bezier"
    on_curve: ClassVar[bool] = True

    @property
    def reach(self) -> float:
        """How far a point of the curve can lie at most."""
        return BEZIER_REACH * super().reach

    def check_smoothness(self, smoothness: float | None) -> None:
        """Refuses steps that are not 1/L, as equation 6 of udp-fl has them.

        Args:
            smoothness: L, if the user vouches for one.

        Raises:
            UserError: There is no L, or steps are not 1/L.
        """
        # The rule's steps are 1/L (docs/theory.md#b9), so it cannot do without an L.
        if smoothness is None or smoothness == 0:
            raise UserError(
                'local.rule = "bezier": its steps are 1/L. '
                "Expected an assumptions.smoothness = L above 0."
            )
        schedule = self.schedule
        constant = schedule.tag == Constant.tag
        # People write 1/L with a few digits; the price does not depend on it.
        if not constant or not math.isclose(schedule.rate * smoothness, 1, rel_tol=1e-3):
            given = f'{{ kind = "{schedule.tag}", rate = {schedule.rate:g} }}'
            step = f'{{ kind = "constant", rate = {1 / smoothness:g} }}'
            allowed = f"{step}, the step 1/L of the rule bezier"
            raise UserError(
                f"local.schedule = {given}: expected {allowed} "
                f"with assumptions.smoothness = {smoothness:g}."
            )


@dataclass(frozen=True, kw_only=True)
class ClippedGlm(RuleKind):
    """Logistic regression on two or more classes, all conditions of docs/theory.md#a9 enforced.

    Every example's gradient is clipped to norm V. Clipping the gradient of one example of a linear
    model gives the gradient of another convex loss, so local training contracts and the privacy of
    the final model converges as rounds grow. Features with their bias coordinate are scaled into a
    ball, weight decay is outside the clip, batches are the same in every round. For many
    classes, one-against-rest clips every class by itself, and softmax needs no clip, since bounded
    features bound its gradients (docs/theory.md#a31).

    Example:
        >>> from sordino.protocol import Constant
        >>> rule = ClippedGlm(steps=5, clip=1, schedule=Constant(rate=0.5), weight_decay=0.1)
        >>> rule.feature_norm, rule.batches
        (1.0, 'full')
    """

    tag: ClassVar[str] = "clipped-glm"
    # Every record is used in every pass, so no draw of records amplifies.
    draws_batches: ClassVar[bool] = False
    # Its batches are the same in every round, in an order that all know (docs/theory.md#a9).
    secret_batches: ClassVar[bool] = False
    makes_model: ClassVar[bool] = True
    clip_norm: ClassVar[str] = "l2"
    # Weight decay moves a model as far as it is from 0.
    reach: ClassVar[float] = math.inf
    steps: int = entry(
        Integer(at_least=1),
        "K: local steps in a round; with cyclic batches a multiple of their number",
    )
    clip: float | None = entry(
        Maybe(Number(above=0)),
        "V: largest norm of an example's gradient; none with softmax, which needs no clip",
        None,
    )
    schedule: Schedule = entry(Tagged(SCHEDULES, "kind"), "learning rate of every step")
    # Outside the clip: it makes every step a contraction, which the price rests on
    # (docs/theory.md#a9).
    weight_decay: float = entry(
        Number(at_least=0), "lambda: pull of every coordinate to zero, outside the clip"
    )
    feature_norm: float = entry(
        Number(above=0),
        "X: features, with a bias coordinate of 1, are scaled to at most this norm",
        1.0,
    )
    batches: str = entry(
        Choice(("full", "cyclic")),
        "full: all records in every step; cyclic: fixed batches in turn",
        "full",
    )
    batch: int | None = entry(
        Maybe(Integer(at_least=1)),
        "B: records of a cyclic batch; must divide the client's records",
        None,
    )
    loss: str = entry(
        Choice(("logistic", "softmax", "one-against-rest")),
        "logistic: two classes; softmax, one-against-rest: any number of them",
        "logistic",
    )

    @property
    def gradient_norm(self) -> float:
        """The largest norm of an example's gradient."""
        if self.clip is not None:
            return self.clip
        # |p - y| |x| <= sqrt(2) X (docs/theory.md#a31).
        return math.sqrt(2) * self.feature_norm

    def __post_init__(self) -> None:
        super().__post_init__()
        # Clipped as a whole, gradients of softmax are those of no convex loss (docs/theory.md#a9).
        if (self.clip is None) != (self.loss == "softmax"):
            given = "no" if self.clip is None else "a"
            raise InvalidValue(
                "loss",
                self.loss,
                f'"softmax" without a clip, or another with one; there is {given} clip',
            )
        # A batch size with full batches would be ignored, which nobody would notice.
        if (self.batch is None) != (self.batches == "full"):
            given = "no" if self.batch is None else "a"
            raise InvalidValue(
                "batches",
                self.batches,
                f'"full" without a batch, or "cyclic" with one; there is {given} batch',
            )

    def check_records(self, records: int, entry_in_words: str) -> None:
        """Refuses cyclic batches that do not go through all records equally often.

        Args:
            records: Records of a client.
            entry_in_words: The entry of the file that says so.

        Raises:
            InvalidValue: The batch does not divide the records, or the steps end within a pass.
        """
        if self.batch is None:
            return
        # A round ends with a whole pass, so that every record moves the model equally often.
        uneven = records % self.batch != 0 or self.steps % (records // self.batch) != 0
        if uneven:
            allowed = (
                f"a divisor of {entry_in_words} whose number of batches "
                f"divides local.steps = {self.steps}"
            )
            raise InvalidValue("local.batch", self.batch, allowed)


# They send an update of their own. What leaves the client is made of what the value says
# (`gradient_norm`, `clip_norm`, `clips_update`, `on_curve`, `secret_batches`, `reach`).
UpdateRule = FedAvg | FedProx | Scaffold | Bezier | ClippedGlm
# Noise joins what they send.
UploadRule = UpdateRule | DpSgd
LocalRule = UploadRule | NoisySgd

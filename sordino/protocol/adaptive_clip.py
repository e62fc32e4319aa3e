"""A clip that follows a private quantile of what it clips (Andrew et al. 2021).

With a clip that follows, uploads are sent in units in which the clip is what the file says, and
carry one more coordinate: a noisy count of what was within the clip (docs/theory.md#a22).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sordino.protocol.entries import Value, entry
from sordino.protocol.value_checks import Number


@dataclass(frozen=True, kw_only=True)
class AdaptiveClip(Value):
    """The clip follows a quantile of norms, measured privately in the same round.

    In every round clients also send how many of their drawn examples (with dp-sgd) or whether their
    update (with other rules) was within the clip, each counted as 1/2 or -1/2, under noise of its
    own. The clip is multiplied by exp(-rate (share within - quantile)).

    Example:
        >>> round(AdaptiveClip(quantile=0.5).price_factor, 4)
        1.005
    """

    quantile: float = entry(
        Number(above=0, below=1), "share of the norms that are to be within the clip", 0.5
    )
    rate: float = entry(Number(above=0), "how fast the clip follows", 0.2)
    # A tenth costs half a percent more noise (docs/theory.md#a22).
    weight: float = entry(
        Number(above=0, at_most=1),
        "how exactly is counted: the count moves by this share of its noise, beside what the rest "
        "of an upload does",
        0.1,
    )

    @property
    def price_factor(self) -> float:
        """How much further an upload moves with its count than without."""
        # Both are under independent normal noise, so their moves are two sides of a right angle.
        return math.hypot(1.0, self.weight)

    def find_count_length(self, clip: float, divisor: float) -> float:
        """Returns how long a count of 1 is, as a coordinate of the upload.

        In this unit the count has the noise of every other coordinate.

        Args:
            clip: The clip that uploads are sent in units of.
            divisor: What sums are divided by before they are sent.

        Example:
            >>> AdaptiveClip(weight=0.1).find_count_length(2.0, 1.0)
            0.4
        """
        # An example counts a half, and is to be as long as weight times its gradient can be.
        return 2 * self.weight * clip / divisor

"""What may be asked of every local rule.

A kind gives its own answer where that of most kinds is not its own. Answers are about the rule as
such; prices, steps and worst cases are in registries, and none of them is inherited.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sordino.protocol.entries import Value

if TYPE_CHECKING:
    from sordino.protocol.adaptive_clip import AdaptiveClip


@dataclass(frozen=True, kw_only=True)
class RuleKind(Value):
    """Base of every local rule, with the answers of most of them.

    Attributes:
        corrected: Whether control variates correct its steps.
        draws_batches: Whether a step draws its records.
        noise_in_steps: Whether noise joins every step, and not the upload.
        joins_lot: Whether uploads are shares of one sum over a lot, by which the server steps.
        on_curve: Whether a random point of a curve back to the global model is sent.
        makes_model: Whether the rule makes the model that it trains, and takes no other.
    """

    corrected: ClassVar[bool] = False
    draws_batches: ClassVar[bool] = True
    noise_in_steps: ClassVar[bool] = False
    joins_lot: ClassVar[bool] = False
    on_curve: ClassVar[bool] = False
    makes_model: ClassVar[bool] = False

    @property
    def varying_batches(self) -> bool:
        """Whether the size of a batch is random, each record being in it by a separate coin."""
        return False

    @property
    def clips_update(self) -> bool:
        """Whether the whole update is clipped, and not each gradient."""
        return False

    @property
    def pull(self) -> float:
        """Strength of all that pulls a clipped step to public models."""
        return 0.0

    @property
    def proximal_pull(self) -> float:
        """Strength of the pull to the model that the round began with."""
        return 0.0

    @property
    def anchor_pull(self) -> float:
        """Strength of the pull to the model before the first round."""
        return 0.0

    @property
    def adaptive(self) -> AdaptiveClip | None:
        """How the clip follows what it clips; None where it stays."""
        return None

    def check_smoothness(self, smoothness: float | None) -> None:
        """Refuses a smoothness that the rule cannot work with.

        Args:
            smoothness: L, if the user vouches for one.

        Raises:
            UserError: The rule needs another one, or another schedule.
        """

    def check_records(self, records: int, entry_in_words: str) -> None:
        """Refuses a number of records that the rule's batches do not divide as they must.

        Args:
            records: Records of a client.
            entry_in_words: The entry of the file that says so.

        Raises:
            InvalidValue: Names the key, the value and the values allowed.
        """

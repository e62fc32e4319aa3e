"""What an adversary really gets: measured lower bounds.

The room is also the function: `from sordino import audit; audit(protocol, view="final")` plays the game.

Example:
    >>> from sordino import audit
    >>> audit(protocol, view="final", trainings=1000)  # doctest: +SKIP
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sordino.audit.verdict import Finding


class _Room(ModuleType):
    """A module that can be called, since the room and the function that users want of it have one name."""

    def __call__(
        self, source: Any, view: Any = "server", unit: str = "record", **options: Any
    ) -> Finding:
        """Audit a protocol or a run, published claims included; see `sordino.audit.auditing.audit`.

        Example:
            >>> audit(protocol, view="final", trainings=1000)  # doctest: +SKIP
        """
        from sordino.papers.applied import audit_with_claims

        return audit_with_claims(source, view, unit, **options)


sys.modules[__name__].__class__ = _Room

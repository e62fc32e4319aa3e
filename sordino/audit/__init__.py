"""What an adversary really gets: measured lower bounds.

The package is also the function: `from sordino import audit; audit(protocol, view="final")`.

Example:
    >>> from sordino import audit
    >>> audit(protocol, view="final", trainings=1000)  # doctest: +SKIP
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sordino.wiring import ask_above

if TYPE_CHECKING:
    from sordino.audit.verdict import Finding


class _CallablePackage(ModuleType):
    """Makes `sordino.audit(...)` a call.

    An ordinary function of that name would not last: importing any module of this package binds
    `sordino.audit` to the package.
    """

    def __call__(
        self, source: Any, view: Any = "server", unit: str = "record", **options: Any
    ) -> Finding:
        """Audits a protocol or a run, published claims included.

        Args:
            source: A protocol, or the folder of a finished run.
            view: What the adversary sees.
            unit: "record" or "client".
            **options: Those of `sordino.audit.auditing.audit`.

        Returns:
            What was found.

        Example:
            >>> audit(protocol, view="final", trainings=1000)  # doctest: +SKIP
        """
        # The room of audits knows nothing of papers, whose claims are tested too.
        finding: Finding = ask_above("audit_with_claims")(source, view, unit, **options)
        return finding


sys.modules[__name__].__class__ = _CallablePackage

"""What goes wrong because of what a person wrote, said so that they can mend it."""

from __future__ import annotations

import shlex


def typed(*words: object) -> str:
    """A command of ours as it is typed into a shell: a path with a space in it is one word there too.

    Example:
        >>> typed("resume", "runs/my run")
        "sordino resume 'runs/my run'"
    """
    return shlex.join(["sordino", *map(str, words)])


class SordinoError(Exception):
    """Base of every error that Sordino raises on purpose; `exit_code` is what the command line returns.

    Example:
        >>> try:
        ...     raise UserError("there is no run in 'runs/x'")
        ... except SordinoError as error:
        ...     print(error.exit_code)
        2
    """

    exit_code = 1


class UserError(SordinoError, ValueError):
    """A mistake in what was given: the message says what was given, what is allowed and what to change.

    Example:
        >>> UserError("there is no run in 'runs/x'").exit_code
        2
    """

    exit_code = 2


class Changed(UserError):
    """Something in a run's folder is not what was written there: what the run promises can no longer be read from it.

    Example:
        >>> Changed("runs/x/run.json: sizes were changed").exit_code
        4
    """

    exit_code = 4


class InvalidValue(UserError):
    """A value that its key does not allow.

    Example:
        >>> str(InvalidValue("local.clip", -1, "a number above 0"))
        'local.clip = -1: expected a number above 0.'
    """

    def __init__(self, key: str, given: object, allowed: str, advice: str = "") -> None:
        self.key, self.given, self.allowed, self.advice = key, given, allowed, advice
        shown = repr(given)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        super().__init__(f"{key} = {shown}: expected {allowed}." + (f" {advice}" if advice else ""))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.key, self.given, self.allowed, self.advice)

    def under(self, path: str) -> InvalidValue:
        """The same error with its key placed below `path` in the file."""
        return InvalidValue(
            f"{path}.{self.key}" if path else self.key, self.given, self.allowed, self.advice
        )

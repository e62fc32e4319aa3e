"""What goes wrong because of what a person wrote, said so that they can mend it."""

from __future__ import annotations

import shlex


def format_command(*words: object) -> str:
    """Returns a command as it is typed into a shell, where a path with a space is one word.

    Args:
        *words: Of the command, without the program's name.

    Example:
        >>> format_command("resume", "runs/my run")
        "sordino resume 'runs/my run'"
    """
    return shlex.join(["sordino", *map(str, words)])


class SordinoError(Exception):
    """Base of every error that Sordino raises on purpose.

    The command line returns its `exit_code`.

    Example:
        >>> try:
        ...     raise UserError("there is no run in 'runs/x'")
        ... except SordinoError as error:
        ...     print(error.exit_code)
        2
    """

    exit_code = 1


class UserError(SordinoError, ValueError):
    """A mistake in what was given.

    The message says the value given, the values allowed and what to change.

    Example:
        >>> UserError("there is no run in 'runs/x'").exit_code
        2
    """

    exit_code = 2


class Changed(UserError):
    """Something in a run's folder was changed after it was written.

    The run's promises can no longer be read from it.

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

    def __init__(
        self,
        key: str,
        given: object,
        allowed: str,
        advice: str = "",
    ) -> None:
        self.key = key
        self.given = given
        self.allowed = allowed
        self.advice = advice
        # A pasted list of a thousand numbers must not bury what is expected.
        shown = repr(given)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        message = f"{key} = {shown}: expected {allowed}."
        if advice:
            message += f" {advice}"
        super().__init__(message)

    # An exception is pickled by its message alone; worker processes have to pass this one on with
    # all its parts.
    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.key, self.given, self.allowed, self.advice)

    def place_under(self, path: str) -> InvalidValue:
        """Returns the same error with its key placed below `path` in the file.

        Args:
            path: The key of the table that holds the entry; empty at the top of the file.
        """
        key = f"{path}.{self.key}" if path else self.key
        return InvalidValue(key, self.given, self.allowed, self.advice)

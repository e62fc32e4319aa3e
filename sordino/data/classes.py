"""The classes of a task, and their order: given beforehand, never found in private records.

A class that only one record has would otherwise show in the number of outputs and in the numbers of
all other classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sordino.protocol import UserError

# As `data.classes` gives them: how many, or their names.
Classes = int | tuple[str, ...]
# What spreadsheets and data frames write for a missing value; such a word is not a class.
NO_LABEL = frozenset({"", "na", "n/a", "nan", "null", "<na>", "#n/a"})
# How many classes a message writes out.
PROPOSED = 20


def class_names(classes: Classes) -> tuple[str, ...]:
    """Returns the names of the classes in order.

    Args:
        classes: Their names, or how many there are; then they are called "0", "1" and so on.

    Example:
        >>> class_names(3)
        ('0', '1', '2')
    """
    if isinstance(classes, int):
        return tuple(str(number) for number in range(classes))
    return classes


def refuse_other_classes(name: str, found: tuple[str, ...] | None, said: Classes | None) -> None:
    """Refuses classes in the protocol that are not those which the data are known to have.

    Args:
        name: What the data are called in the message.
        found: The classes of the data by a public list; None for a regression.
        said: What the protocol says; None where it leaves them to the data.

    Raises:
        UserError: They differ in number, name or order.
    """
    if said is None:
        return
    if found is None:
        raise UserError(
            f"data.classes = {format_classes(said)}: {name} has targets of a regression and no "
            "classes. Leave the key out."
        )
    # A mere number agrees with any names that are as many.
    agrees = len(found) == said or found == said
    if not agrees:
        raise UserError(
            f"data.classes = {format_classes(said)}: {name} has the classes "
            f"{format_classes(found)}. Both must be the same, in the same order."
        )


def refuse_numbers_outside(path: Path, labels: np.ndarray, name: str, classes: Classes) -> None:
    """Refuses numbers of classes that are not below the number of classes.

    Args:
        path: The file, for messages.
        labels: Whole numbers, one for each record.
        name: What the array is called.
        classes: As the protocol or the file itself says them.

    Raises:
        UserError: A number that is none of theirs.
    """
    count = len(class_names(classes))
    wrong = np.flatnonzero((labels < 0) | (labels >= count))
    if len(wrong) > 0:
        raise UserError(
            f"{path}: labels out of range: {name} is {labels[wrong[0]]} at record {wrong[0]}, but "
            f"data.classes = {format_classes(classes)} allows 0 to {count - 1}. Correct the "
            "record, or number the classes from 0 and list them all."
        )


def refuse_too_many_classes(path: Path, classes: int, records: int) -> None:
    """Refuses as many classes as records: then a label names its record, and nothing is learnt.

    Args:
        path: The file, for messages.
        classes: How many classes there are.
        records: How many records.

    Raises:
        UserError: No class can have two records.
    """
    if 0 < records <= classes:
        raise UserError(
            f"{path}: {classes} classes for {records} records: a class needs several. If the "
            "labels are quantities, call the column target (.csv) or save y as real numbers (.npz)."
        )


def missing_classes(path: Path, found: Sequence[str]) -> UserError:
    """Returns the error for data whose classes were not given, with the line to write.

    Args:
        path: The file.
        found: The classes that its records have.
    """
    numbers = [str(place) for place in range(len(found))]
    proposed: Classes = tuple(found)
    if list(found) == numbers:
        proposed = len(found)
    # A single class would be refused.
    if len(found) < 2:
        proposed = 2
    return UserError(
        f"{path}: the classes must be said beforehand, since a list made from private records "
        f"tells about them. Write under [data]\n    classes = {format_classes(proposed)}\n"
        "if these are all that a record can have, or the complete list "
        "(in Python: data = Data(name=..., classes=...) of the protocol, or "
        "load_dataset(..., classes=...))."
    )


def propose_numbers(labels: np.ndarray) -> list[str]:
    """Returns the numbers from 0 to the largest label, as a proposal.

    Args:
        labels: Labels of the records.

    Returns:
        Those numbers; where they are more than the records, only the labels that occur.
    """
    occurring = np.unique(labels).tolist()
    count = max(occurring, default=0) + 1
    # Labels that leave large gaps are identifiers or typing errors, and a list up to them would be
    # absurd.
    if count > len(labels):
        return [str(label) for label in occurring]
    return [str(label) for label in range(count)]


def propose_words(texts: Sequence[str]) -> list[str]:
    """Returns the labels that occur, as a proposal; sorted by number if they all are numbers.

    Args:
        texts: The labels of the records, as written.
    """
    labels = {label for label in texts if label.lower() not in NO_LABEL}
    if all(label.removeprefix("-").isdecimal() for label in labels):
        return sorted(labels, key=lambda label: (int(label), label))
    return sorted(labels)


def format_classes(classes: Classes) -> str:
    """Returns classes as a protocol file writes them; a long list is cut.

    Args:
        classes: How many, or their names.
    """
    if isinstance(classes, int):
        return str(classes)
    from sordino.protocol.file import toml_value

    names = [toml_value(name) for name in classes[:PROPOSED]]
    if len(classes) > PROPOSED:
        names.append("...")
    return f"[{', '.join(names)}]"

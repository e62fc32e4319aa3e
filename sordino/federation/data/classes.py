"""Which classes a task has, and in which order: said beforehand, never found in records that are to be protected.

A class that only one record has would otherwise show in the number of outputs and in the numbers of all other classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sordino.protocol import UserError

Classes = int | tuple[str, ...]  # as `data.classes` says them
NO_LABEL = frozenset({"", "na", "n/a", "nan", "null", "<na>", "#n/a"})
PROPOSED = 20  # classes that a message writes out


def class_names(classes: Classes) -> tuple[str, ...]:
    """Returns the names of the classes in order; those that are only counted are called "0", "1" and so on.

    Example:
        >>> class_names(3)
        ('0', '1', '2')
    """
    return tuple(map(str, range(classes))) if isinstance(classes, int) else classes


def refuse_other_classes(name: str, found: tuple[str, ...] | None, said: Classes | None) -> None:
    """Refuses classes in the protocol that are not those which the data are known to have.

    Args:
        name: what the data are called in the message.
        found: the classes of the data by a public list; None for a regression.
        said: what the protocol says; None where it leaves them to the data.

    Raises:
        UserError: they differ in number, name or order.
    """
    if said is None:
        return
    if found is None:
        raise UserError(
            f"data.classes = {written(said)}: {name} has targets of a regression and no classes. Leave the key out."
        )
    same = len(found) == said if isinstance(said, int) else found == said
    if not same:
        raise UserError(
            f"data.classes = {written(said)}: {name} has the classes {written(found)}. Both must be the same, in the same order."
        )


def named_labels(path: Path, labels: Sequence[str], classes: Classes) -> np.ndarray:
    """Returns the place of every record's label in the list of classes.

    Args:
        path: the file, for messages.
        labels: of each record, as written.
        classes: as the protocol says them.

    Raises:
        UserError: a label that is none of them.
    """
    names = class_names(classes)
    places = {name: place for place, name in enumerate(names)}
    strange = next((place for place, label in enumerate(labels) if label not in places), None)
    if strange is not None:
        raise outside(path, labels[strange], strange, classes)
    return np.array([places[label] for label in labels], dtype=np.int64)


def refuse_numbers_outside(path: Path, labels: np.ndarray, name: str, classes: Classes) -> None:
    """Refuses numbers of classes that are not below the number of classes.

    Args:
        path: the file, for messages.
        labels: whole numbers, one for each record.
        name: what the array is called.
        classes: as the protocol or the file itself says them.

    Raises:
        UserError: a number that is none of theirs.
    """
    count = len(class_names(classes))
    wrong = np.flatnonzero((labels < 0) | (labels >= count))
    if len(wrong) > 0:
        raise UserError(
            f"{path}: labels out of range: {name} is {labels[wrong[0]]} at record {wrong[0]}, but data.classes = "
            f"{written(classes)} allows 0 to {count - 1}. Correct the record, or number the classes from 0 and list them all."
        )


def refuse_too_many_classes(path: Path, classes: int, records: int) -> None:
    """Refuses as many classes as records: then a label is a name of its record, and there is nothing to learn.

    Raises:
        UserError: no class can have two records.
    """
    if 0 < records <= classes:
        raise UserError(
            f"{path}: {classes} classes for {records} records: a class needs several. If the labels are quantities, call the "
            "column target (.csv) or save y as real numbers (.npz)."
        )


def outside(path: Path, label: str, place: int, classes: Classes) -> UserError:
    """Returns the error for a label that is not in the list; records are counted from 1 as in a table."""
    if label.lower() in NO_LABEL:
        missing = f" ({label})" if label else ""
        return UserError(
            f"{path}: label is missing{missing} in record {place + 1}. Fill it in or remove the record."
        )
    return UserError(
        f"{path}: label is {label!r} in record {place + 1}, which is not in data.classes = {written(classes)}. "
        "Correct the record, or add the class to the list."
    )


def unsaid(path: Path, found: Sequence[str]) -> UserError:
    """Returns the error for data whose classes were not said, with the line to write."""
    why = "the classes must be said beforehand, since a list made from private records tells about them"
    numbered = [str(place) for place in range(len(found))] == list(found)
    line = "2" if len(found) < 2 else written(len(found) if numbered else tuple(found))
    return UserError(
        f"{path}: {why}. Write under [data]\n    classes = {line}\n"
        "if these are all that a record can have, or the complete list (in Python: load_dataset(..., classes=...))."
    )


def numbers_found(labels: np.ndarray) -> list[str]:
    """Returns the numbers from 0 to the largest label, to be proposed; those that occur where these are far more."""
    distinct = np.unique(labels).tolist()
    below = range(max(distinct, default=0) + 1)
    return [str(label) for label in (below if len(below) <= len(labels) else distinct)]


def words_found(written_labels: Sequence[str]) -> list[str]:
    """Returns the labels that occur, to be proposed, in order of number if they all are numbers."""
    labels = {label for label in written_labels if label.lower() not in NO_LABEL}
    if all(label.removeprefix("-").isdecimal() for label in labels):
        return sorted(labels, key=lambda label: (int(label), label))
    return sorted(labels)


def written(classes: Classes) -> str:
    """Returns classes as a protocol file writes them; a long list is cut."""
    if isinstance(classes, int):
        return str(classes)
    from sordino.protocol.file import toml_value

    names = [toml_value(name) for name in classes[:PROPOSED]]
    more = ["..."] if len(classes) > PROPOSED else []
    return f"[{', '.join([*names, *more])}]"

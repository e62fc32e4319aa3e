"""Reads tables as people have them: CSV in any usual dialect, compressed or not, and Parquet.

Values stay texts here; `table_columns` makes inputs of them. Nothing about one record depends on
another: a line is decoded by itself, and the separator is read off the header, which is public.
"""

from __future__ import annotations

import codecs
import csv
import io
import math
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sordino.data.formats import damaged_file, open_binary, reading
from sordino.protocol import UserError

# Longer ones first: a name ends in ".csv.gz" and in ".gz".
TEXT_SUFFIXES = (".csv.gz", ".csv.zip", ".tsv.gz", ".csv", ".tsv", ".zip")
TABLE_SUFFIXES = (*TEXT_SUFFIXES, ".parquet")
SEPARATORS = (",", ";", "\t")
KIND = "a CSV table"
# The column that says which file of a folder a record is from.
FILE_COLUMN = "file"


@dataclass(frozen=True, kw_only=True, eq=False)
class TextTable:
    """The columns of a table as texts without spaces around them.

    Attributes:
        source: The file or folder, for messages.
        columns: The values of every column, in the order of the header.
        places: Where each record is on disk, as "line 7".
        decimal_commas: For each record whether its file may write a number as 1,5; empty: none may.
    """

    source: str
    columns: dict[str, list[str]]
    places: Sequence[str]
    decimal_commas: Sequence[bool] = ()

    def take_column(self, name: str) -> list[str]:
        """Returns the values of a column.

        Args:
            name: Name of the column.

        Raises:
            UserError: There is no such column.
        """
        if name not in self.columns:
            raise UserError(
                f"{self.source} has no column {name!r}; it has {', '.join(self.columns)}. "
                "Correct the name, or leave the column out."
            )
        return self.columns[name]

    def read_number(self, name: str, record: int) -> float:
        """Returns the number that a value holds.

        Args:
            name: Name of the column.
            record: Place of the record, from 0.

        Raises:
            ValueError: It is not a number.
        """
        decimal_comma = bool(self.decimal_commas) and self.decimal_commas[record]
        return parse_number(self.columns[name][record], decimal_comma=decimal_comma)

    def problem(self, name: str, record: int, what: str) -> UserError:
        """Returns the error for one value, which names its place on disk.

        Args:
            name: Name of the column.
            record: Place of the record, from 0.
            what: The fault, and its remedy.
        """
        return UserError(f"{self.source}: {name} {what.replace('{place}', self.places[record])}")


def parse_number(text: str, *, decimal_comma: bool) -> float:
    """Returns the number that a text holds.

    Args:
        text: As written.
        decimal_comma: Whether 1,5 is a number.

    Raises:
        ValueError: It is not a number.
    """
    if decimal_comma and "." not in text:
        # Once only: 1,234,567 stays no number instead of becoming another one.
        text = text.replace(",", ".", 1)
    number = float(text)
    # float() takes digits grouped by underscores and words for infinity, which no table means.
    if "_" in text or not math.isfinite(number):
        raise ValueError(text)
    return number


def read_text_table(path: Path) -> TextTable:
    """Reads a table with a header from a file, or one table from each file of a folder.

    Args:
        path: A file that ends in one of `TABLE_SUFFIXES`, or a folder of such files.

    Raises:
        UserError: The file is not a table, or damaged; files of a folder have different columns.
    """
    if path.is_dir():
        return _join_files(path)
    if path.suffix == ".parquet":
        return _read_parquet(path)
    with reading(path, KIND), _open_table(path) as file:
        return _parse_lines(path, _decode_lines(file))


def read_table(path: Path) -> dict[str, list[str]]:
    """Returns the columns of a table with a header, as texts without spaces around them.

    Args:
        path: The file.

    Raises:
        UserError: The file is not a table, or damaged.
    """
    return read_text_table(path).columns


def is_table(path: Path) -> bool:
    """Returns whether a path is a table, or a folder with tables in it.

    Args:
        path: A file or folder, which may not exist.
    """
    if path.is_dir():
        # Images are sorted into subfolders, and may have a table next to them.
        has_subfolders = any(place.is_dir() for place in path.iterdir())
        return not has_subfolders and bool(list_tables(path))
    return path.is_file() and path.name.endswith(TABLE_SUFFIXES)


def require_table(path: Path) -> None:
    """Refuses a path that is neither a table nor a folder of tables.

    Args:
        path: The path, as it was typed.

    Raises:
        UserError: There is nothing at the path, or something else.
    """
    if is_table(path):
        return
    kinds = f"a table ({', '.join(TABLE_SUFFIXES)}) or a folder of tables"
    if not path.exists():
        raise UserError(f"there is no {str(path)!r}. Give the path of {kinds}.")
    raise UserError(f"{path} is not a table: expected {kinds}.")


def list_tables(folder: Path) -> list[Path]:
    """Returns the tables of a folder, in the order of their names.

    Args:
        folder: The folder.
    """
    found = []
    for path in sorted(folder.iterdir()):
        is_hidden = path.name.startswith(".")
        if path.is_file() and not is_hidden and path.name.endswith(TABLE_SUFFIXES):
            found.append(path)
    return found


def read_header(path: Path) -> list[str]:
    """Returns the names of the columns; no record is looked at.

    Args:
        path: A table, or a folder of tables.

    Raises:
        UserError: The file is not a table.
    """
    if path.is_dir():
        tables = list_tables(path)
        if not tables:
            raise UserError(f"{path} has no tables ({', '.join(TABLE_SUFFIXES)}).")
        return [*read_header(tables[0]), FILE_COLUMN]
    if path.suffix == ".parquet":
        with reading(path, "a Parquet table"):
            return list(_load_parquet().read_schema(path).names)
    with reading(path, KIND), _open_table(path) as file:
        first = next(_decode_lines(file), "")
    return _split_header(path, first, _find_separator(first))


def table_of_frame(frame: Any) -> TextTable:
    """Returns the table of a pandas or polars DataFrame.

    Args:
        frame: The DataFrame; gaps (None, NaN, NA) become missing values.

    Raises:
        UserError: It is no DataFrame, or names a column twice.
    """
    if not hasattr(frame, "columns") or not hasattr(frame, "__getitem__"):
        raise UserError(
            f"data of type {type(frame).__name__}: expected is a pandas or polars DataFrame."
        )
    # A frame may name columns by numbers; a protocol names them by words.
    names = [str(name) for name in frame.columns]
    if len(set(names)) != len(names):
        raise UserError(f"the DataFrame names a column twice: {', '.join(names)}.")
    columns = {}
    for name, original in zip(names, frame.columns, strict=True):
        columns[name] = [_write_value(value) for value in list(frame[original])]
    return TextTable(source="DataFrame", columns=columns, places=_number_rows(columns))


def _open_table(path: Path) -> BinaryIO:
    """Opens the bytes of a table, unpacked where its name says that it is packed."""
    if path.suffix != ".zip":
        return open_binary(path)
    with zipfile.ZipFile(path) as archive:
        # Archives made on a Mac have folders of hidden files next to the table.
        members = [name for name in archive.namelist() if name.endswith((".csv", ".tsv"))]
        members = [name for name in members if not Path(name).name.startswith(".")]
        if len(members) != 1:
            raise damaged_file(path, KIND, f"it holds {len(members)} tables instead of one")
        return io.BytesIO(archive.read(members[0]))


def _decode_lines(file: BinaryIO) -> Iterator[str]:
    """Yields the lines of a file in UTF-8, UTF-16 (with its mark) or Latin-1."""
    start = file.read(2)
    file.seek(0)
    if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        # A line end is two bytes here, one of which may be part of another letter: decoded whole.
        yield from io.StringIO(file.read().decode("utf-16"), newline="")
        return
    for number, line in enumerate(file):
        if number == 0:
            # Spreadsheets put a byte order mark in front of the first column's name.
            line = line.removeprefix(codecs.BOM_UTF8)
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError:
            # Line by line: one record's bytes must not decide how another one is read.
            yield line.decode("latin-1")


def _find_separator(header: str) -> str:
    """Returns what separates the columns, from the names of the columns alone."""
    counts = {separator: header.count(separator) for separator in SEPARATORS}
    # The comma comes first, so it wins where no separator occurs, as in a table of one column.
    return max(SEPARATORS, key=lambda separator: counts[separator])


def _split_header(path: Path, line: str, separator: str) -> list[str]:
    """Returns the names of the columns."""
    rows = csv.reader([line], delimiter=separator, skipinitialspace=True, strict=True)
    header = [name.strip() for name in next(rows, [])]
    # Columns are found by name: of two with one name, one would be lost.
    if header == [] or len(set(header)) != len(header) or "" in header:
        shown = ",".join(header)[:200]
        reason = f"its first line must name every column, each once, but is {shown!r}"
        raise _faulty_table(path, reason, "Correct it.")
    # Text in UTF-16 without its mark, or no text at all.
    if "\0" in line:
        reason = "its first line holds zero bytes, which no text does"
        raise _faulty_table(path, reason, "Save it as CSV in UTF-8.")
    return header


def _faulty_table(path: Path, reason: str, remedy: str) -> UserError:
    """Returns the error for a file that is a table, but for a fault that can be corrected."""
    return UserError(f"{path} cannot be read as {KIND}: {reason}. {remedy}")


def _parse_rows(
    path: Path, lines: Iterator[str], separator: str
) -> Iterator[tuple[int, list[str]]]:
    """Yields the values of every record after the number of its first line on disk."""
    rows = csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True)
    while True:
        # The header is line 1, and a record begins after the end of the one before.
        line = rows.line_num + 2
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            reason = f"the record that begins in line {line}: {error}"
            remedy = "See whether a quotation mark is missing or too many."
            raise _faulty_table(path, reason, remedy) from None
        # Blank lines, often the last, are no records.
        if row:
            yield line, [value.strip() for value in row]


def _parse_lines(path: Path, lines: Iterator[str]) -> TextTable:
    """Returns the table that lines hold."""
    first = next(lines, "")
    separator = _find_separator(first)
    header = _split_header(path, first, separator)
    records = []
    places = []
    for line, row in _parse_rows(path, lines, separator):
        if len(row) != len(header):
            reason = f"line {line} has {len(row)} values for {len(header)} columns"
            remedy = f"Correct it; a value with {separator!r} in it stands in quotation marks."
            raise _faulty_table(path, reason, remedy)
        records.append(row)
        places.append(f"line {line}")
    if not records:
        raise _faulty_table(path, "it has a header and no records", "Give one with records.")
    columns = {name: [record[place] for record in records] for place, name in enumerate(header)}
    # Where the comma separates columns, it cannot be in a number.
    decimal_commas = [separator != ","] * len(places)
    return TextTable(
        source=str(path), columns=columns, places=places, decimal_commas=decimal_commas
    )


def _load_parquet() -> Any:
    """Returns pyarrow's reader."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise UserError(
            "Parquet is read by pyarrow, which is not installed. Use `pip install pyarrow`."
        ) from None
    return parquet


def _read_parquet(path: Path) -> TextTable:
    """Returns a Parquet table."""
    parquet = _load_parquet()
    with reading(path, "a Parquet table"):
        arrays = parquet.read_table(path)
        columns = {}
        for name in arrays.column_names:
            columns[name] = [_write_value(value) for value in arrays[name].to_pylist()]
    return TextTable(source=str(path), columns=columns, places=_number_rows(columns))


def _write_value(value: Any) -> str:
    """Returns a value as text; a gap is an empty one."""
    # NaN and pandas' NA are the values that do not equal themselves, or refuse to say.
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return ""
    if isinstance(value, (float, np.floating)) and np.isnan(value):
        return ""
    return str(value).strip()


def _number_rows(columns: dict[str, list[str]]) -> list[str]:
    """Returns the places of records that have no lines."""
    length = max((len(values) for values in columns.values()), default=0)
    return [f"row {row}" for row in range(1, length + 1)]


def _join_files(folder: Path) -> TextTable:
    """Returns the records of all tables of a folder, with a column that names their file."""
    paths = list_tables(folder)
    if not paths:
        raise UserError(f"{folder} has no tables ({', '.join(TABLE_SUFFIXES)}).")
    _refuse_same_names(paths)
    tables = [read_text_table(path) for path in paths]
    first = tables[0]
    _refuse_different_headers(tables)
    columns: dict[str, list[str]] = {name: [] for name in (*first.columns, FILE_COLUMN)}
    places: list[str] = []
    # Files of a folder may be of different dialects: none decides how another one is read.
    decimal_commas: list[bool] = []
    for path, table in zip(paths, tables, strict=True):
        for name, values in table.columns.items():
            columns[name].extend(values)
        # So that a folder with a file for each client can be divided by it.
        columns[FILE_COLUMN].extend([_short_name(path)] * len(table.places))
        places.extend(f"{path.name}, {place}" for place in table.places)
        decimal_commas.extend(table.decimal_commas or [False] * len(table.places))
    return TextTable(
        source=str(folder),
        columns=columns,
        places=places,
        decimal_commas=decimal_commas,
    )


def _refuse_same_names(paths: Iterable[Path]) -> None:
    """Refuses files that differ in their endings alone: they would count as one client."""
    seen: dict[str, Path] = {}
    for path in paths:
        other = seen.setdefault(_short_name(path), path)
        if other is not path:
            raise UserError(
                f"{other} and {path.name} have the same name but for their endings, and would be "
                "one client. Keep one of them, or rename it."
            )


def _refuse_different_headers(tables: Iterable[TextTable]) -> None:
    """Refuses tables whose columns differ; their order is each file's own."""
    first, *others = tables
    if FILE_COLUMN in first.columns:
        raise UserError(
            f"{first.source} has a column {FILE_COLUMN!r}, which names the file of each record. "
            "Rename it."
        )
    for other in others:
        if set(other.columns) != set(first.columns):
            raise UserError(
                f"{other.source} has the columns {', '.join(other.columns)}, but {first.source} "
                f"has {', '.join(first.columns)}. All tables of a folder need the same columns."
            )


def _short_name(path: Path) -> str:
    """Returns the name of a file without its endings."""
    for suffix in TABLE_SUFFIXES:
        if path.name.endswith(suffix):
            return path.name.removesuffix(suffix)
    return path.name

"""
CSV files that people wrote, read row by row with errors that name file, line, field and remedy.

:mod:`dljob.sim.inputs.shipped` reads speeds with it, :mod:`dljob.sim.inputs.traces` jobs.
"""

import csv
import difflib
import gzip
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from dljob.sim.errors import BadInput

MOST_SECONDS = 4e9
"""126 years, also for times since 1970. The world distinguishes microseconds up to there."""

MOST = 1e12
LEAST_POSITIVE = 1e-9
"""Numbers beyond these are slips, and what is computed from them would be lost in rounding errors."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table; its methods say what a field has to be."""

    file: Path
    line: int
    fields: Mapping[str, str]

    def error(self, message: str, *, remedy: str, field: str = "") -> BadInput:
        """Make the error that says so of this line."""
        return BadInput(self.file, message, line=self.line, field=field, remedy=remedy)

    def text(self, field: str) -> str:
        """The text of the cell; empty if the table has no such column."""
        return self.fields.get(field, "")

    def name(self, field: str) -> str:
        """A text that must not be empty."""
        value = self.text(field)
        if not value:
            raise self.error("is empty", field=field, remedy="give a name")
        return value

    def whole(self, field: str, *, least: int, default: int | None = None) -> int:
        """A whole number of at least ``least``; ``default`` where the field is empty."""
        value = self.text(field)
        if not value and default is not None:
            return default
        # int() alone would also take "1_000" and digits of other scripts.
        if not (value.isascii() and value.isdigit() and len(value) < 19 and int(value) >= least):
            raise self.error(
                f"{_show(value)} is not a whole number of at least {least}",
                field=field,
                remedy=f"give a number such as {max(least, 1)}",
            )
        return int(value)

    def flag(self, field: str) -> bool:
        """0 for no, 1 for yes."""
        value = self.text(field)
        if value not in ("0", "1"):
            raise self.error(
                f"{_show(value)} is neither 0 nor 1",
                field=field,
                remedy="write 1 for yes, 0 for no",
            )
        return value == "1"

    def seconds(self, field: str) -> float:
        """A time or a duration."""
        number = self.number(field)
        if number > MOST_SECONDS:
            raise self.error(
                f"{_show(self.text(field))} is more than {MOST_SECONDS:,.0f} s, which are 126 years",
                field=field,
                remedy="give seconds, not milliseconds or a date",
            )
        return number

    def number(self, field: str) -> float:
        """A finite number, not negative."""
        value = self.text(field)
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0.0 <= number < math.inf:
            raise self.error(
                f"{_show(value)} is not a finite number of at least 0",
                field=field,
                remedy="give a number such as 1.5",
            )
        if number > MOST:
            raise self.error(
                f"{_show(value)} is more than {MOST:,.0f}",
                field=field,
                remedy="give a number that can be meant",
            )
        return number

    def positive(self, field: str) -> float:
        """A finite number above 0."""
        number = self.number(field)
        if number == 0.0:
            raise self.error(
                f"{_show(self.text(field))} is not above 0",
                field=field,
                remedy="leave out the rows that were not measured",
            )
        if number < LEAST_POSITIVE:
            raise self.error(
                f"{_show(self.text(field))} is less than {LEAST_POSITIVE:g}",
                field=field,
                remedy="give a number that can be meant",
            )
        return number


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a CSV file that has a header and at least one row."""

    rows: Sequence[Row]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @classmethod
    def read(cls, path: Path, *, required: Sequence[str], optional: Sequence[str] = ()) -> Self:
        """Read it whole, or say in one line why not."""
        return cls.of(path, read_lines(path), required=required, optional=optional)

    @classmethod
    def of(
        cls,
        path: Path,
        lines: Sequence[tuple[int, list[str]]],
        *,
        required: Sequence[str],
        optional: Sequence[str] = (),
    ) -> Self:
        """Make it of lines that the caller has already read to see the header."""
        if not lines:
            raise BadInput(path, "is empty", remedy=f"begin with the line {','.join(required)}")
        (line, header), *body = lines
        _check_header(path, line, header=header, required=required, optional=optional)
        if not body:
            raise BadInput(path, "has no rows", line=line, remedy="add one below the header")
        return cls([_make_row(path, line, header=header, fields=fields) for line, fields in body])


def open_text(path: Path) -> IO[str]:
    """Open a text that may be gzipped, and may begin with the mark that some editors write."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def read_lines(path: Path) -> list[tuple[int, list[str]]]:
    """The lines that hold anything, with their numbers."""
    try:
        with open_text(path) as file:
            lines = _split_lines(path, file)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadInput(path, "is not a whole gzip file", remedy="compress it again") from error
    except OSError as error:
        message = f"cannot be read ({error.strerror or error})"
        raise BadInput(path, message, remedy="check the path and its permissions") from error
    except UnicodeDecodeError as error:
        raise BadInput(path, "is not UTF-8 text", remedy="save it as UTF-8") from error
    return [(line, fields) for line, fields in lines if any(fields)]


def _split_lines(path: Path, file: IO[str]) -> list[tuple[int, list[str]]]:
    reader = csv.reader(file, strict=True)
    try:
        return [(reader.line_num, [each.strip() for each in fields]) for fields in reader]
    except csv.Error as error:
        raise BadInput(
            path, f"is not CSV ({error})", line=reader.line_num, remedy="check its quotes"
        ) from error


def _check_header(
    path: Path,
    line: int,
    *,
    header: Sequence[str],
    required: Sequence[str],
    optional: Sequence[str],
) -> None:
    for column in required:
        if column not in header:
            raise BadInput(
                path,
                f"has no column {column}",
                line=line,
                field=column,
                remedy=f"add it to the header, which needs {','.join(required)}",
            )
    for index, column in enumerate(header):
        if column and column in header[:index]:
            raise BadInput(
                path, "appears twice", line=line, field=column, remedy="keep one of the columns"
            )
        # Other columns are none of our business, but a slip must not go unnoticed.
        meant = difflib.get_close_matches(column, optional, n=1, cutoff=0.7)
        if meant and column not in (*optional, *required):
            raise BadInput(
                path,
                "is not a column we know",
                line=line,
                field=column,
                remedy=f"did you mean {meant[0]}?",
            )


def _make_row(path: Path, line: int, *, header: Sequence[str], fields: Sequence[str]) -> Row:
    if len(fields) != len(header):
        raise BadInput(
            path,
            f"has {len(fields)} fields where the header has {len(header)}",
            line=line,
            remedy="give one field a column",
        )
    return Row(path, line, dict(zip(header, fields, strict=True)))


def _show(value: str) -> str:
    if not value:
        return "it is empty and"
    return repr(value if len(value) <= 40 else f"{value[:40]}…")

"""
YAML files that people wrote, with the lines on which their documents begin.

What cannot be read is told with its file and line. Used for DLJob files, by the simulator and by
``dljob submit``.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import yaml

from dlsim.errors import BadInput
from dlsim.tables import open_text

SUFFIXES = (".yaml", ".yml", ".json")


def find_files(path: Path) -> list[Path]:
    """Name the files of a folder in order, or the file itself."""
    if not path.is_dir():
        return [path]
    try:
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
    except OSError as error:
        message = f"cannot be read ({error.strerror or error})"
        raise BadInput(path, message, remedy="check the path and its permissions") from error
    if not files:
        raise BadInput(path, "is a folder without YAML files", remedy="put DLJob files into it")
    return files


def load(file: Path) -> list[tuple[int, Any]]:
    """Read the documents of a file, with the lines on which they begin."""
    try:
        with open_text(file) as text:
            return read(text, file)
    except OSError as error:
        message = f"cannot be read ({error.strerror or error})"
        raise BadInput(file, message, remedy="check the path and its permissions") from error


def read(text: IO[str], name: object) -> list[tuple[int, Any]]:
    """Read the documents of an open text, which bears this name in what is told of it."""
    try:
        return list(_construct(yaml.SafeLoader(text)))
    except UnicodeDecodeError as error:
        raise BadInput(name, "is not UTF-8 text", remedy="save it as UTF-8") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else None
        problem = getattr(error, "problem", None) or str(error)
        remedy = "check the indentation and quotes there"
        raise BadInput(name, f"is not YAML ({problem})", line=line, remedy=remedy) from error
    except (RecursionError, ValueError) as error:
        # PyYAML lets these through: too deep a nesting, a date such as 2020-02-30.
        message = f"is not YAML that can be read ({error})"
        raise BadInput(name, message, remedy="write dates in quotes, and nest less") from error


def _construct(loader: yaml.SafeLoader) -> Iterator[tuple[int, Any]]:
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None  # There is one, as was just checked.
            yield node.start_mark.line + 1, loader.construct_document(node)
    finally:
        loader.dispose()

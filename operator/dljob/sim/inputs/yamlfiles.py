"""
YAML files that people wrote, with the lines on which their documents begin.

An error names file and line. Used for DLJob files, by the simulator and by ``dljob submit``.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import yaml

from dljob.sim.errors import BadInput
from dljob.sim.inputs.tables import open_text
from dljob_wire.problems import MAX_VALUES, join

MERGE = "tag:yaml.org,2002:merge"
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


class Placed(NamedTuple):
    """A document, and where its fields stand."""

    line: int
    """On which it begins."""
    content: Any
    node: yaml.Node

    def find_line(self, path: str) -> int:
        """Find the line of a field, named as problems name it; of one that is missing, its parent's."""
        lines = dict(_iter_lines(self.node))
        while path and path not in lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return lines.get(path, self.line)


def load(file: Path) -> list[tuple[int, Any]]:
    """Read the documents of a file, with the lines on which they begin."""
    return [(each.line, each.content) for each in load_placed(file)]


def load_placed(file: Path) -> list[Placed]:
    """Read the documents of a file, with the lines of all their fields."""
    try:
        with open_text(file) as text:
            return read_placed(text, file)
    except OSError as error:
        message = f"cannot be read ({error.strerror or error})"
        raise BadInput(file, message, remedy="check the path and its permissions") from error


def read(text: IO[str], name: object) -> list[tuple[int, Any]]:
    """Read the documents of an open text, which has this name in messages."""
    return [(each.line, each.content) for each in read_placed(text, name)]


def read_placed(text: IO[str], name: object) -> list[Placed]:
    """Do the same, with the lines of all their fields."""
    try:
        return list(_construct(yaml.SafeLoader(text), name))
    except BadInput:
        raise
    except UnicodeDecodeError as error:
        raise BadInput(name, "is not UTF-8 text", remedy="save it as UTF-8") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else None
        problem = getattr(error, "problem", None) or str(error)
        remedy = "check the indentation and quotes there"
        raise BadInput(name, f"is not YAML ({problem})", line=line, remedy=remedy) from error
    except (RecursionError, ValueError, OverflowError) as error:
        # PyYAML lets these through: too deep a nesting, a date such as 2020-02-30, a time before year 1.
        message = f"is not YAML that can be read ({error})"
        raise BadInput(name, message, remedy="write dates in quotes, and nest less") from error


def _construct(loader: yaml.SafeLoader, name: object) -> Iterator[Placed]:
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None  # There is one, as was just checked.
            _refuse_double_keys(node, name)
            _refuse_growing_merges(node, name)
            yield Placed(_line(node), loader.construct_document(node), node)
    finally:
        loader.dispose()


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _refuse_double_keys(root: yaml.Node, name: object) -> None:
    """Refuse a mapping that has a key twice, of which YAML would silently take the last one."""
    stack, seen = [root], {id(root)}
    while stack:
        node = stack.pop()
        if isinstance(node, yaml.MappingNode):
            _refuse_double_key(node, name)
            inner = [value for _, value in node.value]
        else:
            inner = node.value if isinstance(node, yaml.SequenceNode) else []
        # An anchor may contain itself, and is looked at once however often it is named.
        new = [each for each in inner if id(each) not in seen]
        seen.update(map(id, new))
        stack.extend(new)


def _refuse_double_key(node: yaml.MappingNode, name: object) -> None:
    lines: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        first = lines.get((key.tag, key.value))
        if first is not None:
            message = f'"{key.value}" is given twice, on lines {first} and {_line(key)}'
            raise BadInput(name, message, line=_line(key), remedy="keep one of them")
        lines[key.tag, key.value] = _line(key)


def _refuse_growing_merges(root: yaml.Node, name: object) -> None:
    """
    Refuse merge keys (``<<``) that make millions of fields out of nothing.

    PyYAML copies the fields of each mapping that is merged, and those that it has merged itself: a few
    lines that merge each other twice take gigabytes. How many fields that would be is counted first.
    """
    counts: dict[int, int] = {}
    # Twice on the stack: before its parts, and after them.
    stack = [(root, False)]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            counts[id(node)] = _count_fields(node, counts)
            if counts[id(node)] > MAX_VALUES:
                message = f"merges mappings (<<) to more than {MAX_VALUES:,} fields"
                remedy = "write the fields out, or merge fewer"
                raise BadInput(name, message, line=_line(node), remedy=remedy)
        elif id(node) not in counts:
            # One that contains itself adds nothing to itself.
            counts[id(node)] = 0
            stack += [(node, True), *((part, False) for part in _parts_of(node))]


def _parts_of(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _count_fields(node: yaml.Node, counts: dict[int, int]) -> int:
    """Count the fields of a mapping when all is merged; of a list, those of its items."""
    if isinstance(node, yaml.SequenceNode):
        return sum(counts[id(each)] for each in node.value)
    if not isinstance(node, yaml.MappingNode):
        return 0
    merged = sum(counts[id(value)] for key, value in node.value if key.tag == MERGE)
    return merged + len(node.value)


def _iter_lines(root: yaml.Node) -> Iterator[tuple[str, int]]:
    """Yield the path and the line of every field; a field that an anchor repeats has the line where it is written."""
    stack, seen = [("", root)], {id(root)}
    while stack:
        path, node = stack.pop()
        for where, line, value in _iter_fields(path, node):
            yield where, line
            if id(value) not in seen:
                seen.add(id(value))
                stack.append((where, value))


def _iter_fields(path: str, node: yaml.Node) -> Iterator[tuple[str, int, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield join(path, key.value), _line(key), value
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield f"{path}[{index}]", _line(value), value

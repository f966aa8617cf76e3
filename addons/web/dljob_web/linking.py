"""
Links the ES modules of the page into one script, so that a page is one file that loads nothing else.

Each module becomes a function that runs once and returns its exports; modules keep names of their own. The
forms of ``import`` and ``export`` that the page uses are understood, and any other is an error.
"""

import re
from collections.abc import Callable, Mapping

IMPORT = re.compile(r'^import\s*\{([^}]*)\}\s*from\s*"\./([\w./-]+)";[ \t]*$', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class)\s+(\w+))", re.MULTILINE)
EXPORT_LIST = re.compile(r"(?<![\w.])export\s*\{([^}]*)\};?")
EXPORT_DEFAULT = re.compile(r"(?<![\w.$])export default ")
SOURCE_MAP = re.compile(r"^//# sourceMappingURL=.*$", re.MULTILINE)
LEFT = re.compile(r"^\s*(?:import|export)\b.*$", re.MULTILINE)


class LinkError(Exception):
    """A module is missing, or uses a form of ``import`` or ``export`` that is not supported."""


def link(read: Callable[[str], str], entry: str) -> str:
    """Return one script equivalent to the module ``entry``; ``read`` reads a module."""
    linked: dict[str, str] = {}
    _link(read, entry, linked, ())
    names = {name: f"m{number}" for number, name in enumerate(linked)}
    parts = [f"const {names[name]} = {_resolve(body, names)};" for name, body in linked.items()]
    return '"use strict";\n' + "\n".join(parts) + "\n"


def _link(
    read: Callable[[str], str], name: str, linked: dict[str, str], above: tuple[str, ...]
) -> None:
    """Append a module after those that it imports."""
    if name in above:
        raise LinkError(f"{name}: imports itself through {' -> '.join(above)}; cut the circle")
    if name in linked:
        return
    text = SOURCE_MAP.sub("", read(name))
    for match in IMPORT.finditer(text):
        _link(read, match[2], linked, (*above, name))
    linked[name] = _wrap(name, text)


def _wrap(name: str, text: str) -> str:
    """Make a function of a module; imports are left as marks until all modules have names."""
    returned = EXPORT.findall(text)
    if EXPORT_DEFAULT.search(text):
        returned.append("default: theDefault")
        text = EXPORT_DEFAULT.sub("const theDefault = ", text)
    for match in EXPORT_LIST.finditer(text):
        returned += [_rename(each, " as ") for each in match[1].split(",") if each.strip()]
    body = EXPORT_LIST.sub("", EXPORT.sub("", text))
    body = IMPORT.sub(lambda match: f"\0{match[2]}\0{match[1]}\0", body)
    left = LEFT.search(body)
    if left is not None:
        raise LinkError(f'{name}: {left[0].strip()}: write import {{ a }} from "./b.js"; on a line')
    return f"(() => {{\n{body}\nreturn {{ {', '.join(returned)} }};\n}})()"


def _rename(text: str, word: str) -> str:
    """Write ``inner as outer`` as a property of an object."""
    inner, _, outer = (part.strip() for part in text.partition(word))
    return f"{outer}: {inner}" if outer else inner


def _resolve(body: str, names: Mapping[str, str]) -> str:
    def bind(match: re.Match[str]) -> str:
        taken = [part.strip().replace(" as ", ": ") for part in match[2].split(",")]
        return f"const {{ {', '.join(filter(None, taken))} }} = {names[match[1]]};"

    return re.sub("\0([^\0]*)\0([^\0]*)\0", bind, body)

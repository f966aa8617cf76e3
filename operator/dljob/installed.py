"""
The installed extras and add-ons, with the verbs and policies of the add-ons.

A verb imports rarely used packages where it needs them. :mod:`dljob.cli.main` and :mod:`dljob.api.refusals` turn
the failure of such an import into a refusal that names the extra, such as ``pip install
'dljob-0.1.0-py3-none-any.whl[plots]'``. Which extra holds which package is read from the metadata of the installed
dljob, so ``pyproject.toml`` is the only list.

An add-on offers its verbs and policies by entry points. The product imports no add-on, works without any, and knows
of those that are made with it their verbs and policies, so that a refusal names the one that is missing.
"""

import re
import sys
from collections import Counter
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

PACKAGE: Final = "dljob"
COMMANDS: Final = "dljob.commands"
"""The entry points of verbs: objects of :class:`click.Command`."""
POLICIES: Final = "dljob.policies"
"""The entry points of policies; :mod:`dljob.known_policies` reads them."""
PAGES: Final = "dljob.pages"
"""The entry points of pages: ``html`` and ``perfetto`` export a record, ``plots`` draws simulations, ``up`` takes a controller's options."""
SCENARIOS: Final = "dljob.scenarios"
"""The entry points of the suppositions of papers about a simulation: worlds, knowledge and formats of traces."""
_REQUIREMENT = re.compile(r"""([\w.-]+).*;\s*extra\s*==\s*['"]([\w-]+)['"]""")


class AddOnVerb(NamedTuple):
    """A verb of an add-on that is made with the product."""

    add_on: str
    section: str
    help: str


VERBS: Final[Mapping[str, AddOnVerb]] = {
    "bound": AddOnVerb(
        "dljob-lab", "Simulation", "Compute a lower bound for all policies on a trace."
    ),
    "compare": AddOnVerb(
        "dljob-lab", "Simulation", "Compare policies in many scenarios, on all cores."
    ),
    "demo": AddOnVerb("dljob-lab", "Simulation", "Show on this machine what DLJob does, live."),
    "mcp": AddOnVerb("dljob-mcp", "More", "Serve agents by the Model Context Protocol."),
    "reproduce": AddOnVerb("dljob-lab", "Simulation", "Repeat the evaluation of a paper."),
    "web": AddOnVerb("dljob-web", "Jobs", "Open the page of a cluster or a machine in a browser."),
}


class MissingExtra(Exception):
    def __init__(self, module: str, source: str) -> None:
        super().__init__(module, source)
        self.message = f"{module} is not installed"
        self.remedy = f"pip install '{source}'"

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}"


# --- extras -------------------------------------------------------------------------------


def find_source() -> str:
    """
    Return the wheel or checkout from which pip installs dljob: where this dljob came from, if that is still there.

    The name alone would not do, because dljob is on no package index.
    """
    # Here, because most commands end in less time than these take to load.
    import json  # noqa: PLC0415
    from importlib import metadata  # noqa: PLC0415
    from urllib.parse import unquote, urlsplit  # noqa: PLC0415

    try:
        installed = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        # A checkout that is on the path and was never installed.
        return str(Path(__file__).parents[2])
    address = json.loads(installed.read_text("direct_url.json") or "{}").get("url", "")
    path = unquote(urlsplit(address).path)
    if address.startswith("file:") and Path(path).exists():
        return path
    return f"{PACKAGE}-{installed.version}-py3-none-any.whl"


def check_can_draw() -> None:
    """Raise before hours of work if pictures could not be drawn afterwards."""
    from importlib.util import find_spec  # noqa: PLC0415 - as above

    module = "matplotlib"
    if find_spec(module) is None:
        error = ModuleNotFoundError(name=module)
        raise find_missing(error) or error


def find_missing(error: ModuleNotFoundError) -> MissingExtra | None:
    """Return the refusal of a failed import, where an extra brings the module that is missing."""
    module = (error.name or "").partition(".")[0]
    extra = _extras().get(module)
    return None if extra is None else MissingExtra(module, f"{find_source()}[{extra}]")


def _extras() -> dict[str, str]:
    """Map the packages that only extras bring to the smallest extra that brings each."""
    from importlib import metadata  # noqa: PLC0415 - as above

    try:
        required = metadata.requires(PACKAGE) or []
    except metadata.PackageNotFoundError:
        # A checkout that is on the path and was never installed has no extras.
        return {}
    pairs = [(found[1], found[2]) for each in required if (found := _REQUIREMENT.match(each))]
    sizes = Counter(extra for _, extra in pairs)
    # The last of equal keys stays, so the smallest extra comes last.
    return dict(sorted(pairs, key=lambda pair: sizes[pair[1]], reverse=True))


# --- add-ons ------------------------------------------------------------------------------


class Point(NamedTuple):
    """An entry point, as MODULE or MODULE:ATTRIBUTE."""

    value: str

    def load(self) -> Any:
        module, _, attribute = self.value.partition(":")
        found = import_module(module)
        return getattr(found, attribute) if attribute else found


@cache
def find_points(group: str) -> Mapping[str, Point]:
    """
    Find what the installed add-ons offer, by name; nothing of it is imported yet.

    :mod:`importlib.metadata` finds the same, and takes as long to load as a whole command.
    """
    files = (file for each in sys.path for file in Path(each).glob("*.dist-info/entry_points.txt"))
    texts = (f"\n{file.read_text(encoding='utf-8')}" for file in files)
    sections = (text.partition(f"\n[{group}]\n")[2].partition("\n[")[0] for text in texts)
    lines = (line.partition("=") for section in sections for line in section.splitlines())
    found = {name.strip(): Point(value.strip()) for name, equals, value in lines if equals}
    return dict(sorted(found.items()))


def miss_add_on(name: str) -> MissingExtra:
    """Return the refusal where an add-on is missing, with the wheel or folder that brings it."""
    source = find_source()
    package = name.replace("-", "_")
    folder, slash, wheel = source.rpartition("/")
    if source.endswith(".whl"):
        return MissingExtra(
            name, f"{folder}{slash}{wheel.replace(f'{PACKAGE}-', f'{package}-', 1)}"
        )
    return MissingExtra(name, f"{source}/addons/{name.partition('-')[2]}")


def load_scenario(name: str) -> Any:
    """Import what an add-on supposes about a simulation."""
    return load(SCENARIOS, name, add_on="dljob-lab")


def load(group: str, name: str, *, add_on: str) -> Any:
    """Import what an add-on offers; raises :class:`MissingExtra` if it is not installed."""
    point = find_points(group).get(name)
    if point is None:
        raise miss_add_on(add_on)
    return point.load()

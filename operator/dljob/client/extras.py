"""
The extra that brings a missing package, such as ``pip install 'dljob-0.1.0-py3-none-any.whl[plots]'``.

A verb imports rarely used packages where it needs them. :mod:`dljob.cli.main` and :mod:`dljob.api.refusals` turn
the failure of such an import into a refusal. Which extra holds which package is read from the metadata
of the installed dljob, so ``pyproject.toml`` is the only list.
"""

import json
import re
from collections import Counter
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

PACKAGE = "dljob"
ADD_ONS = {"dljob_gangs": "dljob-gangs", "dljob_lab": "dljob-lab", "dljob_web": "dljob-web"}
"""The distributions of packages of ours that are installed beside this one."""
_REQUIREMENT = re.compile(r"""([\w.-]+).*;\s*extra\s*==\s*['"]([\w-]+)['"]""")


class MissingExtra(Exception):
    def __init__(self, module: str, source: str) -> None:
        super().__init__(module, source)
        self.message = f"{module} is not installed"
        self.remedy = f"pip install '{source}'"

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}"


def find_source() -> str:
    """
    Return the wheel or checkout from which pip installs dljob: where this dljob came from, if that is still there.

    The name alone would not do, because dljob is on no package index.
    """
    try:
        installed = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        # A checkout that is on the path and was never installed.
        return str(Path(__file__).parents[3])
    address = json.loads(installed.read_text("direct_url.json") or "{}").get("url", "")
    path = unquote(urlsplit(address).path)
    if address.startswith("file:") and Path(path).exists():
        return path
    return f"{PACKAGE}-{installed.version}-py3-none-any.whl"


def find_add_on(module: str) -> str:
    """Return the wheel or folder from which pip installs an add-on: beside the one of dljob."""
    source = find_source()
    if source.endswith(".whl"):
        return source.replace(f"{PACKAGE}-", f"{module}-")
    return f"{source}/addons/{module.partition('_')[2]}"


def check_can_draw() -> None:
    """Raise before hours of work if pictures could not be drawn afterwards."""
    module = "matplotlib"
    if find_spec(module) is None:
        error = ModuleNotFoundError(name=module)
        raise find_missing(error) or error


def find_missing(error: ModuleNotFoundError) -> MissingExtra | None:
    """Return the refusal of a failed import, where an extra brings the module that is missing."""
    module = (error.name or "").partition(".")[0]
    if module in ADD_ONS:
        return MissingExtra(ADD_ONS[module], find_add_on(module))
    extra = _extras().get(module)
    return None if extra is None else MissingExtra(module, f"{find_source()}[{extra}]")


def _extras() -> dict[str, str]:
    """Map the packages that only extras bring to the smallest extra that brings each."""
    try:
        required = metadata.requires(PACKAGE) or []
    except metadata.PackageNotFoundError:
        # A checkout that is on the path and was never installed has no extras.
        return {}
    pairs = [(found[1], found[2]) for each in required if (found := _REQUIREMENT.match(each))]
    sizes = Counter(extra for _, extra in pairs)
    # The last of equal keys stays, so the smallest extra comes last.
    return dict(sorted(pairs, key=lambda pair: sizes[pair[1]], reverse=True))

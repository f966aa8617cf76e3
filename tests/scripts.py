"""The scripts of the project as modules."""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

SCRIPTS = Path(__file__).parents[1] / "scripts"


@contextmanager
def loaded(name: str) -> Iterator[ModuleType]:
    """Load a script under a name of its own, which dataclasses look up while it is used."""
    known = f"script_{Path(name).stem.replace('-', '_')}"
    loader = SourceFileLoader(known, str(SCRIPTS / name))
    spec = importlib.util.spec_from_loader(known, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[known] = module
    try:
        loader.exec_module(module)
        yield module
    finally:
        del sys.modules[known]

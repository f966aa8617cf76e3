"""A server with four GPUs behind it, and a client that asks it."""

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.local.asking import Asker
from tests.local.stages import staged


@pytest.fixture
def root():
    """A state folder whose path is short enough for its sockets to be in it."""
    folder = Path(tempfile.mkdtemp(prefix="dljob-test-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def up(root):
    with staged(root, n1=4) as played:
        yield played


@pytest.fixture
def ask(up):
    assert up.stage is not None
    return Asker(up.stage.folders.socket)

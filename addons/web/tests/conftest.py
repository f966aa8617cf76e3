"""The browser, and the live page in it."""

import asyncio

import pytest

from addons.web.tests.browsers import find_chromium
from addons.web.tests.devtools import opened
from addons.web.tests.served import TOKEN, Told, served


@pytest.fixture(scope="session")
def chromium():
    return find_chromium()


@pytest.fixture
def watch(chromium, tmp_path):
    """Serve a source, open its page at a place, and run a coroutine with the page."""

    def watch(look, source=None, place="", *, given=TOKEN):
        async def go():
            async with (
                served(source or Told()) as ask,
                opened(
                    chromium, f"{ask.address}#token={given}{place}", tmp_path / "profile"
                ) as page,
            ):
                await look(page)

        asyncio.run(go())

    return watch

"""A page in headless Chromium, driven by its DevTools protocol."""

import asyncio
import contextlib
import subprocess
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

LIMIT_S = 240
LOOK_MS, LOST_S = 1000, 10.0

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1000,700",
)

LISTENS = "DevTools listening on "


class Page:
    """One page, and what its console has said."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, browser: int) -> None:
        """``browser`` is the process of the browser, whose children are the page's."""
        self._socket = socket
        self.browser = browser
        self._asked = 0
        self._session: str | None = None
        self.complaints: list[str] = []

    async def ask(self, method: str, **params: Any) -> Any:
        """Send a command, and return its result."""
        self._asked += 1
        command = {"id": self._asked, "method": method, "params": params}
        if self._session is not None:
            command["sessionId"] = self._session
        await self._socket.send_json(command)
        while True:
            told = await asyncio.wait_for(self._socket.receive_json(), LIMIT_S)
            if told.get("method") in {"Log.entryAdded", "Runtime.exceptionThrown"}:
                self.complaints.append(str(told["params"]))
            if told.get("id") == self._asked:
                assert "error" not in told, told
                return told["result"]

    async def open(self, address: str) -> None:
        target = await self.ask("Target.createTarget", url="about:blank")
        attached = await self.ask(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            await self.ask(f"{domain}.enable")
        await self.ask("Page.navigate", url=address)
        await self.until("document.querySelector('h1') !== null")

    async def evaluate(self, expression: str) -> Any:
        answer = await self.ask(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait until an expression is true; it is looked at before each picture."""
        looked = (
            f"const look = () => {condition} ? done(true) : requestAnimationFrame(look); look();"
        )
        asked = f"new Promise((done) => {{ setTimeout(done, {LOOK_MS}, false); {looked} }})"
        end = time.monotonic() + LIMIT_S
        is_true = False
        while not is_true:
            assert time.monotonic() < end, f"waited in vain for {condition}"
            # A page that is loaded again takes the question with it, and it has no answer then.
            with contextlib.suppress(TimeoutError):
                is_true = await asyncio.wait_for(self.evaluate(asked), LOST_S)

    async def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        await self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    async def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            await self.mouse(kind, x, y, button="left", buttons=1, clickCount=1)

    async def press(self, key: str, *, shift: bool = False, code: int = 0, text: str = "") -> None:
        """Press a key; what the browser itself does with one needs its code, and some a text."""
        more: dict[str, Any] = {"windowsVirtualKeyCode": code} if code else {}
        for kind in ("keyDown", "keyUp"):
            written = {"text": text} if text and kind == "keyDown" else {}
            await self.ask(
                "Input.dispatchKeyEvent", type=kind, key=key, modifiers=8 * shift, **more, **written
            )


@contextlib.asynccontextmanager
async def opened(chromium: str, address: str, profile: Path) -> AsyncIterator[Page]:
    """Open an address in a browser of its own, which ends with the block."""
    words = [chromium, *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-port=0"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as browser:
        try:
            browsers = _read_address(browser)
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(browsers, max_msg_size=0) as socket,
            ):
                page = Page(socket, browser.pid)
                await page.open(address)
                yield page
        finally:
            browser.kill()
            browser.wait(LIMIT_S)


def _read_address(browser: subprocess.Popen[str]) -> str:
    """Return where the browser listens; one that never says so is ended."""
    assert browser.stderr is not None
    timer = threading.Timer(LIMIT_S, browser.kill)
    timer.start()
    try:
        listens = next((line for line in browser.stderr if line.startswith(LISTENS)), "")
    finally:
        timer.cancel()
    assert listens, "the browser does not listen"
    return listens.removeprefix(LISTENS).strip()

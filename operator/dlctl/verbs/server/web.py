"""
``dljob up --web``: the page, served by a process of its own for as long as the controller runs.

So a viewer costs the controller nothing. Called by :mod:`dlctl.verbs.server.up`; what the process does is in
:mod:`dlctl.verbs.server.web_process`. The two are connected by its standard input, which the kernel closes
when the controller ends, however it ends.
"""

import ipaddress
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import click

from dlctl.output.messages import say

LOOPBACK: Final = "127.0.0.1"
LOCALHOST: Final = "localhost"

ENDING_S: Final = 10.0
"""After this time a process that does not end is killed."""


class Address(NamedTuple):
    """Where the page is served."""

    host: str
    port: int
    """0: one that is free."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        if self.host == LOCALHOST:
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def url(self, port: int) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{port}/"


ANYWHERE: Final = Address(LOOPBACK, 0)


def read_address(
    ctx: click.Context,  # noqa: ARG001 - as click calls it
    param: click.Parameter,  # noqa: ARG001 - as click calls it
    text: str | None,
) -> Address | None:
    """Read ``[ADDRESS]:PORT``; nothing but the option is a free port of the loopback."""
    if text is None:
        return None
    if not text:
        return ANYWHERE
    host, colon, port = text.rpartition(":")
    if not (colon and port.isascii() and port.isdigit() and int(port[:6]) < 65536):
        raise click.BadParameter(
            f"{text} is not an address with a port; write [ADDRESS]:PORT, such as {LOOPBACK}:8080"
        )
    return Address(host.strip("[]") or LOOPBACK, int(port))


def check_usage(address: Address | None, *, unencrypted: bool, system: bool) -> None:
    """Refuse what would show jobs to those who are not to see them."""
    if address is None:
        if unencrypted:
            raise click.UsageError(
                "--web-unencrypted says where --web may be served; add --web ADDRESS:PORT"
            )
        return
    if system:
        raise click.UsageError(
            "--web shows all jobs to each viewer, and --system has users who may not see those of others; leave"
            " one of them out"
        )
    if not (address.is_loopback or unencrypted):
        raise click.UsageError(
            f"--web {address.host}:{address.port}: other machines reach that address, and all between them and this"
            " one could read the page and its token. Leave the address out, and look at it through"
            f" ssh -L PORT:{LOOPBACK}:PORT; or allow it with --web-unencrypted"
        )


@contextmanager
def serving(address: Address | None, root: Path) -> Iterator[None]:
    """Have the page served, if it is to be, until the block ends."""
    if address is None:
        yield
        return
    with (root / "web.log").open("a", encoding="utf-8") as log:
        process = subprocess.Popen(  # noqa: S603 - our own module
            [
                *(sys.executable, "-P", "-m", "dlctl.verbs.server.web_process"),
                *(str(root.absolute()), address.host, str(address.port)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            # Ctrl-C in the terminal is for the controller, which ends this process.
            start_new_session=True,
        )
    try:
        say(f"The page is at {_read_url(process, address, root)}")
        yield
    finally:
        _end(process)


def _read_url(process: subprocess.Popen[bytes], address: Address, root: Path) -> str:
    """Wait until the port is open; returns the address with the token, which is printed this once."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise click.ClickException(f"--web: its process has ended at once; see {root / 'web.log'}")
    told = json.loads(line)
    if "problem" in told:
        raise click.ClickException(
            f"--web {address.host}:{address.port}: cannot be opened ({told['problem']}); choose another port"
        )
    return f"{address.url(told['port'])}#token={told['token']}"


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    try:
        process.wait(ENDING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()

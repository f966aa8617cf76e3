"""
``dljob up --web``: the page, served by a process of its own for as long as the controller runs.

So a viewer costs the controller nothing. Called by :mod:`dljob.cli.verbs.server.up`; what the process does is in
:mod:`dljob_web.machine`. The two are connected by its standard input, which the kernel closes
when the controller ends, however it ends.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from dljob.cli.output.messages import say
from dljob_wire.endpoints import Endpoint, read_endpoint

LOOPBACK: Final = "127.0.0.1"
LOCALHOST: Final = "localhost"

LOG: Final = "web.log"
"""In the state folder; the process rotates it."""

ENDING_S: Final = 10.0
"""A process that does not end within this time is killed."""


ANYWHERE: Final = Endpoint(LOOPBACK, 0)

_NAME: Final = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")


@dataclass(frozen=True)
class Page:
    """The address of the page, and the host names that browsers may use."""

    address: Endpoint
    names: tuple[str, ...] = ()

    def url(self, port: int, token: str) -> str:
        """Return the address for a browser: by the first name, if there is one."""
        host = self.address.host
        if self.names:
            host = self.names[0]
        elif self.address.is_unspecified:
            # Browsers refuse an address that stands for all of a machine, such as 0.0.0.0.
            host = LOCALHOST
        return f"http://{Endpoint(host, port)}/#token={token}"

    @contextmanager
    def serving(self, root: Path) -> Iterator[None]:
        """Serve the page until the block ends."""
        with (root / LOG).open("a", encoding="utf-8") as log:
            process = subprocess.Popen(  # noqa: S603 - our own module
                [
                    *(sys.executable, "-P", "-m", "dljob_web.machine"),
                    *(str(root.absolute()), self.address.host, str(self.address.port), *self.names),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Ctrl-C in the terminal is for the controller, which ends this process.
                start_new_session=True,
            )
        try:
            say(f"The page is at {_read_url(process, self, root=root)}")
            yield
        finally:
            _end(process)


def take_page(
    address: str | None, names: Sequence[str], *, unencrypted: bool, system: bool
) -> Page | None:
    """Read the options of the page; returns ``None`` if no page is wanted."""
    if names and address is None:
        raise click.UsageError("--web-host says how browsers reach --web; add --web")
    read = None if address is None else _read_address(address)
    _check_usage(read, unencrypted=unencrypted, system=system)
    return None if read is None else Page(read, tuple(map(_read_name, names)))


def _read_address(text: str) -> Endpoint:
    """Read ``[ADDRESS]:PORT``; nothing but the option is a free port of the loopback."""
    if not text:
        return ANYWHERE
    try:
        address = read_endpoint(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--web") from error
    return address if address.host else address._replace(host=LOOPBACK)


def _read_name(text: str) -> str:
    """Read a whole name only: a pattern could match a name that an attacker's DNS server resolves."""
    name = text.lower()
    if not _NAME.fullmatch(name):
        raise click.BadParameter(
            f"{name} is not the name of a machine; write it whole, without a port, such as gpu-7.lan",
            param_hint="--web-host",
        )
    return name


def _check_usage(address: Endpoint | None, *, unencrypted: bool, system: bool) -> None:
    """Refuse options that would show jobs to users who may not see them."""
    if address is None:
        if unencrypted:
            raise click.UsageError(
                "--web-unencrypted says where --web may be served; add --web ADDRESS:PORT"
            )
        return
    if system:
        raise click.UsageError(
            "--web shows all jobs to each viewer, and --system has users who may not see those of others; leave"
            " --web out, and let each user run dljob web"
        )
    if not (address.is_loopback or unencrypted):
        raise click.UsageError(
            f"--web {address}: other machines reach that address, and all between them and this"
            " one could read the page and its token. Leave the address out, and look at it through"
            f" ssh -L PORT:{LOOPBACK}:PORT; or allow it with --web-unencrypted"
        )


def _read_url(process: subprocess.Popen[bytes], page: Page, *, root: Path) -> str:
    """Wait until the port is open; returns the address with the token, which is printed this once."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise click.ClickException(f"--web: its process has ended at once; see {root / LOG}")
    told = json.loads(line)
    if "problem" in told:
        raise click.ClickException(
            f"--web {page.address}: cannot be opened ({told['problem']}); choose another port"
        )
    return page.url(told["port"], told["token"])


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

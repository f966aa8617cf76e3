"""
How long one user of ``dljob up --system`` waits while another does the worst that the server lets one user do.

The attacker has hundreds of jobs and uses all connections that one user may have: for plans of 900 jobs, for bodies of
the largest size, for lists, for answers that it never reads, for requests that never end, and to follow jobs and Events.
Meanwhile the other user asks ``about`` and submits jobs, each on a connection of its own, and times the answers; the command
``dljob`` adds its own start. The attack ``jobs`` is hundreds of waiting jobs and no connection: what the controller itself
takes for each decision. The kernel tells the server who asks, so this needs root.
"""

import contextlib
import multiprocessing
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from pwd import getpwnam, struct_passwd
from typing import Any, Final

import click
from _crowd import NAMES, Attack, Door, attack, list_attacks, time_answers, write
from _measuring import describe_machine, print_markdown, print_result, summarize
from _progress import CannotRun, run, say, wait_until

from dljob.local.folders import Folders
from tests.local.ups import kill_all
from tests.local.users import SCRIPT, find_python, made

WARM_UP_S: Final = 3.0


def fork(target: Callable[..., None], *args: object) -> tuple[BaseProcess, Connection]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=target, args=(*args, theirs))
    process.start()
    return process, ours


def measure(
    name: str, how: Attack, door: Door, eve: struct_passwd, ada: struct_passwd
) -> dict[str, Any]:
    say(f"attack: {name}")
    attacker, to_attacker = fork(attack, eve, door, how)
    try:
        to_attacker.recv()
        time.sleep(WARM_UP_S)
        asker, to_asker = fork(time_answers, ada, door, name)
        try:
            seconds, statuses = to_asker.recv()
        finally:
            asker.kill()
        to_attacker.send("end")
        counts = to_attacker.recv()
    finally:
        attacker.kill()
        attacker.join()
    told = {what: summarize(each) for what, each in seconds.items()}
    return {
        "attack": name,
        **told,
        "not_answered": count_bad(statuses),
        "attacker_requests": sum(counts.values()),
        "attacker_refused": count_bad(counts),
    }


def count_bad(statuses: Mapping[int, int]) -> int:
    return sum(count for status, count in statuses.items() if not 200 <= status < 300)


@contextlib.contextmanager
def serving() -> Iterator[tuple[Door, struct_passwd, struct_passwd]]:
    """Start a server of all users; yield its socket and two users."""
    if os.getuid() != 0:
        raise CannotRun("only root can serve all users")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dlb-")))
        folder.chmod(0o755)
        state, python = folder / "s", find_python(folder)
        eve, ada = stack.enter_context(made(state, python, "eve", "ada"))
        log = stack.enter_context((folder / "log").open("wb"))
        words = [
            str(python),
            "-c",
            SCRIPT,
            "up",
            "--system",
            "--virtual-gpus=4",
            f"--state={state}",
        ]
        stack.callback(kill_all, state)
        server = subprocess.Popen(words, stdout=log, stderr=log, cwd="/")
        stack.callback(server.wait)
        stack.callback(server.kill)
        door, about = Door(Folders(state).socket), write("GET", "about")
        wait_until(lambda: door.ask(about) == 200, "the server answers")
        yield door, getpwnam(eve.name), getpwnam(ada.name)
        if server.poll() is not None:
            raise RuntimeError(f"the server has ended: {(folder / 'log').read_text()[-2000:]}")


@click.command(help=__doc__)
@click.option("--attack", "chosen", multiple=True, type=click.Choice(NAMES), help="[default: all]")
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(*, chosen: tuple[str, ...], form: str) -> None:
    attacks = list_attacks()
    names = [name for name in NAMES if name in chosen or not chosen]
    with serving() as (door, eve, ada):
        rows = [measure(name, attacks[name], door, eve, ada) for name in names]
    if form == "json":
        print_result({**describe_machine(), "attacks": rows}, form)
        return
    titles = (
        "attack",
        "`about` p50, s",
        "p99",
        "worst",
        "`submit` p50, s",
        "worst",
        "not answered",
        "attacker: requests",
        "refused",
    )
    print_markdown(titles, [write_row(row) for row in rows])


def write_row(row: Mapping[str, Any]) -> list[str]:
    about, submit, lacking = row["about"], row["submit"], row["not_answered"]
    times = (about["p50"], about["p99"], about["max"], submit["p50"], submit["max"])
    return [
        row["attack"],
        *(f"{each:.3f}" for each in times),
        str(lacking),
        str(row["attacker_requests"]),
        str(row["attacker_refused"]),
    ]


if __name__ == "__main__":
    run(main)

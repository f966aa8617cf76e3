"""
The operator with points at which it may die: around each write to the API server, and each command.

``python -m tests.operator.mortals PLAN DEATHS -- OPTIONS`` is ``python -m dljob.operator OPTIONS``.
"""

import json
import sys
from pathlib import Path
from typing import Any

from dljob.kube.client import ApiServer
from dljob.operator import __main__ as program
from dljob.operator.kueue.quotas import Quotas
from tests.chaos.controllers import guard_wire
from tests.chaos.points import Fuse, Plan


def main() -> None:
    plan, deaths, _, *options = sys.argv[1:]
    fuse = Fuse(Plan(**json.loads(plan)), Path(deaths))
    guard_writes(fuse)
    guard_quotas(fuse)
    guard_wire(fuse)
    fuse.passes("at its start")
    program.main(options)


def guard_writes(fuse: Fuse) -> None:
    """Place a deadly point right before each write is sent, and one after its answer has arrived."""
    send = ApiServer._send

    async def send_guarded(
        api: ApiServer, method: str, url: str, *, data: bytes | None, form: str
    ) -> Any:
        if method == "GET" or "dryRun" in url:
            return await send(api, method, url, data=data, form=form)
        return await fuse.around_async(f"{method} {_what(url)}", send)(
            api, method, url, data=data, form=form
        )

    ApiServer._send = send_guarded  # type: ignore[assignment,method-assign]


def guard_quotas(fuse: Fuse) -> None:
    """Place a deadly point around each write for Kueue, by the state that it brings about."""
    write = Quotas._write

    async def write_guarded(quotas: Quotas, due: Any, turns: Any) -> None:
        await fuse.around_async(f"quota {due.wanted.value}", write)(quotas, due, turns)

    Quotas._write = write_guarded  # type: ignore[assignment,method-assign]


def _what(url: str) -> str:
    parts = url.partition("?")[0].partition("/namespaces/")[2].split("/")[1:]
    return "/".join(part for number, part in enumerate(parts) if number != 1)


if __name__ == "__main__":
    main()

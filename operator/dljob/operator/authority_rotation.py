"""
Replaces the CA while jobs train: ``python -m dljob.operator.authority_rotation begin``, then ``switch``, then ``end``.

A SideCar trusts the CAs that the Secret of its job names, so for a while there are two: ``begin`` makes the next
CA, which is trusted in addition to the one that signs; ``switch`` lets it sign, and the former CA is still
trusted; ``end`` forgets the former CA. Between two steps an operator has to renew the certificates of all jobs,
which it does within the hour after it has noticed a step.

Run it in a pod of the operator, whose account may write this Secret.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from dljob.control.sidecars.dialing import CERTIFICATE, KEY
from dljob.kube import access
from dljob.kube.certificates import CA_SECRET, FORMER, NEXT, NEXT_KEY, Authority, WrongAuthority
from dljob.kube.client import ApiServer, NotFound, Rejected, Unreachable
from dljob.kube.resources import SECRETS
from dljob.operator.__main__ import own_namespace

Data = Mapping[str, str]
Changes = dict[str, str | None]


class WrongStep(Exception):
    """Another step has to come first."""


def begin(data: Data) -> Changes:
    """Make the next CA."""
    if NEXT in data:
        raise WrongStep("the next CA exists already; run switch an hour after begin")
    if FORMER in data:
        raise WrongStep("the former CA is still trusted; run end an hour after switch")
    made = Authority.new().data()
    return {NEXT: made[CERTIFICATE], NEXT_KEY: made[KEY]}


def switch(data: Data) -> Changes:
    """Let the next CA sign."""
    if NEXT not in data:
        raise WrongStep("there is no next CA; run begin first")
    return {
        CERTIFICATE: data[NEXT],
        KEY: data[NEXT_KEY],
        FORMER: data[CERTIFICATE],
        NEXT: None,
        NEXT_KEY: None,
    }


def end(data: Data) -> Changes:
    """Forget the former CA."""
    if FORMER not in data:
        raise WrongStep("no former CA is trusted; run begin and switch before end")
    return {FORMER: None}


STEPS: Final[Mapping[str, Callable[[Data], Changes]]] = {
    "begin": begin,
    "switch": switch,
    "end": end,
}


async def take(api: ApiServer, namespace: str, *, step: str) -> None:
    """Take a step, unless another program has written the Secret since it was read."""
    secret = await api.get(SECRETS, CA_SECRET, namespace)
    data: Data = secret.get("data") or {}
    Authority.read(data)
    changed: dict[str, Any] = {
        # If two administrators begin at the same time, the second one is refused.
        "metadata": {"resourceVersion": secret["metadata"]["resourceVersion"]},
        "data": STEPS[step](data),
    }
    await api.merge(SECRETS, CA_SECRET, changes=changed, namespace=namespace)


@click.command("dljob.operator.authority_rotation", help=__doc__)
@click.argument("step", type=click.Choice(list(STEPS)))
@click.option(
    "--kubeconfig",
    default="",
    metavar="FILE",
    help="The kubeconfig file that names the API server.",
)
@click.option("--namespace", default="", help="The namespace of the operator.")
def main(*, step: str, kubeconfig: str, namespace: str) -> None:
    """Take one step."""

    async def run() -> None:
        api = ApiServer(access.find(kubeconfig))
        try:
            await take(api, namespace or own_namespace(remedy="--namespace NAME"), step=step)
        finally:
            await api.close()

    try:
        asyncio.run(run())
    except NotFound as error:
        raise click.ClickException(
            f"there is no Secret {CA_SECRET}; the operator creates it when it starts"
        ) from error
    except (WrongStep, WrongAuthority, Rejected, Unreachable, access.NoAccess) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{step}: done; the operator notices it within seconds", err=True)


if __name__ == "__main__":
    main()

"""``python -m dljob_gangs``: the extender of the gang scheduler, in the foreground."""

import asyncio
import logging
from pathlib import Path

import click

from dljob.kube import access
from dljob.kube.certificates import WrongAuthority
from dljob.kube.programs import log_to_stderr, new_identity, run_until_signal
from dljob.kube.shown_certificate import NoCertificate
from dljob_gangs.members import Overtaking, Rules
from dljob_gangs.running import Gangs, GangSettings
from dljob_wire.endpoints import Endpoint, read_endpoint

log = logging.getLogger("dljob_gangs")


class Place(click.ParamType[Endpoint]):
    """An address with a port."""

    name = "address"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> Endpoint:
        try:
            return read_endpoint(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command("dljob_gangs")
@click.version_option(package_name="dljob", prog_name="dljob_gangs")
@click.option(
    "--kubeconfig",
    default="",
    metavar="FILE",
    help="The kubeconfig file that names the API server.",
)
@click.option("--context", default="", metavar="NAME", help="Which context of that file.")
@click.option(
    "--scheduler-name",
    default="dljob-scheduler",
    show_default=True,
    help="The schedulerName of the pods it answers for.",
)
@click.option(
    "--listen",
    type=Place(),
    default="127.0.0.1:8443",
    show_default=True,
    metavar="[ADDRESS]:PORT",
    help="Where kube-scheduler reaches it.",
)
@click.option(
    "--health",
    type=Place(),
    default=":8081",
    show_default=True,
    metavar="[ADDRESS]:PORT",
    help="Where it answers /healthz, /readyz and /metrics.",
)
@click.option(
    "--tls",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Has tls.crt and tls.key, which are read again after each change.",
)
@click.option("--make-tls", is_flag=True, help="Create and renew the certificate in that folder.")
@click.option(
    "--client-ca",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Answer only clients with a certificate of this CA.",
)
@click.option(
    "--hold-seconds",
    type=click.FloatRange(min=1.0),
    default=Rules().hold_seconds,
    show_default=True,
    help="How long room is kept for pods that wait for their binding.",
)
@click.option(
    "--overtaking",
    type=click.Choice([each.value for each in Overtaking]),
    default=Overtaking.NEVER.value,
    show_default=True,
    help="Whether a gang may go before an older one that does not fit yet.",
)
def main(  # noqa: PLR0913 - an argument for each option
    *,
    kubeconfig: str,
    context: str,
    scheduler_name: str,
    listen: Endpoint,
    health: Endpoint,
    tls: Path | None,
    make_tls: bool,
    client_ca: Path | None,
    hold_seconds: float,
    overtaking: str,
) -> None:
    """Answer a kube-scheduler about the pods of gangs: all of a gang, or none."""
    log_to_stderr()
    if tls is None and (make_tls or client_ca is not None):
        raise click.UsageError("--make-tls and --client-ca need a folder: --tls FOLDER")
    if tls is None and not listen.is_loopback:
        raise click.UsageError(
            f"without TLS, others could read the traffic on {listen.host or 'all addresses'}; name a"
            " folder with --tls, or listen on 127.0.0.1"
        )
    settings = GangSettings(
        scheduler=scheduler_name,
        listen=listen,
        health=health,
        tls=tls,
        makes_tls=make_tls,
        client_authority=client_ca,
        rules=Rules(hold_seconds=hold_seconds, overtaking=Overtaking(overtaking)),
    )
    try:
        asyncio.run(_run(access.find(kubeconfig, context), settings))
    except (access.NoAccess, NoCertificate, WrongAuthority, OSError) as error:
        raise click.ClickException(str(error)) from error


async def _run(found: access.Access, settings: GangSettings) -> None:
    gangs = Gangs(found, settings, instance=new_identity())
    if await run_until_signal(gangs.run()):
        log.info("stops; bound pods stay bound")


if __name__ == "__main__":
    main()

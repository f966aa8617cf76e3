"""``python -m dljob_web.portal``: the page of a cluster, in the foreground."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import click

from dljob.client.backend import BackendError
from dljob.client.cluster.backend import WHAT_IF_S
from dljob.client.cluster.connecting import connect
from dljob.kube.access import Access
from dljob.kube.client import ApiServer
from dljob.kube.programs import log_to_stderr, run_until_signal
from dljob.kube.reviews import REMEMBERED_S, Reviews
from dljob.kube.shown_certificate import NoCertificate, Shown, provide, renew
from dljob_web.listening import listen, serve
from dljob_web.portal.portal import Portal
from dljob_web.portal.proxying import PROOF, SHORTEST_SECRET, Names, Proxy
from dljob_web.portal.source import Whole
from dljob_wire.endpoints import read_endpoint

log = logging.getLogger("dljob_web.portal")

RENEWAL_S = 86_400.0


@click.command("dljob_web.portal")
@click.version_option(package_name="dljob", prog_name="dljob_web.portal")
@click.option(
    "--kubeconfig",
    default="",
    metavar="FILE",
    help="The kubeconfig file that names the API server.",
)
@click.option("--context", default="", metavar="NAME", help="Which context of that file.")
@click.option(
    "--listen",
    "address",
    default=":8443",
    show_default=True,
    metavar="[ADDRESS]:PORT",
    help="Where browsers reach it.",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name under which users reach it; by another one it does not answer. More than once for more names.",
)
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="NAME",
    help="A namespace whose jobs are shown. More than once for more of them; without it, those of all namespaces.",
)
@click.option(
    "--store",
    envvar="DLJOB_STORE",
    default="",
    metavar="URL",
    help="The operator's store (mongodb://…), which has all that happened; else the API server is asked.",
)
@click.option(
    "--tls",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Has tls.crt and tls.key, which are read again after each change.",
)
@click.option("--make-tls", is_flag=True, help="Create and renew the certificate in that folder.")
@click.option(
    "--no-tls", is_flag=True, help="Answer without TLS, behind a proxy that ends the users' TLS."
)
@click.option(
    "--proxy-user",
    default="",
    metavar="HEADER",
    help=f"The header by which a proxy names the user; the proxy proves itself by {PROOF}.",
)
@click.option(
    "--proxy-user-prefix",
    default="",
    metavar="PREFIX",
    help="The prefix that the API server puts before the names of these users.",
)
@click.option(
    "--proxy-groups", default="", metavar="HEADER", help="The header with the user's groups."
)
@click.option(
    "--proxy-groups-prefix",
    default="",
    metavar="PREFIX",
    help="The prefix that the API server puts before the names of these groups.",
)
@click.option(
    "--proxy-secret",
    envvar="DLJOB_PROXY_SECRET",
    default="",
    metavar="SECRET",
    help=f"The value of {PROOF}, of at least {SHORTEST_SECRET} characters.",
)
@click.option(
    "--review-seconds",
    type=click.FloatRange(min=0.0),
    default=REMEMBERED_S,
    show_default=True,
    help="For this time the API server's answers about users and their rights count.",
)
@click.option(
    "--what-if-seconds",
    type=click.FloatRange(min=0.0, min_open=True),
    default=WHAT_IF_S,
    show_default=True,
    help="The time limit of a question about futures; what is not known then is left open.",
)
def main(  # noqa: PLR0913 - an argument for each option
    *,
    kubeconfig: str,
    context: str,
    address: str,
    hosts: tuple[str, ...],
    namespaces: tuple[str, ...],
    store: str,
    tls: Path | None,
    make_tls: bool,
    no_tls: bool,
    proxy_user: str,
    proxy_user_prefix: str,
    proxy_groups: str,
    proxy_groups_prefix: str,
    proxy_secret: str,
    review_seconds: float,
    what_if_seconds: float,
) -> None:
    """Show the GPUs of a cluster over time: to each user the part that the user's own rights allow."""
    log_to_stderr()
    if (tls is None) != no_tls:
        raise click.UsageError(
            "tokens of users come in here: name a folder with --tls FOLDER, or, behind a proxy with TLS, --no-tls"
        )
    proxy = None
    if proxy_user:
        users = Names(proxy_user, proxy_user_prefix)
        proxy = Proxy(users, Names(proxy_groups, proxy_groups_prefix), secret=proxy_secret)
        if len(proxy_secret) < SHORTEST_SECRET:
            raise click.UsageError(
                f"--proxy-user: each pod can send this header; give the proxy a secret of at least {SHORTEST_SECRET}"
                " characters by --proxy-secret"
            )
    try:
        listened = read_endpoint(address)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--listen") from error
    try:
        if tls is not None and make_tls:
            provide(tls)
        shown = None if tls is None else Shown(tls).context
        connection = connect(kubeconfig, context)
        with closing(listen(listened.host or "0.0.0.0", listened.port)) as door:  # noqa: S104 - a pod's own network
            whole = Whole(connection, store, namespaces, what_if_s=what_if_seconds)
            made = tls if make_tls else None

            def open_portal(api: ApiServer) -> Portal:
                reviews = Reviews(api, remembered_s=review_seconds)
                return Portal(whole, reviews, hosts, proxy=proxy)

            asyncio.run(_run(connection.access, open_portal, door=door, tls=shown, made=made))
    except (BackendError, NoCertificate, OSError) as error:
        raise click.ClickException(str(error)) from error


async def _run(
    access: Access,
    open_portal: Callable[[ApiServer], Portal],
    *,
    door: socket.socket,
    tls: ssl.SSLContext | None,
    made: Path | None,
) -> None:
    api = ApiServer(access)
    portal = open_portal(api)
    renewing = None
    if made is not None:
        renewing = asyncio.create_task(renew(made, every_seconds=RENEWAL_S))
    log.info("answers at port %s", door.getsockname()[1])
    try:
        await run_until_signal(
            serve(portal.application(), door, until=asyncio.Event().wait, tls=tls)
        )
    finally:
        if renewing is not None:
            renewing.cancel()
        await api.close()


if __name__ == "__main__":
    main()

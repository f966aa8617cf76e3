"""``dljob web``: the page of a cluster or of this machine, for as long as the command runs."""

import html
import os
import sys
import tempfile
import webbrowser
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import click

from dljob.cli.inputs.options import CONTEXT, KUBECONFIG, STATE
from dljob.cli.output.messages import say
from dljob.client.cluster.reading.operators import HOME, HOME_VARIABLE
from dljob.client.places import Chosen, Place, decide

LOG_IN: Final = (
    "Log in with a token that the API server accepts: that of your kubeconfig, or kubectl create token ACCOUNT -n"
    " NAMESPACE. Ctrl-C ends this command."
)

USUAL_PORT: Final = 8443
"""The port for a cluster. On one machine several users may look at the same time, each at a free port."""

Show = Callable[..., None]


@click.command("web")
@STATE
@KUBECONFIG
@CONTEXT
@click.option(
    "-n",
    "--namespace",
    default="",
    metavar="NAME",
    help=f"The namespace of the operator.  [default: ${HOME_VARIABLE}, or {HOME}]",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help=f"The port of this machine; 0 for a free one.  [default: {USUAL_PORT} for a cluster, else 0]",
)
@click.option("--no-browser", is_flag=True, help="Print the address only.")
def command(
    *,
    state: Path | None,
    kubeconfig: str,
    context: str,
    namespace: str,
    port: int | None,
    no_browser: bool,
) -> None:
    """
    Open the page of a cluster or of this machine, until Ctrl-C.

    On a cluster, the command runs kubectl port-forward to the page, which asks for a token and shows what that token
    may see. On one machine, the command itself serves the page of dljob up to you, and shows what you may see; the
    printed address has a token.
    """
    place = Place(state=state, kubeconfig=kubeconfig, context=context, namespace=namespace)
    chosen = decide(place)
    show = partial(_show, has_browser=not no_browser)
    if chosen.folders is None:
        _forward(chosen, namespace, port=USUAL_PORT if port is None else port, show=show)
    else:
        _serve(chosen, port or 0, show=show)


def _show(url: str, link: str = "", *, has_browser: bool) -> None:
    """Print the address of the page, and open it by the ``link``, if there is one."""
    click.echo(f"The page is at {url}")
    # Without a display, a browser for terminals would take the terminal of this command.
    has_window = sys.platform == "darwin" or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
    if has_window and has_browser:
        webbrowser.open(link or url)


def _forward(chosen: Chosen, namespace: str, *, port: int, show: Show) -> None:
    # Here, because a machine without a cluster lacks the packages for one.
    from dljob.client.cluster.kubectl import forward  # noqa: PLC0415

    def opened(url: str) -> None:
        show(url)
        say(LOG_IN)

    assert chosen.target is not None
    home = namespace or os.environ.get(HOME_VARIABLE) or HOME
    forward(chosen.target.connect(), home, port=port, opened=opened)


def _serve(chosen: Chosen, port: int, *, show: Show) -> None:
    from dljob_web.machine import serve_user  # noqa: PLC0415 - takes long to load

    assert chosen.folders is not None
    with tempfile.TemporaryDirectory(prefix="dljob-web-") as folder:
        # All users of a machine can read the command line of a browser, and the address has the token.
        link = Path(folder) / "page.html"

        def opened(url: str) -> None:
            link.write_text(f'<meta http-equiv="refresh" content="0; url={html.escape(url)}">\n')
            show(url, link.as_uri())
            say("It shows what you may see. Ctrl-C ends this command.")

        serve_user(chosen.folders, port=port, or_else=chosen.or_else, opened=opened)

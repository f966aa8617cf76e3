"""``dljob web``: the page of a cluster, through the API server, for as long as the command runs."""

import os
import sys
import webbrowser
from contextlib import closing
from typing import Final

import click

from dlclient.cluster.asking import Asker
from dlclient.cluster.connecting import connect
from dlclient.cluster.forwarding import forward
from dlclient.cluster.reading.operators import HOME, HOME_VARIABLE
from dlctl.inputs.options import CONTEXT, KUBECONFIG
from dlctl.output.messages import say

LOG_IN: Final = (
    "Log in with a token that the API server accepts: that of your kubeconfig, or kubectl create token ACCOUNT -n"
    " NAMESPACE. Ctrl-C ends this command."
)


@click.command("web")
@KUBECONFIG
@CONTEXT
@click.option(
    "-n",
    "--namespace",
    envvar=HOME_VARIABLE,
    default=HOME,
    show_default=True,
    metavar="NAME",
    help=f"The namespace of the operator; also ${HOME_VARIABLE}.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8443,
    show_default=True,
    metavar="PORT",
    help="The port of this machine; 0 for a free one.",
)
@click.option("--no-browser", is_flag=True, help="Print the address only.")
def command(*, kubeconfig: str, context: str, namespace: str, port: int, no_browser: bool) -> None:
    """
    Open the page of a cluster, until Ctrl-C.

    The command forwards a port of this machine to the page, with the rights of your kubeconfig. The page asks for
    a token, and shows what that token may see. For one machine there is dljob up --web.
    """

    def show(url: str) -> None:
        click.echo(f"The page is at {url}")
        say(LOG_IN)
        # Without a display, a browser for terminals would take the terminal of this command.
        has_window = sys.platform == "darwin" or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
        if has_window and not no_browser:
            webbrowser.open(url)

    with closing(Asker(connect(kubeconfig, context).access)) as asker:
        asker.ask(lambda api: forward(api, namespace, port=port, opened=show, notice=say))

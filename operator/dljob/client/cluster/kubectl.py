"""``kubectl exec`` and ``kubectl port-forward``, which the command runs on a cluster."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from dljob.client.backend import BackendError, NotAllowed, NotThere
from dljob.client.cluster.asking import Asker
from dljob.client.cluster.connecting import Connection
from dljob.core.documents.rules.podrules import TRAINER
from dljob.kube.resources import SERVICES

SERVICE: Final = "dljob-web"
GRANT: Final = (
    "kubectl create rolebinding dljob-web-forward -n {} --role=dljob-web-forward --user=USER"
)
"""The Role comes with the page."""

_FORWARDS: Final = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ")
_NEWS: Final = ("Forwarding from ", "Handling connection ")


def execute(connection: Connection, namespace: str, *, pod: str, command: Sequence[str]) -> int:
    """Run a command in the container of a training, and return its exit status."""
    terminal = ["--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    words = ["exec", "--quiet", "--stdin", *terminal, pod, f"--container={TRAINER}", "--", *command]
    status = subprocess.run(  # noqa: S603 - the user's own command
        _command_line(connection, namespace, *words), check=False
    ).returncode
    # The exit status that a shell reports after a signal.
    return status if status >= 0 else 128 - status


def forward(
    connection: Connection, namespace: str, *, port: int, opened: Callable[[str], None]
) -> None:
    """
    Forward a port of this machine to the page of a cluster; ``opened`` takes the URL.

    Ends only with :class:`BackendError`, which has the remedy.
    """
    asker = Asker(connection.access)
    try:
        service = asker.ask(lambda api: api.get(SERVICES, SERVICE, namespace))
    except NotAllowed as error:
        raise _not_granted(str(error), namespace) from error
    except NotThere as error:
        raise NotThere(
            f"namespace {namespace} has no Service {SERVICE}, so the page is not enabled there; set"
            " web.enabled=true in the chart, or kubectl apply -k manifests/web; -n names another namespace of the"
            " operator"
        ) from error
    finally:
        asker.close()
    first = service["spec"]["ports"][0]
    words = ["port-forward", f"service/{SERVICE}", f"{port or ''}:{first['port']}"]
    last = "no message"
    line = _command_line(connection, namespace, *words)
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # noqa: S603
        )
        stack.callback(process.terminate)
        assert process.stdout is not None
        for text in process.stdout:
            if found := _FORWARDS.match(text):
                opened(f"{first['name']}://localhost:{found[1]}/")
            elif not text.startswith(_NEWS):
                last = text.strip()
    if "forbidden" in last:
        raise _not_granted(last, namespace)
    raise BackendError(
        f"kubectl port-forward has ended ({last}); run this again, with --port 0 where the port is in use;"
        f" kubectl get pods -n {namespace} -l app.kubernetes.io/component=web shows the page's pod"
    )


def _not_granted(why: str, namespace: str) -> NotAllowed:
    return NotAllowed(f"{why}; an administrator grants it: {GRANT.format(namespace)}")


def _command_line(connection: Connection, namespace: str, *words: str) -> list[str]:
    line = ["kubectl", *connection.options, f"--namespace={namespace}", *words]
    if shutil.which("kubectl") is None:
        raise BackendError(
            "kubectl is not on PATH; install it (https://kubernetes.io/docs/tasks/tools), or run this where it"
            f" is: {shlex.join(line)}"
        )
    return line

"""
``python -m dljob.operator.uninstalling``: delete all jobs, and wait until they are gone.

The chart runs it before it is uninstalled, if its values say so. The operator has to run meanwhile, because
a job stays until the operator has proven that its pods have ended.
"""

import asyncio
import logging
import sys
import time

import click

from dljob.kube import access
from dljob.kube.client import ApiServer, Conflict, NotFound, Rejected, Unreachable
from dljob.kube.programs import log_to_stderr
from dljob.kube.resources import DLJOBS

log = logging.getLogger("dljob.operator.uninstalling")

LOOK_S = 1.0
MOST_NAMED = 10


@click.command("dljob.operator.uninstalling")
@click.option(
    "--kubeconfig",
    default="",
    metavar="FILE",
    help="The kubeconfig file that names the API server.",
)
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="NAME",
    help="The namespace of the jobs; default: all.",
)
@click.option("--seconds", default=270.0, show_default=True, help="How long to wait.")
def main(*, kubeconfig: str, namespaces: tuple[str, ...], seconds: float) -> None:
    """
    Delete all jobs, and return when nothing is left of them.

    The exit status is 1 if some are left after that time; nothing is forced.
    """
    log_to_stderr()
    try:
        left = asyncio.run(_end(access.find(kubeconfig), namespaces or ("",), seconds=seconds))
    except (access.NoAccess, Rejected) as error:
        raise click.ClickException(str(error)) from error
    if left:
        log.error(
            "%d jobs are still there after %g s: %s; an operator has to run (kubectl get pods), and the"
            " nodes of their pods have to be up (kubectl describe dljob NAME says why one stays)",
            len(left),
            seconds,
            ", ".join(left[:MOST_NAMED]) + (" …" if len(left) > MOST_NAMED else ""),
        )
        sys.exit(1)
    log.info("all jobs are gone")


async def _end(found: access.Access, namespaces: tuple[str, ...], *, seconds: float) -> list[str]:
    api = ApiServer(found)
    left = ["their names are not known yet"]
    until = time.monotonic() + seconds
    try:
        while left and time.monotonic() < until:
            # Listed again each time, because users may submit jobs meanwhile.
            try:
                left = await _delete_all(api, namespaces)
            except (Rejected, Unreachable) as error:
                _raise_if_final(error)
                log.warning("cannot list the jobs: %s", error)
            await asyncio.sleep(LOOK_S if left else 0)
    finally:
        await api.close()
    return left


async def _delete_all(api: ApiServer, namespaces: tuple[str, ...]) -> list[str]:
    """Delete every job that is not yet being deleted, and return the names of all that still exist."""
    left: list[str] = []
    for namespace in namespaces:
        try:
            jobs = (await api.list(DLJOBS, namespace)).items
        except NotFound:
            continue  # The resource is not installed, so there is no job.
        for job in jobs:
            metadata = job["metadata"]
            name = f"{metadata['namespace']}/{metadata['name']}"
            left.append(name)
            if "deletionTimestamp" not in metadata:
                await _delete(api, metadata["name"], namespace=metadata["namespace"])
    return left


async def _delete(api: ApiServer, name: str, *, namespace: str) -> None:
    try:
        await api.delete(DLJOBS, name, namespace)
    except (Rejected, Unreachable) as error:
        _raise_if_final(error)
        # The next pass tries again; the other jobs are deleted now.
        log.warning("cannot delete %s/%s yet: %s", namespace, name, error)
    else:
        log.info("deletes %s/%s", namespace, name)


def _raise_if_final(error: Rejected | Unreachable) -> None:
    """Raise an error that a retry would not change, such as missing rights."""
    if isinstance(error, Rejected) and not (error.is_passing or isinstance(error, Conflict)):
        raise error


if __name__ == "__main__":
    main()

"""
``python -m dljob.operator``: the operator of a cluster, in the foreground, as its image starts it.

Everything about decisions comes from the settings file and the environment, as with ``dljob up``;
the options here name the cluster and the needs of pods.
"""

import asyncio
import gc
import logging
import sys
from dataclasses import replace
from pathlib import Path

import click
import yaml

from dljob.control.scheduling import Options
from dljob.control.settings import SettingsError
from dljob.control.situation.ports import Fenced
from dljob.known_policies import read_live_policy
from dljob.kube import access
from dljob.kube.leases import LeaseSettings
from dljob.kube.programs import log_to_stderr, new_identity, run_until_signal
from dljob.operator.cluster import ClusterSettings
from dljob.operator.leading import Work
from dljob.operator.operating import Operator, Place
from dljob.operator.settings import OperatorSettings, load_settings

log = logging.getLogger("dljob.operator")

OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
SELDOM = (100_000, 20, 50)
"""Thresholds of the garbage collector: scans of thousands of long-lived documents are rare."""
LED_NO_MORE = 3
"""The exit status when another operator leads; Kubernetes then restarts the container."""


@click.command("dljob.operator")
@click.version_option(package_name="dljob", prog_name="dljob.operator")
@click.option(
    "--kubeconfig",
    default="",
    metavar="FILE",
    help="The kubeconfig file that names the API server.",
)
@click.option("--context", default="", metavar="NAME", help="Which context of that file.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A settings file.",
)
@click.option(
    "--set",
    "options",
    multiple=True,
    metavar="PATH=VALUE",
    help="One setting, such as pods.image=dljob-sidecar:1; goes before the file.",
)
def main(*, kubeconfig: str, context: str, config: Path | None, options: tuple[str, ...]) -> None:
    """
    Run the jobs of a cluster until a signal ends this program. Trainings go on then.

    Settings come from --set, then from the environment (DLJOB_PODS_IMAGE, DLJOB_POLICY, …), then
    from the settings file.
    """
    log_to_stderr()
    try:
        loaded = load_settings(config, options)
        found = access.find(kubeconfig, context)
    except (SettingsError, access.NoAccess, OSError, yaml.YAMLError) as error:
        raise click.ClickException(str(error)) from error
    settings = loaded.settings
    gc.set_threshold(*SELDOM)
    place = Place(
        namespace=settings.namespace or own_namespace(remedy="--set namespace=NAME"),
        identity=new_identity(),
        watched=settings.watched,
        health=settings.health,
        metrics=settings.metrics,
    )
    try:
        work = replace(make_work(settings), shown_settings=tuple(loaded.described()))
        asyncio.run(_run(found, place, work=work, lease=settings.lease))
    except Fenced as error:
        log.error("leads no more: %s", error)  # noqa: TRY400 - a stack says nothing about it
        sys.exit(LED_NO_MORE)


async def _run(found: access.Access, place: Place, *, work: Work, lease: LeaseSettings) -> None:
    operator = Operator(found, place, work, lease)
    if await run_until_signal(operator.run()):
        log.info("stops; running jobs continue")


def own_namespace(*, remedy: str) -> str:
    """Return the namespace of this process's pod."""
    try:
        return OWN_NAMESPACE.read_text().strip()
    except OSError as error:
        raise click.UsageError(
            f"this process is not in a pod; name the namespace of the operator: {remedy}"
        ) from error


def make_work(settings: OperatorSettings) -> Work:
    try:
        policy = read_live_policy(settings.policy)
    except ValueError as error:
        raise click.ClickException(f"policy: {error}") from error
    return Work(
        options=Options.of(settings, policy),
        store=settings.store,
        sample_seconds=settings.learning.sample_seconds,
        dialing=settings.dialing,
        cluster=ClusterSettings(
            pods=settings.pods,
            pool=settings.pool,
            kueue=settings.kueue,
            limits=settings.limits,
        ),
        publishing=settings.publishing,
    )


if __name__ == "__main__":
    main()

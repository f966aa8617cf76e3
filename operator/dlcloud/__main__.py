"""``python -m dlcloud``: the notices of the cloud about one node of a cluster, in the foreground."""

import asyncio

import click

from dlcloud.endings import Cloud, CloudSettings
from dlcloud.tainting import Tainter
from dlcloud.watching import EndWatch
from dlkube import access
from dlkube.client import ApiServer
from dlkube.programs.program import log_to_stderr, run_until_told


@click.command("dlcloud")
@click.version_option(package_name="dljob", prog_name="dlcloud")
@click.option(
    "--kubeconfig",
    default="",
    metavar="FILE",
    help="The kubeconfig file that names the API server.",
)
@click.option("--node", required=True, metavar="NAME", help="The node of this machine.")
@click.option(
    "--cloud",
    required=True,
    type=click.Choice([each.value for each in Cloud if each is not Cloud.NONE]),
    help="The cloud that runs this machine.",
)
@click.option(
    "--address",
    default=CloudSettings().address,
    show_default=True,
    metavar="URL",
    help="The address of the metadata service.",
)
@click.option(
    "--lead-seconds",
    type=click.FloatRange(min=0.0),
    default=CloudSettings().lead_seconds,
    show_default=True,
    help="The time before a scheduled stop or reboot at which jobs leave.",
)
def main(*, kubeconfig: str, node: str, cloud: str, address: str, lead_seconds: float) -> None:
    """Taint a node with dljob.io/ending while its cloud announces the end of the machine."""
    log_to_stderr()
    settings = CloudSettings(provider=Cloud(cloud), address=address, lead_seconds=lead_seconds)
    try:
        found = access.find(kubeconfig)
    except access.NoAccess as error:
        raise click.ClickException(str(error)) from error
    asyncio.run(_run(found, node, settings=settings))


async def _run(found: access.Access, node: str, *, settings: CloudSettings) -> None:
    api = ApiServer(found, connections=2)
    try:
        await run_until_told(Tainter(api, node, watch=EndWatch(settings)).run())
    finally:
        await api.close()


if __name__ == "__main__":
    main()

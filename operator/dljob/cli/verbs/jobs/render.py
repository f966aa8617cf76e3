"""
``dljob render``: the pods that the operator makes of job files, without a cluster.
"""

from typing import TYPE_CHECKING

import click

from dljob.cli.inputs.completing import complete_files
from dljob.cli.output.forms import to_yaml
from dljob.cli.output.messages import complain
from dljob.client.backend import Json
from dljob.client.sources import KIND, check, iter_sources

if TYPE_CHECKING:
    from dljob.operator.podspecs.podsettings import PodSettings

UNKNOWN_UID = "00000000-0000-0000-0000-000000000000"


@click.command("render")
@click.argument("files", nargs=-1, required=True, metavar="FILE…", shell_complete=complete_files)
@click.option("--node", default="NODE", show_default=True, help="The node of the pod.")
@click.option(
    "--set",
    "options",
    multiple=True,
    metavar="PATH=VALUE",
    help="A setting of the operator, such as pods.image=dljob-sidecar:1.",
)
def command(*, files: tuple[str, ...], node: str, options: tuple[str, ...]) -> int:
    """
    Print the pods that a job of these files would have on Kubernetes.

    DLJob adds to its template the SideCar, the certificates that identify it, its node, and the
    access to GPUs; everything else stays as you wrote it.
    """
    from dljob.operator.settings import load_settings  # noqa: PLC0415 - likewise
    from dljob_wire.problems import WrongDocument  # noqa: PLC0415 - not for --help

    settings = load_settings(None, options).settings
    found = [source for name in files for source in iter_sources(name)]
    # A file may also hold other objects, such as a volume.
    sources = [
        source
        for source in found
        if not isinstance(source.document, dict) or source.document.get("kind", KIND) == KIND
    ]
    check(sources)
    pods: list[Json] = []
    status = 0
    for source in sources:
        try:
            pods += _render(source.document, node, settings=settings.pods)
        except WrongDocument as wrong:
            status = 1
            for problem in wrong.problems:
                complain(problem.line(source.at(problem.path)))
    if status:
        return status
    click.echo("---\n".join(map(to_yaml, pods)), nl=False)
    return 0


def _render(document: Json, node: str, *, settings: "PodSettings") -> list[Json]:
    from dljob.control.situation.status import Booking  # noqa: PLC0415 - takes longer to load than --help does
    from dljob.core.documents import jobfile  # noqa: PLC0415
    from dljob.core.model import NodeName  # noqa: PLC0415
    from dljob.operator.podspecs import building  # noqa: PLC0415

    job = jobfile.parse(document, require_template=True)
    metadata = {"namespace": "default", "uid": UNKNOWN_UID, **document["metadata"]}
    kept = {**document, "metadata": metadata}
    trainer = building.make_trainer(
        kept, job, booking=Booking(NodeName(node), 1), settings=settings
    )
    auxiliaries = (
        building.make_auxiliary(kept, role, number=number)
        for role in job.roles
        for number in range(role.replicas)
    )
    return [trainer, *auxiliaries]

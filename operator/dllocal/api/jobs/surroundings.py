"""The surroundings of a job's processes on each node: folder, user, container and environment."""

from collections.abc import Mapping

from dlcontrol.situation.ports import Entry, PodKey
from dlcontrol.situation.status_documents import Json
from dlcore.model import Node, NodeName, Placement
from dllocal import environments
from dllocal.containers import engines, running
from dllocal.environments import Submitter
from dllocal.pods import trainers
from dllocal.server_parts import ServerParts


def list_surroundings(
    stage: ServerParts, entry: Entry, *, placement: Placement, nodes: Mapping[NodeName, Node]
) -> list[Json]:
    """Return an item for each node; raises :class:`~dllocal.files.bounded_checks.NoAnswerError`."""
    origin = stage.registry.origin(entry.job.id)
    trainer = trainers.trainer_of(
        entry.job,
        entry.document,
        checkpoints=stage.folders.checkpoints(entry.job.id),
        variables=environments.of_job(entry.job, origin),
    )
    return [
        {
            "node": part.node,
            "folder": trainer.folder,
            "user": _user_of(origin.submitter),
            **_container_of(stage, entry, node=part.node),
            "environment": {
                **trainer.environment,
                **trainers.visible_gpus(nodes[part.node], part.gpus),
            },
        }
        for part in placement.slices
        if part.node in nodes
    ]


def _container_of(stage: ServerParts, entry: Entry, *, node: str) -> Json:
    if entry.job.container is None:
        return {}
    serial = next(each.serial for each in entry.status.pods if each.node == node)
    socket = stage.folders.pod_socket(PodKey(entry.job.id, NodeName(node)), serial)
    origin = stage.registry.origin(entry.job.id)
    container = {
        "engine": running.engine_of(entry.job, origin),
        "name": running.name_of(entry.job, socket),
        "client": engines.client_of(origin.variables),
    }
    return {"container": container}


def _user_of(submitter: Submitter) -> Json:
    return {"uid": submitter.uid, "gid": submitter.gid, "groups": list(submitter.groups)}

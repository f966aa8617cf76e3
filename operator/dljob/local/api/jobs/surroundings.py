"""The surroundings of a job's processes on each node: folder, user, container and environment."""

from collections.abc import Mapping

from dljob.control.situation.ports import Entry, PodKey
from dljob.control.situation.status_documents import Json
from dljob.core.model import Node, NodeName, Placement
from dljob.local import environments
from dljob.local.containers import engines, running
from dljob.local.environments import Submitter
from dljob.local.pods import trainers
from dljob.local.server_parts import ServerParts


def list_surroundings(
    stage: ServerParts, entry: Entry, *, placement: Placement, nodes: Mapping[NodeName, Node]
) -> list[Json]:
    """Return an item for each node; raises :class:`~dljob.local.files.bounded_checks.NoAnswerError`."""
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

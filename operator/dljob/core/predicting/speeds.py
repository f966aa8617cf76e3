"""
How fast jobs train in shapes of one cluster, by their profiles and those of others.

:class:`Speeds` is made for each decision, and :class:`dljob.core.predicting.predictor.Predictor`
concludes times from it. It knows the types of jobs and nothing of how far a job is.
"""

from collections.abc import Mapping, Sequence

from dljob.core.model import Cluster, Job
from dljob.core.predicting.relating import atlas_of
from dljob.core.predicting.speed_curves import Estimate
from dljob.core.profiles import JobType, Profile
from dljob_wire.messages import Shape


class Speeds:
    """Speeds of types of jobs. Cheap to make: conclusions stay with their profile."""

    __slots__ = ("_atlas", "_cluster", "_shapes", "profiles")

    def __init__(self, profiles: Mapping[JobType, Profile], cluster: Cluster) -> None:
        self.profiles = profiles
        """The same object until something is learnt."""
        self._atlas = atlas_of(profiles)
        self._cluster = cluster
        self._shapes: dict[tuple[int, str], Shape] = {}

    def speed(self, job: Job, shape: Shape) -> float:
        """Iterations per second; 0 if nothing is known about it."""
        # This repeats estimate(), because policies ask it ten thousand times a decision.
        profile = self.profiles.get(job.type)
        if profile is not None:
            known: Estimate | None = profile.memo.get(shape)
            if known is not None:
                return known[0]
        return self._atlas.estimate(job.type, shape)[0]

    def speed_with(self, job: Job, shape: Shape, *, batch_size: int | None) -> float:
        """
        The speed with another global batch, in iterations a second of the job's own batch.

        An iteration with twice the batch is two of the job's own: it is as many samples.
        """
        own = job.type.batch_size or job.training.batch_size
        if not batch_size or not own or batch_size == own:
            return self.speed(job, shape)
        kind = job.type._replace(batch_size=batch_size)
        return self._atlas.estimate(kind, shape)[0] * (batch_size / own)

    def estimate(self, job: Job, shape: Shape) -> Estimate:
        """The speed with its confidence."""
        profile = self.profiles.get(job.type)
        if profile is not None:
            known: Estimate | None = profile.memo.get(shape)
            if known is not None:
                return known
        return self._atlas.estimate(job.type, shape)

    def shape(self, gpus: int, gpu_type: str) -> Shape:
        """Return the best shape of ``gpus`` GPUs of a type: on the fewest nodes of this cluster."""
        known = self._shapes.get((gpus, gpu_type))
        if known is None:
            nodes = _fewest_nodes(self._cluster, gpus, types=gpu_type.split("+"))
            known = self._shapes[gpus, gpu_type] = Shape(gpus, nodes, gpu_type)
        return known

    def best_type(self, job: Job, gpus: int) -> str:
        """
        Return the acceptable type of this cluster on which the job is fastest with ``gpus`` GPUs.

        A type with fewer GPUs than that counts only if none has enough; ties go to what the user
        named first.
        """
        there = self._cluster.types
        wanted = job.gpus.types
        types = [kind for kind in wanted if kind in there] if wanted else there
        if len(types) == 1:
            return types[0]
        totals = self._cluster.totals
        enough = [kind for kind in types if totals[kind] >= gpus]
        if not enough and job.gpus.mixed and types:
            return "+".join(sorted(types))
        # max() keeps the first of equals, which is the user's order.
        return max(
            enough or types or wanted or ("",),
            key=lambda kind: self.speed(job, self.shape(gpus, kind)),
        )


def _fewest_nodes(cluster: Cluster, gpus: int, *, types: Sequence[str]) -> int:
    """Count the largest nodes that together hold ``gpus`` GPUs; where all do not suffice, return
    their number."""
    sizes = (
        cluster.sizes.get(types[0], ())
        if len(types) == 1
        else sorted((n for kind in types for n in cluster.sizes.get(kind, ())), reverse=True)
    )
    for count, size in enumerate(sizes, start=1):
        gpus -= size
        if gpus <= 0:
            # Types that are mixed are on a node each.
            return max(count, len(types))
    return max(len(sizes), len(types))

"""Profiles that can teach something about another type of job: of the same model first, then
all."""

from collections.abc import Mapping, Sequence
from functools import cached_property

from dljob.core.predicting.speed_curves import points_by_type
from dljob.core.profiles import JobType, Profile


class Relatives:
    """The profiles of a collection by how near they are to a type of job."""

    def __init__(self, profiles: Mapping[JobType, Profile]) -> None:
        self._profiles = profiles

    @cached_property
    def everyone(self) -> Sequence[Profile]:
        """Every profile that holds a speed, in order of type."""
        chosen = (self._profiles[kind] for kind in sorted(self._profiles))
        return tuple(each for each in chosen if points_by_type(each))

    @cached_property
    def models(self) -> Mapping[str, Sequence[Profile]]:
        """The same by model, however its name is spelt."""
        # Asked for each type of job that was never seen, so that the search is made once.
        models: dict[str, list[Profile]] = {}
        for each in self.everyone:
            models.setdefault(bare(each.type.model), []).append(each)
        return models

    def same_model(self, kind: JobType) -> Sequence[Profile]:
        return self.models.get(bare(kind.model), ())


def remoteness(kind: JobType, gpu_type: str, *, relative: Profile) -> tuple[object, ...]:
    """Profiles on that type of GPU first, then by dataset, then by batch size; ties by name."""
    other = relative.type
    one, two = max(kind.batch_size, 1), max(other.batch_size, 1)
    return (
        gpu_type not in points_by_type(relative),
        kind.dataset != other.dataset,
        max(one, two) / min(one, two),
        other,
    )


def bare(name: str) -> str:
    """Normalise a name: ``ResNet-50`` is ``resnet50``."""
    return "".join(c for c in name.casefold() if c.isalnum())

"""The costs that are supposed of jobs of which none was measured: the usual ones of other types."""

from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from dlcore.predicting.conclusions import Kept
from dlcore.profiles import Costs, CostTerm, JobType, Profile

Profiles = Mapping[JobType, Profile]


class _Usual:
    """The usual costs of one collection of profiles."""

    def __init__(self, profiles: Profiles) -> None:
        self.profiles = profiles
        samples = [each.cost_samples for each in profiles.values() if each.cost_samples]
        seen = {term: [median(each[term]) for each in samples if each.get(term)] for term in CostTerm}
        self.terms = {term.value: median(values) for term, values in seen.items() if values}


_kept: Kept[_Usual] = Kept(most=4)


def fill(profiles: Profiles, defaults: Costs, profile: Profile | None) -> Costs:
    """Return the costs of a type, with the usual ones for each term that was not measured."""
    usual = _kept.recall(lambda each: each.profiles is profiles, lambda: _Usual(profiles))
    known = profile.cost_samples if profile is not None else {}
    base = profile.costs if profile is not None and profile.costs is not None else defaults
    return replace(base, **{term: value for term, value in usual.terms.items() if term not in known})

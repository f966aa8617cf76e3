"""
The costs of types of jobs: measured, or where they are not, the usual ones of other types.

A job that has never been stopped would seem to be free to stop, if its costs were none until then.
"""

from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from dljob.core.predicting.conclusions import Kept
from dljob.core.profiles import Costs, CostTerm, JobType, Profile

Profiles = Mapping[JobType, Profile]


class _Usual:
    """The usual costs of one collection of profiles."""

    def __init__(self, profiles: Profiles) -> None:
        self.profiles = profiles
        samples = [each.cost_samples for each in profiles.values() if each.cost_samples]
        seen = {
            term.value: [median(each[term]) for each in samples if each.get(term)]
            for term in CostTerm
        }
        self.terms = {term: median(values) for term, values in seen.items() if values}


_kept: Kept[_Usual] = Kept(most=4)


def find_costs(profiles: Profiles, profile: Profile | None, *, defaults: Costs) -> Costs:
    """Return the costs of a type of job; ``defaults`` hold where no type was measured."""
    if profile is not None and profile.costs is not None and not profile.cost_samples:
        return profile.costs  # They were measured offline, all of them.
    usual = _kept.recall(lambda each: each.profiles is profiles, lambda: _Usual(profiles)).terms
    measured = profile.cost_samples if profile is not None else {}
    costs = profile.costs if profile is not None and profile.costs is not None else defaults
    missing = {term: seconds for term, seconds in usual.items() if term not in measured}
    return replace(costs, **missing) if missing else costs

"""
The policies that a user can name: those of the product, and those of the installed add-ons.

A controller takes each of them that keeps the laws, and a simulation also the others.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from dljob.core import policies
from dljob.core.contract import Policy
from dljob.installed import POLICIES, find_points, miss_add_on

LAB_POLICIES: Final = frozenset(
    [
        *("afs-l", "afs-p", "afs-s", "coach", "dragon", "fjf", "gang-fifo", "hdf", "hesrpt"),
        "kube-default",
        *(
            "kube-pods",
            "locality",
            "lyra",
            "ones",
            "optimus",
            "optimus-periodic",
            "sia",
            "smartfill",
        ),
        *("srsf-e", "srtf-e", "themis"),
    ]
)
"""The policies of dljob-lab, which a user may name where it is missing."""


class PolicyTable(Mapping[str, Callable[..., Policy]]):
    """The policies of the product and of the installed add-ons; one of an add-on is imported when it is asked for."""

    def __getitem__(self, name: str) -> Callable[..., Policy]:
        own = policies.POLICIES.get(name)
        if own is not None:
            return own
        found: Callable[..., Policy] = find_points(POLICIES)[name].load()
        return found

    def __iter__(self) -> Iterator[str]:
        yield from policies.POLICIES
        yield from (name for name in find_points(POLICIES) if name not in policies.POLICIES)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in policies.POLICIES or name in find_points(POLICIES)


KNOWN_POLICIES: Final = PolicyTable()


def read_policy(text: str) -> Policy:
    """
    Build the policy that ``NAME[:OPTION=VALUE]…`` means, of the product or an add-on.

    Raises :class:`ValueError` that says what is wrong and what to write.
    """
    name = text.partition(":")[0]
    if name in LAB_POLICIES and name not in KNOWN_POLICIES:
        raise ValueError(f"{name} is a policy of the add-on dljob-lab: {miss_add_on('dljob-lab')}")
    return policies.read(text, known=KNOWN_POLICIES)


def read_live_policy(text: str) -> Policy:
    """Build a policy for a controller, which takes none that breaks a law."""
    policy = read_policy(text)
    if policy.breaks:
        laws = ", ".join(sorted(law.value for law in policy.breaks))
        raise ValueError(
            f"{policy.name} breaks {laws}, so that only dljob simulate and compare play it; choose one"
            f" that keeps the laws: {', '.join(list_live())}"
        )
    return policy


def list_live() -> list[str]:
    """List the policies that controllers offer."""
    return [name for name, kind in KNOWN_POLICIES.items() if not getattr(kind, "breaks", ())]

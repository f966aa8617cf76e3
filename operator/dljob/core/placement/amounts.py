"""
Amounts of CPU, memory and devices, exactly, and how much a pod asks for, as kube-scheduler counts it.

Everything is counted in thousandths, because CPU is; sums of them are exact.
"""

import re
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Context, Decimal
from functools import lru_cache
from typing import Any, Final

Json = Mapping[str, Any]
Amounts = Mapping[str, int]
"""By resource, in thousandths."""

PODS: Final = "pods"
"""The resource of which every pod needs one."""
WHOLE: Final = 1000

_UNITS: Final = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", start=1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", start=1)},
}


LARGEST: Final = (2**63 - 1) * WHOLE
"""Kubernetes takes the larger of the two."""
_LONGEST: Final = 128
_MOST_POWERS: Final = 2 * _LONGEST
"""With this exponent, a number that is short enough to be read is beyond every bound."""
_EXACT: Final = Context(prec=8 * _LONGEST, Emax=16 * _LONGEST, Emin=-16 * _LONGEST)
_FORM: Final = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:[eE](?P<power>[+-]?[0-9]+)|(?P<unit>[numkKMGTPEi]*))"
)


class NoAmount(ValueError):
    """The text is no amount."""


def read_amount(text: str | float) -> int:
    """Read an amount as Kubernetes writes it: ``500m``, ``4Gi``, ``1e3``, 8; rounded up."""
    written = str(text).strip()
    # A foreign text that is longer than any amount is not cached.
    if len(written) > _LONGEST:
        raise NoAmount(f"{written[:20]!r}... is no amount: it has {len(written)} characters")
    return _read_amount(written)


@lru_cache(maxsize=4096)
def _read_amount(written: str) -> int:
    form = _FORM.fullmatch(written)
    factor = _UNITS.get(form["unit"] or "") if form is not None else None
    if form is None or factor is None:
        raise NoAmount(f"{written!r} is no amount")
    power = int(form["power"] or 0)
    power = max(-_MOST_POWERS, min(power, _MOST_POWERS))
    thousandths = _EXACT.scaleb(_EXACT.multiply(Decimal(form["number"]), factor * WHOLE), power)
    amount = int(thousandths.to_integral_value(ROUND_CEILING, context=_EXACT))
    return max(-LARGEST, min(amount, LARGEST))


def read_amounts(document: Json | None) -> dict[str, int]:
    """Read a list of resources."""
    return {name: read_amount(amount) for name, amount in (document or {}).items()}


def requests_of(spec: Json) -> dict[str, int]:
    """
    Return what a pod asks for, itself included as one of ``pods``.

    Containers run together, and init containers run one after the other, next to earlier init containers
    that always restart.
    """
    together = total(_requests(each) for each in spec.get("containers") or ())
    alone: dict[str, int] = {}
    staying: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        asked = total((staying, _requests(container)))
        if container.get("restartPolicy") == "Always":
            staying = asked
        alone = _larger(alone, asked)
    needed = _larger(total((together, staying)), alone)
    # Requests for the pod as a whole win over those of its containers.
    needed |= read_amounts((spec.get("resources") or {}).get("requests"))
    needed = total((needed, read_amounts(spec.get("overhead"))))
    needed[PODS] = WHOLE
    return {name: amount for name, amount in needed.items() if amount}


def total(parts: Iterable[Amounts]) -> dict[str, int]:
    """Add amounts up."""
    result: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            result[name] = result.get(name, 0) + amount
    return result


def less(amounts: Amounts, taken: Amounts) -> dict[str, int]:
    """Subtract amounts; results may be negative."""
    result = dict(amounts)
    for name, amount in taken.items():
        result[name] = result.get(name, 0) - amount
    return result


def lacking(asked: Amounts, there: Amounts) -> list[str]:
    """Name the resources of which there is not enough, sorted."""
    return sorted(name for name, amount in asked.items() if amount > there.get(name, 0))


def fits(asked: Amounts, there: Amounts) -> bool:
    """Return whether there is enough of everything."""
    return all(amount <= there.get(name, 0) for name, amount in asked.items())


def show(name: str, amount: int) -> str:
    """Write an amount of a resource for people."""
    units = ("Ki", "Mi", "Gi", "Ti") if name in {"memory", "ephemeral-storage"} else ()
    value, shown = Decimal(amount) / WHOLE, ""
    for unit in units:
        if value < 1024:
            break
        value, shown = value / 1024, unit
    rounded = value.quantize(Decimal("0.1")).normalize() if units else value.normalize()
    return f"{rounded:f}{shown} {name}"


def _requests(container: Json) -> dict[str, int]:
    return read_amounts((container.get("resources") or {}).get("requests"))


def _larger(one: Amounts, other: Amounts) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {*one, *other}}

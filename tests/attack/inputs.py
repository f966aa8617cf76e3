"""
Inputs that mean harm: 150,000 of them, the same for the same seed.

Each reader of ours is given good inputs that were changed at random. It survives one if it reads it, and
reads back what it writes of it, or refuses it by the one error that it promises, in lines that any
terminal can show, and within two seconds of processor time.
"""

import gzip
import json
import random
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any, Final

import yaml

from dlcontrol.situation.status_documents import read_status, write_status
from dlcore.documents import expressions, jobfile, profilefile
from dlcore.placement.amounts import (
    LARGEST,
    NoAmount,
    read_amount,
    requests_of,
)
from dlcore.problems import WrongDocument
from dlkube.parsing import parse as parse_foreign
from dllocal.api import labels
from dllocal.pods import trainers
from dlsim.errors import BadInput
from dlsim.inputs import traces, yamlfiles
from dlwire import codec
from dlwire.kinds import Wrong
from dlwire.messages import Post, Refusal, State
from tests.attack.counts import Count, Size
from tests.attack.mutations import TEXTS, garbled, mutated

ROOT: Final = Path(__file__).parents[2]
SEED: Final = 19
SHARE_OF_SHORT: Final = 50
"""The short form tries this number of times fewer inputs."""
LONGEST_S: Final = 2.0
AGAIN: Final = 2
LONGEST_LINE: Final = 4_000
MOST_NAMED: Final = 20


class Broken(Exception):
    """A reader did what it must not."""


@dataclass(frozen=True, slots=True)
class Target:
    """A reader, how many inputs it is given, and how they are made."""

    name: str
    count: int
    make: Callable[[random.Random], Any]
    read: Callable[[Any], None]
    """Raises only what tells that something is broken."""


def run(size: Size) -> Count:
    """Try everything."""
    total = Count()
    for target in TARGETS:
        count = target.count if size is Size.FULL else max(1, target.count // SHARE_OF_SHORT)
        total.add(target.name, try_target(target, count))
    return total


def try_target(target: Target, count: int, *, first: int = 0) -> Count:
    """Give a reader ``count`` inputs; each has a seed of its own, by which it can be made again."""
    result = Count()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(first, first + count):
            result.tried += 1
            seed = f"{SEED}/{target.name}/{number}"
            why, took = _attempt(target, seed)
            if not why and took > LONGEST_S:
                # The kernel may charge the process that ran for the time for which its machine stood still.
                took = min(_attempt(target, seed)[1] for _ in range(AGAIN))
                why = f"took {took:.1f} s" if took > LONGEST_S else ""
            if why:
                result.broken.append(f"input {number}: {why}")
    return result


def _attempt(target: Target, seed: str) -> tuple[str, float]:
    """Give a reader one input; say why it is broken, and the seconds of processor time that it took."""
    given = target.make(random.Random(seed))
    began = time.process_time()
    why = _why_broken(target, given)
    return why, time.process_time() - began


def _why_broken(target: Target, given: Any) -> str:
    try:
        target.read(given)
    except Broken as error:
        return str(error)
    except BaseException as error:  # noqa: BLE001 - the attack looks for every other error
        return f"{type(error).__name__}: {error}"[:300]
    return ""


def insist(holds: object, what: str) -> None:
    if not holds:
        raise Broken(what[:300])


def insist_on_lines(lines: Iterable[str]) -> None:
    """See that errors are lines that can be shown anywhere, and no longer than people read."""
    for line in lines:
        insist(line.isprintable(), f"a line that cannot be shown: {line!a}")
        insist(len(line) <= LONGEST_LINE, f"a line of {len(line)} characters: {line[:100]}")


# --- the words between controller and SideCar ---------------------------------------------

_RUN: Final = {
    "kind": "run",
    "epoch": 3,
    "generation": 4,
    "incarnation": "abc",
    "gpus": ["0", "1"],
    "rankOffset": 0,
    "worldSize": 2,
    "peers": [{"host": "10.0.0.1", "processes": 2}],
    "rendezvousPort": 20_000,
    "reason": "it grows",
}
_STATE: Final = {
    "incarnation": "abc",
    "version": 7,
    "phase": "Running",
    "released": False,
    "epoch": 3,
    "generation": 4,
    "target": _RUN,
    "held": ["0", "1"],
    "processes": [{"rank": 0, "pid": 12, "gpus": ["0"]}],
    "progress": {"iteration": 10, "metrics": {"loss": 0.5}, "begun": True},
    "gpus": [{"index": 0, "uuid": "GPU-1", "memoryUsed": 1, "xidErrors": [79]}],
    "problems": [{"name": "CheckpointFailed", "message": "no", "remedy": "look"}],
}
_MESSAGES: Final = (
    (codec.decode_target, _RUN),
    (
        codec.decode_target,
        {"kind": "stop", "epoch": 1, "generation": 2, "incarnation": "abc", "checkpoint": True},
    ),
    (lambda body: codec.decode(State, body), _STATE),
    (codec.decode_post, {"iteration": 5, "epoch": 0.5, "metrics": {"loss": 1.0}}),
    (
        lambda body: codec.decode(Refusal, body),
        {"error": "OlderTerm", "message": "no", "remedy": "look", "incarnation": "abc"},
    ),
)


def make_message(chance: random.Random) -> Any:
    decode, document = chance.choice(_MESSAGES)
    if chance.random() < 0.6:
        document = mutated(document, chance)
    text = json.dumps(document, default=str) if not _is_endless(document) else "[" * 2_000
    if chance.random() < 0.5:
        text = garbled(text, chance)
    body = bytearray(text.encode("utf-8", "surrogatepass"))
    if body and chance.random() < 0.2:
        body[chance.randrange(len(body))] = chance.randrange(256)
    return decode, bytes(body)


def _is_endless(document: Any) -> bool:
    try:
        json.dumps(document, default=str)
    except (ValueError, RecursionError, TypeError):
        return True
    return False


def read_message(given: Any) -> None:
    decode, body = given
    try:
        message = decode(body)
    except Wrong as error:
        insist(len(str(error)) <= LONGEST_LINE, f"an error of {len(str(error))} characters")
        return
    if isinstance(message, Post):
        return  # It is never sent back, and what is wrong in its metrics is left out.
    is_target = not isinstance(message, State | Refusal)
    written = codec.encode_target(message) if is_target else codec.encode(message)
    insist(decode(written) == message, "what is written of it is read as something else")


# --- job files ----------------------------------------------------------------------------


def _documents(folder: str) -> list[Any]:
    files = sorted((ROOT / "tests/core/data" / folder).glob("*.yaml"))
    found = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in files]
    return [each for each in found if isinstance(each, dict) and not _is_endless(each)]


_JOBS: Final = _documents("good_jobs") * 20 + _documents("wrong_jobs")


def make_job(chance: random.Random) -> Any:
    return mutated(chance.choice(_JOBS), chance)


def read_job(document: Any) -> None:
    for runs in (False, True):
        try:
            job = jobfile.parse(document, require_template=runs)
        except WrongDocument as error:
            insist(error.problems, "a refusal without a reason")
            insist_on_lines(error.lines())
            continue
        again = jobfile.parse(jobfile.render(job), require_template=runs)
        insist(again == job, "what is written of it is read as another job")
        insist(not jobfile.change_problems(job, again), "it is said to have changed")
        if runs:
            found = [*trainers.problems_here(job), *trainers.starting_problems(job, {"A": "b"})]
            insist_on_lines(str(each) for each in islice(found, 50))


_YAML: Final = [
    file.read_text(encoding="utf-8")
    for file in sorted((ROOT / "tests/core/data/good_jobs").glob("*.yaml"))
] + ["a: &a {x: 1}\nb: &b {<<: [*a, *a]}\nc: {<<: *b, d: [*a, *b]}\n--- \n? [a]\n: !!binary aGk=\n"]


def make_yaml(chance: random.Random) -> str:
    return garbled(chance.choice(_YAML), chance)


def read_yaml(text: str) -> None:
    try:
        documents = yamlfiles.read_placed(StringIO(text), "file")
    except BadInput as error:
        insist_on_lines([str(error)])
        return
    for placed in islice(documents, 3):
        insist(placed.find_line("spec.gpus.options[0]") >= 1, "no line")
        try:
            jobfile.parse(placed.content, source="file")
        except WrongDocument as error:
            insist_on_lines(error.lines())


# --- expressions and selectors ------------------------------------------------------------

_EXPRESSIONS: Final = (
    r"step (?P<iteration>\d+) .*loss=(?P<loss>[\d.]+)",
    r"(?i)epoch\s+(?P<epoch>\d+(?:\.\d+)?)(?<!x)[^\]a-z]{2,5}?",
    r"(?P<a>x)(?P=a)(?(1)b|c)(?>d+)e*+\b\Z|\N{DIGIT ONE}\x41[\u0100-\u0200]",
)


def make_expression(chance: random.Random) -> str:
    return garbled(chance.choice(_EXPRESSIONS), chance)[: chance.choice((60, 300, 3_000))]


def read_expression(text: str) -> None:
    try:
        groups = expressions.find_groups(text)
    except expressions.WrongExpression as error:
        insist(len(str(error)) <= LONGEST_LINE, "a long error")
        return
    # Every SideCar can compile an accepted expression, and in no time.
    insist(groups == set(re.compile(text).groupindex), "Python finds other groups in it")


def make_selector(chance: random.Random) -> str:
    return garbled("team=vision,tier!=batch,gpu in (a100, h100),!draft", chance)[:4_000]


def read_selector(text: str) -> None:
    try:
        labels.parse(text).selects({"team": "vision", "gpu": "a100"})
    except labels.WrongSelector:
        return


# --- traces -------------------------------------------------------------------------------


def _rows() -> list[str]:
    texts: dict[str, str] = {}
    for file in sorted((ROOT / "tests/data/traces").glob("*.csv.gz")):
        with gzip.open(file, "rt", encoding="utf-8-sig") as text:
            lines = list(islice(text, 6))
        texts.setdefault(lines[0], "".join(lines))
    return list(texts.values())


_TRACES: Final = _rows()


def make_trace(chance: random.Random) -> tuple[str, bytes]:
    body = bytearray(garbled(chance.choice(_TRACES), chance).encode("utf-8", "surrogatepass"))
    if chance.random() < 0.2:
        body = bytearray(gzip.compress(bytes(body), compresslevel=1, mtime=0))
        if chance.random() < 0.7:
            body[chance.randrange(len(body))] = chance.randrange(256)
        return "trace.csv.gz", bytes(body[: chance.choice((len(body), len(body) // 2))])
    if body and chance.random() < 0.3:
        body[chance.randrange(len(body))] = chance.randrange(256)
    return "trace.csv", bytes(body)


def read_a_trace(given: tuple[str, bytes]) -> None:
    name, body = given
    with tempfile.NamedTemporaryFile(suffix=name) as file:
        file.write(body)
        file.flush()
        try:
            trace = traces.read_trace(Path(file.name))
        except BadInput as error:
            insist_on_lines([str(error)])
            return
    times = [each.submitted_at for each in trace.requests]
    insist(times == sorted(times), "its jobs are not in order")


# --- amounts ------------------------------------------------------------------------------


def make_amount(chance: random.Random) -> Any:
    number = chance.choice(
        ("1", "0", "-1", "1.5", ".5", "9" * chance.choice((1, 18, 40, 90, 5_000)), "1_0", "\u0661")
    )
    power = f"e{chance.choice(('', '+', '-'))}{chance.choice((1, 9, 400, 999_999, 10**30))}"
    unit = chance.choice(("", "", "m", "k", "Ki", "Gi", "E", "Ei", "i", "mm", power, power.upper()))
    text = f"{number}{unit}"
    return chance.choice((text, text, garbled(text, chance), *TEXTS[:20], 0.5, 8, 1e300))


def read_an_amount(given: Any) -> None:
    try:
        amount = read_amount(given)
    except NoAmount:
        amount = 0
    insist(-LARGEST <= amount <= LARGEST, f"{amount} is beyond every bound")
    spec = {
        "containers": [{"resources": {"requests": {"cpu": given}}}] * 3,
        "overhead": {"cpu": "1"},
    }
    try:
        asked = requests_of(spec)
    except NoAmount:
        return
    insist(asked.get("cpu", 0) == 3 * amount + 1000 or amount < 0, "the sum is another one")


# --- profiles and what others write -------------------------------------------------------

_PROFILE: Final = {
    "apiVersion": "dljob.io/v1alpha1",
    "kind": "Profile",
    "type": {"model": "resnet50", "dataset": "imagenet", "batchSize": 256},
    "speeds": [
        {"gpus": 1, "iterationsPerSecond": 2.5},
        {"gpus": 4, "nodes": 2, "gpuType": "V100", "iterationsPerSecond": 8.0},
    ],
    "costs": {"checkpoint": 3},
}


def make_profile(chance: random.Random) -> Any:
    one = mutated(_PROFILE, chance)
    if chance.random() < 0.2:
        return mutated(
            {"apiVersion": "dljob.io/v1alpha1", "kind": "ProfileList", "items": [one]}, chance
        )
    return one


def read_profile(document: Any) -> None:
    try:
        profiles = profilefile.parse_all(document)
    except WrongDocument as error:
        insist_on_lines(error.lines())
        return
    again = {each.type: each for each in profilefile.parse_all(profilefile.render_all(profiles))}
    same = all(each.says_the_same_as(again[each.type]) for each in profiles)
    insist(same and len(again) == len(profiles), "what is written of it is read as another profile")


def make_foreign(chance: random.Random) -> str:
    depth = chance.choice((3, 150, 250, 3_000, 9_000))
    deep = '{"a":[' * depth + "1" + "]}" * depth
    text = json.dumps({"items": [{"x": chance.choice(TEXTS)}, {"x": 0}]})
    text = text.replace('"x": 0', f'"x": {deep}')
    return garbled(text, chance) if chance.random() < 0.3 else text


def read_foreign(text: str) -> None:
    try:
        document = parse_foreign(text.encode("utf-8", "surrogatepass"))
    except ValueError:
        return
    json.dumps(document)


_STATUS: Final = {
    "phase": "Running",
    "message": "trains",
    "allocation": {"generation": 3, "nodes": [{"name": "n", "gpuIds": [0, 1]}], "gpuType": "A100"},
    "pods": [{"node": "n", "serial": 1, "used": True}],
    "cause": {"code": "IdleGpus", "gpus": 2},
    "startedAt": "2026-01-01T00:00:00Z",
    "conditions": [{"type": "Scheduled", "status": "True", "reason": "R", "message": "m"}],
    "progress": {"iteration": 5, "iteratedAt": "2026-01-01T00:00:00Z"},
}


def make_status(chance: random.Random) -> Any:
    """Change only what a schema lets through: texts for texts, times for times."""
    text = json.dumps(_STATUS)
    swaps: tuple[Mapping[str, str], ...] = (
        {"2026-01-01": chance.choice(("0001-01-01", "9999-12-31", "2026-13-01", "2026-02-30"))},
        {"IdleGpus": chance.choice(("Nonsense", "ItsTurn"))},
        {'"Scheduled"': chance.choice(('"Nonsense"', '"Ready"'))},
        {"[0, 1]": chance.choice(("[]", "[0, 0]", "[1023]", "[1, 0]"))},
        {'"generation": 3': f'"generation": {chance.choice((0, 2**53))}'},
        {'"serial": 1': f'"serial": {chance.choice((0, 2**53))}'},
        {"00:00:00Z": chance.choice(("99:99:99Z", "23:59:60Z", "00:00:00.123456789Z"))},
    )
    for swap in chance.sample(swaps, chance.choice((1, 2, 4))):
        for old, new in swap.items():
            text = text.replace(old, new)
    return json.loads(text)


def read_a_status(document: Any) -> None:
    status = read_status(document)
    again = read_status(write_status(status))
    insist(again.pods == status.pods, "its pods are others")
    insist(again.placement == status.placement, "its GPUs are others")


TARGETS: Final = (
    Target("codec", 40_000, make_message, read_message),
    Target("job files", 30_000, make_job, read_job),
    Target("YAML", 6_000, make_yaml, read_yaml),
    Target("expressions", 15_000, make_expression, read_expression),
    Target("selectors", 5_000, make_selector, read_selector),
    Target("traces", 15_000, make_trace, read_a_trace),
    Target("quantities", 20_000, make_amount, read_an_amount),
    Target("profiles", 15_000, make_profile, read_profile),
    Target("foreign documents", 1_000, make_foreign, read_foreign),
    Target("statuses", 3_000, make_status, read_a_status),
)
"""The readers under attack, and the number of inputs of each in the full form."""

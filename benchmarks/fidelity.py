"""
How true the simulator is: the same job files in ``dljob simulate`` and on this machine, with real
controllers, SideCars and processes.

Eight jobs share eight GPUs on two virtual nodes. They replay speeds (examples/replay) and compute
nothing: they wait out their steps, the loading of a model and its saving, and pods wait until they have
taken as long as ``POD_TIMES`` says. All else is real. First each type of job is measured for itself, as
``dljob profiles measure`` does it; these profiles are what simulator and controller know, and the
costs in them are those that the simulator charges. Then each policy plays the jobs by both mechanisms,
informed, and ignorant: the controller begins without a profile, as ``dljob simulate --known none`` does.

Rows are ``policy, mechanism, known, measure, simulated, measured, error``. A job is complete with its last
iteration, by the simulator's definition; the time of its last checkpoint shows when that really
was. ``ending_s`` is how much later it has ended for its user: when it has saved itself and its
processes are gone. ``lost_share`` is the time that jobs did not train because their GPUs were being
changed, over the time from their first GPUs to their end. ``kube-default`` never changes the GPUs of a
job, so it shows what is left where there are no reshapes.

The order in which near things happen decides which choice a policy makes: where the two worlds part
in that, single jobs differ by much, and their averages by a few percent. Without options the default policy
alone is played, and changes in place alone, in about six minutes; ``--full`` plays all four policies by both mechanisms in
about forty.
"""

import asyncio
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import click
from _controlling import controlling, until
from _measuring import describe_machine, print_markdown, print_result
from _progress import run, say
from _replaying import (
    ENDLESS,
    OPTIONS,
    SAVING_S,
    SPEEDS,
    Document,
    draw_jobs,
    make_document,
    make_documents,
    write_files,
    write_table,
)

from dljob.cli.inputs.ending import run_to_the_end
from dljob.cli.verbs.server import measure as measuring
from dljob.control.pacing import Pace
from dljob.control.scheduling import Options
from dljob.control.sidecars.dialing import DialSettings
from dljob.control.situation.ports import Entry
from dljob.core.model import Mechanism, Phase
from dljob.core.profiles import Costs, JobType, Profile
from dljob.local.measuring import Bench, GivenGpus
from dljob.local.pods.pod_states import PodTimes
from dljob.local.profiling import Course, profile_job
from dljob.local.running import Running
from dljob.local.setup import Setup
from dljob.sim import policies
from dljob.sim.clusters import Machines, build_packed
from dljob.sim.engine.settings import Setting
from dljob.sim.jobs import workloads
from dljob.sim.simulating import Contestant, simulate
from dljob.store.opening import open_store

POLICIES = ("foresight", "adaptive", "optimus", "kube-default")
WORLDS = ("all", "none")
"""What is known of the jobs, in the words of ``dljob simulate --known``."""
NODES, GPUS_A_NODE = 2, 4
Cluster = tuple[Machines, ...]
CLUSTER: Cluster = (Machines(NODES, GPUS_A_NODE),)
SHAPES: tuple[tuple[Sequence[int], Cluster], ...] = (
    (OPTIONS, CLUSTER),
    ((2,), (Machines(2, 1),)),
    ((3, 4), (Machines(2, 2),)),
)
"""Numbers of GPUs, and a cluster to measure them on; on the smaller ones they are on two nodes."""
POD_TIMES = PodTimes(start=2.0, end=0.5)
"""How long pods take at least. Pods of a cluster take longer than a process does to start here, which
also depends on the other load of the machine."""
DIALING, POLL_S = DialSettings(progress_seconds=0.25), 0.5
"""SideCars report progress more often than usual, because all else happens more often than usual, too."""
JOBS, EVERY_S, SHORTEST_S, LONGEST_S = 8, 7.0, 47.0, 57.0
"""Alike in length and coming evenly, so that GPUs change hands often; seconds with one GPU."""
SAMPLE_S, SAMPLES = 2.0, 2
LIMIT = 0.05
JUDGED = ("avg_jct_s", "makespan_s")
MEASURES = (*JUDGED, "ending_s", "reshapes", "lost_share")
LONGEST_RUN_S = 900.0


@dataclass(frozen=True, slots=True)
class Figures:
    """The results of one run."""

    avg_jct_s: float
    makespan_s: float
    ending_s: float
    reshapes: int
    lost_share: float


# --- what is known ------------------------------------------------------------------------


def calibrate(folder: Path, table: Path) -> dict[JobType, Profile]:
    """Measure speeds and costs of each type, apart from all that is compared."""
    say(f"measures {' and '.join(map(str, SPEEDS))}")
    measured = run_to_the_end(_measure_all(folder, table))
    store = open_store(str(folder / "profiles.db"), environment={})
    try:
        return {each.type: measuring.keep(store, each, SAMPLE_S) for each in measured}
    finally:
        store.close()


async def _measure_all(folder: Path, table: Path) -> list[Profile]:
    """Measure both types at once, because that takes half the time."""
    chains = [_measure_in_turn(folder / kind.model, table, kind) for kind in SPEEDS]
    return [profile for chain in await asyncio.gather(*chains) for profile in chain]


async def _measure_in_turn(folder: Path, table: Path, kind: JobType) -> list[Profile]:
    return [
        await _measure(folder / str(number), table, kind, counts, cluster)
        for number, (counts, cluster) in enumerate(SHAPES)
    ]


async def _measure(
    folder: Path, table: Path, kind: JobType, counts: Sequence[int], cluster: Cluster
) -> Profile:
    """As ``dljob profiles measure`` does."""
    folder.mkdir(parents=True)
    nodes = build_packed(cluster)
    setup = Setup(
        state=folder / "state",
        nodes=lambda: nodes,
        virtual_gpus=True,
        options=Options(policy=GivenGpus(), mechanism=Mechanism.RECREATE),
        sample_seconds=SAMPLE_S,
        pod_times=POD_TIMES,
        dialing=DIALING,
        poll_seconds=POLL_S,
    )
    document = make_document(folder, table, "probe", kind, iterations=ENDLESS)
    async with Bench(setup) as bench:
        return await profile_job(
            bench, document, course=Course(counts=counts, samples=SAMPLES, patience_s=120.0)
        )


# --- the two worlds -----------------------------------------------------------------------


def play_simulated(
    files: Path,
    known: dict[JobType, Profile],
    name: str,
    mechanism: Mechanism,
    seed: int,
    *,
    learns: bool,
) -> Figures:
    """As ``dljob simulate`` does; if it ``learns``, nothing is known of the jobs at first."""
    workload = workloads.read(
        files,
        rigid=False,
        speeds=known,
        seed=seed,
        gpu_types=("",),
        largest=NODES * GPUS_A_NODE,
        node_gpus=GPUS_A_NODE,
    )
    setting = Setting(
        nodes=build_packed(CLUSTER),
        mechanism=mechanism,
        seed=seed,
        period_s=Pace().period_seconds,
        learns=learns,
        trial_s=None,
    )
    workload = replace(workload, known={}) if learns else workload
    (outcome,) = simulate(workload, setting, contestants=[Contestant(name, policies.make(name))])
    score = outcome.score
    costs = (known[job.job.type].costs or Costs() for job in workload.jobs)
    ending_s = fmean(each.process_stop for each in costs)
    return Figures(score.avg_jct_s, score.makespan_s, ending_s, score.reshapes, score.reshape_share)


def play_live(
    documents: Sequence[Document],
    known: Mapping[JobType, Profile],
    name: str,
    mechanism: Mechanism,
    seed: int,
) -> Figures:
    """As ``dljob up`` does."""
    nodes = build_packed(CLUSTER)
    with tempfile.TemporaryDirectory(prefix="dljob-fidelity-") as folder:
        setup = Setup(
            state=Path(folder) / "state",
            nodes=lambda: nodes,
            virtual_gpus=True,
            options=Options(policy=policies.make(name), mechanism=mechanism, seed=seed),
            profiles=tuple(known.values()),
            pod_times=POD_TIMES,
            dialing=DIALING,
            poll_seconds=POLL_S,
        )
        entries = run_to_the_end(_live(setup, documents))
    return _sum_up(documents, entries)


def _sum_up(documents: Sequence[Document], entries: Sequence[Entry]) -> Figures:
    ends = [_last_iteration_at(*each) for each in zip(documents, entries, strict=True)]
    statuses = [entry.status for entry in entries]
    submitted = [status.submitted_at for status in statuses]
    trained = sum(end - (s.started_at or end) for s, end in zip(statuses, ends, strict=True))
    return Figures(
        avg_jct_s=fmean(end - at for end, at in zip(ends, submitted, strict=True)),
        makespan_s=max(ends) - min(submitted),
        ending_s=fmean((s.finished_at or 0.0) - end for s, end in zip(statuses, ends, strict=True)),
        reshapes=sum(status.reshapes for status in statuses),
        lost_share=sum(status.reshape_seconds for status in statuses) / trained,
    )


def _last_iteration_at(document: Document, entry: Entry) -> float:
    """Return when the last iteration was done: the time of its checkpoint less the time that saving took."""
    if entry.status.phase is not Phase.COMPLETED:
        raise click.ClickException(f"{entry.job.id} did not complete: {entry.status.message}")
    checkpoint = Path(document["spec"]["checkpoint"]["path"]) / "iteration"
    return checkpoint.stat().st_mtime - SAVING_S


async def _live(setup: Setup, documents: Sequence[Document]) -> list[Entry]:
    """Submit each in its time, and return when all have ended."""
    async with controlling(setup) as running:
        await _submit(running, documents)
        await until(
            running,
            lambda: all(entry.status.is_final for entry in running.registry.entries.values()),
            "all jobs have ended",
            LONGEST_RUN_S,
        )
        return list(running.registry.entries.values())


async def _submit(running: Running, documents: Sequence[Document]) -> None:
    began = time.time()
    for document in documents:
        at = float(document["metadata"]["annotations"]["dljob.io/submit-at"])
        await asyncio.sleep(max(0.0, began + at - time.time()))
        running.registry.submit(document, time.time())
        running.controller.wake(burst=True)


# --- the comparison -----------------------------------------------------------------------


def compare(
    name: str, mechanism: Mechanism, world: str, simulated: Figures, measured: Figures
) -> Iterator[dict[str, Any]]:
    """A row for each measure."""
    for measure in MEASURES:
        foreseen, found = getattr(simulated, measure), getattr(measured, measure)
        error = (foreseen - found) / found if found else 0.0
        yield {
            "policy": name,
            "mechanism": mechanism.value,
            "known": world,
            "measure": measure,
            "simulated": round(foreseen, 4),
            "measured": round(found, 4),
            "error": round(error, 4),
            "is_close": abs(error) <= LIMIT if measure in JUDGED else None,
        }


@click.command(help=__doc__)
@click.option("--seed", type=int, default=7, show_default=True, help="Of the jobs that are drawn.")
@click.option("--policy", "names", multiple=True, type=click.Choice(POLICIES))
@click.option("--known", "worlds", multiple=True, type=click.Choice(WORLDS), default=WORLDS)
@click.option("--full", is_flag=True, help="All policies, and both mechanisms.")
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(
    *, seed: int, names: tuple[str, ...], worlds: tuple[str, ...], full: bool, form: str
) -> None:
    """Calibrate once, then play every policy by each mechanism, live and simulated."""
    chosen = names or (POLICIES if full else POLICIES[:1])
    mechanisms = tuple(Mechanism) if full or names else (Mechanism.IN_PLACE,)
    rows: list[dict[str, Any]] = []
    lines: list[list[str]] = []
    logging.getLogger("dljob.local").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="dljob-fidelity-") as path:
        folder = Path(path)
        table = write_table(folder)
        known = calibrate(folder, table)
        drawn = list(
            draw_jobs(seed, jobs=JOBS, every_s=EVERY_S, shortest_s=SHORTEST_S, longest_s=LONGEST_S)
        )
        for name, mechanism, world in product(chosen, mechanisms, worlds):
            place, learns = folder / f"{name}-{mechanism.value}-{world}", world == "none"
            documents = make_documents(place, table, drawn)
            write_files(place / "files", documents)
            simulated = play_simulated(place / "files", known, name, mechanism, seed, learns=learns)
            say(
                f"plays {name} {mechanism.value}, known: {world}, about {simulated.makespan_s:.0f} s"
            )
            measured = play_live(documents, {} if learns else known, name, mechanism, seed)
            rows += compare(name, mechanism, world, simulated, measured)
            lines.append(
                _sum_up_pair(name, mechanism, world, simulated=simulated, measured=measured)
            )
    if form == "table":
        print_markdown(TITLES, lines)
    machine = {**describe_machine(), "load": round(os.getloadavg()[1], 1)}
    print_result([*rows, {"seed": seed, "machine": machine}], form)


TITLES = ("known", "mean completion live, s", "simulated, s", "ratio", "changes live", "simulated")


def _sum_up_pair(
    name: str, mechanism: Mechanism, world: str, *, simulated: Figures, measured: Figures
) -> list[str]:
    return [
        f"{world} ({name} {mechanism.value})",
        f"{measured.avg_jct_s:.1f}",
        f"{simulated.avg_jct_s:.1f}",
        f"{simulated.avg_jct_s / measured.avg_jct_s:.3f}",
        str(measured.reshapes),
        str(simulated.reshapes),
    ]


if __name__ == "__main__":
    run(main)

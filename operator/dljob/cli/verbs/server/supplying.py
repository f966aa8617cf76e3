"""The nodes and GPUs that `dljob up` schedules: those of this machine, or virtual ones."""

import os
from pathlib import Path

import click

from dljob.cli.inputs import arguments
from dljob.cli.output.messages import say
from dljob.core.model import Node
from dljob.local.folders import Folders, StateError
from dljob.local.gpus import devices, gpu_choices
from dljob.local.gpus.devices import Supply
from dljob.local.gpus.gpu_choices import GpuChoiceError, is_count
from dljob.local.gpus.nvml import NoGpusError, Nvml
from dljob.local.state_folder import make_folders
from dljob.sim.clusters import Machines, build_packed


def find_supply(
    root: Path,
    gpus: str | None,
    *,
    virtual: tuple[Machines, ...] | None,
    cluster: tuple[Machines, ...] | None,
) -> Supply:
    """Return the GPUs of this machine, or virtual ones."""
    given = [gpus is not None, virtual is not None, cluster is not None]
    if sum(given) > 1:
        raise click.UsageError(
            "--gpus, --virtual-gpus and --cluster exclude each other; give one of them"
        )
    if cluster is not None:
        nodes = build_packed(cluster)
        return Supply(lambda: nodes)
    if gpus is not None and is_count(gpus):
        virtual = _read_old_count(gpus)
    name = machine_name(root)
    if virtual is not None:
        node = Node.of(name, sum(each.nodes * each.gpus for each in virtual))
        return Supply(lambda: (node,))
    return _find_real(name, gpus)


def _read_old_count(text: str) -> tuple[Machines, ...]:
    """
    Read a plain number as a count of virtual GPUs, as earlier versions did.

    Where the machine has GPUs it could also mean one GPU by its number, or that many of them: there
    it is refused, because trainings would run on GPUs that were not asked for.
    """
    virtual: tuple[Machines, ...] = arguments.read_gpus(text)
    try:
        there = len(Nvml().devices())
    except NoGpusError:
        say(
            f"note: --gpus {text} starts {text} virtual GPUs; write --virtual-gpus {text} for"
            " that. --gpus names GPUs of this machine, such as 0,2-3"
        )
        return virtual
    raise click.UsageError(
        f"--gpus {text}: the {there} GPUs here are named, not counted; write --gpus {text}-{text}"
        f" for GPU {text} alone, --gpus 0,1 for some of them, or --virtual-gpus {text} for virtual"
        " ones"
    )


def _find_real(name: str, gpus: str | None) -> Supply:
    try:
        chosen = None if gpus is None else gpu_choices.parse(gpus)
        real = devices.find_gpus(name, chosen=chosen, environment=os.environ)
    except NoGpusError as error:
        raise click.ClickException(str(error)) from error
    except GpuChoiceError as error:
        option = "" if gpus is None else "--gpus: "
        raise click.UsageError(f"{option}{error}") from error
    return Supply(real.nodes, real)


def machine_name(root: Path) -> str:
    """Return the name of this machine."""
    folders = folders_at(root)
    try:
        return folders.machine_name()
    except StateError as error:
        raise click.ClickException(str(error)) from error


def folders_at(root: Path) -> Folders:
    folders = Folders(root)
    try:
        make_folders(folders)
    except StateError as error:
        raise click.ClickException(str(error)) from error
    return folders

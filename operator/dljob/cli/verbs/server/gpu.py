"""
``dljob gpu``: every GPU and who has it; taking one out, and giving it back.
"""

import click

from dljob.cli.inputs.completing import complete_gpus, complete_gpus_and_nodes
from dljob.cli.inputs.options import output_option, with_backend
from dljob.cli.output import texts
from dljob.cli.output.forms import to_json
from dljob.client.backend import Backend, Json, NotThere
from dljob.client.jobviews import read_time

HEADER = ("GPU", "STATE", "JOB", "SINCE", "TYPE")
WIDE = ("UUID", "WORKER")


@click.group("gpu")
def command() -> None:
    """
    List GPUs, take them out and give them back.
    """


@command.command("list")
@click.argument(
    "which", nargs=-1, metavar="[NODE|NODE/NUMBER]…", shell_complete=complete_gpus_and_nodes
)
@output_option("wide", "json")
@with_backend
def list_gpus(backend: Backend, *, which: tuple[str, ...], output: str | None) -> None:
    """
    List GPUs: the job of each and since when, or why no job may have it.

    All GPUs, or the named ones, alone or by their node. DLJob itself takes a GPU out of service
    where SideCars report an Xid of broken hardware or uncorrected memory errors; that lasts until
    you uncordon the GPU.
    """
    nodes = backend.list_nodes()
    if which:
        nodes = _choose(nodes, which)
    if output == "json":
        click.echo(to_json(nodes), nl=False)
        return
    wide = output == "wide"
    header = (*HEADER, *(WIDE if wide else ()), "REASON")
    rows = [_row(node, gpu, wide=wide) for node in nodes for gpu in node["gpus"]]
    click.echo(texts.tabulate(header, rows), nl=False)


def _choose(nodes: list[Json], which: tuple[str, ...]) -> list[Json]:
    """Keep the named GPUs, in the order of all."""
    wanted, found = set(which), set()
    chosen = []
    for node in nodes:
        names = {_name(node, gpu): gpu for gpu in node["gpus"]}
        is_whole = node["name"] in wanted
        found |= {node["name"], *names}
        left = [gpu for name, gpu in names.items() if is_whole or name in wanted]
        if left or is_whole:
            chosen.append({**node, "gpus": left})
    if missing := sorted(wanted - found):
        raise NotThere(f"no GPU or node {missing[0]}; dljob gpu list names all")
    return chosen


def _name(node: Json, gpu: Json) -> str:
    return f"{node['name']}/{gpu['index']}"


def _row(node: Json, gpu: Json, *, wide: bool) -> tuple[str, ...]:
    row: tuple[str, ...] = (
        _name(node, gpu),
        gpu["state"],
        gpu.get("job", texts.NOTHING),
        texts.age(read_time(gpu.get("since"))),
        node["gpuType"] or texts.NOTHING,
    )
    if wide:
        row = (*row, gpu.get("uuid", texts.NOTHING), str(gpu.get("worker", texts.NOTHING)))
    return (*row, gpu.get("reason", texts.NOTHING))


class _Gpu(click.ParamType[tuple[str, int]]):
    name = "gpu"

    def convert(
        self,
        value: object,
        param: click.Parameter | None,  # noqa: ARG002 - as click calls it
        ctx: click.Context | None,  # noqa: ARG002 - as click calls it
    ) -> tuple[str, int]:
        node, slash, number = str(value).rpartition("/")
        is_number = number.isascii() and number.isdigit() and len(number) < 6
        if not slash or not node or not is_number:
            raise click.BadParameter(f"{value!r} is not a GPU; write NODE/NUMBER, such as n1/3")
        return node, int(number)


_GPUS = click.argument(
    "gpus",
    nargs=-1,
    required=True,
    type=_Gpu(),
    metavar="NODE/NUMBER…",
    shell_complete=complete_gpus,
)


@command.command("cordon")
@_GPUS
@click.option("--reason", default="cordoned by hand", show_default=True, metavar="TEXT")
@with_backend
def cordon(backend: Backend, *, gpus: tuple[tuple[str, int], ...], reason: str) -> None:
    """
    Take GPUs out of service. A job that has one keeps it until its GPUs are next changed.
    """
    for node, number in gpus:
        backend.cordon(node, number, reason)
        click.echo(f"{node}/{number} cordoned")


@command.command("uncordon")
@_GPUS
@with_backend
def uncordon(backend: Backend, *, gpus: tuple[tuple[str, int], ...]) -> None:
    """
    Let GPUs be given to jobs again.
    """
    for node, number in gpus:
        was = backend.uncordon(node, number)["wasCordoned"]
        click.echo(f"{node}/{number} {'uncordoned' if was else 'was not cordoned'}")

"""
``dljob gpu``: every GPU and who has it; taking one out, and giving it back.
"""

import click

from dlctl import texts
from dlctl.backends import Backend, Json
from dlctl.choosing import output_option, with_backend
from dlctl.forms import to_json
from dlctl.jobviews import read_time

HEADER = ("GPU", "STATE", "JOB", "SINCE", "TYPE")
WIDE = ("UUID", "WORKER")


@click.group("gpu")
def command() -> None:
    """
    List GPUs, take them out and give them back.
    """


@command.command("list")
@output_option("wide", "json")
@with_backend
def list_gpus(backend: Backend, *, output: str | None) -> None:
    """
    List every GPU: who has it since when, or why nobody may have it.
    """
    nodes = backend.list_nodes()
    if output == "json":
        click.echo(to_json(nodes), nl=False)
        return
    wide = output == "wide"
    header = (*HEADER, *(WIDE if wide else ()), "REASON")
    rows = [_row(node, gpu, wide=wide) for node in nodes for gpu in node["gpus"]]
    click.echo(texts.tabulate(header, rows), nl=False)


def _row(node: Json, gpu: Json, *, wide: bool) -> tuple[str, ...]:
    row: tuple[str, ...] = (
        f"{node['name']}/{gpu['index']}",
        gpu["state"],
        gpu.get("job", texts.NOTHING),
        texts.age(read_time(gpu.get("since"))),
        node["gpuType"] or texts.NOTHING,
    )
    if wide:
        row = (*row, gpu.get("uuid", texts.NOTHING), str(gpu.get("worker", texts.NOTHING)))
    return (*row, gpu.get("reason", texts.NOTHING))


def _read_gpu(text: str) -> tuple[str, int]:
    node, slash, number = text.rpartition("/")
    if not slash or not node or not (number.isascii() and number.isdigit() and len(number) < 6):
        raise click.BadParameter(f"{text!r} is no GPU; write NODE/NUMBER, such as n1/3")
    return node, int(number)


class _Gpu(click.ParamType[tuple[str, int]]):
    name = "gpu"

    def convert(
        self,
        value: object,
        param: click.Parameter | None,  # noqa: ARG002 - as click calls it
        ctx: click.Context | None,  # noqa: ARG002 - as click calls it
    ) -> tuple[str, int]:
        return _read_gpu(str(value))


_GPUS = click.argument("gpus", nargs=-1, required=True, type=_Gpu(), metavar="NODE/NUMBER…")


@command.command("cordon")
@_GPUS
@click.option("--reason", default="cordoned by hand", show_default=True, metavar="TEXT")
@with_backend
def cordon(backend: Backend, *, gpus: tuple[tuple[str, int], ...], reason: str) -> None:
    """
    Give GPUs to nobody from now on. Who has one keeps it until its GPUs are next changed.
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

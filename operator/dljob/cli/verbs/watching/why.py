"""
``dljob why``: one sentence for each job, with the numbers of this moment.
"""

import click

from dljob.cli.inputs.options import name_argument, output_option, with_backend
from dljob.cli.output import texts
from dljob.cli.output.forms import to_json
from dljob.client.backend import Backend
from dljob.client.jobviews import JobView
from dljob.client.turns import describe_turn

INSET = "  "


@click.command("why")
@name_argument(several=True)
@output_option("json")
@with_backend
def command(backend: Backend, *, names: tuple[str, ...], output: str | None) -> None:
    """
    Explain what a job does now: why it waits and for which GPUs, or how it uses the GPUs that it has.

    The lines below give the expected start of a waiting job with the number of jobs before it, and
    the assumptions of the policy about the job. DLJob finds the start by playing the next 200
    decisions at most; it is unknown where the length of a running job is.
    """
    answers = [backend.explain(name) for name in names]
    if output == "json":
        for answer in answers:
            # `get -o json` prints the whole document of the job.
            queue = (answer.pop("job").get("status") or {}).get("queue")
            if queue is not None:
                answer["queue"] = queue
        click.echo(to_json(answers[0] if len(answers) == 1 else answers), nl=False)
        return
    for answer in answers:
        prefix = f"{answer['name']} " if len(answers) > 1 else ""
        click.echo(texts.flow(f"{prefix}{answer['message']}"), nl=False)
        turn = describe_turn(JobView.of(answer["job"], backend.home))
        for below in (*([turn] if turn else []), *answer["assumptions"]):
            click.echo(texts.flow(below, first=INSET, rest=INSET), nl=False)

"""
The command ``dljob``: where every verb begins and every error ends.

Installed as ``dljob`` and as ``kubectl-dljob``, which kubectl runs for ``kubectl dljob``. Each
verb is in a file that :mod:`dljob.cli.verb_list` names, and turns options into calls and results into
text.

Data goes to standard output and everything else to standard error. The exit status is 0 for success,
1 for a failure, 2 for wrong usage. Each mistake in an input is reported in one line;
only a mistake of our own ends in a traceback.
"""

import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from dljob.cli.output.messages import INTERRUPTED, MOST_LINES, say
from dljob.cli.output.streams import guard_output
from dljob.cli.verb_list import VERBS, LazyGroup
from dljob.client.backend import BackendError
from dljob.client.sources import WrongJobs
from dljob.sim.errors import BadInput
from dljob_wire.problems import WrongDocument

Told = click.ClickException | BadInput | WrongDocument | WrongJobs | BackendError
"""Errors whose cause the user can remove."""


@click.command(
    cls=LazyGroup,
    verbs=VERBS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="dljob", prog_name="dljob")
def cli() -> None:
    """Elastic GPU scheduling for deep-learning training: running jobs grow and shrink in place."""


def main() -> NoReturn:
    """Run the command line of this process, and exit."""
    if sys.stdout is not None and sys.stderr is not None:
        guard_output()
    # kubectl finds `kubectl-dljob` for `kubectl dljob`.
    is_plugin = Path(sys.argv[0]).name.startswith("kubectl-")
    sys.exit(run(sys.argv[1:], prog="kubectl dljob" if is_plugin else "dljob"))


def run(arguments: list[str], *, prog: str = "dljob") -> int:
    """Run a command line and return the exit status."""
    try:
        # A verb finds in the context what was typed (`dljob up --print-unit` repeats it).
        status = cli.main(arguments, prog_name=prog, standalone_mode=False, obj=tuple(arguments))
        # Only now the reader has all of the output.
        if sys.stdout is not None:
            sys.stdout.flush()
    except (click.ClickException, BadInput, WrongDocument, WrongJobs, BackendError) as error:
        return _refuse(error, prog)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe. Python would complain once more when it closes stdout.
        _give_up_output()
        return 1
    except OSError as error:
        _give_up_output()
        say(f"{prog}: cannot write the output ({error.strerror or error})")
        return 1
    except Exception as error:
        reason = _reason_of(error)
        if reason is None:
            raise
        say(f"{prog}: {reason}")
        return 1
    return status if isinstance(status, int) else 0


def _reason_of(error: Exception) -> Exception | None:
    """Return an error that the user can mend; ``None`` for a mistake of ours."""
    # Imported here, because most verbs end before the brain would be loaded.
    if isinstance(error, ModuleNotFoundError):
        from dljob.installed import find_missing  # noqa: PLC0415

        return find_missing(error)
    from dljob.core.checking import BrokenLaw  # noqa: PLC0415
    from dljob.installed import MissingExtra  # noqa: PLC0415

    return error if isinstance(error, BrokenLaw | MissingExtra) else None


def _give_up_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse(error: Told, prog: str) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return error.exit_code
    if isinstance(error, click.ClickException):
        context = error.ctx if isinstance(error, click.UsageError) else None
        verb = context.command_path if context is not None else prog
        say(f"{verb}: {' '.join(error.format_message().split())}")
        return error.exit_code
    lines = error.lines() if isinstance(error, WrongDocument) else [str(error)]
    if isinstance(error, WrongJobs):
        lines = list(error.lines)
    for line in lines[:MOST_LINES]:
        say(f"{prog}: {line}")
    if len(lines) > MOST_LINES:
        say(f"{prog}: and {len(lines) - MOST_LINES} more problems; fix these first")
    return 1

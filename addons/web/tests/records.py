"""A record with names that are attacks."""

from dljob.core.model import NodeName, Placement
from dljob.core.recording.record import (
    Decided,
    Ended,
    Expected,
    Given,
    Gpu,
    Happened,
    Header,
    Line,
    Phase,
    Progress,
    Record,
    Source,
    Stage,
    Submitted,
)

NODE = NodeName("node-2")
ONE = Placement.of({NODE: [0]})
BOTH = Placement.of({NODE: [0, 1]})

SCRIPT = "evil/</script><script>document.title='stolen'</script><img src=x onerror=alert(1)>"
TURNED = "=evil/a\u202eb\x07"
"""It changes the direction of what follows, and rings a bell."""


def hostile_record() -> Record:
    """Two jobs of hostile names on three GPUs: one is given two, changes, and ends; one waits."""
    gpus = [Gpu(at=1000.0, node="node-2", gpu=number, gpu_type="T4") for number in (0, 1)]
    lines: tuple[Line, ...] = (
        *gpus,
        Gpu(at=1000.0, node="node-10", gpu=0),
        Gpu(at=1040.0, node="node-10", gpu=0, in_service=False, reason="<b>ECC</b>"),
        Submitted(at=1000.0, job=SCRIPT, options=(1, 2), model="<i>m</i>"),
        Decided(
            at=1010.0,
            job=SCRIPT,
            step="start",
            generation=1,
            sentence="starts on 2 GPUs: <u>its turn</u>",
            new=BOTH,
            expected=Expected(
                iterations_per_second=2.0, confidence=0.5, remaining_seconds=60.0, pause_seconds=5.0
            ),
            cost_seconds=6.0,
        ),
        Given(at=1010.0, job=SCRIPT, generation=1, placement=BOTH),
        Phase(at=1010.0, job=SCRIPT, phase=Stage.ASKED, generation=1),
        Phase(at=1016.0, job=SCRIPT, phase=Stage.FIRST_STEP, generation=1),
        *(
            Progress(
                at=1016.0 + second,
                job=SCRIPT,
                iteration=2.0 * second,
                iterations_total=100.0,
                iterations_per_second=2.0,
                metric=4.0 - second / 20,
            )
            for second in range(40)
        ),
        Submitted(at=1050.0, job=TURNED),
        Decided(
            at=1060.0, job=SCRIPT, step="reshape", generation=2, old=BOTH, new=ONE, for_job=TURNED
        ),
        Given(at=1060.0, job=SCRIPT, generation=2, placement=ONE),
        Happened(at=1070.0, job=SCRIPT, name="Crashed", message="exit code 1", warning=True),
        Ended(at=1080.0, job=SCRIPT, outcome="Completed"),
    )
    header = Header(source=Source.MACHINE, until=1100.0, title="</title><script>alert(2)</script>")
    return Record.of(header, lines)

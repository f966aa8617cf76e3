"""
The remedy for each problem of a training that the SideCar reports.

The SideCar's state has a name for programs, and a message and a remedy for people.
"""

from __future__ import annotations

from dljob_wire.messages import Problem

REMEDIES = {
    "CannotStart": "run the command by hand in the container, and correct what it reports",
    "CheckpointFailed": "read the log of the training, and check the checkpoint settings of the job",
    "CheckpointIncomplete": "let the training write the whole checkpoint; checkpoint.files says which"
    " files are one checkpoint, and checkpoint.complete how DLJob sees that it is complete",
    "CheckpointMemoryTooSmall": "raise checkpoint.memory to at least twice the size of a checkpoint, or remove it",
    "CheckpointNotWrittenOut": "check whether the disk of checkpoint.path is full or slow; a checkpoint counts"
    " only when it is on that disk",
    "CheckpointPathDoesNotAnswer": "check the file system that holds the checkpoints; it does not answer",
    "CheckpointPathTooLarge": "let the job write its checkpoints to a folder of their own, and remove"
    " old ones",
    "CheckpointUnreadable": "check whether the disk is full, and what ends the training while it writes;"
    " checkpoint.vet: true moves torn checkpoints out of the way before a start",
    "CheckpointsNotInMemory": "correct the error in the message; until then the training writes to the disk,"
    " which takes longer",
    "CheckpointsNotTrusted": "set checkpoint.complete to a sign that the training writes last (marker,"
    " rename); DLJob trusts the checkpoints again after that change",
    "CommandNotExecutable": "make the command executable, or name its interpreter",
    "CommandNotFound": "name a command that exists where the job runs, by its full path, or add its"
    " folder to PATH",
    "DiskFull": "free space on the disk that the output is written to",
    "ExpressionGivenUp": "simplify the expressions: they take too long on the lines that the training prints",
    "ExpressionInvalid": "correct the regular expression; its syntax is that of Python's `re`",
    "ExpressionTooSlow": "avoid nested repetitions in the regular expression, such as (a+)+",
    "GPUMemoryNotReleased": "find the process that uses the GPU (nvidia-smi on the node), and check the driver"
    " (dmesg); the GPU stays with this job until its memory is as free as before, at most for"
    " releaseSeconds where that is set",
    "GPUNotEmpty": "find the process that uses the GPU (nvidia-smi on the node) and end it; no job gets the GPU"
    " until it is empty",
    "GPUReleasedInUse": "find the process that uses the GPU (nvidia-smi on the node) and end it; the next start checks"
    " the GPU itself and refuses one that is in use",
    "GPUsDoNotAnswer": "check the driver (nvidia-smi, dmesg); GPUs that cannot be shown to be free stay"
    " with the job",
    "GPUsNotResolved": "set gpus.ids: uuid in the job, or let NVML answer in the container (driver"
    " capability utility)",
    "GPUsNotVisible": "give the container the runtime class nvidia and NVIDIA_VISIBLE_DEVICES=all",
    "GPUsVanished": "the controller replaces the container, because only a new one sees the GPUs again; check whether"
    " systemd was reloaded on the node (docs/gpus.md), and the driver (dmesg)",
    "HelperCannotStart": "check that the SideCar's Python interpreter can start a second process",
    "LogUnreadable": "let logFile name a regular file",
    "NoWarmStart": "remove warmStart from the job, or correct the error in the message",
    "OutOfMemory": "raise resources.limits.memory, or let the training use less memory",
    "OutputLost": "check the program that reads the output of the container; it is too slow or has ended",
    "ProgressFileUnreadable": "let the training write a regular file that the SideCar's user may read",
    "ProgressNotMatched": "compare progress.log with the lines that the training prints; until a line"
    " matches, DLJob knows neither the progress of the job nor its expected end",
    "ProgressNotUnderstood": 'write one JSON object a line, such as {"iteration": 5}',
    "SparesLimited": "raise resources.limits.memory, or leave it: a start without a spare takes longer",
    "TooManyProcesses": "raise the process limit of the container, or start fewer processes",
    "TrainingHangs": "look at the rank whose stack differs: the others wait for it; the stacks are in the log,"
    " and docs/sidecar.md says how to get them at every start",
    "TrainingStalled": "read the log of the training",
    "UnknownGPUs": "name GPUs that the machine has, by index in bus order or by UUID",
}


def make_problem(name: str, message: str, *, gpus: tuple[str, ...] = ()) -> Problem:
    """Return a problem with the remedy for its name, which is one of the above."""
    return Problem(name, message, REMEDIES[name], gpus)

"""
What to do about each problem of a training that the machine itself does not know of.

A name stands in the state for programs, and beside it what happened and what to do, for people.
"""

from __future__ import annotations

from dlwire.messages import Problem

REMEDIES = {
    "CannotStart": "look whether the command can be run by hand in the container",
    "CheckpointFailed": "look into the log of the training, and at how the job says that it saves",
    "CheckpointIncomplete": "see that the training writes it as a whole; checkpoint.files names what is"
    " a checkpoint, checkpoint.complete how it is seen to be complete",
    "CheckpointPathDoesNotAnswer": "look at the file system that the checkpoints are written to",
    "CheckpointPathTooLarge": "let the job write its checkpoints to a folder of their own, and remove"
    " old ones",
    "CheckpointUnreadable": "look whether the disk is full, and what ends the training while it writes",
    "CheckpointsNotTrusted": "let checkpoint.complete name a sign that is written last (a marker, a"
    " rename); another sign is trusted again",
    "CommandNotExecutable": "make the command executable, or name its interpreter",
    "CommandNotFound": "give a command that exists where the job runs, with its full path, or put its"
    " folder into PATH",
    "DiskFull": "make room where the output is written",
    "ExpressionGivenUp": "look at what the expressions cost on the lines that the training prints",
    "ExpressionInvalid": "correct the expression; it is one of Python's `re`",
    "ExpressionTooSlow": "avoid repetitions inside repetitions in the expression",
    "GPUMemoryNotReleased": "look who else uses the GPU (nvidia-smi on the node), and at the driver"
    " (dmesg); it stays with this job until its memory is as free as before, or for as long as"
    " releaseSeconds says",
    "GPUNotEmpty": "look what uses the GPU (nvidia-smi on the node) and end it; the GPU is given to no job"
    " until it is seen empty",
    "GPUReleasedInUse": "look what uses the GPU (nvidia-smi on the node) and end it; the next start looks"
    " for itself and refuses a GPU that is in use",
    "GPUsDoNotAnswer": "look at the driver (nvidia-smi, dmesg); what cannot be seen to be free stays"
    " with the job",
    "GPUsNotResolved": "set gpus.ids: uuid in the job, or let NVML answer in the container (driver"
    " capability utility)",
    "GPUsNotVisible": "give the container the runtime class nvidia and NVIDIA_VISIBLE_DEVICES=all",
    "GPUsVanished": "only a new container gets them back, which the controller sees to; look whether"
    " systemd was reloaded on the node (docs/gpus.md), and at the driver (dmesg)",
    "HelperCannotStart": "see to it that the interpreter of the SideCar can start itself again",
    "LogUnreadable": "let --log-file name a regular file",
    "NoWarmStart": "remove warmStart from the job, or mend what is said",
    "OutOfMemory": "raise resources.limits.memory, or use less",
    "OutputLost": "look at who reads the output of the container",
    "ProgressFileUnreadable": "let the training write a regular file that its user may read",
    "ProgressNotMatched": "compare progress.log with what the training prints; how far it is cannot be"
    " told, and nothing that depends on it, before a line matches",
    "ProgressNotUnderstood": 'write one JSON object a line, such as {"iteration": 5}',
    "RendezvousCannotOpen": "see what listens at that port, and that the job is reached over IPv4; the"
    " next generation takes another port",
    "SparesLimited": "raise resources.limits.memory, or leave it: what starts cold takes longer",
    "TooManyProcesses": "raise the limit on processes of the container, or start fewer",
    "TrainingHangs": "look at the rank that differs from the others, which wait for it, and at the stacks in"
    " the log; to have them of every start, see docs/sidecar.md",
    "TrainingStalled": "look at the training's log",
    "UnknownGPUs": "name GPUs that the machine has, by index in bus order or by UUID",
}


def make_problem(name: str, message: str, *, gpus: tuple[str, ...] = ()) -> Problem:
    """Add the remedy, without which no problem is told; the name is one of the above."""
    return Problem(name, message, REMEDIES[name], gpus)

"""Which files are checkpoints, which are logs, and by what a checkpoint is complete."""

from __future__ import annotations

from dljob_sidecar.checkpoints.recognizing.signs import find_unit, is_noise, recognise, resolve
from dljob_wire.checkpoints import Checkpoint, Complete

NOISE = [
    "metrics.csv",
    "lightning_logs/version_0/metrics.csv",
    "runs/host/events.out.tfevents.1700000000.host.1.0",
    "train.log",
    "out/progress.jsonl",
    "wandb/run-1/files/config.yaml",
    "checkpoint-5.tmp/model.safetensors",
    ".tmp-5/model.pt",
    "metrics.json",
]


def test_logs_and_what_is_unfinished_are_no_checkpoints():
    assert [name for name in NOISE if not is_noise(name, ())] == []
    others = ("latest", "model.pt", "checkpoint-5/trainer_state.json", "a.json")
    assert [name for name in others if is_noise(name, ())] == []
    # A job may say that what looks like a log is its checkpoint.
    assert not is_noise("weights-5.txt", ("weights-*.txt",))
    assert is_noise("metrics.csv", ("*",))


def test_a_pattern_names_the_files_or_folders_that_are_one_checkpoint_each():
    for pattern, name, unit in (
        ("checkpoint-*", "checkpoint-5/model.bin", "checkpoint-5"),
        ("checkpoint-*", "runs/checkpoint-5/model.bin", None),
        ("**/checkpoint-*", "runs/checkpoint-5/model.bin", "runs/checkpoint-5"),
        ("**/*.ckpt", "a/b/last.ckpt", "a/b/last.ckpt"),
        ("run-?/step-*", "run-1/step-5/a/b", "run-1/step-5"),
        ("run-?/step-*", "run-1/other", None),
    ):
        assert find_unit(name, (pattern,)) == unit, (pattern, name)


FRAMEWORKS = {
    "checkpoint-5/training_args.bin": Complete.HUGGINGFACE,
    "out/checkpoint-5/trainer_state.json": Complete.HUGGINGFACE,
    # The files of FSDP below a Trainer's checkpoint are a part of that.
    "checkpoint-5/pytorch_model_fsdp_0/__0_0.distcp": Complete.HUGGINGFACE,
    "checkpoint-5/random_states_0.pkl": Complete.ACCELERATE,
    # So are those of others named.
    "checkpoint-5/model.safetensors": None,
    "checkpoint-5/optimizer.pt": None,
    "step_5/__0_0.distcp": Complete.DCP,
    ".metadata": Complete.DCP,
    "epoch=1-step=20.ckpt": Complete.LIGHTNING,
    "last.ckpt/.metadata": Complete.LIGHTNING,
    "global_step5/mp_rank_00_model_states.pt": Complete.DEEPSPEED,
    "iter_0000500/mp_rank_00/model_optim_rng.pt": Complete.MEGATRON,
    "ckpt-5.data-00000-of-00001": Complete.TENSORFLOW,
    "step-5/.dljob-complete": Complete.MARKER,
    "latest": None,
    "checkpoint": None,
    "step-5/model.pt": None,
}


def test_a_framework_is_recognised_by_files_that_only_it_writes():
    assert {name: recognise([name]) for name in FRAMEWORKS} == FRAMEWORKS


def test_what_is_written_now_decides_before_what_was_there():
    old, new = ["checkpoint-5/trainer_state.json"], ["step_5/__0_0.distcp"]
    assert resolve(Checkpoint(), new, known=old + new).complete is Complete.DCP
    assert resolve(Checkpoint(), ["unheard-of"], known=old).complete is Complete.HUGGINGFACE
    assert (
        resolve(Checkpoint(complete=Complete.SETTLED), new, known=new).complete is Complete.SETTLED
    )


def test_a_folder_that_only_resembles_a_checkpoint_of_a_framework_is_none():
    names = ["checkpoint-5/trainer_state.json", "checkpoint-best/config.json", "checkpoint-5-old/a"]
    signs = resolve(Checkpoint(), names, known=names)
    assert list(signs.group(dict.fromkeys(names))) == ["checkpoint-5"]


def test_a_checkpoint_of_lightning_is_a_file_or_one_of_two_kinds_of_folders():
    signs = resolve(Checkpoint(complete=Complete.LIGHTNING), (), known=())
    for files, missing in (
        ({"x.ckpt"}, ""),
        ({"x.ckpt/.metadata", "x.ckpt/meta.pt"}, ""),
        ({"x.ckpt/.metadata", "x.ckpt/__0_0.distcp"}, "meta.pt"),
        ({"x.ckpt/latest", "x.ckpt/checkpoint/zero.pt"}, ""),
        ({"x.ckpt/__0_0.distcp"}, "latest"),
    ):
        assert signs.missing("x.ckpt", files) == missing


def test_a_marker_stands_in_each_checkpoint_or_beside_them():
    saving = Checkpoint(files="step-*", complete=Complete.MARKER, marker="DONE")
    inside = resolve(saving, (), known=["step-5/model.bin"])
    assert inside.missing("step-5", ["step-5/model.bin"]) == "DONE"
    assert not inside.missing("step-5", ["step-5/model.bin", "step-5/DONE"])
    assert resolve(saving, (), known=["step-5/model.bin", "DONE"]).sign.pointer == "DONE"

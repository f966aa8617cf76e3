"""The recognition of checkpoints, of logs, and of complete checkpoints."""

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


def test_logs_and_temporary_files_are_noise():
    assert [name for name in NOISE if not is_noise(name, ())] == []
    others = ("latest", "model.pt", "checkpoint-5/trainer_state.json", "a.json")
    assert [name for name in others if is_noise(name, ())] == []
    # A job may declare that a log name is its checkpoint.
    assert not is_noise("weights-5.txt", ("weights-*.txt",))
    assert is_noise("metrics.csv", ("*",))


def test_pattern_names_one_checkpoint_each():
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
    # Files of FSDP below a Trainer's checkpoint are part of it.
    "checkpoint-5/pytorch_model_fsdp_0/__0_0.distcp": Complete.HUGGINGFACE,
    "checkpoint-5/random_states_0.pkl": Complete.ACCELERATE,
    # Other programs use these names, too.
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


def test_framework_is_recognised_by_its_files():
    assert {name: recognise([name]) for name in FRAMEWORKS} == FRAMEWORKS


def test_new_files_decide_before_old_ones():
    old, new = ["checkpoint-5/trainer_state.json"], ["step_5/__0_0.distcp"]
    assert resolve(Checkpoint(), new, known=old + new).complete is Complete.DCP
    assert resolve(Checkpoint(), ["unheard-of"], known=old).complete is Complete.HUGGINGFACE
    assert (
        resolve(Checkpoint(complete=Complete.SETTLED), new, known=new).complete is Complete.SETTLED
    )


def test_similar_folder_is_no_checkpoint():
    names = ["checkpoint-5/trainer_state.json", "checkpoint-best/config.json", "checkpoint-5-old/a"]
    signs = resolve(Checkpoint(), names, known=names)
    assert list(signs.group(dict.fromkeys(names))) == ["checkpoint-5"]


def test_lightning_checkpoint_is_a_file_or_folder():
    signs = resolve(Checkpoint(complete=Complete.LIGHTNING), (), known=())
    for files, missing in (
        ({"x.ckpt"}, ""),
        ({"x.ckpt/.metadata", "x.ckpt/meta.pt"}, ""),
        ({"x.ckpt/.metadata", "x.ckpt/__0_0.distcp"}, "meta.pt"),
        ({"x.ckpt/latest", "x.ckpt/checkpoint/zero.pt"}, ""),
        ({"x.ckpt/__0_0.distcp"}, "latest"),
    ):
        assert signs.missing("x.ckpt", files) == missing


def test_marker_is_inside_or_next_to_checkpoints():
    saving = Checkpoint(files="step-*", complete=Complete.MARKER, marker="DONE")
    inside = resolve(saving, (), known=["step-5/model.bin"])
    assert inside.missing("step-5", ["step-5/model.bin"]) == "DONE"
    assert not inside.missing("step-5", ["step-5/model.bin", "step-5/DONE"])
    assert resolve(saving, (), known=["step-5/model.bin", "DONE"]).sign.pointer == "DONE"

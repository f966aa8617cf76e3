"""``dljob run``: a command becomes a job, and its terminal follows it."""

import os
import pathlib
import re
import sys

import pytest
import yaml

from dljob.client.drafting import USUAL_PROGRESS, name_of
from dljob.core.documents import jobfile
from dljob.core.model import CauseCode, JobId, Phase
from tests.ctl.running import Live
from tests.ctl.terminals import Terminal
from tests.local.ups import going

TRAIN = """
import sys, time
for step in range(1, int(sys.argv[1]) + 1):
    print(f"step {step}", flush=True)
    time.sleep(0.05)
sys.exit(int(sys.argv[2]))
"""


def test_the_job_is_printed_as_the_file_that_would_be_submitted(played):
    result = played(
        *("run", "--dry-run", "-o", "yaml", "--gpus", "1,2,4", "--framework", "pytorch"),
        *("--checkpoint", "ckpt", "--checkpoint-signal", "SIGUSR1", "--priority", 3),
        *("--iterations", 500, "--batch-size", 64, "--model", "resnet18", "-e", "LR=0.1"),
        *("--label", "team=vision", "--deadline", "8h", "--retries", 2),
        *("--", "python", "-u", "lib/Train_Net.py", "--epochs", "3"),
    )
    assert (result.status, result.stderr) == (0, "")
    document = yaml.safe_load(result.stdout)
    job = jobfile.parse(document, require_template=True)
    assert (job.id, job.gpus.options, job.priority) == ("train-net", (1, 2, 4), 3)
    assert (job.checkpoint.signal, job.checkpoint.confirm) == ("SIGUSR1", "file")
    # Where it is submitted from, a relative folder begins.
    assert job.checkpoint.path == str(played.folder / "ckpt")
    assert job.training.iterations == 500
    assert (job.limits.backoff_limit, job.limits.active_deadline_seconds) == (2, 28_800)
    (trainer,) = document["spec"]["template"]["spec"]["containers"]
    assert trainer["command"] == ["python", "-u", "lib/Train_Net.py", "--epochs", "3"]
    assert trainer["env"] == [{"name": "LR", "value": "0.1"}]
    # It is a file like any other.
    path = played.folder / "printed.yaml"
    path.write_text(result.stdout, encoding="utf-8")
    assert played("submit", path).stdout == "train-net submitted\n"


def test_without_options_it_is_one_gpu_and_an_unknown_length(played):
    result = played("run", "--dry-run", "-o", "json", "--", "./train.sh")
    job = jobfile.parse(result.data, require_template=True)
    assert (job.id, job.gpus.options, job.training.until_exit) == ("train", (1,), True)
    preview = played("run", "--dry-run", "--", "./train.sh")
    assert preview.stdout.startswith("train starts on 1 GPU on n1")
    assert played("get").stderr == "There are no jobs.\n"
    assert "until its program ends" in describe(played, result.data)


def test_input_that_the_training_does_not_get_is_named(played, monkeypatch):
    source = played.folder / "config.json"
    source.write_text("{}")
    for path, is_named in ((source, True), (os.devnull, False)):
        with pathlib.Path(path).open(encoding="utf-8") as given:
            monkeypatch.setattr(sys, "stdin", given)
            result = played("run", "--detach", "--", "./train.sh")
        assert ("a job has no standard input" in result.stderr) == is_named


def describe(played, document):
    played("submit", played.file(document))
    return played("describe", document["metadata"]["name"]).stdout


def test_a_job_is_named_by_its_script():
    for words, name in (
        (["python", "train.py"], "train"),
        (["python", "-m", "lib.nets.train"], "train"),
        (["torchrun", "--nproc", "4", "a/Fine_Tune.py", "x.py"], "fine-tune"),
        (["/usr/bin/true"], "true"),
        (["___"], "job"),
        (["x" * 90 + ".py"], "x" * 40),
    ):
        assert name_of(words) == name


def test_the_usual_lines_tell_the_progress():
    for line, step in (
        ("step 12 loss 0.3", "12"),
        ("[Iter: 12/100]", "12"),
        ("Iteration=12", "12"),
        (" 12%|#2        | 12/100 [00:01<00:07]", "12"),
        # nanoGPT; mnist, imagenet and word_language_model of pytorch/examples; xgboost and LightGBM
        ("iter 120: loss 2.4317, time 31.22ms, mfu 0.42%", "120"),
        ("step 250: train loss 2.4512, val loss 2.4690", "250"),
        ("Train Epoch: 3 [6400/60000 (11%)]\tLoss: 0.214811", "6400"),
        ("Epoch: [0][  10/5005]\tTime  0.312 ( 1.402)\tLoss 6.91e+00", "10"),
        ("| epoch   2 |   200/ 2983 batches | lr 20.00 | ms/batch 12.31", "200"),
        ("[14]\ttrain-rmse:0.52103\teval-rmse:0.60120", "14"),
        # Lightning, Hugging Face, Keras 2 and 3
        ("Epoch 1:  40%|####      | 376/938 [00:04<00:06, 87.1it/s, v_num=3]", "376"),
        (" 44%|####3     | 218/500 [00:31<00:40,  6.92it/s]", "218"),
        ("  12/1875 [..............................] - ETA: 9s - loss: 2.1", "12"),
        (
            "\x1b[1m 51/422\x1b[0m \x1b[32m\u2501\u2501\x1b[0m\x1b[37m\u2501\x1b[0m \x1b[1m3s\x1b[0m 8ms/step - loss: 2",
            "51",
        ),
        ("422/422 \u2501\u2501\u2501\u2501 3s 7ms/step - accuracy: 0.91 - loss: 0.3", "422"),
        # What counts no step
        ("Validation DataLoader 0:  50%|#####     | 1/2 [00:00<00:00, 91.1it/s]", None),
        ("Sanity Checking DataLoader 0: 100%|##########| 2/2 [00:00<00:00]", None),
        ("Test: [ 0/196]\tTime 2.31", None),
        ("Val:  50%|#####     | 1/2 [00:00<00:00, 91.1it/s]", None),
        ("Validation step 3: loss 0.4", None),
        # A second bar, such as that of an evaluation of Hugging Face: tqdm brings the cursor back to the first one.
        ("  6%|6         | 1/16 [00:00<00:01, 9.17it/s]\x1b[A", None),
        ("Epochs:  20%|##        | 2/10 [00:41<02:40, 20.1s/it]", None),
        ("Map:  25%|##5       | 1000/4000 [00:00<00:00, 9121.31 examples/s]", None),
        ("Loading weights:  50%|#####     | 13/26 [00:00<00:00, 91.1it/s]", None),
        (
            "\x1b[1m7/7\x1b[0m \x1b[32m\u2501\u2501\x1b[0m\x1b[37m\x1b[0m \x1b[1m0s\x1b[0m 13ms/step",
            None,
        ),
        ("Test set: Average loss: 0.0521, Accuracy: 9833/10000 (98%)", None),
        ("[LightGBM] [Info] Number of positive: 212, number of negative: 357", None),
        ("| end of epoch   1 | time: 41.02s | valid loss  5.52", None),
        ("{'loss': 0.61, 'learning_rate': 4.2e-05, 'epoch': 0.3}", None),
        ("Epoch 2/5", None),
        ("epoch 3", None),
        ("| 0.5 | 12 |", None),
        ("steps", None),
    ):
        found = re.search(USUAL_PROGRESS, line)
        assert (found and found["iteration"]) == step


def test_epochs_are_found_in_lines_without_steps():
    for line, epoch in (
        ("Epoch 2/5", "2"),
        ("epoch 3/10 loss 0.5", "3"),
        ("[Epoch: 4] train loss: 0.41", "4"),
        ("Epoch [5/10], Loss: 0.21", "5"),
        ("Epoch 3, step 12: loss 0.5", None),
        ("Epoch 1:  40%|####      | 376/938 [00:04<00:06, 87.1it/s, v_num=3]", None),
        ("| end of epoch   1 | time: 41.02s | valid loss  5.52", None),
    ):
        found = re.search(USUAL_PROGRESS, line)
        assert (found and found["epoch"]) == epoch


def test_wrong_option_is_refused_by_field(played):
    result = played("run", "--name", "Not A Name", "--", "true")
    assert (result.status, result.stderr.startswith("dljob: run: metadata.name:")) == (1, True)
    assert played("run", "--gpus", "1", "--max-gpus", "2", "--", "true").status == 2
    assert played("run", "-e", "NOT_SET_ANYWHERE", "--", "true").status == 2
    assert played("run", "--label", "x", "--", "true").status == 2
    assert played("run").status == 2


def test_names_that_are_taken_are_counted_unless_they_are_given(played):
    assert played("run", "--detach", "--", "python", "a.py").stdout == "a submitted\n"
    assert played("run", "--detach", "--", "python", "a.py").stdout == "a-2 submitted\n"
    result = played("run", "--detach", "-o", "name", "--", "python", "a.py")
    assert result.stdout == "dljob.dljob.io/a-3\n"
    result = played("run", "--detach", "--name", "a", "--", "python", "a.py")
    assert result.status == 1
    assert 'metadata.name: "a" is a job already' in result.stderr


@pytest.mark.processes
@pytest.mark.story
def test_run_shows_the_wait_and_then_the_output(played):
    with Live("run", "--state", played.up.root, "--", "python", "a.py") as live:
        played.up.until_submitted("a")
        played.do("take", "a", CauseCode.NO_ROOM, message="waits: needs a GPU")
        played.do("give", "a", {"n1": (0,)})
        folder = played.up.root / "jobs" / "a"
        folder.mkdir(parents=True)
        (folder / "n1.log").write_text("step 1\n", encoding="utf-8")
        assert live.line() == "step 1\n"
        played.do("record", "a", phase=Phase.FAILED, exit_code=9, message="rank 0 broke")
        end = live.rest()
        assert end.status == 9
        assert end.stderr.endswith("a is Failed: rank 0 broke\n")


@pytest.mark.processes
def test_cancelled_job_is_reported(played):
    with Live("run", "--state", played.up.root, "--", "python", "a.py") as live:
        played.up.until_submitted("a")
        played.up.do(lambda stage: stage.registry.forget(JobId("a")))
        end = live.rest()
        assert (end.status, end.stderr.endswith("a was cancelled\n")) == (1, True)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("typed", "is_cancelled"), [("c\n", True), ("d\n", False), ("\x03", False)]
)
def test_ctrl_c_asks_and_a_second_one_leaves_the_job_running(played, typed, is_cancelled):
    words = ("run", "--state", played.up.root, "--", "python", "a.py")
    with Terminal(*words, cwd=played.folder) as terminal:
        terminal.until("a submitted")
        terminal.type("\x03")
        terminal.until("Leave a running (d, detach) or end it (c, cancel)?")
        terminal.type(typed)
        assert terminal.status(again=typed if typed == "\x03" else "") == 130
        told = "a cancelled" if is_cancelled else "a continues: dljob logs -f a shows its output"
        assert told in terminal.seen
    job = played("get", "a", "-o", "json").data
    assert job["status"].get("cancelled", False) is is_cancelled


@pytest.mark.processes
@pytest.mark.story
def test_ordinary_scripts_run_and_pass_their_exit_status_on(root):
    script = root / "train.py"
    script.write_text(TRAIN, encoding="utf-8")
    with going(root / "state", "--gpus", 2) as up:
        good = up("run", "--", sys.executable, script, 3, 0)
        assert (good.status, good.stdout) == (0, "step 1\nstep 2\nstep 3\n")
        assert "train is Completed" in good.stderr
        bad = up("run", "--", sys.executable, script, 1, 7)
        assert (bad.status, bad.stdout) == (7, "step 1\n")
        assert "train-2 is Failed" in bad.stderr
        assert os.fsdecode(script) in up("describe", "train").stdout

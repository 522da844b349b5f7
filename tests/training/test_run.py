"""A run: the same in all packages, resumed bit for bit, whatever broke it off; its records; what it refuses."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

from conformance.reports import files
from tests.support.helpers import PACKAGES
from tests.support.small_runs import OPTIONS, command, contents, logged, write_reviews
from training import checkpoints, records, reviews
from training.classifying import classify
from training.packages import PACKAGES as THREE

LAST, STEPS = "step-0000010", 10
"""Two epochs of 20 texts in batches of 4."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reviews(tmp_path_factory.mktemp("reviews"))


def trained(data: Path, out: Path, *more: Any, package: str = "reference_numpy") -> Any:
    return command("reviews", "--data", data, "--out", out, "--package", package, *OPTIONS, *more)


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed run of the definition."""
    out = tmp_path_factory.mktemp("whole") / "run"
    result = trained(data, out)
    assert result.exit_code == 0, result.output
    return out


# --- what a run leaves ------------------------------------------------------------------------------------------------


def test_a_run_learns_and_leaves_everything(whole: Path) -> None:
    assert sorted(one.name for one in whole.iterdir()) == ["curves.png", "events", "log.jsonl", "step-0000005", LAST]
    log = records.read(whole / "log.jsonl")
    steps, epochs = ([one for one in log if name in one] for name in ("loss", "held_out_loss"))
    assert [one["step"] for one in steps] == list(range(1, STEPS + 1))
    assert [(one["step"], one["epoch"]) for one in epochs] == [(5, 0), (10, 1)]
    assert np.mean([one["loss"] for one in steps[-3:]]) < np.mean([one["loss"] for one in steps[:3]])
    assert [one["rate"] for one in steps[:5]] == pytest.approx([0, 0.02 / 3, 0.04 / 3, 0.02, 0.02])
    assert (whole / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_printed(data: Path, tmp_path: Path) -> None:
    printed = trained(data, tmp_path / "run").output
    assert "20 texts to train on, 20 held out, 12 words, reference_numpy" in printed
    assert "naive Bayes on words: held-out accuracy " in printed
    assert "epoch 2  held-out loss " in printed
    assert f"wrote {tmp_path / 'run' / LAST}" in printed


def test_a_model_is_read_by_restore_of_every_package(whole: Path) -> None:
    for package in THREE.values():
        package.module.restore(whole / LAST / "model.safetensors")


def test_the_rate_falls_to_0_with_the_last_step_unless_told_otherwise(data: Path, tmp_path: Path) -> None:
    words = [word for word in OPTIONS if word != "--decay" and word != 0]
    result = command("reviews", "--data", data, "--out", tmp_path / "run", "--package", "reference_numpy", *words)
    assert result.exit_code == 0, result.output
    cosine = (1 + np.cos(np.pi * np.arange(STEPS) / STEPS)) / 2
    rates = logged(tmp_path / "run", "rate")
    np.testing.assert_allclose(rates, 0.02 * np.minimum(np.arange(STEPS) / 3, 1) * cosine, rtol=1e-12)
    longer = command("reviews", "--data", data, "--out", tmp_path / "run", "--resume", "--epochs", 3)
    assert "--resume: epochs was 2, and 3 is given" in longer.output


def events(folder: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "events"))
    found.Reload()
    return [(event.step, event.value) for event in found.Scalars(tag)]


def test_events_of_a_resumed_run_are_those_of_the_log(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    trained(data, out, "--steps", 8)
    (out / "step-0000008").rename(tmp_path / "away")  # steps 5 to 7 are taken again
    time.sleep(1.1)  # TensorBoard names its files by the second
    trained(data, out, "--resume")
    losses = [(one["step"], one["loss"]) for one in records.read(out / "log.jsonl") if "loss" in one]
    assert [step for step, _ in losses] == list(range(1, STEPS + 1))
    assert events(out, "training/loss") == [(step, float(np.float32(loss))) for step, loss in losses]
    assert len(events(out, "held out/accuracy")) == 2


# --- the same in all packages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["torch_impl", pytest.param("jax_impl", marks=pytest.mark.slow)])
def test_the_ports_train_as_the_definition_does(data: Path, whole: Path, tmp_path: Path, package: str) -> None:
    trained(data, tmp_path / "run", package=package)
    assert logged(tmp_path / "run", "accuracy") == logged(whole, "accuracy")
    assert logged(tmp_path / "run", "loss") == pytest.approx(logged(whole, "loss"), rel=1e-5)


ENDLESS = "fine dull moving cold the film plot and and and and and and"
TEXTS = ["warm and witty", "Stale a plot", "unknown words", ENDLESS]


def test_the_three_packages_classify_alike(whole: Path) -> None:
    checkpoint = checkpoints.read(whole)
    found = {name: classify(package, checkpoint, TEXTS) for name, package in THREE.items()}
    assert [one.label for one in found["reference_numpy"]][:2] == ["positive", "negative"]
    for name in PACKAGES[1:]:
        assert [one.label for one in found[name]] == [one.label for one in found["reference_numpy"]]
        ours, exact = ([one.probability for one in found[key]] for key in (name, "reference_numpy"))
        np.testing.assert_allclose(ours, exact, rtol=1e-13)


def test_classify_on_the_command_line(whole: Path) -> None:
    first, second = (command("classify", whole / LAST, TEXTS[0], "--package", name) for name in PACKAGES[:2])
    assert first.output == second.output
    assert first.output.startswith("positive 0.")
    several = command("classify", whole, "--package", "reference_numpy", input="\n".join(TEXTS) + "\n")
    lines = several.output.splitlines()
    assert lines[0] == f"{first.output.strip()}  {TEXTS[0]}"
    assert len(lines) == len(TEXTS)


# --- broken off and resumed -------------------------------------------------------------------------------------------


def same_run(out: Path, whole: Path, last: str = LAST) -> None:
    assert contents(out / last) == contents(whole / last)
    assert (out / "log.jsonl").read_text() == (whole / "log.jsonl").read_text()
    assert not list(out.glob(".*"))


@pytest.mark.parametrize("steps", [*(pytest.param(steps, marks=pytest.mark.slow) for steps in (1, 5)), 7])
def test_a_resumed_run_has_the_same_bits(data: Path, whole: Path, tmp_path: Path, steps: int) -> None:
    assert trained(data, tmp_path / "run", "--steps", steps).exit_code == 0
    assert trained(data, tmp_path / "run", "--resume").exit_code == 0
    same_run(tmp_path / "run", whole)


@pytest.mark.slow_where("jax_impl")
@pytest.mark.parametrize("package", PACKAGES[1:])
def test_a_resumed_run_of_the_ports_has_the_same_bits(data: Path, tmp_path: Path, package: str) -> None:
    trained(data, tmp_path / "whole", package=package)
    trained(data, tmp_path / "run", "--steps", 7, package=package)
    trained(data, tmp_path / "run", "--resume", package=package)
    same_run(tmp_path / "run", tmp_path / "whole")


def test_a_run_may_end_with_an_epoch_and_takes_no_step_that_was_taken(data: Path, tmp_path: Path) -> None:
    said = " ".join(trained(data, tmp_path / "run", "--steps", 5).output.split())
    assert "curves, log and events are in" in said
    assert "training loss" not in said  # the line of the epoch says more
    assert (tmp_path / "run" / "curves.png").exists()
    said = " ".join(trained(data, tmp_path / "run", "--resume", "--steps", 4).output.split())
    assert "has no steps left to take" in said
    assert [one.name for one in (tmp_path / "run").glob("step-*")] == ["step-0000005"]


def test_a_run_goes_on_in_the_package_that_it_began_in(data: Path, tmp_path: Path) -> None:
    said = trained(data, tmp_path / "run", "--steps", 2).output
    assert "step 2  training loss 0." in said
    words = ("reviews", "--data", data, "--out", tmp_path / "run", "--resume")
    assert "reference_numpy" in command(*words, "--steps", 3).output
    assert checkpoints.read(tmp_path / "run").package == "reference_numpy"
    told = command(*words, "--steps", 4, "--package", "torch_impl").output
    assert "the run began in reference_numpy, and goes on in torch_impl" in " ".join(told.split())
    assert "width was 8, and 128 is given" in " ".join(command(*words, "--tutorial").output.split())
    refused = command("reviews", "--data", data, "--out", tmp_path / "run" / "step-0000003", "--resume")
    assert (refused.exit_code, "is a checkpoint" in refused.output) == (2, True)


def test_a_fault_in_what_is_resumed_would_be_seen(data: Path, whole: Path, tmp_path: Path) -> None:
    """The moving averages of Adam begin anew."""
    trained(data, tmp_path / "run", "--steps", 7)
    checkpoint = checkpoints.read(tmp_path / "run")
    fresh = THREE["reference_numpy"].adam_start(checkpoint.parameters)._replace(step=7)
    checkpoints.write(tmp_path / "run", checkpoint._replace(state=fresh))
    trained(data, tmp_path / "run", "--resume")
    with pytest.raises(AssertionError):
        same_run(tmp_path / "run", whole)


def test_a_finished_run_is_left_as_it_is_and_may_go_on(data: Path, whole: Path, tmp_path: Path) -> None:
    trained(data, tmp_path / "run", "--epochs", 1)
    again = trained(data, tmp_path / "run", "--epochs", 1, "--resume")
    assert again.exit_code == 0
    assert "has no steps left" in again.output
    trained(data, tmp_path / "run", "--epochs", 2, "--resume")
    same_run(tmp_path / "run", whole)


LONG, LAST_OF_LONG = ("--epochs", 30), "step-0000150"


@pytest.fixture(scope="module")
def long(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed run that lasts long enough to be broken off."""
    out = tmp_path_factory.mktemp("long") / "run"
    trained(data, out, *LONG)
    return out


def process(data: Path, out: Path, *more: Any, first: str = "") -> subprocess.Popen[str]:
    """The command in a process of its own, which takes a line of Python first."""
    words = ["reviews", "--data", data, "--out", out, "--package", "reference_numpy", *OPTIONS, *more]
    return subprocess.Popen(
        [sys.executable, "-c", f"{first}\nfrom training.__main__ import app\napp()", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"COLUMNS": "1000"},
    )


def wait_for(out: Path, steps: int, running: subprocess.Popen[str]) -> None:
    while running.poll() is None and len(records.read(out / "log.jsonl")) < steps:
        time.sleep(0.001)


@pytest.mark.parametrize("steps", [70, *(pytest.param(steps, marks=pytest.mark.slow) for steps in (1, 6, 35, 99, 130))])
def test_a_killed_run_resumes_to_the_same_bits(data: Path, long: Path, tmp_path: Path, steps: int) -> None:
    """Killed while it writes as often as it can: an epoch has five steps, and a checkpoint."""
    running = process(data, tmp_path / "run", *LONG)
    wait_for(tmp_path / "run", steps, running)
    running.kill()
    running.communicate()
    assert running.returncode == -signal.SIGKILL
    assert trained(data, tmp_path / "run", *LONG, "--resume").exit_code == 0
    same_run(tmp_path / "run", long, LAST_OF_LONG)


DYING = """
import os, signal
from conformance.reports import files
real, left = files.synchronise, [{number}]
def synchronise(path):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    real(path)
files.synchronise = synchronise
"""


@pytest.mark.parametrize(
    "number", [4, 8, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3, 5, 6, 7, 9, 12))]
)
def test_a_run_killed_between_two_files_resumes_to_the_same_bits(
    data: Path, whole: Path, tmp_path: Path, number: int
) -> None:
    """The log is synchronised twice, then six times for each checkpoint: four files and two folders."""
    running = process(data, tmp_path / "run", first=DYING.format(number=number))
    running.communicate()
    assert running.returncode == -signal.SIGKILL
    assert len(list((tmp_path / "run").glob("step-*"))) == (number > 7) + (number > 13)
    assert trained(data, tmp_path / "run", "--resume").exit_code == 0
    same_run(tmp_path / "run", whole)


IN_PLACE = """
from training import checkpoints
def write_folder(path, write):
    path.mkdir()
    write(path)
    for file in path.iterdir():
        files.synchronise(file)
checkpoints.write_folder = write_folder
"""


def test_a_checkpoint_written_under_its_final_name_would_be_seen(data: Path, tmp_path: Path) -> None:
    process(data, tmp_path / "run", first=DYING.format(number=4) + IN_PLACE).communicate()
    assert list((tmp_path / "run").glob("step-*"))  # where the test above sees none


def test_an_interrupted_run_writes_where_it_is(data: Path, long: Path, tmp_path: Path) -> None:
    running = process(data, tmp_path / "run", *LONG)
    wait_for(tmp_path / "run", 3, running)
    running.send_signal(signal.SIGINT)
    printed, _ = running.communicate()
    assert running.returncode == 130
    assert printed.endswith("interrupted\n")
    assert "Traceback" not in printed
    assert checkpoints.read(tmp_path / "run").place.step == len(logged(tmp_path / "run", "loss"))
    trained(data, tmp_path / "run", *LONG, "--resume")
    same_run(tmp_path / "run", long, LAST_OF_LONG)


# --- files ------------------------------------------------------------------------------------------------------------


def broken_off(path: Path) -> None:
    target = path / "file" if path.is_dir() else path
    target.write_text("half")
    raise OSError(28, "No space left on device")


def test_a_file_and_a_folder_are_whole_or_not_there(tmp_path: Path) -> None:
    files.write_whole(tmp_path / "file", lambda path: path.write_text("before"))
    files.write_folder(tmp_path / "folder", lambda path: (path / "file").write_text("before"))
    for write, name in ((files.write_whole, "file"), (files.write_folder, "folder")):
        with pytest.raises(OSError, match="No space left"):
            write(tmp_path / name, broken_off)
    assert (tmp_path / "file").read_text() == (tmp_path / "folder" / "file").read_text() == "before"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "folder"]


def test_a_full_disk_is_one_line_and_leaves_the_earlier_checkpoint(data: Path, tmp_path: Path) -> None:
    trained(data, tmp_path / "run", "--steps", 5)
    size = max(one.stat().st_size for one in (tmp_path / "run" / "step-0000005").iterdir())

    limit = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({size - 1000}, {size - 1000}))"
    running = process(data, tmp_path / "run", "--resume", first=limit)
    printed, _ = running.communicate()
    assert running.returncode == 2, printed
    assert "File too large" in printed.splitlines()[-1]
    assert "Traceback" not in printed
    assert sorted(one.name for one in (tmp_path / "run").glob("*step*")) == ["step-0000005"]
    checkpoints.read(tmp_path / "run")


def refused(result: Result, message: str) -> None:
    """In one line."""
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert len(result.output.splitlines()) == 1


# --- what is refused --------------------------------------------------------------------------------------------------


def test_numbers_that_stop_being_finite_end_the_run(data: Path, tmp_path: Path) -> None:
    result = trained(data, tmp_path / "run", "--learning-rate", 1e38, "--clip", 1e30)
    assert result.exit_code == 1
    line = result.output.splitlines()[-1]
    assert line.startswith("step 3: the loss is nan; the first tensor that is not finite is the result of ")


def test_the_first_tensor_that_is_not_finite_is_named(whole: Path, data: Path, tmp_path: Path) -> None:
    trained(data, tmp_path / "run", "--steps", 5)
    checkpoint = checkpoints.read(tmp_path / "run")
    checkpoint.parameters.encoder.blocks[0].feed_forward.outer.bias[3] = np.inf
    checkpoints.write(tmp_path / "run", checkpoint)
    result = trained(data, tmp_path / "run", "--resume")
    assert result.exit_code == 1
    assert "the parameter encoder.blocks.0.feed_forward.outer.bias" in result.output


DAMAGES = [
    ("vocabulary.json", lambda now, _: now.replace(b'":1', b'":1,"surplus":12'), "has 13 entries, and the model 12"),
    ("vocabulary.json", lambda *_: b"{", "cannot be read as a vocabulary"),
    ("model.safetensors", lambda now, _: now[:-10], "cannot be read as a safetensors file"),
    ("run.json", lambda *_: b'{"model": "bert"}', "was not written by a training run"),
    ("run.json", lambda now, _: now.replace(b'"heads": 2', b'"heads": 4'), "another model than"),
    ("run.json", lambda now, _: now.replace(b'"heads": 2', b'"heads": 2, "colour": 4'), "is no whole checkpoint"),
    ("optimizer.safetensors", lambda _, earlier: earlier, "is not the optimizer's state after 10 steps"),
]
"""A file, what is in it instead, by what is in it now and in an earlier checkpoint, and what is said."""


@pytest.mark.parametrize(("name", "damage", "message"), DAMAGES, ids=[message for *_, message in DAMAGES])
def test_checkpoints_that_do_not_fit_are_refused(
    whole: Path, tmp_path: Path, name: str, damage: Callable[[bytes, bytes], bytes], message: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    (run / LAST / name).write_bytes(damage(*((run / folder / name).read_bytes() for folder in (LAST, "step-0000005"))))
    refused(command("classify", run, "a film", "--package", "reference_numpy"), message)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    result = command("classify", tmp_path, "a film", "--package", "reference_numpy")
    assert (result.exit_code, result.output) == (2, f"{tmp_path} is no checkpoint\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--width", 9), "width must be divisible by heads, got 9 and 2"),
        (("--dropout", 1.0), "dropout must be at least 0 and below 1"),
        (("--pooling", "sum"), "pooling must be one of 'max', 'mean'"),
        (("--vocabulary", 2), "vocabulary must be an integer of at least 3"),
        (("--batch", 0), "batch must be an integer of at least 1"),
        (("--dtype", "int8"), "dtype must be one of float32, float64"),
        (("--learning-rate", "nan"), "learning_rate must be above 0 and finite"),
        (("--data", "nowhere"), "there is no folder nowhere"),
        (("--package", "keras"), "--package must be one of torch_impl, jax_impl, reference_numpy"),
    ],
)
def test_wrong_words_are_refused(data: Path, tmp_path: Path, words: tuple[Any, ...], message: str) -> None:
    refused(trained(data, tmp_path / "run", *words), message)
    assert not (tmp_path / "run").exists()


def test_another_run_is_not_overwritten_or_mixed_up(data: Path, whole: Path, tmp_path: Path) -> None:
    assert f"{whole} has a run already" in trained(data, whole).output
    assert "--resume: seed was 0, and 7 is given" in trained(data, whole, "--resume", "--seed", 7).output
    other = write_reviews(tmp_path / "other", texts=6)
    refused = trained(other, whole, "--resume")
    assert refused.exit_code == 2
    assert "was trained on other texts" in refused.output
    (tmp_path / "file").write_text("")
    assert "is no folder" in trained(data, tmp_path / "file").output


@pytest.mark.parametrize(
    ("input", "message"), [("good\n\nbad\n", "text 2 has no words"), ("", "standard input has no lines")]
)
def test_lines_without_words_are_refused(whole: Path, input: str, message: str) -> None:
    result = command("classify", whole, "--package", "reference_numpy", input=input)
    assert (result.exit_code, result.output) == (2, f"{message}\n")


@pytest.mark.slow
def test_all_that_is_held_out_gets_the_same_labels(tmp_path: Path) -> None:
    """The movie sentences after 300 steps at the default sizes."""
    result = command("reviews", "--out", tmp_path / "run", "--steps", 300)
    assert result.exit_code == 0, result.output
    texts = reviews.movie_sentences().held_out.texts
    checkpoint = checkpoints.read(tmp_path / "run")
    exact, *others = (classify(THREE[name], checkpoint, texts) for name in PACKAGES)
    assert 100 < sum(one.label == "positive" for one in exact) < 900
    for found in others:
        assert [one.label for one in found] == [one.label for one in exact]
        np.testing.assert_allclose([one.probability for one in found], [one.probability for one in exact], rtol=1e-12)

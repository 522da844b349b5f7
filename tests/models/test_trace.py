"""`conformance trace`: which attention is drawn, which step disagrees, and what cannot be used."""

from __future__ import annotations

import importlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conformance.models import minilm
from conformance.models.inside import functions_of, list_pieces, pieces_of, settings_of
from conformance.models.stepwise import Oracle, Taken, framework_of, record_steps
from conformance.models.structures import widen_parameters
from conformance.reports.models import draw_weights, format_ratio, grid_columns
from reference_numpy import Model
from specification.dialects import read
from specification.parameters import mapped
from tests.models.test_dialects import filled, state
from tests.models.test_port import saved, write
from tests.support.helpers import PACKAGES, command, output_of
from tests.support.small_models import GPT2, Maker, fitted


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dawn() -> tuple[str, ...]:
    return ("--checkpoint", *saved("dawn"))


@pytest.mark.slow
@pytest.mark.skipif(bool(minilm.missing_packages()), reason=f"not installed: {', '.join(minilm.missing_packages())}")
def test_a_trained_model_on_a_sentence() -> None:
    output = output_of("trace", "It is a picture.", "--json", "trace.json")
    assert output.splitlines()[0] == "[CLS] it is a picture . [SEP]"
    assert json.loads(Path("trace.json").read_text())["dialect"] == "bert"


@pytest.mark.parametrize("name", ["port", "trace"])
def test_a_trained_model_that_is_not_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minilm, "PACKAGE", "nowhere")
    assert command(name) == (2, "not installed: nowhere; name a checkpoint instead\n")


@pytest.mark.slow
def test_the_attention_is_chosen_by_its_name(folder: Path) -> None:
    step = "decoder.blocks.0.cross_attention"
    output = output_of("trace", "5,7,2/3,1", *dawn(), "--layer", step, "--picture", "weights.svg")
    assert f"{step} drawn in weights.svg" in output
    assert output.splitlines()[:2] == ["5 7 2", "3 1"]
    assert "every step keeps its bound in reference_numpy, torch_impl, jax_impl" in output
    assert "<svg" in (folder / "weights.svg").read_text()


INSIDE = ["queries", "keys", "values", "scores", "scores, masked", "weights", "weighted values", "heads merged"]


def rows(output: str) -> list[str]:
    """The names of the steps in the table."""
    return [line.split("\N{BOX DRAWINGS LIGHT VERTICAL}")[1].strip() for line in output.splitlines() if line[0] == BAR]


BAR = "\N{BOX DRAWINGS LIGHT VERTICAL}"


def test_what_lies_inside_is_shown_of_one_block_or_of_all() -> None:
    """In the order in which it is computed, before the step that it belongs to."""
    _, output = command("trace", "5,7,2/3,1", *dawn(), "--layer", "decoder.blocks.0")
    first = rows(output).index("decoder.blocks.0.self_attention: queries")
    step = "decoder.blocks.0.self_attention"
    assert rows(output)[first : first + 9] == [*(f"{step}: {piece}" for piece in INSIDE), step]
    assert "decoder.blocks.0.cross_attention: weights" in rows(output)
    forward = "decoder.blocks.0.feed_forward"
    assert [row for row in rows(output) if row.startswith(forward)][:3] == [
        f"{forward}: pre-activation", f"{forward}: activation", forward,
    ]  # fmt: skip
    assert "encoder.blocks.0.attention: queries" not in rows(output)
    _, output = command("trace", "5,7,2/3,1", *dawn())
    assert "encoder.blocks.0.attention: queries" in rows(output)
    assert "decoder.blocks.0.self_attention: queries" not in rows(output)
    _, output = command("trace", "5,7,2/3,1", *dawn(), "--all")
    assert {"encoder.blocks.0.attention: queries", "decoder.blocks.0.self_attention: queries"} <= {*rows(output)}


def test_names_are_whole_on_a_narrow_terminal() -> None:
    _, output = command("trace", "5,7,2/3,1", *dawn(), "--layer", "decoder.blocks.0", width=80)
    assert {f"decoder.blocks.0.cross_attention: {piece}" for piece in INSIDE} <= {*rows(output)}
    assert all(len(line) <= 80 for line in output.splitlines() if line[0] == BAR)


def test_pieces_put_together_are_the_step() -> None:
    """Shapes, and what the mask forbids; the last piece and the output's projection give the step's result."""
    parameters = fitted(Maker(dtype="float32").language_model(1), GPT2)
    oracle = Oracle(Model(widen_parameters(parameters), GPT2), (np.array([[3, 1, 4, 1, 5]]),), {}, "float32")
    found = {p.name.split(": ")[1]: p for p in pieces_of(oracle, "decoder.blocks.0.self_attention", PACKAGES)}
    assert list(found) == INSIDE
    assert found["queries"].shape == found["weighted values"].shape == (1, 4, 5, 4)
    assert found["scores"].shape == found["weights"].shape == (1, 4, 5, 5)
    assert found["heads merged"].shape == (1, 5, 16)
    assert (found["scores, masked"].smallest, found["weights"].smallest) == (-np.inf, 0)
    assert found["scores"].smallest > -np.inf
    assert found["weights"].largest == 1
    for piece in found.values():
        assert tuple(piece.ratios) == PACKAGES
        assert all(ratio <= 1 for ratio in piece.ratios.values()), piece.name


FAULTS = {
    "queries": ("multi_head_attention", "split_heads", lambda right: lambda x, heads: right(x, heads).flip(-1)),
    "scores": ("attention_steps", "attention_scores", lambda right: lambda *a, **k: 1.001 * right(*a, **k)),
    "scores, masked": ("masks", "materialize", lambda right: lambda *a, **k: ~right(*a, **k)),
    "weights": ("attention", "attention_weights", lambda right: lambda *a, **k: 1.001 * right(*a, **k)),
    "weighted values": ("attention", "attention", lambda right: lambda *a, **k: 1.001 * right(*a, **k)),
    "heads merged": ("multi_head_attention", "concatenate_heads", lambda right: lambda x: right(x).flip(-1)),
}


@pytest.mark.parametrize("piece", FAULTS)
def test_the_piece_that_disagrees_is_named(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file, name, fault = FAULTS[piece]
    package, module = importlib.import_module("torch_impl"), importlib.import_module(f"torch_impl.{file}")
    wrong = fault(getattr(module, name))
    for place in (package, module):
        monkeypatch.setattr(place, name, wrong, raising=False)
    _, output = command("trace", "5,7,2/3,1,3", *dawn(), "--layer", "decoder.blocks.0.self_attention", "--all")
    (line,) = (line for line in output.splitlines() if "the first error beyond its bound" in line)
    assert "torch_impl in" in line
    assert f": {piece}" in output
    beyond = [row for row in output.splitlines() if row[0] == BAR and row.split(BAR)[1].strip().endswith(f": {piece}")]
    assert any(float(row.split(BAR)[6]) > 1 for row in beyond)
    assert all(float(row.split(BAR)[place]) <= 1 for row in beyond for place in (5, 7))


def test_an_unknown_attention_is_answered_with_all_names() -> None:
    output = output_of("trace", "5,7,2", *dawn(), "--layer", "blocks.9.attention", code=2)
    names = "encoder.blocks.0.attention, decoder.blocks.0.self_attention, decoder.blocks.0.cross_attention"
    assert f"no attention is called blocks.9.attention; there are {names}" in output


def test_the_step_that_disagrees_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    activations = importlib.import_module("torch_impl.feed_forward").ACTIVATIONS
    monkeypatch.setitem(activations, "relu", lambda x: 1.001 * x.relu())
    output = output_of("trace", "5,7,2", *dawn(), code=1)
    assert "the first error beyond its bound: torch_impl in encoder.blocks.0.feed_forward: activation" in output
    output = output_of("trace", "5,7,2", *dawn(), "--layer", "decoder.blocks.0", code=1)
    lines = output.splitlines()
    assert "the first error beyond its bound: torch_impl in encoder.blocks.0.feed_forward" in lines


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("5,7", "--picture", "x.unknown"), "x.unknown: a picture ends in one of .png, .svg, .pdf"),
        (("5,7", "--picture", "picture"), "picture: a picture ends in one of"),
        (("5,7", "--picture", "nowhere/x.png"), "nowhere/x.png: the folder does not exist"),
        (("5,-7",), "ids must lie in [0, 11)"),
        (("5,7.0",), "token ids are numbers with commas between them"),
        (("",), "token ids are numbers with commas between them"),
        (("5,99999999999999999999",), "token ids are numbers with commas between them"),
        (("5/7/2",), "this model takes a source and a target"),
    ],
)
def test_what_cannot_be_used_is_told_in_one_line(words: tuple[str, ...], message: str) -> None:
    output = output_of("trace", *words, *dawn(), code=2)
    assert message in output
    assert len(output.splitlines()) == 1


def test_a_sequence_of_nothing_but_padding() -> None:
    """All scores are -inf behind the mask there, as they should be."""
    output_of("trace", "0,0/0,0", *dawn(), "--all")


def test_models_that_take_embeddings() -> None:
    write(state(filled(torch.nn.TransformerEncoderLayer(16, 4, 24))))
    words = ("--checkpoint", "model.safetensors", "--dialect", "pytorch", "--set", "num_heads=4")
    assert "this model takes embeddings" in output_of("trace", "5,7", *words, code=2)


def test_a_model_of_one_sequence_takes_no_two() -> None:
    output = output_of("trace", "5/7", "--checkpoint", *saved("imdb-classifier, max"), code=2)
    assert "this model takes one sequence" in output


@pytest.mark.slow
def test_a_picture_has_room_for_its_words(folder: Path) -> None:
    """Panels as nearly square as they fill rows; words of neighbouring tokens do not touch, nor panels each other."""
    from matplotlib import pyplot

    assert [grid_columns(heads) for heads in (1, 2, 4, 6, 7, 8, 12, 16)] == [1, 2, 2, 3, 3, 4, 4, 4]
    drawn = []
    close = pyplot.close
    pyplot.close = drawn.append  # kept, to be looked at
    try:
        for heads, queries, keys in ((12, 18, 18), (8, 5, 12), (1, 2, 3), (12, 79, 79)):
            words = [["somewhat"] * length for length in (queries, keys)]
            draw_weights(np.ones((heads, queries, keys)) / keys, *words, "title", folder / "weights.png")
            figure = drawn.pop()
            boxes = [axis.get_tightbbox() for axis in figure.axes if axis.get_visible() and axis.axison]
            assert len(boxes) == heads + 1
            assert not any(a.overlaps(b) for number, a in enumerate(boxes) for b in boxes[:number])
            for labels in (figure.axes[0].get_xticklabels(), figure.axes[0].get_yticklabels()):
                extents = [label.get_window_extent() for label in labels]
                assert not any(a.overlaps(b) for a, b in itertools.pairwise(extents))
            close(figure)
    finally:
        pyplot.close = close


def test_small_errors_are_told_from_none() -> None:
    assert [format_ratio(ratio) for ratio in (0, 2e-6, 0.25, 1234.5, np.inf)] == [
        "0",
        "2e-06",
        "0.25",
        "1234.50",
        "inf",
    ]
    assert format_ratio(205758820.6) == "2.06e+08"


# --- values that were computed elsewhere ------------------------------------------------------------------------------

INPUT = "5,7,2/3,1"


def steps_in(dtype: str) -> dict[str, Taken]:
    file, _, dialect, setting = saved("dawn")
    parameters, configuration = read(dialect, file, num_heads=int(setting.removeprefix("--set=num_heads=")))
    parameters = mapped(lambda array: array.astype(dtype), parameters)
    inputs = tuple(np.array([[int(word) for word in part.split(",")]]) for part in INPUT.split("/"))
    return record_steps(Model(parameters, configuration), inputs, {})[0]


def compared(arrays: dict[str, np.ndarray], *, code: int = 0) -> str:
    """What is said of these values."""
    np.savez("own.npz", **arrays)
    return output_of("trace", INPUT, *dawn(), "--against", "own.npz", code=code)


def computed(dtype: str) -> dict[str, np.ndarray]:
    """Every step of the definition's own model in that dtype."""
    return {name: np.asarray(step.result) for name, step in steps_in(dtype).items()}


def test_what_is_saved_is_compared(folder: Path) -> None:
    output = output_of("trace", INPUT, *dawn(), "--save", "steps.npz", "--json", "trace.json")
    arrays = dict(np.load("steps.npz"))
    report = json.loads(Path("trace.json").read_text())
    assert f"{len(arrays)} steps saved in steps.npz" in output
    assert (report["conforms"], report["judged"], report["first_beyond"], report["against"]) == (True, True, None, None)
    assert {*arrays} <= {step["name"] for step in report["steps"]}
    assert set(report["steps"][0]["ratios"]) == set(PACKAGES)
    output = output_of("trace", INPUT, *dawn(), "--against", "steps.npz")
    assert f"{len(arrays)} of {len(arrays)} steps are in steps.npz, in float64" in output
    assert "none departs; the largest error ratio is 0" in output
    step = "decoder.blocks.0.self_attention"
    arrays[step][0, 0, 1] += 1e-6
    np.savez("steps.npz", **arrays)
    output = output_of("trace", INPUT, *dawn(), "--against", "steps.npz", "--json", "trace.json", code=1)
    assert f"the first that departs is {step}[0, 0, 1]: got " in output
    report = json.loads(Path("trace.json").read_text())
    assert (report["against"]["first"]["step"], report["conforms"], report["first_beyond"]) == (step, False, None)


def test_a_port_in_sixteen_bits_has_rounded_weights(folder: Path) -> None:
    """The steps of a model in float16, whose embedding looks up numbers that the checkpoint does not hold."""
    arrays = computed("float16")
    output = compared(arrays)
    assert "the checkpoint's weights were rounded to float16 first" in output
    step = next(iter(arrays))
    arrays[step] = np.nextafter(arrays[step], np.float16(9))
    assert f"the first that departs is {step}[" in compared(arrays, code=1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_honest_values_keep_their_carried_bounds(folder: Path, dtype: str) -> None:
    arrays = computed(dtype)
    output = compared(arrays)
    assert f"steps are in own.npz, in {dtype}; their bounds are carried from the input" in output
    step = "encoder.blocks.0.attention"
    output = compared({step: 1.01 * arrays[step], "another": arrays[step]}, code=1)
    assert f"the first that departs is {step}" in output
    assert "names of no step or piece: another" in output
    before = list(arrays)[: list(arrays).index(step)]
    assert f"to narrow it down, save these too: {before[0]} {before[1]} " in " ".join(output.split())
    output = compared(arrays | {step: 1.01 * arrays[step]}, code=1)
    assert f"to narrow it down, save these too: {step}: queries {step}: keys {step}: values" in " ".join(output.split())


def computed_inside(dtype: str) -> dict[str, np.ndarray]:
    """Every step and piece of the definition's own model in that dtype, each from the model's own values."""
    found = computed(dtype)
    numpy, functions = framework_of("reference_numpy"), functions_of("reference_numpy")
    for step, taken in steps_in(dtype).items():
        if not list_pieces(taken):
            continue
        values, settings = {"x": taken.arguments[1], "memory": taken.arguments[2]}, settings_of(taken, numpy, dtype)
        for piece in list_pieces(taken):
            made = np.asarray(piece.compute(functions, settings, *map(values.get, piece.takes)))
            values[piece.name] = found[f"{step}: {piece.name}"] = made.astype(dtype)
    return found


def test_pieces_are_saved_and_compared(folder: Path) -> None:
    output = output_of("trace", INPUT, *dawn(), "--all", "--save", "steps.npz")
    arrays = dict(np.load("steps.npz"))
    pieces = {*arrays} - {*steps_in("float64")}
    assert f"{len(arrays) - len(pieces)} steps and {len(pieces)} pieces inside saved in steps.npz" in output
    step = "decoder.blocks.0.self_attention"
    assert {f"{step}: {piece}" for piece in INSIDE} <= pieces
    masked = arrays[f"{step}: scores, masked"]
    assert masked[0, 0, 0, 1] == -np.inf
    masked[0, 0, 0, 1] = 0.0
    np.savez("mine.npz", **{f"{step}: scores, masked": masked, f"{step}: scores": arrays[f"{step}: scores"]})
    output = output_of("trace", INPUT, *dawn(), "--against", "mine.npz", code=1)
    assert f"mine.npz: the first that departs is {step}: scores, masked[0, 0, 0, 1]: got 0.0, expected -inf" in output
    assert f"0 of {len(arrays) - len(pieces)} steps and 2 pieces inside are in mine.npz, in float64" in output
    assert "names of no" not in output
    yours = {row.split(BAR)[1].strip(): row.split(BAR)[-2].strip() for row in output.splitlines() if row[0] == BAR}
    assert [yours[f"{step}: {piece}"] for piece in ("scores", "scores, masked", "weights")] == ["0", "inf", "-"]
    assert output.index("every step keeps its bound in") < output.index(
        "mine.npz: the first"
    )  # what is asked stands last


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_lowest_number_forbids_a_pair(folder: Path, dtype: str) -> None:
    """In masked scores alone, and where the mask forbids the pair; the departures after the first are told, too."""
    arrays, step = computed_inside(dtype), "decoder.blocks.0.self_attention"
    masked = arrays[f"{step}: scores, masked"]
    lowest = np.finfo(dtype).min
    filled = np.where(masked == -np.inf, masked.dtype.type(lowest), masked)
    assert "own.npz: none departs" in compared(arrays | {f"{step}: scores, masked": filled})
    filled[0, 0, 1, 0] = lowest
    several = {name: 1.01 * arrays[f"{step}: {name}"] for name in ("weights", "weighted values", "heads merged")}
    several = {f"{step}: {name}": array for name, array in several.items()} | {step: 1.01 * arrays[step]}
    output = compared(arrays | several | {f"{step}: scores, masked": filled}, code=1)
    lines = output.splitlines()
    first = next(i for i, line in enumerate(lines) if "own.npz: the first that departs is" in line)
    assert f"{step}: scores, masked[0, 0, 1, 0]: got -inf" in lines[first]
    for line, name in zip(lines[first + 1 : first + 4], ("weights", "weighted values", "heads merged"), strict=True):
        assert line.startswith(f"then {step}: {name}[")
    assert lines[first + 4] == "and 1 more"
    compared({f"{step}: scores": np.where(masked == -np.inf, lowest, arrays[f"{step}: scores"])}, code=1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_honest_pieces_keep_their_carried_bounds(folder: Path, dtype: str) -> None:
    arrays = computed_inside(dtype)
    output = compared(arrays)
    assert "own.npz: none departs; the largest error ratio is " in output
    assert ("saved in float64 show smaller departures" in output) == (dtype == "float32")
    name = "decoder.blocks.0.cross_attention: weights"
    output = compared(arrays | {name: 1.01 * arrays[name]}, code=1)
    assert f"own.npz: the first that departs is {name}[" in output


def save_array(path: Path, array: np.ndarray) -> None:
    """As np.save does, which would add .npy to a name."""
    with path.open("wb") as file:
        np.save(file, array)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"attention": np.ones(3)}, "no name is that of a step; the steps are "),
        ({"attention": np.ones(3)}, "; run with --all --save FILE.npz for all names"),
        ({"encoder.blocks.0.attention": np.ones(3, int)}, "the arrays must be of one floating dtype, got int64"),
        (lambda path: path.write_text("no arrays"), "own.npz cannot be compared: it is no .npz file"),
        (lambda path: save_array(path, np.ones(3)), "own.npz cannot be compared: it is no .npz file"),
        (lambda path: torch.save({"attention": torch.ones(3)}, path), "own.npz cannot be compared: it is no .npz file"),
        (lambda path: None, "own.npz is not there"),
    ],
)
def test_values_that_cannot_be_compared(folder: Path, arrays: Any, message: str) -> None:
    """arrays: or a function that writes a file which is no .npz."""
    if callable(arrays):
        arrays(Path("own.npz"))
    else:
        np.savez("own.npz", **arrays)
    output = output_of("trace", INPUT, *dawn(), "--against", "own.npz", code=2)
    assert message in output
    assert len([line for line in output.splitlines() if "own.npz" in line]) == 1

"""Worked examples that are more than one call: all three agree within bounds, and a planted fault shows where it is."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import reference_numpy
from conformance.side_by_side.operations import OPERATIONS
from conformance.side_by_side.sources import LABELS, PACKAGES
from specification import Causal
from specification.configuration import Configuration
from study import site
from study.capturing import Call, returning
from study.examples import beams, decoding, generation, masks, models, running, tiny, training, working
from study.examples.calls import examples
from study.examples.parts import Part, Shown, figure
from study.examples.showing import SEVERAL, parts_of
from study.examples.working import title, worked

PORTS = PACKAGES[1:]


def plant(monkeypatch: pytest.MonkeyPatch, module: str, name: str, change: Callable[[Any], Any]) -> None:
    """Lets a port's function give something else."""
    owner = importlib.import_module(module)
    right = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *given, **named: change(right(*given, **named)))


def shown(part: Part, start: str) -> Shown:
    return next(one for one in part.steps if one.title.startswith(start))


def column(part: Part, package: str, table: int = 0) -> dict[str, str]:
    """What a table says of a package, by the first cell of each row."""
    heads = part.tables[table].heads
    return {row[0]: row[heads.index(LABELS[package])] for row in part.tables[table].rows}


def of_bounds(part: Part) -> list[float]:
    """The numbers of the verdict: the disagreement, and each package's error."""
    found = re.findall(r"(?:by at most|NumPy|PyTorch|JAX) (inf|[\d.e+-]+)", part.verdict)
    assert len(found) == 4, part.verdict
    return [float(number) for number in found]


def test_every_operation_has_an_example() -> None:
    for one in OPERATIONS:
        assert one.name in SEVERAL or one.name in examples(), one.name
    assert len(parts_of("feed_forward")) == 1
    assert parts_of("nothing") == []


# --- the first steps of training --------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["initializers", pytest.param("schedules", marks=pytest.mark.slow)])
def test_initial_weights_and_learning_rates_are_within_bounds(page: str) -> None:
    for part in parts_of(page):
        assert max(of_bounds(part)) <= 1, part.title


def test_an_example_that_fails_is_named_with_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "UNIFORM", np.ones((3, 4)))
    with pytest.raises(ValueError, match=r"in \[0, 1\)[\s\S]*the example linear_default\n.*initializers\.html"):
        parts_of("initializers")


# --- masks ------------------------------------------------------------------------------------------------------------


def test_masks_are_the_definitions() -> None:
    for part in masks.parts():
        for mask, one in zip(masks.descriptions()[part.title], part.steps, strict=True):
            assert np.array_equal(one.array, reference_numpy.materialize(mask, masks.QUERIES, masks.KEYS)), one.title
        assert {row[-1] for row in part.tables[0].rows} == {"yes"}
        assert part.verdict.startswith(f"{len(part.steps)} of {len(part.steps)} ")
    everywhere = {type(one).__name__ for some in masks.descriptions().values() for one in some}
    assert {"Causal", "SlidingWindow", "KeyLengths", "KeyPadding", "Segments", "Dense", "And", "Or"} == everywhere
    assert masks.written(Causal(1) & Causal(2)) == "Causal(offset=1) & Causal(offset=2)"


@pytest.mark.parametrize("package", PORTS)
def test_a_mask_that_one_reads_differently_shows(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, package, "materialize", lambda allowed: ~allowed)
    part = masks.part("By position", [masks.reading(Causal(2))])
    assert part.tables[0].rows[0][-1] == "no"
    assert part.verdict.startswith("0 of 1 ")


# --- one call ---------------------------------------------------------------------------------------------------------


def test_the_rotary_example_says_what_its_arrays_mean() -> None:
    part = parts_of("rotary")[0]
    angles = np.pi / 2 * shown(part, "quarter").array + shown(part, "angle").array
    assert np.allclose(angles[0, 1], [1, 0.1])
    assert "1 = 1 * pi/2 - 0.5708" in part.says
    x, output = part.given[0].array[0, 0, 1], shown(part, "output").array[0, 0, 1]
    turned = np.exp(1j * angles[0, 1]) * (x[:2] + 1j * x[2:])  # columns 0 and 2, 1 and 3
    assert np.allclose(output, [*turned.real, *turned.imag])


HALF_THE_DIGITS = 2.0**-12
"""Of float32."""


QUICK = ("losses", "softmax")
OTHERS = [pytest.param(page, marks=pytest.mark.slow) for page in examples() if page not in QUICK]


@pytest.mark.parametrize("page", [*QUICK, *OTHERS])
def test_arrays_of_one_name_are_the_same_in_all_three(page: str) -> None:
    """No row of the table of differences looks like a broken port where the results agree."""
    found = worked(page)
    for name, distances in found.apart.items():
        largest = np.abs(found.steps[name].astype(float)).max()
        assert max(distances.values()) <= HALF_THE_DIGITS * largest, name


def test_rows_that_do_not_count_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    (part,) = parts_of("losses")
    assert "set the logits of all others to 0" in part.tables[0].note
    everywhere = examples()["losses"]._replace(counted=None)
    monkeypatch.setattr(working, "examples", lambda: {"losses": everywhere})
    found = worked.__wrapped__("losses")
    assert min(found.apart["shifted"].values()) > 1


def test_a_fault_in_a_row_that_counts_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "torch_impl.losses", "at_targets", lambda array: array - 0.01)
    found = worked.__wrapped__("losses")
    assert found.apart["losses in row_losses"]["torch_impl"] > HALF_THE_DIGITS


# --- blocks and models ------------------------------------------------------------------------------------------------


def small() -> models.Example:
    return models.block_examples()[0]


def test_steps_of_a_block_are_in_order_and_within_bounds() -> None:
    part = models.part(small())
    names = [one.title.partition(" ")[2] for one in part.steps]
    assert names == [
        "attention", "attention: add", "attention_norm", "feed_forward", "feed_forward: add", "feed_forward_norm",
    ]  # fmt: skip
    assert [row[1] for row in part.tables[0].rows] == ["x", "x, 1", "2", "3", "3, 4", "5"]
    assert all(float(ratio) <= 1 for package in PACKAGES for ratio in column(part, package).values())
    assert max(of_bounds(part)) <= 1
    x = part.given[0].array
    assert np.allclose(x + shown(part, "1 ").array, shown(part, "2 ").array)


@pytest.mark.slow
def test_the_last_step_is_what_the_model_gives() -> None:
    for example in (*models.block_examples(), models.transformer_example()):
        last = list(models.traced(example).oracle.taken.values())[-1].result
        for package, got in models.whole(example).items():
            assert np.allclose(got, last, atol=1e-4), (package, example.title)


def test_weights_of_the_transformer_keep_to_its_masks() -> None:
    example = models.transformer_example()
    found = models.traced(example)
    drawn = [models.drawing(found, name) for name, taken in found.oracle.taken.items() if taken.step == "attend"]
    encoder, decoder, cross = (one.array for one in drawn)
    assert np.allclose(encoder.sum(axis=-1), 1)
    assert not encoder[..., -1].any()  # the source ends in padding
    assert not cross[..., -1].any()
    assert not np.triu(decoder, 1).any()


def test_a_fault_in_a_step_shows_at_that_step(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "torch_impl.blocks", "feed_forward", lambda array: 1.001 * array)
    part = models.part(small())
    beyond = {name for name, ratio in column(part, "torch_impl").items() if float(ratio) > 1}
    assert beyond == {"4 feed_forward"}
    assert max(float(ratio) for ratio in column(part, "jax_impl").values()) <= 1
    assert max(of_bounds(part)) > 1


# --- decoding ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_cache_grows_by_the_rows_that_are_outlined() -> None:
    (part,) = decoding.parts()
    after = [one for one in part.steps if one.title.startswith("keys after")]
    assert len(after) == decoding.TOKENS.shape[1] - decoding.PROMPT + 1
    for number, one in enumerate(after):
        length = decoding.PROMPT + number
        assert one.array[:, :, :length].any(axis=-1).all()
        assert not one.array[:, :, length:].any()
        if number:
            assert np.array_equal(one.array[~one.marked], after[number - 1].array[~one.marked])
    assert np.allclose(shown(part, "logits, step").array, shown(part, "logits, full").array, atol=1e-5)
    assert max(of_bounds(part)) <= 1


@pytest.mark.slow
def test_a_fault_in_a_step_of_decoding_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "jax_impl", "decode_step", lambda answer: (1.001 * answer[0], answer[1]))
    (part,) = decoding.parts()
    assert float(column(part, "jax_impl")["error step by step, in bounds"]) > 1
    assert float(column(part, "jax_impl")["error full forward pass, in bounds"]) <= 1
    assert max(of_bounds(part)) > 1


# --- generation -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_tokens_are_the_same_in_all_three() -> None:
    for part in SEVERAL["generation"]():
        assert part.tables[-1].title == "The same tokens in all three"
        assert len({row[1] for row in part.tables[-1].rows}) == 1
        assert max(of_bounds(part)) <= 1


def test_what_is_outlined_is_what_is_taken() -> None:
    model = {"configuration": Configuration(tiny.HEADS), "end": generation.END}
    greedy = generation.greedy()
    tokens = reference_numpy.greedy(generation.parameters(), generation.PROMPT, generation.STEPS, **model)
    logits = greedy.steps[0]
    assert logits.array.argmax(axis=-1).tolist() == tokens[:, 1:].tolist()
    assert np.argwhere(logits.marked[0])[:, 1].tolist() == tokens[0, 1:].tolist()
    for number, one in enumerate(generation.sample().steps):
        place = int(np.argmax(one.marked[0]))
        reached = one.array[1]
        assert reached[place] > generation.UNIFORMS[0, number] >= (reached[place - 1] if place else 0)
        assert one.array[0].sum() == pytest.approx(1)


@pytest.mark.slow
def test_the_table_of_beams_ends_in_the_result() -> None:
    part = beams.beam_search()
    tokens, scores = reference_numpy.beam_search(
        generation.parameters(), generation.PROMPT, generation.STEPS, configuration=Configuration(tiny.HEADS),
        beams=beams.BEAMS, end=generation.END, length_penalty=beams.PENALTY,
    )  # fmt: skip
    rows = part.tables[0].rows
    assert len(rows) == generation.STEPS * beams.BEAMS
    last = rows[-beams.BEAMS :]
    assert [row[1] for row in last] == [" ".join(map(str, line)) for line in tokens[0].tolist()]
    assert [float(row[4]) for row in last] == pytest.approx(scores[0], abs=1e-4)
    assert part.tables[0].rows[0][1] != last[0][1][:3]  # greedy's first token is not the best sequence's


def test_another_choice_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "torch_impl", "greedy", lambda tokens: tokens + 0 * tokens.flip(1) + 1)
    assert generation.greedy().tables[-1].title == "The tokens are not the same"


# --- what they stand on -----------------------------------------------------------------------------------------------


def test_every_call_is_told_with_its_names_and_result() -> None:
    calls: list[Call] = []
    x = np.ones((1, 1, 2, 2), np.float32)
    with returning("reference_numpy", {"resolve_scale"}, calls.append):
        reference_numpy.attention(x, x, x)
        reference_numpy.attention(x, x, x, scale=3.0)
    assert [call.result for call in calls] == [pytest.approx(0.5**0.5), 3.0]
    assert [call.names["scale"] for call in calls] == [None, 3.0]


def test_disagreement_is_that_of_the_two_farthest() -> None:
    answers = {name: np.array([float(number)]) for number, name in enumerate(PACKAGES)}
    assert running.disagreement(answers, np.array([4.0])) == 0.5
    assert running.disagreement(answers, np.array([0.0])) == np.inf
    assert not running.all_equal(answers)


def test_arrays_are_drawn_as_they_are() -> None:
    array = np.array([[[1.0, -2.0], [0.5, np.inf]]])
    drawn = figure(Shown("x", array, marked=array == -2))
    ((first, second),) = drawn["tables"]
    assert [cell.text for cell in (*first, *second)] == ["1", "-2", "0.5", "inf"]
    assert [cell.shade for cell in first] == [0.5, -1]
    assert [cell.marked for cell in (*first, *second)] == [False, True, False, False]
    assert figure(Shown("x", np.array([-0.0])))["tables"][0][0][0].text == "0"
    assert all(cell.shade == 0 for cell in figure(Shown("ids", np.array([3, 4])))["tables"][0][0])


def test_a_page_has_every_part() -> None:
    made = site.environment("")
    text = site.worked_example(next(one for one in OPERATIONS if one.name == "masks"), made)
    for part in masks.parts():
        assert f"<h3>{part.title}</h3>" in str(text)
    assert str(text).count('class="heat"') == 13


def test_an_array_is_named_by_its_function_where_the_name_is_another_s() -> None:
    case = examples()["feed_forward"].case
    assert title(case, ("normal_distribution", "x")) == "x in normal_distribution"
    assert title(case, ("feed_forward", "x")) == "x"
    assert title(case, ("feed_forward", "hidden")) == "hidden"
    losses = [("row_losses", "losses"), ("reduced", "losses")]
    assert [title(examples()["losses"].case, one, losses) for one in losses] == [
        "losses in row_losses", "losses in reduced",
    ]  # fmt: skip

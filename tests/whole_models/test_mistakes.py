"""Known mistakes of ports, in both directions: planted they are caught, and told by their own name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance.ports.cases import Calls, ModelCase, sharpen_attention, shrink_stream
from conformance.ports.checkpoints import draw_checkpoint
from conformance.ports.computation import Computation, Step
from conformance.ports.configs import list_configs
from conformance.ports.diagnosis import explain_empty_rows, find_causes, find_narrow
from conformance.ports.mistakes import masks
from conformance.ports.mistakes.attention import EMPTY_ROWS, attend_with, round_rotation
from conformance.ports.mistakes.catalogue import STEP_MISTAKES, list_mistakes
from conformance.ports.mistakes.constants import CONSTANTS
from conformance.ports.mistakes.mistake import (
    ModelMistake,
    StepChange,
    change_argument,
    change_fields,
    limit_mistakes,
)
from conformance.ports.noise import noise_bound
from conformance.ports.observation import Observation
from conformance.ports.subject import Answer
from reference_numpy import attention, attention_weights, materialize
from reference_numpy.attention_steps import repeat_heads

MODELS = ("bert", "gpt2", "llama", "gemma2", "gpt_neox", "t5", "vit")


def list_model_cases(dialect: str, number: int = 0) -> list[ModelCase]:
    checkpoint = draw_checkpoint(dialect, list_configs(dialect)[number], np.random.default_rng(number))
    cases = [*Calls(checkpoint, None, np.random.default_rng(1)).list_cases()]
    changed = [replace(cases[0], checkpoint=change(checkpoint)) for change in (shrink_stream, sharpen_attention)]
    return cases + changed


def observe(mistake: ModelMistake, cases: Sequence[ModelCase]) -> list[Observation]:
    """What a port with the mistake returns in float32, without roundings of its own."""
    found = []
    for case in cases:
        result = np.asarray(mistake.apply(case.computation).run()).astype(np.float32)
        found.append(Observation(case, Answer(result)))
    return found


PLANTED = {
    "bert": ("norm.eps-1e-05", "network.gelu-tanh", "attention.padding-ignored", "positions.offset+1",
             "token-types.left-out", "attention.no-query-bias", "order.pre", "blocks.reversed", "token-types.second",
             "attention.rows-joined", "wiring.feed-forward-sum-from-heads", "wiring.attention-from-embedding",
             "token-types.after-norm", "positions.after-norm", "padding.zeros"),
    "gpt2": ("attention.not-causal", "attention.fused-by-head", "norm.last-left-out", "residual.left-out",
             "attention.heads-interleaved", "network.quick-gelu", "norm.not-loaded", "embedding.normalized",
             "output.log-softmax", "attention.scale-by-layer", "attention.mask-inverted", "attention.causal-reversed",
             "attention.scale-heads"),
    "llama": ("attention.rotary-interleaved", "attention.heads-tiled", "attention.rotary-base-500000",
              "network.gate-swapped", "attention.rotary-mixed", "norm.rms-norm-plus-one",
              "attention.key-in-halves", "attention.columns-halved-for-pairs", "attention.key-paired-as-one",
              "attention.rotary-exponent-twice", "attention.queries-cut-from-rows", "blocks.first-self-attention-key",
             "norm.feed-forward-norm-of-attention", "embedding.is-output", "embedding.offset+1", "norm.sum",
             "norm.no-eps", "attention.queries-tiled",
             "attention.rotary-model-width", "attention.rotary-exponent", "attention.softcap-50", "output.softcap-30",
              "attention.rotary-frequencies-in-bfloat16", "attention.rotary-angles-in-bfloat16",
              "norm.last-from-block", "network.all-transposed"),
    "gemma2": ("norm.weight-itself", "embedding.not-scaled", "embedding.scale-in-bfloat16", "attention.no-window",
               "layers.shifted", "norm.swapped-self-attention-norm-self-attention-output-norm", "output.multiplied",
               "residual.attention-norm-of-sum"),
    "gpt_neox": ("order.pre", "attention.rotary-whole", "attention.rotary-last-columns"),
    "t5": ("relative.one-sided", "padding.memory-ignored", "output.not-scaled", "wiring.memory-from-embedding",
           "relative.table-of-encoder"),
    "vit": ("class-token.last", "patches.channel-last", "positions.first-left-out"),
}  # fmt: skip
CAPPED = ("attention.softcap-of-masked", "attention.softcap-unscaled")
"""Of Gemma 2 with so small a cap that it shows: the second config's."""
NOTHING = ModelMistake("nothing", "TRF-1", "nothing is wrong", lambda computation: computation)
PAIRS = [(dialect, name, 0) for dialect, names in PLANTED.items() for name in names]
PAIRS += [("gemma2", name, 1) for name in CAPPED]
PAIRS += [("gpt_neox", "attention.rotary-head-width", 2)]


@pytest.mark.parametrize(("dialect", "name", "number"), PAIRS)
@pytest.mark.slow_where("t5")
@pytest.mark.slow_where("gemma2", unless="window")
def test_a_planted_mistake_is_named(dialect: str, name: str, number: int) -> None:
    cases = list_model_cases(dialect, number)
    mistake = next(one for case in cases for one in list_mistakes(case.computation) if one.id == name)
    causes, _ = find_causes(observe(mistake, cases), lambda more: observe(mistake, more))
    assert [one.id for one in causes[0].mistakes] == [name]
    assert len(causes) == 1
    assert causes[0].against == 0


@pytest.mark.parametrize(
    ("dialect", "id", "value"),
    [
        ("bert", "norm.eps", 3e-4),
        ("bert", "attention.mask-number", 3.0),
        ("gpt2", "network.gelu-cubic", 0.04715),
        ("llama", "attention.rotary-base", 20000.0),
        ("llama", "attention.scale", 0.3),
        ("gpt2", "residual.output-factor", 0.22),
        ("gemma2", "attention.window", 5),
    ],
)
@pytest.mark.slow_where("gemma2")
def test_a_wrong_number_is_found(dialect: str, id: str, value: float) -> None:
    """No list holds it."""
    cases = list_model_cases(dialect)
    mistake = next(one for one in CONSTANTS if one.id == id).make(value).limit_to(())
    causes, _ = find_causes(observe(mistake, cases), lambda more: observe(mistake, more))
    assert [one.says for one in causes[0].mistakes] == [mistake.says]
    assert len(causes) == 1


def test_padding_that_one_block_ignores_is_told_where_rows_without_keys_get_a_mean() -> None:
    """What such a row gets in the first block is no mistake, and reaches others in the second."""
    cases = list_model_cases("gpt2")
    every = limit_mistakes(cases[0].computation, masks.MISTAKES)
    wrong = ("attention.padding-ignored", ("decoder.blocks.1.",))
    mistake = next(one for one in every if one.filling and (one.id, one.scope) == wrong)
    causes, _ = find_causes(observe(mistake, cases), lambda more: observe(mistake, more))
    assert [(one.id, one.scope) for one in causes[0].mistakes] == [("attention.padding-ignored", ("blocks.1.",))]
    assert causes[0].step == "blocks.1.self_attention"


@pytest.mark.parametrize("dialect", MODELS)
def test_steps_have_the_same_names_in_every_run(dialect: str) -> None:
    """By which a mistake's run is compared with the right one."""
    computation = list_model_cases(dialect)[0].computation
    first, second = list[str](), list[str]()
    for names in (first, second):
        computation.run(watch=lambda name, _, names=names: names.append(name))
    assert first == second


@pytest.mark.parametrize(
    ("name", "dialect", "config"),
    [
        ("mask-from-first", "gpt2", 0),
        ("mask-padded-behind", "gpt2", 0),
        ("not-causal", "gpt2", 0),
        ("last-part", "gpt2", 0),
        ("next-place", "gpt2", 0),
        ("causal-strict", "gpt2", 0),
        ("empty-places-64", "gpt2", 0),
        ("of-first-layer", "gpt2", 0),
        ("before-rotation", "llama", 0),
        ("mask-from-first-in-windows", "qwen2", 1),
        ("not-causal-in-windows", "qwen2", 1),
        ("new-first", "qwen2", 1),
    ],
)
def test_a_mistake_beside_a_cache_is_named(name: str, dialect: str, config: int) -> None:
    """The whole pass is right, and so is token by token in some of them."""
    name = f"cache.{name}"
    checkpoint = draw_checkpoint(dialect, list_configs(dialect)[config], np.random.default_rng(0))
    cases = [*Calls(checkpoint, None, np.random.default_rng(1)).list_cases(step=True)]
    mistake = next(one for one in list_mistakes(cases[-1].computation) if one.id == name)
    found = [
        observation
        for case in cases
        for observation in (observe(mistake, [case]) if case.call.chunks else observe(NOTHING, [case]))
    ]
    causes, _ = find_causes(found, lambda more: observe(mistake, more))
    assert [one.id for cause in causes for one in cause.mistakes] == [name]


@pytest.mark.parametrize("dialect", ["bert", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_two_mistakes_in_different_sublayers_are_both_named(dialect: str) -> None:
    cases = list_model_cases(dialect)
    every = [*list_mistakes(cases[0].computation)]
    first = next(one for one in every if one.id == "attention.query-key-swapped" and one.scope == last_block(dialect))
    second = next(one for one in every if one.id == "network.relu" and not one.scope)
    both = ModelMistake("both", "TRF-1", "both", lambda c: second.apply(first.apply(c)))
    causes, _ = find_causes(observe(both, cases), lambda more: observe(both, more))
    assert {one.id for cause in causes for one in cause.mistakes} == {first.id, second.id}


def test_an_option_that_is_read_wrong_in_one_config_is_told_beside_another_mistake() -> None:
    """Of `gelu_new` a port makes another GELU; what the other configs name is right, and no cause takes it back."""
    cases = [case for number in range(3) for case in list_model_cases("gpt2", number)[:3]]
    every = [*list_mistakes(cases[0].computation)]
    mask, gelu = (next(one for one in every if one.id == name) for name in ("attention.causal-next", "network.gelu"))

    def change(computation: Computation) -> Computation:
        wrong = computation.configuration.activation == "gelu_tanh"
        return mask.apply(gelu.apply(computation) if wrong else computation)

    both = ModelMistake("both", "TRF-1", "both", change)
    observations = observe(both, cases)
    causes, _ = find_causes(observations, lambda more: observe(both, more))
    assert {one.id for cause in causes for one in cause.mistakes} == {mask.id, gelu.id}
    assert {cause.failing for cause in causes} == {sum(one.failed for one in observations)}
    assert not any(cause.against for cause in causes)


def test_two_options_that_are_ignored_in_different_configs_are_both_named() -> None:
    """Where one config shows both, the other one of them."""
    cases = [case for number in range(3) for case in list_model_cases("gpt2", number)[:3]]
    every = [*list_mistakes(list_model_cases("gpt2", 2)[0].computation)]
    names = "network.gelu-tanh", "embedding.is-output"
    gelu, table = (next(one for one in every if one.id == name) for name in names)
    both = ModelMistake("both", "TRF-1", "both", lambda c: table.apply(gelu.apply(c)))
    causes, _ = find_causes(observe(both, cases), lambda more: observe(both, more))
    assert {one.id for cause in causes for one in cause.mistakes} == {*names}


def test_any_option_that_is_ignored_is_named() -> None:
    """Scores are scaled as the first config says, which no known mistake of attention does."""
    cases = [case for number in range(2) for case in list_model_cases("gemma2", number)[:2]]
    scale = cases[0].checkpoint.configuration.scale
    fixed = ModelMistake(
        "fixed", "ATT-1", "fixed", lambda c: c.change(configuration=replace(c.configuration, scale=scale))
    )
    (cause,), _ = find_causes(observe(fixed, cases), lambda more: observe(fixed, more))
    assert [one.id for one in cause.mistakes] == ["option.scale"]
    assert str(scale) in cause.mistakes[0].says


def test_no_cause_is_the_definition_s_own_value() -> None:
    """An eps that nobody has, in one norm, is told as that: a second mistake, which takes it back, explains nothing."""
    strange = rewrite_steps("normalize", "decoder.norm", change_fields(2, norm_eps=3e-4))
    cases = [*list_model_cases("llama"), *list_model_cases("llama", 2)]
    causes, _ = find_causes(observe(strange, cases), lambda more: observe(strange, more))
    assert [(cause.step, [one.says for one in cause.mistakes]) for cause in causes] == [
        ("norm", ["the norm's eps is 0.0003"])
    ]


def test_a_name_that_fits_by_chance_in_one_config_is_none() -> None:
    """The second block attends to a bent input; in one config its scores are scaled by 1 / sqrt(E) instead."""

    def change(step: Step) -> Step:
        if step.arguments[5].num_heads == 3:
            return step.argument(1, np.sin(step.arguments[1]))
        return change_fields(5, scale=24**-0.5)(step)

    strange = rewrite_steps("attend", "blocks.1.", change)
    cases = [case for number in range(3) for case in list_model_cases("gpt2", number)[:2]]
    observations = observe(strange, cases)
    causes, _ = find_causes(observations, lambda more: observe(strange, more))
    assert [(cause.step, cause.mistakes) for cause in causes] == [("blocks.1.self_attention", ())]
    assert {*causes[0].observations} == {one for one in observations if one.failed}


PLACES = {
    "embedding": ("embedding", lambda step: step.argument(0, np.sin(7 * step.arguments[0]))),
    "norm": (
        "normalize",
        lambda step: step.argument(0, step.arguments[0]._replace(weight=step.arguments[0].weight ** 2)),
    ),
    "output": (
        "linear",
        lambda step: step.argument(0, step.arguments[0]._replace(weight=np.sin(step.arguments[0].weight))),
    ),
}
"""By place: the kind of step, and a change that nobody has a name for."""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dialect", ["llama", "gpt2"])
def test_what_stands_around_the_blocks_is_told_apart(dialect: str, place: str) -> None:
    """Every line is wrong with each of them; the logits of a norm without weight say where."""
    kind, change = PLACES[place]
    strange = ModelMistake(
        "strange",
        "TRF-1",
        "strange",
        lambda c: c.rewrite(lambda step: change(step) if step.kind == kind and "blocks." not in step.name else step),
    )
    cases = list_model_cases(dialect)[:4]
    causes, _ = find_causes(observe(strange, cases), lambda more: observe(strange, more))
    assert [(cause.step, cause.mistakes) for cause in causes] == [(place, ())]


def last_block(dialect: str) -> tuple[str, ...]:
    return ("blocks.1.",) if dialect == "bert" else ("decoder.blocks.1.",)


def test_what_no_mistake_explains_has_a_place() -> None:
    """The second block attends to a bent input, which nobody has a name for."""
    strange = rewrite_steps("attend", "blocks.1.", lambda step: step.argument(1, np.sin(step.arguments[1])))
    cases = list_model_cases("bert")
    causes, isolated = find_causes(observe(strange, cases), lambda more: observe(strange, more))
    assert [(cause.step, cause.mistakes, cause.narrow) for cause in causes] == [("blocks.1.attention", (), ())]
    assert {one.case.sublayer for one in isolated if one.failed} == {"blocks.1.attention"}


def rewrite_steps(kind: str, scope: str, change: Callable[[Step], Step]) -> ModelMistake:
    """A mistake that nobody has a name for."""
    return ModelMistake(
        "strange",
        "TRF-1",
        "strange",
        lambda c: c.rewrite(lambda step: change(step) if step.kind == kind and scope in step.name else step),
    )


def test_kinds_of_layers_are_those_of_each_config() -> None:
    """Windows differ from config to config: one mistake explains all, and no other is needed."""

    def shift(computation: Computation) -> Computation:
        layers = computation.configuration.attention_layers
        return computation.change(configuration=replace(computation.configuration, attention_layers=layers[::-1]))

    swapped = ModelMistake("swapped", "TRF-1", "swapped", shift)
    observations = observe(swapped, [*list_model_cases("gemma2")[:3], *list_model_cases("gemma2", 1)[:3]])
    causes, _ = find_causes(observations, lambda more: observe(swapped, more))
    assert [[one.id for one in cause.mistakes] for cause in causes] == [["layers.shifted"]]
    assert len(causes[0].observations) == causes[0].failing == sum(one.failed for one in observations)


def test_norms_that_are_all_left_out_are_one_mistake() -> None:
    cases = list_model_cases("gemma2")[:2]
    strange = rewrite_steps("normalize", "_output_norm", lambda step: step._replace(function=lambda norm, x, c: x))
    causes, _ = find_causes(observe(strange, cases), lambda more: observe(strange, more))
    (mistake,) = causes[0].mistakes
    assert (mistake.id, len(mistake.scope), len(causes)) == ("norm.left-out", 4, 1)


def test_a_mistake_that_explains_little_stands_before_no_larger_one() -> None:
    """With little in the stream, logits three times as large look like those of another norm."""
    strange = rewrite_steps("linear", "output", lambda step: step.argument(1, 3 * step.arguments[1]))
    cases = list_model_cases("gemma2")
    causes, _ = find_causes(observe(strange, cases), lambda more: observe(strange, more))
    assert [one.says for cause in causes for one in cause.mistakes] == ["the output layer's result is multiplied by 3"]
    assert len(causes[0].observations) == causes[0].failing


def test_a_few_cases_in_a_known_cause_s_sublayer_are_joined_to_it() -> None:
    """Keys and values have changed places, and their biases have not, which only one config has."""

    def swap(step: Step) -> Step:
        p = step.arguments[0]
        key, value = (getattr(p, name)._replace(weight=getattr(p, other).weight)
                      for name, other in (("key", "value"), ("value", "key")))  # fmt: skip
        return step.argument(0, p._replace(key=key, value=value))

    strange = rewrite_steps("attend", "blocks.1.", swap)
    cases = [*list_model_cases("llama"), *list_model_cases("llama", 2)[:2]]
    causes, _ = find_causes(observe(strange, cases), lambda more: observe(strange, more))
    assert [[one.id for one in cause.mistakes] for cause in causes] == [["attention.key-value-swapped"]]
    assert len(causes[0].beside) == 2
    assert len(causes[0].observations) + 2 == causes[0].failing


def test_nan_of_rows_without_keys_is_named() -> None:
    mistake = EMPTY_ROWS.limit_to(())
    observations = observe(mistake, list_model_cases("llama"))
    cause = explain_empty_rows(observations)
    assert cause is not None
    assert (cause.step, [one.case.probe for one in cause.observations]) == (
        "blocks.0.self_attention", ["padding at the left"])  # fmt: skip
    case, answer = cause.observations[0].case, np.asarray(cause.observations[0].answer.result)
    everywhere = Observation(case, Answer(answer * np.nan))
    assert explain_empty_rows([everywhere]) is None


@pytest.mark.parametrize(
    ("kind", "change", "step", "name"),
    [
        ("attend", round_rotation("float32"), "blocks.0.self_attention", ["attention.rotary-in-float32"]),
        ("transform", change_argument(1, lambda x: x * (1 + 1e-9)), "blocks.0.feed_forward", []),
    ],
)
def test_rotation_in_float32_is_named_in_float64(kind: str, change: StepChange, step: str, name: list[str]) -> None:
    """And no other error is that is as small."""
    strange = rewrite_steps(kind, "", change)

    def ask(cases: Sequence[ModelCase]) -> list[Observation]:
        cases = [replace(case, dtype="float64") for case in cases]
        return [Observation(case, Answer(np.asarray(strange.apply(case.computation).run()))) for case in cases]

    (cause,), _ = find_causes(ask(list_model_cases("llama")[:3]), ask)
    assert (cause.step, [one.id for one in cause.mistakes]) == (step, name)


@pytest.mark.parametrize(("dtype", "names"), [("float16", ("float16", "bfloat16")), ("bfloat16", ("bfloat16",))])
def test_roundings_too_large_for_float16_are_those_of_bfloat16(dtype: str, names: tuple[str, ...]) -> None:
    generator = np.random.default_rng(0)

    def round_at_random(cases: Sequence[ModelCase]) -> list[Observation]:
        found = []
        for case in cases:
            right, bound = noise_bound(case.computation, dtype, runs=16)
            error = bound / 2 * generator.uniform(-1, 1, right.shape)
            found.append(Observation(case, Answer((right + error).astype(np.float32))))
        return found

    (shown,) = round_at_random(list_model_cases("bert")[:1])
    assert find_narrow(shown, round_at_random) == names


def mask_weights(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, *, mask: Any, scale: Any, sinks: Any, **_: Any
) -> Any:
    """The mask is applied after the softmax."""
    allowed = materialize(mask, query.shape[2], key.shape[2], batch=len(query), heads=query.shape[1])
    weights = attention_weights(query, key, scale=scale, sinks=sinks)
    return np.where(allowed, weights, 0) @ repeat_heads(value, query.shape[1])


def join_batch(query: np.ndarray, key: np.ndarray, value: np.ndarray, *, mask: Any, **options: Any) -> Any:
    """The rows of a batch are one sequence; the mask is that of every row."""
    B, _, T, _ = query.shape
    row, position = (array.ravel() for array in np.indices((B, T)))
    seen = materialize(mask, T, T, batch=1, heads=1)[0, 0][position][:, position]
    pairs = (row[:, None] > row) | ((row[:, None] == row) & seen)
    flat = (array.transpose(1, 0, 2, 3).reshape(1, array.shape[1], B * T, -1) for array in (query, key, value))
    joined = attention(*flat, mask=pairs, **options)
    return joined.reshape(joined.shape[1], B, T, -1).transpose(1, 0, 2, 3)


@pytest.mark.parametrize(
    ("name", "function"), [("attention.mask-after-softmax", mask_weights), ("attention.rows-joined", join_batch)]
)
def test_a_mistake_beside_sinks_keeps_them(name: str, function: Callable[..., Any]) -> None:
    strange = rewrite_steps("attend", "", attend_with(attention=function))
    cases = [case for case in list_model_cases("gpt_oss") if case.counted is None]
    causes, _ = find_causes(observe(strange, cases), lambda more: observe(strange, more))
    assert [one.id for cause in causes for one in cause.mistakes] == [name]


def test_every_id_is_one_mistake() -> None:
    says: dict[str, set[str]] = {}
    for mistake in STEP_MISTAKES:
        says.setdefault(mistake.id, set()).add(mistake.says)
    assert {name for name, sentences in says.items() if len(sentences) > 1} == set()


@pytest.mark.parametrize("dialect", MODELS)
def test_most_mistakes_change_some_model(dialect: str) -> None:
    """Of those of steps, over all dialects here: a mistake that changes nothing anywhere is no mistake."""
    cases = list_model_cases(dialect)
    changed = 0
    for mistake in list_mistakes(cases[0].computation):
        if mistake.scope:
            continue
        try:
            (observation,) = observe(mistake, cases[:1])
        except (ValueError, TypeError, IndexError, AttributeError):
            continue
        changed += observation.failed
    assert changed > 40

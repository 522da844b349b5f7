"""The check of a port: verdicts of right ports, of ports with mistakes, and of what is no port."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastjsonschema
import numpy as np
import pytest

import conformance
from conformance.ports.cases import Calls
from conformance.ports.checking import list_small_configs
from conformance.ports.checkpoints import draw_checkpoint, read_hyperparameters
from conformance.ports.configs import list_configs
from conformance.ports.options import read_settings
from conformance.ports.report import ModelReport
from conformance.reports.blocks import EVERYWHERE, draw_model, rows
from conformance.reports.causes import describe_evidence
from conformance.reports.content import document
from conformance.reports.junit import junit
from conformance.reports.page import page
from conformance.reports.ports import NOT_ANEW, RANDOM, describe_limits, describe_scope, model_content
from conformance.reports.tables import subject_table
from conformance.selftest.ports import bert_numpy, gpt2_numpy, gpt2_torch, llama_numpy, t5_numpy, t5_torch
from conformance.selftest.ports.faults import FAULTS
from reference_numpy.models import MODELS
from specification.dialects import DIALECTS

SCHEMA = Path(conformance.__file__).parent / "reports" / "schema.json"
Build = Callable[..., Any]


def judge(build: Build | str, dialect: str = "bert", **options: Any) -> ModelReport:
    given: Any = {"effort": "quick", "seed": 1} | options
    return conformance.check(build, "model", dialect=dialect, **given)


def fault(name: str) -> Any:
    return next(one for one in FAULTS if one.name == name)


# --- right ports and mistakes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "dialect"), [(bert_numpy.build, "bert"), (llama_numpy.build, "llama"), (gpt2_torch.build, "gpt2")]
)
def test_a_right_port_conforms(build: Build, dialect: str) -> None:
    report = judge(build, dialect)
    assert report.conforms, report
    assert report.violations == []
    assert 0.01 < report.worst < 0.6
    assert report.cases > 20


def test_a_dialect_without_config_file_is_judged() -> None:
    """A tutorial's, by the definition itself in float32."""

    def build(config: dict[str, Any], state_dict: dict[str, np.ndarray]) -> Any:
        from specification.dialects import read

        parameters, configuration = read("dawn", state_dict, **{k: v for k, v in config.items() if k != "dtype"})

        def model(source: np.ndarray, target: np.ndarray) -> Any:
            return MODELS[type(parameters)](parameters, source, target, configuration=configuration)

        return model

    report = judge(build, "dawn")
    assert report.conforms, report


SHOWN = {
    "bert_numpy_quick_gelu": ("blocks.0.feed_forward", ("network.quick-gelu",)),
    "bert_numpy_output_bias_missing": ("blocks.0.attention", ("attention.no-output-bias",)),
    "gpt2_numpy_mask_after_softmax": ("blocks.0.self_attention", ("attention.mask-after-softmax",)),
    "llama_numpy_keys_tiled": ("blocks.0.self_attention", ("attention.heads-tiled",)),
    "gpt_neox_numpy_layer_twice": ("blocks.1.self_attention", ("blocks.first-alone",)),
    "gpt_neox_numpy_last_norm_missing": ("norm", ("norm.last-left-out",)),
    "modernbert_numpy_window_missing": ("blocks.1.attention", ("attention.no-window",)),
    "gpt2_torch_cached_positions": ("embedding", ("cache.positions-restart",)),
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_mistake_is_placed_and_named(name: str) -> None:
    one = fault(name)
    effort = "default" if one.configs else "quick"
    report = conformance.check(one, "model", dialect=one.dialect, seed=1, effort=effort, arrays=one.framework)
    first = report.violations[0]
    assert (first.step, first.diagnosis) == SHOWN[name]
    assert first.step == one.where
    assert not report.conforms
    assert all(report.rules[violation.rule].cases for violation in report.violations)


def test_wrong_gradients_are_placed() -> None:
    one = fault("bert_torch_padding_row_frozen")
    report = judge(one, arrays="torch")
    assert [(v.rule, v.step) for v in report.violations] == [("ATT-12", "embedding")]


def test_gradients_go_through_tensors_that_build_is_given() -> None:
    """Of a functional port, which makes no arrays of its own: in every call, as the documentation says."""
    torch = pytest.importorskip("torch")
    kinds: set[type] = set()

    def build(config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
        kinds.update(map(type, state_dict.values()))
        return gpt2_function(config, state_dict)

    def frozen(config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
        name = "transformer.h.1.mlp.c_fc.weight"
        return gpt2_function(config, state_dict | {name: state_dict[name].detach()})

    report = judge(build, "gpt2", arrays="torch", gradients=True)
    assert report.conforms, report
    assert kinds == {torch.Tensor}
    assert report.rules["ATT-12"].cases
    (violation,) = judge(frozen, "gpt2", arrays="torch", gradients=True).violations
    assert (violation.rule, violation.step) == ("ATT-12", "blocks.1.feed_forward")
    assert violation.diagnosis == ("gradient.detached",)
    assert "no gradient reaches blocks.1.feed_forward.inner.weight" in violation.message


def detach_keys(config: dict[str, Any], entries: dict[str, Any]) -> Any:
    return gpt2_function(config, entries, lambda query, key, value: (query, key.detach(), value))


def detach_head(config: dict[str, Any], entries: dict[str, Any]) -> Any:
    head = entries.get("lm_head.weight", entries["transformer.wte.weight"].detach())
    return gpt2_function(config, entries | {"lm_head.weight": head})


def grow_gradient(config: dict[str, Any], entries: dict[str, Any]) -> Any:
    name = "transformer.h.1.mlp.c_fc.weight"
    inner = entries[name].view_as(entries[name])
    if inner.requires_grad:
        inner.register_hook(lambda gradient: 1.0001 * gradient)
    return gpt2_function(config, entries | {name: inner})


def test_a_gradient_that_is_a_ten_thousandth_too_large_is_wrong() -> None:
    (violation,) = judge(grow_gradient, "gpt2", arrays="torch", gradients=True).violations
    assert (violation.rule, violation.step, violation.diagnosis) == ("ATT-12", "blocks.1.feed_forward", ())
    assert violation.message.startswith("1 of ")


@pytest.mark.parametrize(
    ("build", "step", "diagnosis", "words"),
    [
        (detach_keys, "blocks.1.self_attention", "gradient.detached", "reaches blocks.1.self_attention.key.weight;"),
        (detach_head, "output", "gradient.part-missing", "lacks what comes from output.weight;"),
    ],
)
def test_a_wrong_gradient_is_placed_where_the_way_back_meets_it_first(
    build: Build, step: str, diagnosis: str, words: str
) -> None:
    (violation,) = judge(build, "gpt2", arrays="torch", gradients=True).violations
    assert (violation.rule, violation.step, violation.diagnosis) == ("ATT-12", step, (diagnosis,))
    assert words in violation.message


def test_a_build_that_copies_the_entries_has_no_wrong_gradients() -> None:
    """As load_state_dict does: it cannot be judged so, and the report says what to do."""

    def build(config: dict[str, Any], entries: dict[str, Any]) -> Any:
        return gpt2_function(config, {name: tensor.detach().clone() for name, tensor in entries.items()})

    report = judge(build, "gpt2", arrays="torch", gradients=True)
    (violation,) = report.violations
    assert violation.rule == "CALL"
    assert "torch.func.functional_call" in violation.message
    assert "ATT-12" not in report.rules


def test_a_wrong_forward_pass_has_no_verdict_on_gradients() -> None:
    def build(config: dict[str, Any], entries: dict[str, Any]) -> Any:
        return gpt2_function(config | {"activation_function": "gelu"}, entries)  # right in the second config alone

    report = judge(build, "gpt2", arrays="torch", gradients=True)
    assert {violation.rule for violation in report.violations} == {"FFN-1"}
    assert "gradients are not judged until the forward pass is right" in report.left_out


WORDS = "embeddings.word_embeddings.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda gradients: gradients.pop(WORDS), f"gradient of {WORDS}: "),
        (lambda gradients: gradients.update({WORDS: np.zeros(3, np.float32)}), "float32 [3]"),
    ],
)
def test_a_gradient_that_is_missing_or_misshapen_is_told_as_that(change: Callable[[Any], Any], words: str) -> None:
    def build(config: dict[str, Any], state_dict: dict[str, np.ndarray]) -> Any:
        model = bert_numpy.build(config, state_dict)

        def vjp(cotangent: np.ndarray, *inputs: np.ndarray, **options: Any) -> Any:
            gradients = {name: np.zeros_like(array) for name, array in state_dict.items()}
            change(gradients)
            return gradients

        model.vjp = vjp  # type: ignore[attr-defined]
        return model

    (violation,) = judge(build).violations
    assert "NaN" not in violation.message
    assert words in violation.message


def gpt2_function(
    config: dict[str, Any], entries: dict[str, Any], change: Callable[..., Any] = lambda *heads: heads
) -> Any:
    """A GPT-2 in functions of torch. change: of queries, keys and values."""
    F = pytest.importorskip("torch").nn.functional
    activate = {"gelu": F.gelu, "gelu_new": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu}

    def linear(name: str, x: Any) -> Any:
        return x @ entries[f"{name}.weight"] + entries[f"{name}.bias"]

    def norm(name: str, x: Any) -> Any:
        weight, bias = entries[f"{name}.weight"], entries[f"{name}.bias"]
        return F.layer_norm(x, x.shape[-1:], weight, bias, config["layer_norm_epsilon"])

    def model(tokens: Any) -> Any:
        table = entries["transformer.wte.weight"]
        x = table[tokens] + entries["transformer.wpe.weight"][: tokens.shape[1]]
        for i in range(config["n_layer"]):
            name = f"transformer.h.{i}"
            parts = linear(f"{name}.attn.c_attn", norm(f"{name}.ln_1", x)).chunk(3, -1)
            heads = (part.unflatten(-1, (config["n_head"], -1)).transpose(1, 2) for part in parts)
            attended = F.scaled_dot_product_attention(*change(*heads), is_causal=True)
            x = x + linear(f"{name}.attn.c_proj", attended.transpose(1, 2).flatten(2))
            hidden = activate[config["activation_function"]](linear(f"{name}.mlp.c_fc", norm(f"{name}.ln_2", x)))
            x = x + linear(f"{name}.mlp.c_proj", hidden)
        return norm("transformer.ln_f", x) @ entries.get("lm_head.weight", table).T

    return model


def test_gradients_of_a_single_attention_are_left_out() -> None:
    def build(config: dict[str, Any], state_dict: dict[str, np.ndarray]) -> Any:
        from specification.dialects import read

        parameters, configuration = read("transformer101", state_dict)

        def model(x: np.ndarray) -> Any:
            return MODELS[type(parameters)](parameters, x, configuration=configuration)

        model.vjp = lambda cotangent, x: {}  # type: ignore[attr-defined]
        return model

    report = judge(build, "transformer101")
    assert report.conforms, report
    assert "gradients are not judged" in report.left_out


def test_a_step_may_return_what_the_function_may() -> None:
    """An array of NumPy too; of nothing, the report says what it is."""

    def build_with(read: Callable[[Any], Any]) -> Build:
        def build(config: dict[str, Any], state_dict: dict[str, np.ndarray]) -> Any:
            port = gpt2_torch.build(config, state_dict)

            def model(tokens: Any) -> Any:
                return port(tokens)

            def decode(tokens: Any, cache: Any) -> Any:
                logits, cache = port.step(tokens, cache)
                return read(logits), cache

            model.step = decode  # type: ignore[attr-defined]
            return model

        return build

    report = judge(build_with(lambda logits: logits.detach().numpy()), "gpt2", arrays="torch")
    assert report.conforms, report
    (violation,) = judge(build_with(lambda logits: None), "gpt2", arrays="torch").violations
    assert "the result is nothing" in violation.message


def test_a_step_that_keeps_its_cache_from_call_to_call_is_told_as_that() -> None:
    def build(config: Any, state_dict: Any) -> Any:
        right = gpt2_torch.build(config, state_dict)
        kept: list[Any] = [None]

        def step(tokens: Any, cache: Any) -> Any:
            try:
                result, kept[0] = right.step(tokens, kept[0])
            except (IndexError, RuntimeError):  # of another batch, or longer than the table of positions
                result, kept[0] = right.step(tokens, None)
            return result, kept[0]

        def model(tokens: Any, **options: Any) -> Any:
            return right(tokens, **options)

        model.step = step  # type: ignore[attr-defined]
        return model

    (violation,) = judge(build, "gpt2", arrays="torch").violations
    assert violation.message == NOT_ANEW


def test_the_step_of_an_encoder_and_decoder_is_said_to_be_left_out() -> None:
    def build(config: Any, state_dict: Any) -> Any:
        model = t5_numpy.build(config, state_dict)
        model.step = lambda tokens, cache: (tokens, cache)
        return model

    report = judge(build, "t5")
    assert report.conforms, report
    assert report.left_out == "step is not judged: only a decoder alone is called step by step"


def test_a_cotangent_has_numbers_that_the_dtype_holds() -> None:
    """Or a port is given other ones than the definition."""
    from dataclasses import replace

    from conformance.cases.case import numpy_dtype
    from conformance.ports.cases import Calls
    from conformance.ports.checkpoints import draw_checkpoint
    from conformance.ports.configs import list_configs
    from conformance.ports.gradients import make_gradient_case

    checkpoint = draw_checkpoint("bert", list_configs("bert")[0], np.random.default_rng(0)).round("bfloat16")
    case = replace(next(Calls(checkpoint, None, np.random.default_rng(0)).list_cases()), dtype="bfloat16")
    cotangent = np.asarray(make_gradient_case(case, np.random.default_rng(0)).call.cotangent)
    assert np.array_equal(cotangent, cotangent.astype(numpy_dtype("bfloat16")).astype(float))


RELATIVE = "{}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
FIRST = {"encoder": "encoder.blocks.0.attention", "decoder": "decoder.blocks.0.self_attention"}
"""By stack, the first sublayer that reads its relative positions."""


@pytest.mark.parametrize(("stack", "other"), [("encoder", "decoder"), ("decoder", "encoder")])
@pytest.mark.parametrize("is_left_out", [True, False])
def test_relative_positions_are_placed_in_their_first_attention(stack: str, other: str, is_left_out: bool) -> None:
    """They are left out, or those of the other stack."""

    def build(config: Any, state_dict: Any) -> Any:
        wrong = state_dict[RELATIVE.format(other)]
        return t5_numpy.build(config, state_dict | {RELATIVE.format(stack): 0 * wrong if is_left_out else wrong})

    (violation,) = judge(build, "t5").violations
    name = "attention.no-relative-bias" if is_left_out else f"relative.table-of-{other}"
    assert (violation.step, violation.diagnosis) == (FIRST[stack], (name,))


@pytest.mark.parametrize("stack", FIRST)
def test_the_gradient_of_relative_positions_is_placed_in_their_first_attention(stack: str) -> None:
    def build(config: Any, entries: Any) -> Any:
        name = RELATIVE.format(stack)
        return t5_torch.T5(config, entries | {name: entries[name].detach()})

    (violation,) = judge(build, "t5", arrays="torch", gradients=True).violations
    assert (violation.rule, violation.step, violation.diagnosis) == ("ATT-12", FIRST[stack], ("gradient.detached",))


def test_dropout_that_is_left_on_is_told_as_such() -> None:
    one = fault("bert_torch_dropout_on")
    report = judge(one, arrays="torch")
    assert [(v.rule, v.step, v.diagnosis) for v in report.violations] == [
        ("ATT-13", "blocks.0.attention", ("dropout.left-on",))
    ]


def test_another_seed_draws_other_numbers() -> None:
    first, second, again = (judge(fault("bert_numpy_quick_gelu"), seed=seed).worst for seed in (1, 2, 1))
    assert first == again != second


# --- what is no port --------------------------------------------------------------------------------------------------

right = bert_numpy.build


def raises(config: Any, state_dict: Any) -> Any:
    raise KeyError("encoder.layer.0.attention.self.q.weight")


def returns_nothing(config: Any, state_dict: Any) -> Any:
    return None


def ignores(config: Any, state_dict: Any) -> Any:
    generator = np.random.default_rng(0)
    return right(config, {n: generator.normal(size=a.shape).astype(a.dtype) for n, a in state_dict.items()})


def changes(config: Any, state_dict: Any) -> Any:
    state_dict["embeddings.LayerNorm.weight"] += 1
    return right(config, state_dict)


def needs_more(config: Any, state_dict: Any) -> Any:
    model = right(config, state_dict)
    return lambda tokens, cache: model(tokens)


def change_result(change: Callable[[np.ndarray], Any]) -> Build:
    def build(config: Any, state_dict: Any) -> Any:
        model = right(config, state_dict)
        return lambda tokens, key_padding=None: change(model(tokens, key_padding))

    return build


def change_input(config: Any, state_dict: Any) -> Any:
    model = right(config, state_dict)

    def call(tokens: np.ndarray, key_padding: Any = None) -> Any:
        result = model(tokens, key_padding)
        tokens[:] = 0
        return result

    return call


def refuses_options(config: Any, state_dict: Any) -> Any:
    if config["hidden_act"] != "gelu":
        raise NotImplementedError("gelu alone")
    return right(config, state_dict)


def raises_when_called(config: Any, state_dict: Any) -> Any:
    def call(tokens: np.ndarray, key_padding: Any = None) -> Any:
        raise ValueError("no such shape")

    return call


def sleeps(config: Any, state_dict: Any) -> Any:
    import time

    def call(tokens: np.ndarray, key_padding: Any = None) -> Any:
        time.sleep(60)

    return call


BAD: dict[str, tuple[Build, str]] = {
    "raises": (raises, "; the state dict has encoder.layer.0.attention.self.query.weight, "),
    "key": (lambda config, state_dict: config["heads"], "; the config has "),
    "nothing": (returns_nothing, "build returned nothing, expected a function"),
    "ignores": (ignores, "do not depend on the state dict"),
    "changes": (changes, "build changed the state dict: embeddings.LayerNorm.weight"),
    "needs": (needs_more, "its function needs cache"),
    "tuple": (change_result(lambda x: (x,)), "is a value of type tuple"),
    "nan": (change_result(lambda x: x * np.nan), "the result is NaN"),
    "dtype": (change_result(lambda x: x.astype(np.float16)), "float16"),
    "shape": (change_result(lambda x: x[:, :-1]), "shape"),
    "input": (change_input, "an input was changed by the call"),
    "option": (refuses_options, "one of these, fix that alone: --set hidden_act=gelu --set"),
    "called": (raises_when_called, "its function raised ValueError: no such shape"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BAD)
def test_what_is_no_port_has_one_verdict(name: str) -> None:
    build, message = BAD[name]
    report = judge(build)
    assert [violation.rule for violation in report.violations] == ["CALL"]
    assert message in report.violations[0].message
    assert not report.conforms


def test_what_is_not_loaded_is_told_from_a_mistake() -> None:
    """As of a module whose parameters keep their first, random values."""

    def build(config: Any, state_dict: Any) -> Any:
        random = np.random.default_rng().normal(size=state_dict[WORDS].shape).astype(np.float32)
        return right(config, state_dict | {WORDS: random})

    (violation,) = judge(build).violations
    assert violation.rule == "CALL"
    assert "entries of it are not loaded" in violation.message


def test_a_random_head_is_placed_at_the_output() -> None:
    def build(config: Any, state_dict: Any) -> Any:
        shape = state_dict["lm_head.weight"].shape
        random = np.random.default_rng().normal(size=shape).astype(np.float32)
        return llama_numpy.build(config, state_dict | {"lm_head.weight": random})

    (violation,) = judge(build, "llama", set="tie_word_embeddings=false").violations
    assert (violation.rule, violation.step, violation.message) == ("CALL", "output", RANDOM)


def test_a_build_that_raises_is_shown_with_what_it_was_given() -> None:
    (violation,) = judge(raises).violations
    assert f"{WORDS} [37, 24]" in violation.case
    assert "hidden_act='gelu'" in violation.case


def test_an_error_comes_before_numbers() -> None:
    """What one call raises may be why another is wrong."""

    def build(config: Any, state_dict: Any) -> Any:
        model = right(config | {"hidden_act": "relu"}, state_dict)

        def call(tokens: np.ndarray, key_padding: Any = None) -> Any:
            if tokens.shape[1] == 1:
                raise ValueError("one token")
            return model(tokens, key_padding)

        return call

    first, *others = judge(build).violations
    assert (first.rule, "one token" in first.message) == ("CALL", True)
    assert [violation.rule for violation in others] == ["FFN-1"]


@pytest.mark.parametrize(("side", "rule"), [(0, "ATT-6"), (-1, "CALL")])
def test_nan_comes_before_numbers(side: int, rule: str) -> None:
    """Of padding at the left, which leaves rows without keys, and at the right, which leaves none."""

    def build(config: Any, state_dict: Any) -> Any:
        model = llama_numpy.build(config | {"hidden_act": "gelu"}, state_dict)

        def call(tokens: np.ndarray, key_padding: Any = None) -> Any:
            result = model(tokens, key_padding)
            return result if key_padding is None else np.where(key_padding[:, side, None, None], result, np.nan)

        return call

    first, *others = judge(build, "llama", set="hidden_act=silu").violations
    assert (first.rule, "NaN" in first.message) == (rule, True)
    assert [violation.rule for violation in others] == ["FFN-1"]


@pytest.mark.parametrize("wide", [False, True])
def test_a_model_in_16_bits_returns_16_bits(wide: bool) -> None:
    torch = pytest.importorskip("torch")

    def build(config: Any, state_dict: Any) -> Any:
        dtype = getattr(torch, config["dtype"])
        entries = {name: torch.from_numpy(array).to(dtype) for name, array in state_dict.items()}
        model = gpt2_function(config, entries)
        return lambda tokens: model(tokens).float() if wide else model(tokens)

    report = judge(build, "gpt2", arrays="torch", dtypes="bfloat16")
    expected = ["the result has dtype and shape float32 [2, 7, 37], expected bfloat16 [2, 7, 37]"]
    assert [violation.message for violation in report.violations] == expected * wide


@pytest.mark.parametrize(
    ("dialect", "key", "entry", "shape"),
    [
        ("gpt2", "n_inner", "transformer.h.0.mlp.c_fc.weight", (24, 96)),
        ("llama", "num_key_value_heads", "model.layers.0.self_attn.k_proj.weight", (24, 24)),
        ("llama", "head_dim", "model.layers.0.self_attn.q_proj.weight", (24, 24)),
        ("llama", "tie_word_embeddings", "lm_head.weight", (37, 24)),
        ("llama", "rope_theta", "lm_head.weight", (37, 24)),
    ],
)
def test_null_means_the_default_of_a_family(dialect: str, key: str, entry: str, shape: tuple[int, ...]) -> None:
    """As transformers 5.23 reads it; weights and config agree."""
    config = list_small_configs(dialect, "quick", {key: None}, None)[0]
    assert draw_checkpoint(dialect, config, np.random.default_rng(0)).shapes[entry] == shape
    with pytest.raises(ValueError, match="from which no size follows"):
        list_small_configs(dialect, "quick", {"vocab_size": None}, None)


def test_a_port_that_takes_minutes_is_ended() -> None:
    report = judge(sleeps, time_limit=1)
    assert [violation.finding.kind for violation in report.violations] == ["took_too_long"]
    assert report.seconds < 20


def test_hidden_states_in_the_place_of_logits_are_told() -> None:
    def build(config: Any, state_dict: Any) -> Any:
        model = gpt2_numpy.build(config, state_dict)
        return lambda tokens, key_padding=None: model(tokens, key_padding)[..., : config["n_embd"]]

    (violation,) = judge(build, "gpt2").violations
    assert "hidden states in the place of logits" in violation.message


def test_nan_has_advice() -> None:
    def build(config: Any, state_dict: Any) -> Any:
        port = bert_numpy.build(config, state_dict)
        return lambda tokens, **options: port(tokens, **options) * np.float32("nan")

    (violation,) = judge(build).violations
    assert "mask by -1e9" in violation.message


def test_options_that_are_set_stay_so() -> None:
    report = judge(refuses_options, set={"hidden_act": "gelu"})
    assert report.conforms, report


def test_a_config_that_the_settings_make_impossible_is_left_out() -> None:
    """8 heads of queries fit 4, 4 and 1 heads of keys, which configs of the dialect have, but not 3."""
    heads: set[int] = set()

    def build(config: Any, state_dict: Any) -> Any:
        heads.add(config["num_key_value_heads"])
        return llama_numpy.build(config, state_dict)

    report = judge(build, "llama", effort="default", set="num_attention_heads=8")
    assert report.conforms, report
    assert 3 not in heads
    with pytest.raises(ValueError, match="5 query heads are no multiple"):
        judge(build, "gemma2", set="num_attention_heads=5,num_key_value_heads=2")


def add_types_if_given(config: dict[str, Any], entries: dict[str, Any]) -> Any:
    """A port of BERT whose embedding gets the table of types only where the caller passes types."""
    right = bert_numpy.build(config, entries)
    table = "embeddings.token_type_embeddings.weight"
    without = bert_numpy.build(config, entries | {table: 0 * entries[table]})

    def forward(tokens: Any, key_padding: Any = None, token_types: Any = None) -> Any:
        return (without if token_types is None else right)(tokens, key_padding=key_padding, token_types=token_types)

    return forward


def test_types_that_are_added_only_where_they_are_given_are_named() -> None:
    (violation,) = judge(add_types_if_given).violations
    assert (violation.step, violation.diagnosis) == ("embedding", ("token-types.no-usual",))
    assert violation.cause is not None
    assert (violation.cause.against, violation.cause.passing > 0) == (0, True)


def ignore_yarn(config: dict[str, Any], entries: dict[str, Any]) -> Any:
    scaling = config.get("rope_scaling") or {}
    plain = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    changed = {"rope_scaling": None, "rope_parameters": plain} if scaling.get("rope_type") == "yarn" else {}
    return llama_numpy.build(config | changed, entries)


def test_a_mistake_that_is_made_in_one_config_alone_says_in_which() -> None:
    (violation,) = judge(ignore_yarn, "llama", effort="default").violations
    assert violation.diagnosis == ("attention.rotary-not-scaled",)
    assert violation.cause is not None
    assert dict(violation.cause.settings)["rope_scaling"]["rope_type"] == "yarn"
    assert judge(ignore_yarn, "llama", effort="default", scalings=["linear", "llama3"]).conforms


def test_a_mistake_that_other_configs_have_no_place_for_has_no_condition() -> None:
    def take_silu(config: dict[str, Any], entries: dict[str, Any]) -> Any:
        return llama_numpy.build(config | {"hidden_act": "silu"}, entries)

    (violation,) = judge(take_silu, "llama", effort="default").violations
    assert violation.cause is not None
    assert (violation.diagnosis, violation.cause.settings) == (("network.silu",), ())


def test_a_report_says_what_its_options_leave_out() -> None:
    report = judge(llama_numpy.build, "llama", set="hidden_act=silu", scalings="linear,llama3")
    assert "all models have hidden_act='silu'" in report.left_out
    assert "are tried except linear and llama3" in report.left_out
    assert not judge(llama_numpy.build, "llama").left_out
    assert describe_limits({}, (), None) == ["no scalings of rotary frequencies are tried"]


def test_passing_cases_against_a_mistake_are_counted() -> None:
    counts = {"explained": 2, "failing": 3, "beside": 0}
    for passing, against, ending in (
        (4, 0, "; nothing speaks against it in 4 that pass"),
        (4, 1, "; of 5 that pass, 1 contradicts it"),
        (4, 2, "; of 6 that pass, 2 contradict it"),
        (0, 0, ""),
    ):
        evidence = describe_evidence({"mistake": counts | {"passing": passing, "against": against}})
        assert evidence == f"explains 2 of 3 failing cases{ending}"


def rotary_of(config: dict[str, Any]) -> tuple[Any, ...]:
    parameters = config.get("rope_parameters") or {}
    scaling = config["rope_scaling"] or {}
    assert parameters.get("rope_theta", config["rope_theta"]) == config["rope_theta"]
    assert parameters.get("rope_type", "default") == scaling.get("rope_type", "default")
    assert parameters.get("factor") == scaling.get("factor")
    return config["rope_theta"], scaling.get("rope_type"), scaling.get("factor")


BASES = (10000.0, 500.0, 100.0, 1000.0)
LINEAR = {"rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    ("settings", "rotations"),
    [
        ({"rope_scaling": None}, {(base, None, None) for base in BASES}),
        ({"rope_parameters": None}, {(base, None, None) for base in BASES}),
        ({"rope_scaling": LINEAR}, {(base, "linear", 2.0) for base in BASES}),
        ({"rope_parameters": LINEAR | {"rope_theta": 7.0}}, {(7.0, "linear", 2.0)}),
        ({"rope_theta": 7.0}, {(7.0, None, None), (7.0, "llama3", 8.0), (7.0, "linear", 3.0), (7.0, "yarn", 4.0)}),
    ],
)
def test_rotary_entries_agree_where_one_is_set(settings: dict[str, Any], rotations: set[Any]) -> None:
    configs = list_small_configs("llama", "default", settings)
    assert {rotary_of(config) for config in configs} == rotations


LOCAL = {"rope_type": "default", "rope_theta": 100.0}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"rope_scaling": None},
        {"rope_scaling": LINEAR},
        {"rope_parameters": None},
        {"rope_parameters": {"full_attention": LINEAR | {"rope_theta": 7.0}, "sliding_attention": LOCAL}},
        {"rope_theta": 7.0},
        {"rope_local_base_freq": 7.0},
    ],
)
def test_rotary_entries_of_kinds_of_layers_agree(settings: dict[str, Any]) -> None:
    configs = list_small_configs("gemma3", "default", settings)
    assert len(configs) == 2
    for config in configs:
        older = {key: value for key, value in config.items() if key != "rope_parameters"}
        layers = read_hyperparameters(DIALECTS["gemma3"], config)["attention_layers"]
        assert layers == read_hyperparameters(DIALECTS["gemma3"], older)["attention_layers"]
        rotations = {layer.window is None: layer.rotary for layer in layers}
        for name, is_full in (("rope_theta", True), ("rope_local_base_freq", False)):
            assert rotations[is_full].base == settings.get(name, config[name])
        if "rope_scaling" in settings:
            assert getattr(rotations[True].scaling, "factor", None) == (settings["rope_scaling"] or {}).get("factor")


SCALED = ("llama", "qwen2", "qwen3", "gemma", "gemma3", "olmo2", "gpt_oss", "deepseek_v3")
"""Dialects with a config that scales rotary frequencies."""


@pytest.mark.parametrize("dialect", DIALECTS)
def test_unsupported_scalings_are_left_out(dialect: str) -> None:
    if dialect not in SCALED:
        with pytest.raises(ValueError, match="that is tried has one"):
            list_small_configs(dialect, "default", {}, scalings=())
    else:
        for config in list_small_configs(dialect, "default", {}, scalings=()):
            parameters = config.get("rope_parameters") or {"rope_type": "default"}
            kinds = [parameters] if "rope_type" in parameters else [*parameters.values()]
            assert {kind["rope_type"] for kind in kinds} == {"default"}
            assert not config.get("rope_scaling")


def test_a_scaling_that_is_set_is_tried() -> None:
    configs = list_small_configs("llama", "default", {"rope_scaling": LINEAR}, scalings=())
    assert {rotary_of(config)[1:] for config in configs} == {("linear", 2.0)}


def test_objects_of_json_may_be_set() -> None:
    text = 'rope_scaling={"rope_type": "linear", "factor": 2.0}'
    assert read_settings(text) == read_settings([text]) == {"rope_scaling": LINEAR}
    assert read_settings([text, "a=1,b=None"]) == {"rope_scaling": LINEAR, "a": 1, "b": None}
    with pytest.raises(ValueError, match="rope_scaling is no JSON"):
        read_settings('rope_scaling={"rope_type": linear}')
    with pytest.raises(ValueError, match="rope_scaling must be null or an object, got 'yarn'"):
        list_small_configs("llama", "default", {"rope_scaling": "yarn"})


@pytest.mark.parametrize("text", ["attention_bias=False", "attention_bias=false"])
def test_settings_may_be_written_as_in_python(text: str) -> None:
    def build(config: Any, state_dict: Any) -> Any:
        assert config["attention_bias"] is False
        return llama_numpy.build(config, state_dict)

    assert judge(build, "llama", set=text).conforms


def test_what_a_library_derives_from_a_setting_follows_it() -> None:
    for kind in ("gated-gelu", "relu"):
        configs = list_small_configs("t5", "default", {"feed_forward_proj": kind}, None)
        assert {config["is_gated_act"] for config in configs} == {kind != "relu"}
    (config,) = list_small_configs("t5", "quick", {"feed_forward_proj": "relu", "is_gated_act": True}, None)[:1]
    assert config["is_gated_act"]


def test_every_rotary_config_says_the_longest_sequence() -> None:
    for dialect in ("llama", "qwen3", "gemma3", "gpt_neox", "phi3", "olmo2", "modernbert"):
        for config in list_configs(dialect):
            checkpoint = draw_checkpoint(dialect, config, np.random.default_rng(0))
            longest = Calls(checkpoint, (), np.random.default_rng(0)).longest
            assert config["max_position_embeddings"] >= longest


def test_a_config_without_scaling_says_so() -> None:
    assert list_configs("llama")[0]["rope_scaling"] is None
    assert list_configs("llama")[1]["rope_scaling"]["rope_type"] == "llama3"


@pytest.mark.parametrize(("name", "step"), [("lm_head.weight", "output"), ("model.embed_tokens.weight", "embedding")])
def test_an_output_layer_behind_a_norm_without_bias_is_told_from_the_embedding(name: str, step: str) -> None:
    def build(config: Any, state_dict: Any) -> Any:
        strange = np.sin(7 * state_dict[name]).astype(np.float32)
        return llama_numpy.build(config, state_dict | {name: strange})

    report = judge(build, "llama", set="tie_word_embeddings=false")
    assert [(violation.step, violation.diagnosis) for violation in report.violations] == [(step, ())]


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        ((), ""),
        (("blocks.1.",), ", in blocks.1"),
        (("decoder.blocks.0.", "decoder.blocks.1."), ", in blocks 0, 1"),
        (("blocks.0.attention_norm", "blocks.1.attention_norm"), ", in the attention_norm of blocks 0, 1"),
        (
            ("blocks.0.a_norm", "blocks.0.b_norm", "blocks.1.a_norm", "blocks.1.b_norm"),
            ", in the a_norm and b_norm of blocks 0, 1",
        ),
    ],
)
def test_a_scope_in_words(scope: tuple[str, ...], words: str) -> None:
    assert describe_scope(scope) == words


def test_causes_explain_at_most_the_cases_that_failed() -> None:
    """The second cause is looked for among more cases than the first."""

    def build(config: Any, state_dict: Any) -> Any:  # always tied, and with one activation
        tied = {name: array for name, array in state_dict.items() if name != "lm_head.weight"}
        return gpt2_numpy.build(config | {"activation_function": "gelu_new", "tie_word_embeddings": True}, tied)

    report = judge(build, "gpt2", effort="default")
    causes = [violation.cause for violation in report.violations if violation.cause is not None]
    assert len(causes) == 2
    assert all(len(cause.observations) <= cause.failing for cause in causes)


def test_a_failing_step_is_not_explained_beside_a_wrong_pass() -> None:
    def build(config: Any, state_dict: Any) -> Any:
        return gpt2_torch.build(config | {"activation_function": "gelu"}, state_dict)

    report = judge(build, "gpt2", arrays="torch", set={"activation_function": "gelu_new"})
    assert {violation.rule for violation in report.violations} == {"FFN-1"}
    assert "step fails in 4 cases" in report.left_out


def test_numbers_without_a_known_mistake_are_shown_with_what_they_are_like() -> None:
    def build(config: Any, state_dict: Any) -> Any:
        model = right(config, state_dict)
        return lambda tokens, key_padding=None: model(tokens, key_padding).astype(np.float16).astype(np.float32)

    content = model_content(judge(build))
    shown = dict(rows(content["causes"][0]))
    assert "no known mistake explains it" in shown["found"]
    assert "arithmetic in float16 or bfloat16" in shown["found"]


def test_roundings_to_16_bits_are_told_beside_nan() -> None:
    def build(config: Any, state_dict: Any) -> Any:
        model = right(config, state_dict)

        def call(tokens: np.ndarray, key_padding: Any = None) -> Any:
            result = model(tokens, key_padding).astype(np.float16).astype(np.float32)
            return result if tokens.shape[1] > 1 else result * np.float32("nan")

        return call

    first, second = judge(build).violations
    assert (first.rule, "NaN" in first.message) == ("CALL", True)
    assert second.diagnosis == ("precision.float16-or-bfloat16",)


def test_an_option_that_all_failing_configs_share_is_told() -> None:
    def build(config: Any, state_dict: Any) -> Any:
        if not config["tie_word_embeddings"]:
            return gpt2_numpy.build(config, state_dict)
        head = np.sin(7 * state_dict["transformer.wte.weight"]).astype(np.float32)
        return gpt2_numpy.build(config | {"tie_word_embeddings": False}, state_dict | {"lm_head.weight": head})

    report = judge(build, "gpt2", effort="default")
    assert len(report.violations) == 1
    shown = dict(rows(model_content(report)["causes"][0]))
    assert shown["when"] == "only in configs with tie_word_embeddings=True"
    assert "only in configs with tie_word_embeddings=True" in str(report)


def test_an_error_that_names_sizes_is_one_of_the_config() -> None:
    def build(config: Any, state_dict: Any) -> Any:
        def model(tokens: np.ndarray, **_: Any) -> Any:
            raise ValueError(f"cannot reshape {tokens.shape}")

        return right(config, state_dict) if config["hidden_act"] == "gelu" else model

    messages = [violation.message for violation in judge(build).violations]
    assert len(messages) == 1
    assert "one of these, fix that alone: --set hidden_act=gelu" in messages[0]


def test_the_first_wrong_sublayer_is_marked_once() -> None:
    """Where a norm in every line hides the first one, the table says the same as the cause."""
    sublayers = [{"name": name, "ratio": 9.0} for name in ("", "blocks.0.attention", "blocks.0.feed_forward")]
    content: Any = {"model": {"sublayers": sublayers}, "violations": [{"step": "blocks.0.attention"}]}
    lines = draw_model(content)
    assert [line.partition("<- ")[2] for line in lines[1:4]] == ["wrong", "the first that is wrong", "wrong"]
    assert len(lines) == 4
    content["violations"] = [{"step": "output"}]
    lines = draw_model(content)
    assert "the first that is wrong" in lines[1]
    assert lines[4] == EVERYWHERE


def test_a_sublayer_of_an_encoder_is_seen_through_the_cross_attention() -> None:
    report = judge(fault("t5_torch_encoder_one_way"), "t5", arrays="torch")
    ratios = {one.name: one.ratio for one in report.sublayers}
    wrong = [name for name, ratio in ratios.items() if ratio > 1]
    assert report.violations[0].step == wrong[0] == "encoder.blocks.0.attention"
    assert ratios["encoder.blocks.0.feed_forward"] < 1
    assert list(ratios)[1:3] == ["encoder.blocks.0.attention", "encoder.blocks.0.feed_forward"]


def test_a_last_norm_that_is_anothers_is_placed_without_a_name() -> None:
    """It moves with the weight of a block's norm, and that norm is right."""

    def build(config: Any, state_dict: Any) -> Any:
        entries = dict(state_dict)
        other = entries["model.layers.0.input_layernorm.weight"]
        entries["model.norm.weight"] = other * np.float32(1.1) + np.float32(0.1)
        return llama_numpy.build(config, entries)

    (violation,) = judge(build, "llama").violations
    assert (violation.step, violation.diagnosis) == ("norm", ())


def test_a_case_has_the_dtype_in_which_the_port_is_asked() -> None:
    report = judge(fault("vit_torch_gelu_tanh"), "vit", arrays="torch", set={"hidden_act": "gelu"})
    assert "(float32[" in report.violations[0].case


def test_a_report_says_in_which_dtypes_the_port_is_judged() -> None:
    title = subject_table(model_content(judge(returns_nothing))).title
    assert str(title).endswith("in float32")


def test_a_port_in_a_process_of_its_own_may_end_it(tmp_path: Path) -> None:
    file = tmp_path / "ends.py"
    file.write_text(
        "import os\ndef build(config, state_dict):\n    return lambda tokens, key_padding=None: os._exit(3)\n"
    )
    report = judge(f"{file}:build")
    assert [violation.message for violation in report.violations] == ["its process ended with exit code 3"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dialect": None}, "a model needs a dialect"),
        ({"dialect": "bart"}, "did you mean"),
        ({"checkpoint": "nowhere"}, "must be a folder"),
        ({"set": {"hidden_act": "mish"}}, "mish"),
        ({"set": {"hidden_actt": "gelu"}}, "did you mean hidden_act"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        judge(right, **options)


# --- a real checkpoint ------------------------------------------------------------------------------------------------


def save_folder(folder: Path) -> Path:
    """A small BERT with entries that no encoder reads."""
    from safetensors.numpy import save_file

    from conformance.ports.checkpoints import draw_checkpoint
    from conformance.ports.configs import list_configs

    checkpoint = draw_checkpoint("bert", list_configs("bert")[2], np.random.default_rng(0))
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(checkpoint.config))
    pooler = {"pooler.dense.weight": np.zeros((24, 24), np.float32), "pooler.dense.bias": np.zeros(24, np.float32)}
    save_file(checkpoint.state_dict() | pooler, folder / "model.safetensors")
    return folder


def test_a_real_checkpoint_is_judged_with_its_options(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "small")
    configs = []

    def build(config: Any, state_dict: Any) -> Any:
        configs.append((config["hidden_act"], config["layer_norm_eps"]))
        assert not any("pooler" in name for name in state_dict)
        return right(config, state_dict)

    report = judge(build, checkpoint=folder)
    assert report.conforms, report
    assert set(configs) == {("relu", 1e-3)}
    wrong = judge(lambda config, state_dict: right(config | {"hidden_act": "gelu"}, state_dict), checkpoint=folder)
    assert wrong.violations[0].diagnosis == ("network.gelu",)
    with pytest.raises(ValueError, match="the checkpoint has one rotation"):
        judge(right, checkpoint=folder, scalings=["linear"])


# --- reports ----------------------------------------------------------------------------------------------------------


def test_a_report_is_valid_and_names_the_sublayer() -> None:
    report = judge(fault("bert_numpy_quick_gelu"))
    content = document("check", [model_content(report)], seed=1, effort="quick")
    fastjsonschema.compile(json.loads(SCHEMA.read_text()))(json.loads(json.dumps(content)))
    assert content["subjects"][0]["violations"][0]["step"] == "blocks.0.feed_forward"
    assert [one["name"] for one in content["subjects"][0]["model"]["sublayers"]][:2] == ["", "blocks.0.attention"]
    assert "first wrong in" in page(content)
    assert "the first that is wrong" in page(content)
    assert "FFN-1" in junit(content)
    assert "blocks.0.feed_forward" in str(report)
    assert repr(report).startswith("<ModelReport")


def test_every_dialect_is_known() -> None:
    assert {"bert", "gpt2", "llama", "t5", "vit"} <= DIALECTS.keys()

"""Tokens one after another: three packages, with a cache and without, choose the same ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import reference_numpy
from tests.support.helpers import IMPLEMENTATIONS, REFERENCE, Implementation, error_of
from tests.support.small_models import (
    BATCH,
    END,
    EXAMPLES,
    METHODS,
    STEPS,
    UNIFORMS,
    VOCABULARY,
    Example,
    Maker,
    edited,
    generated,
    generation,
)

# --- the same tokens --------------------------------------------------------------------------------------------------


def cases() -> Iterator[Any]:
    """In JAX every shape has to be compiled, and the full pass has another one at every step."""
    for implementation in IMPLEMENTATIONS:
        for name, method in itertools.product(EXAMPLES, METHODS):
            dtype, jax = "float64" if method == "beam_search" else "float32", implementation.package == "jax_impl"
            if not jax or name in ("gpt2", "prenorm-blog"):
                for cached in (True, False) if not jax or (name, method) == ("gpt2", "greedy") else (True,):
                    id = f"{implementation.package}, {name}, {method}, {'cached' if cached else 'full'}"
                    yield pytest.param(implementation, name, method, dtype, cached, id=id)


@pytest.mark.rule("GEN-1")
@pytest.mark.parametrize(("implementation", "name", "method", "dtype", "cached"), list(cases()))
@pytest.mark.slow_where("jax_impl, prenorm-blog, beam_search")
@pytest.mark.slow_where("jax_impl", "full")
@pytest.mark.slow_where("jax_impl", unless="greedy")
@pytest.mark.slow_where("torch_impl", unless="greedy")
@pytest.mark.slow_where("jax_impl, prenorm-blog")
def test_all_choose_the_same_tokens(
    implementation: Implementation, name: str, method: str, dtype: str, cached: bool
) -> None:
    example = EXAMPLES[name]
    expected = generated(REFERENCE, method, example, dtype, end=END)[0]
    assert expected.shape == (((BATCH, 4) if method == "beam_search" else (BATCH,)) + (3 + STEPS,))
    assert len(np.unique(expected[..., 3:])) > 1
    got = generated(implementation, method, example, dtype, end=END, cached=cached)[0]
    assert got.dtype == example.target().dtype
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["dawn", "prenorm-blog"])
def test_padding_that_no_cache_can_hold(name: str, method: str) -> None:
    """The full pass is taken instead, from the first such token on: here in the prompt, or as one that is chosen."""
    example = EXAMPLES[name]._replace(padded=((0, 0), (1, 1)))
    for end in (None, 0):
        results = [generated(REFERENCE, method, example, end=end, cached=cached)[0] for cached in (True, False)]
        assert np.array_equal(*results)


@pytest.mark.parametrize("method", METHODS)
def test_the_cache_is_used(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any, **keywords: Any) -> Any:
        raise AssertionError("the full pass was taken")

    monkeypatch.setattr(generation(REFERENCE), "all_logits", never)
    generated(REFERENCE, method, EXAMPLES["notebook-scratch"])
    with pytest.raises(AssertionError, match="full pass"):
        generated(REFERENCE, method, EXAMPLES["notebook-scratch"], cached=False)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.slow_where("jax_impl")
def test_nothing_to_do(implementation: Implementation, method: str) -> None:
    """No steps give the prompt back, no rows give none, and the dtype of tokens is the prompt's."""
    example = EXAMPLES["gpt2"]
    steps = {"uniforms": np.zeros((BATCH, 0))} if method == "sample" else {"steps": 0}
    for dtype in (np.int32, np.uint8):
        prompt = example.target()[:, :3].astype(dtype)
        tokens, *scores = generated(implementation, method, example, **steps, prompt=prompt)
        assert tokens.dtype == dtype
        assert np.array_equal(tokens, np.repeat(prompt[:, None], 4, 1) if scores else prompt)
        for score in scores:
            assert np.array_equal(score, [[0, -np.inf, -np.inf, -np.inf]] * BATCH)
    nobody = {"uniforms": np.zeros((0, STEPS))} if method == "sample" else {}
    tokens = generated(implementation, method, example, **nobody, prompt=prompt[:0])[0]
    assert tokens.shape == ((0, 4) if method == "beam_search" else (0,)) + (3 + STEPS,)


# --- loaded models ----------------------------------------------------------------------------------------------------


@pytest.mark.rule("GEN-1")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["gpt2", "notebook-scratch"])
@pytest.mark.slow_where("jax_impl", unless="greedy")
@pytest.mark.slow_where("jax_impl", unless="gpt2")
def test_a_loaded_model_generates(implementation: Implementation, name: str, method: str, tmp_path: Path) -> None:
    """What a file gives, in place of its parameters and configuration; from the cache, and with a source."""
    example = EXAMPLES[name]
    reference_numpy.save(
        reference_numpy.Model(example.parameters("float32"), example.configuration), tmp_path / "model"
    )
    model = implementation.restore(tmp_path / "model")
    expected = generated(implementation, method, example, "float32", end=END)
    got = generated(implementation, method, example, parameters=model, configuration=None, end=END)
    assert all(np.array_equal(*pair) for pair in zip(got, expected, strict=True))


@pytest.mark.slow_where("jax_impl")
def test_a_loaded_model_decodes_step_by_step(implementation: Implementation, tmp_path: Path) -> None:
    example = EXAMPLES["notebook-scratch"]
    parameters, configuration = example.parameters("float32"), example.configuration
    reference_numpy.save(reference_numpy.Model(parameters, configuration), tmp_path / "model")
    model, own = implementation.restore(tmp_path / "model"), implementation.convert(parameters)
    tokens, source = implementation.convert((example.target(), example.source()))
    first, cache = implementation.start(model, tokens[:, :3], capacity=5, source=source)
    second, _ = implementation.decode_step(model, tokens[:, 3:5], cache)
    options = {"configuration": configuration}
    expected, cache = implementation.start(own, tokens[:, :3], capacity=5, source=source, **options)
    numpy = implementation.subject.framework.numpy
    assert np.array_equal(numpy(first), numpy(expected))
    expected, _ = implementation.decode_step(own, tokens[:, 3:5], cache, **options)
    assert np.array_equal(numpy(second), numpy(expected))


def test_the_examples_in_the_documents_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a small checkpoint of GPT-2's vocabulary and number of heads."""
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text().partition("## Generation")[2]
    examples = [part.partition("```")[0] for part in text.split("```python")[1:]]
    made = Maker(dtype="float32", vocabulary=50257)
    sizes = {"ln_1": (24,), "ln_2": (24,), "attn.c_attn": (24, 72), "attn.c_proj": (24, 24),
             "mlp.c_fc": (24, 30), "mlp.c_proj": (30, 24)}  # fmt: skip
    entries = {"wte.weight": made.array(50257, 24), "wpe.weight": made.array(30, 24)}
    for name, shape in ({f"h.0.{name}": shape for name, shape in sizes.items()} | {"ln_f": (24,)}).items():
        entries |= {f"{name}.weight": made.array(*shape), f"{name}.bias": made.array(shape[-1])}
    save_file(entries, tmp_path / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for example in examples:
        exec(example, names)
    assert len(examples) == 2
    assert names["tokens"].shape == (1, 4, 25)
    assert names["cache"].length == 6


def test_a_configuration_is_needed_once(implementation: Implementation) -> None:
    example, convert = EXAMPLES["gpt2"], implementation.convert
    parameters, prompt = convert(example.parameters("float32")), convert(example.target()[:, :3])
    model = implementation.Model(parameters, example.configuration)
    assert error_of(implementation.greedy, parameters, prompt, 2) == (
        TypeError,
        "configuration must be given beside LanguageModel, which is no model, got None",
    )
    assert error_of(implementation.greedy, model, prompt, 2, configuration=example.configuration) == (
        TypeError,
        "configuration must be None beside a model, which has its own, got another",
    )


@pytest.mark.slow_where("jax_impl")
def test_positions_after_padding_have_no_cache(implementation: Implementation) -> None:
    """Without one they are counted anew in every pass."""
    example = EXAMPLES["gpt2"]
    configuration = replace(example.configuration, positions="after_padding", position_padding=0)
    kind, message = error_of(generated, implementation, "greedy", example, configuration=configuration)
    assert kind is ValueError
    assert message.startswith("offset must be 0, without a cache, for positions 'after_padding'")
    (tokens,) = generated(implementation, "greedy", example, "float32", configuration=configuration, cached=False)
    (expected,) = generated(REFERENCE, "greedy", example, "float32", configuration=configuration, cached=False)
    assert np.array_equal(tokens, expected)


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 0.5}, {"top_k": 2}, {"top_p": 0.4}, {"temperature": 2.0, "top_k": 4, "top_p": 0.7}],
    ids=["as it is", "temperature", "top_k", "top_p", "all"],
)
def test_a_sample_is_drawn_by_choose(implementation: Implementation, settings: dict[str, Any]) -> None:
    """At every step with a column of its own, and with the same defaults."""
    example, convert = EXAMPLES["gpt2"], implementation.convert
    parameters, options = example.parameters("float64"), {"configuration": example.configuration}
    given = convert((parameters, example.target()[:, :3], UNIFORMS))
    tokens = implementation.subject.framework.numpy(generation(implementation).sample(*given, **options, **settings))
    for step in range(STEPS):
        logits = reference_numpy.language_model(parameters, tokens[:, : 3 + step], **options)[:, -1]
        assert np.array_equal(tokens[:, 3 + step], reference_numpy.choose(logits, UNIFORMS[:, step], **settings))


@pytest.mark.slow_where("jax_impl")
def test_a_search_leaves_length_alone_unless_asked(implementation: Implementation) -> None:
    """And searches for every row of the batch as if it were the only one."""
    example, convert, numpy = EXAMPLES["gpt2"], implementation.convert, implementation.subject.framework.numpy
    parameters, options = convert(example.parameters("float64")), {"configuration": example.configuration, "end": END}

    def searched(prompt: np.ndarray, **others: Any) -> list[np.ndarray]:
        search = generation(implementation).beam_search
        return list(map(numpy, search(parameters, convert(prompt), 3, beams=3, **options, **others)))

    prompt = example.target()[:, :3]
    tokens, scores = searched(prompt)
    assert np.array_equal(scores, searched(prompt, length_penalty=0.0)[1])
    assert not np.isclose(scores, searched(prompt, length_penalty=1.0)[1]).all()
    for row in range(BATCH):
        assert np.array_equal(tokens[row : row + 1], searched(prompt[row : row + 1])[0])


@pytest.mark.parametrize("method", METHODS)
def test_an_end_is_a_token(implementation: Implementation, method: str) -> None:
    told = (ValueError, f"end must lie in [0, {VOCABULARY}), got {VOCABULARY}")
    assert error_of(generated, implementation, method, EXAMPLES["gpt2"], end=VOCABULARY) == told


@pytest.mark.slow_where("jax_impl")
def test_what_comes_is_never_seen(implementation: Implementation) -> None:
    """Neither in the full pass nor from the cache, where the configuration leaves it to its caller."""
    example = EXAMPLES["prenorm-blog"]
    own, causal = (replace(example.configuration, target_mask=mask) for mask in ("none", "causal"))
    expected = generated(REFERENCE, "greedy", example, configuration=causal, cached=False)[0]
    assert np.array_equal(generated(REFERENCE, "greedy", example, configuration=own, cached=False)[0], expected)
    assert np.array_equal(generated(implementation, "greedy", example, configuration=own)[0], expected)


@pytest.mark.parametrize("method", METHODS)
def test_tokens_that_are_impossible_or_certain(implementation: Implementation, method: str) -> None:
    """Without a warning: a logit of -inf is never chosen, one of inf always, and of inf no search can tell a score."""
    example = EXAMPLES["gpt2"]
    parameters = example.parameters("float64")

    def biased(entry: float, *ids: int) -> Any:
        bias = parameters.output.bias.copy()
        bias[list(ids)] = entry
        return parameters._replace(output=parameters.output._replace(bias=bias))

    impossible = (0, 1, 3, 4, 6, 8, 9, 10)
    tokens, *scores = generated(implementation, method, example, parameters=biased(-np.inf, *impossible))
    assert not np.isin(tokens[..., 3:], impossible).any()
    assert np.isfinite(scores).all()
    tokens, *scores = generated(implementation, method, example, parameters=biased(np.inf, 5))
    assert np.isnan(scores[0]).all() if scores else (tokens[:, 3:] == 5).all()


# --- ends and ties ----------------------------------------------------------------------------------------------------


def filled(tokens: np.ndarray, end: int) -> np.ndarray:
    """Rows of chosen tokens with `end` everywhere after the first one."""
    ended = np.cumsum(tokens == end, axis=-1) > 0
    return np.where(ended, end, tokens)


@pytest.mark.parametrize("method", ["greedy", "sample"])
def test_rows_are_filled_after_their_end(implementation: Implementation, method: str) -> None:
    """Also where the prompt holds that token, which ends nothing there."""
    example = EXAMPLES["gpt2"]
    (free,) = generated(implementation, method, example)
    end = int(free[0, 4])
    prompt = example.target()[:, :3]
    prompt[:, 1] = end
    for tokens in (example.target()[:, :3], prompt):
        (free,) = generated(implementation, method, example, prompt=tokens)
        (ended,) = generated(implementation, method, example, prompt=tokens, end=end)
        assert np.array_equal(ended, np.concatenate([tokens, filled(free[:, 3:], end)], axis=1))


def undecided(example: Example, logits: np.ndarray) -> Any:
    """Parameters that give the same logits everywhere."""
    parameters = example.parameters("float64")
    return parameters._replace(output=parameters.output._replace(weight=parameters.output.weight * 0, bias=logits))


@pytest.mark.rule("GEN-1")
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.slow_where("jax_impl-False")
def test_ties_go_to_the_lowest_id(implementation: Implementation, cached: bool) -> None:
    example = EXAMPLES["gpt2"]
    parameters = undecided(example, np.where(np.arange(VOCABULARY) % 3 == 2, 1.0, 0.0))
    options = {"parameters": parameters, "cached": cached}
    (tokens,) = generated(implementation, "greedy", example, **options)
    assert (tokens[:, 3:] == 2).all()
    tokens, _ = generated(implementation, "beam_search", example, **options, steps=2, length_penalty=0.0)
    assert np.array_equal(tokens[:, :, 3:], [[[2, 2], [2, 5], [2, 8], [5, 2]]] * BATCH)  # by beam, then by id


def test_torch_keeps_no_graph() -> None:
    """Parameters that want gradients give tokens and scores that have none."""
    example = EXAMPLES["gpt2"]
    parameters = IMPLEMENTATIONS[1].convert(example.parameters("float32"))
    parameters.output.weight.requires_grad_()
    prompt = torch.ones(1, 2, dtype=torch.int64)
    search = generation(IMPLEMENTATIONS[1]).beam_search
    results = search(parameters, prompt, 2, configuration=example.configuration, beams=2)
    assert not any(result.requires_grad for result in results)


# --- planted faults ---------------------------------------------------------------------------------------------------


def caught(module: ModuleType) -> bool:
    """Whether one of three methods gives other tokens, or ties go elsewhere."""
    example = EXAMPLES["notebook-scratch"]
    options: dict[str, Any] = {"configuration": example.configuration, "source": example.source(), "end": END}
    prompt = example.target()[:, :3]
    for parameters in (example.parameters("float64"), undecided(example, np.zeros(VOCABULARY))):
        for method, others in METHODS.items():
            expected = generated(REFERENCE, method, example, parameters=parameters, end=END)[0]
            got = getattr(module, method)(parameters, prompt, **others | options)
            if not np.array_equal(got[0] if method == "beam_search" else got, expected):
                return True
    return False


LAST = "configuration=configuration)\n            return logits[:, -1]"
FAULTS = {
    "logits of the first position": (LAST, LAST.replace("-1", "0")),
    "rows are not filled": ("np.where(finished, end, chosen)", "chosen"),
    "a step late": ("pick(logits, length - P)", "pick(logits, length - P - 1)"),
    "the highest of equal ids": ("np.argmax(logits, axis=-1)", "10 - np.argmax(logits[:, ::-1], axis=-1)"),
    "tokens not written": ("tokens[:, length] = chosen", "tokens[:, length] = 0 * chosen"),
}


@pytest.mark.rule("GEN-1")
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name: str) -> None:
    assert not caught(generation(REFERENCE))
    assert caught(edited("reference_numpy.generation", *FAULTS[name]))


# --- what is refused --------------------------------------------------------------------------------------------------

PARAMETERS = EXAMPLES["gpt2"].parameters("float64")
SOURCE = np.ones((BATCH, 5), int)
EXPECTED = "parameters must be a LanguageModel or a Transformer"
FLOATING = "must have one of the dtypes float16, bfloat16, float32, float64"
WITHIN = "uniforms must lie in [0, 1)"
AT_LEAST_ONE = "prompt must have at least one position, got [3, 0]"
NO_SOURCE = "source must be None for a LanguageModel, got int64 array of shape [3, 5]"
TOO_LONG = "embedding.positions must have 25 rows for 23 tokens after a prompt of 3, got 24"
REFUSED: list[tuple[str, dict[str, Any], type, str]] = [
    ("greedy", {"steps": -1}, ValueError, "steps must not be negative, got -1"),
    ("greedy", {"steps": 2.0}, TypeError, "steps must be an integer, got float"),
    ("greedy", {"steps": 23}, ValueError, TOO_LONG),
    ("greedy", {"prompt": np.ones(3, int)}, ValueError, "prompt must have shape [B, T], got [3]"),
    ("greedy", {"prompt": np.ones((3, 2))}, TypeError, "prompt must have an integer dtype, got float64"),
    ("greedy", {"prompt": np.ones((3, 0), int)}, ValueError, AT_LEAST_ONE),
    ("greedy", {"prompt": np.full((3, 1), -1)}, ValueError, "ids must lie in [0, 11), got values from -1 to -1"),
    ("greedy", {"source": SOURCE}, ValueError, NO_SOURCE),
    ("greedy", {"end": 11}, ValueError, "end must lie in [0, 11), got 11"),
    ("greedy", {"end": -1}, ValueError, "end must not be negative, got -1"),
    ("greedy", {"parameters": PARAMETERS.output}, TypeError, f"{EXPECTED}, got Linear"),
    (
        "sample",
        {"uniforms": np.zeros(3)},
        ValueError,
        "uniforms must have shape [3, steps] beside prompt [3, 3], got [3]",
    ),
    (
        "sample",
        {"uniforms": np.zeros((2, 4))},
        ValueError,
        "uniforms must have shape [3, steps] beside prompt [3, 3], got [2, 4]",
    ),
    ("sample", {"uniforms": np.zeros((3, 4), int)}, TypeError, f"uniforms {FLOATING}, got int64"),
    ("sample", {"uniforms": np.ones((3, 4))}, ValueError, f"{WITHIN}, got values from 1.0 to 1.0"),
    ("sample", {"uniforms": np.full((3, 4), np.nan)}, ValueError, f"{WITHIN}, got values from nan to nan"),
    ("sample", {"temperature": 0.0}, ValueError, "temperature must be positive and finite, got 0.0"),
    ("sample", {"temperature": math.inf}, ValueError, "temperature must be positive and finite, got inf"),
    ("sample", {"temperature": "1"}, TypeError, "temperature must be a real number, got str"),
    ("sample", {"top_k": 0}, ValueError, "top_k must be at least 1, got 0"),
    ("sample", {"top_k": 1.5}, TypeError, "top_k must be an integer, got float"),
    ("sample", {"top_p": 0}, ValueError, "top_p must be above 0 and at most 1, got 0.0"),
    ("sample", {"top_p": 1.01}, ValueError, "top_p must be above 0 and at most 1, got 1.01"),
    ("sample", {"prompt": np.ones((3, 0), int)}, ValueError, AT_LEAST_ONE),
    ("beam_search", {"beams": 0}, ValueError, "beams must be at least 1, got 0"),
    ("beam_search", {"beams": True}, TypeError, "beams must be an integer, got bool"),
    ("beam_search", {"length_penalty": math.nan}, ValueError, "length_penalty must be finite, got nan"),
    ("beam_search", {"steps": -1}, ValueError, "steps must not be negative, got -1"),
]


@pytest.mark.parametrize(("method", "mistake", "kind", "words"), REFUSED)
def test_refused(implementation: Implementation, method: str, mistake: dict[str, Any], kind: type, words: str) -> None:
    assert error_of(generated, implementation, method, EXAMPLES["gpt2"], **mistake) == (kind, words)


def test_sources_and_vocabularies_that_are_refused(implementation: Implementation) -> None:
    def call(**options: Any) -> Callable[[], Any]:
        return lambda: generated(implementation, "greedy", EXAMPLES["dawn"], **options)

    large = Maker(vocabulary=300).language_model()
    small = EXAMPLES["dawn"].target()[:, :3].astype(np.int8)
    assert [error_of(call(source=source)) for source in (None, SOURCE[:2])] == [
        (ValueError, "source must be given for a Transformer, got None"),
        (ValueError, "source must have the batch size 3 of the tokens, got shape [2, 5]"),
    ]
    assert error_of(call(parameters=large, prompt=small, source=None)) == (
        TypeError,
        "prompt must have a dtype that holds ids up to 299, got int8",
    )

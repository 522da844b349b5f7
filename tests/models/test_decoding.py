"""Decoding step by step gives what the full forward pass gives.

How it is judged. The stepwise run is watched where one stage hands on to the next: after the embedding, after every
decoder block, and at the logits. Every stage is then held to the definition of the *full* pass, in float64, over the
whole sequence at once, given exactly the inputs that the stage had in the stepwise run. It may be off by what
`carried_bound` gives for that stage in the model's dtype: the bounds of all its operations (projections, attention,
sums, norms, feed-forward network), carried to its end by the definition's own derivative. No stage is excused by an
error of an earlier one, so this says more than a comparison of the logits alone, for which bounds would have to grow
from block to block: a stepwise run that passes is itself a run of the full pass, every stage within its bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

from conformance.checks.comparison import compare
from conformance.models.error_propagation import carried_bound
from conformance.models.structures import widen_parameters
from conformance.oracle.reference import Exact
from reference_numpy.transformer import position_bias, target_mask
from specification.masks import Causal, KeyPadding
from tests.support.helpers import IMPLEMENTATIONS, REFERENCE, Implementation, by_reference
from tests.support.small_models import EXAMPLES, LENGTH, Example, decoding, edited, generation
from tests.support.todays_models import TODAY

CUTS = {
    "at once": (7,),
    "one by one": (1, 1, 1, 1, 1, 1, 1),
    "prompt, then one by one": (3, 1, 1, 1, 1),
    "mixed": (2, 3, 2),
}
"""How many tokens are given at a time."""
PLAIN = "prompt, then one by one"
CAPACITY = LENGTH + 2
TODAYS = ("llama", "mistral", "qwen3", "olmo2", "gemma2", "gemma3", "gpt_neox", "gpt_j", "gpt_oss", "t5", "t5, gated")


def example_of(name: str) -> Any:
    return TODAY[name]() if name in TODAYS else EXAMPLES[name]


# --- watching ---------------------------------------------------------------------------------------------------------


class Watched(NamedTuple):
    """What the stages of a stepwise run gave, in NumPy: `states[0]` is the embedding, then one for every block."""

    memory: np.ndarray | None
    states: list[np.ndarray]
    logits: np.ndarray


def watched(
    implementation: Implementation,
    module: ModuleType,
    example: Example,
    dtype: str,
    cut: Sequence[int],
    tokens: np.ndarray | None = None,
) -> Watched:
    """The example's tokens, or others, in pieces of these sizes through `start` and `decode_step`."""
    tokens = example.target() if tokens is None else tokens
    numpy, convert = implementation.subject.framework.numpy, implementation.convert
    parameters, source = convert(example.parameters(dtype)), convert(example.source())
    memories: list[np.ndarray] = []
    given: list[list[np.ndarray]] = [[] for _ in parameters.decoder.blocks]
    taken: list[list[np.ndarray]] = [[] for _ in parameters.decoder.blocks]
    number = {id(block): i for i, block in enumerate(parameters.decoder.blocks)}
    step, encoder = module.decoder_block_step, module.encoder

    def watched_step(block: Any, x: Any, *others: Any, **keywords: Any) -> Any:
        result = step(block, x, *others, **keywords)
        given[number[id(block)]].append(numpy(x))
        taken[number[id(block)]].append(numpy(result[0]))
        return result

    def watched_encoder(*arguments: Any, **keywords: Any) -> Any:
        memory = encoder(*arguments, **keywords)
        memories.append(numpy(memory))
        return memory

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "decoder_block_step", watched_step)
        patch.setattr(module, "encoder", watched_encoder)
        pieces = np.split(tokens, np.cumsum(cut)[:-1], axis=1)
        options = {"configuration": example.configuration}
        logits, cache = module.start(parameters, convert(pieces[0]), **options, capacity=CAPACITY, source=source)
        all_logits = [numpy(logits)]
        for piece in pieces[1:]:
            logits, cache = module.decode_step(parameters, convert(piece), cache, **options)
            all_logits.append(numpy(logits))
    assert int(cache.length) == sum(cut)
    states = [np.concatenate(given[0], axis=1), *(np.concatenate(state, axis=1) for state in taken)]
    for state, parts in zip(states[1:], given[1:], strict=False):
        assert np.array_equal(state, np.concatenate(parts, axis=1), equal_nan=True)
    return Watched(memories[0] if memories else None, states, np.concatenate(all_logits, axis=1))


# --- judging ----------------------------------------------------------------------------------------------------------


def ratio(run: Callable[[Any], Any], parameters: Any, got: np.ndarray, dtype: str) -> float:
    truth, bound = carried_bound(run, parameters, dtype)
    return compare("output", got, Exact(truth, np.zeros_like(truth)), bound, dtype).ratio


def ratios(example: Example, run: Watched, dtype: str) -> dict[str, float]:
    """The largest error of every stage, in units of its bound."""
    configuration, target, source = example.configuration, example.target(), example.source()
    parameters = widen_parameters(example.parameters(dtype))
    decoder, output = parameters.decoder, parameters.output
    states = [state.astype(np.float64) for state in run.states]
    memory = None if run.memory is None else run.memory.astype(np.float64)
    options: dict[str, Any] = {"configuration": configuration}
    masks = {"mask": Causal() if configuration.target_mask == "none" else target_mask(target, configuration)}
    if source is not None and configuration.source_padding is not None:
        masks["memory_mask"] = KeyPadding(source != configuration.source_padding)
    found = {
        "embedding": ratio(
            lambda copy: copy.embed(decoder.embedding, target, **options), decoder.embedding, run.states[0], dtype
        )
    }
    masks["bias"] = position_bias(decoder, configuration, target.shape[1], target.shape[1])
    layers = configuration.layers(len(decoder.blocks))
    for i, (block, layer) in enumerate(zip(decoder.blocks, layers, strict=True)):
        found[f"block {i}"] = ratio(
            lambda copy, i=i, block=block, layer=layer: copy.decoder_block(
                block, states[i], memory, layer=layer, **options, **masks
            ),
            block,
            run.states[i + 1],
            dtype,
        )
    found["logits"] = ratio(
        lambda copy: copy.output_layer(output, copy.normalize(decoder.norm, states[-1], configuration), configuration),
        parameters,
        run.logits,
        dtype,
    )
    return found


def cases() -> list[Any]:
    """Every way of cutting in the definition; less in float64, in the ports, and in JAX, where every shape costs."""
    found = []
    for implementation in IMPLEMENTATIONS:
        for name in EXAMPLES:
            for dtype in ("float32", "float64"):
                wide = implementation.package == "jax_impl" and dtype == "float64" and name != "prenorm-blog"
                for cut in CUTS if implementation is REFERENCE and dtype == "float32" else (PLAIN,):
                    id = f"{implementation.package}, {name}, {dtype}, {cut}"
                    marks = pytest.mark.slow if wide else ()
                    found.append(pytest.param(implementation, name, dtype, cut, id=id, marks=marks))
        for name in TODAYS:
            for dtype in ("float32", "float64"):
                id = f"{implementation.package}, {name}, {dtype}, {PLAIN}"
                fast = implementation is REFERENCE and name == "gpt_oss" and dtype == "float32"
                marks = () if fast else pytest.mark.slow
                found.append(pytest.param(implementation, name, dtype, PLAIN, id=id, marks=marks))
    return found


@pytest.mark.parametrize(("implementation", "name", "dtype", "cut"), cases())
@pytest.mark.rule("GEN-1")
@pytest.mark.slow_where("reference_numpy", unless=("prompt, then one by one", "gpt2", "padded queries"))
@pytest.mark.slow_where("jax_impl", unless="gpt2, float32")
@pytest.mark.slow_where("torch_impl, ", "float64", unless="gpt2")
def test_steps_give_what_the_full_pass_gives(implementation: Implementation, name: str, dtype: str, cut: str) -> None:
    example = example_of(name)
    found = ratios(example, watched(implementation, decoding(implementation), example, dtype, CUTS[cut]), dtype)
    assert max(found.values()) <= 1, found


FAULTS = {
    "positions one too far": ("gpt2", "embedding", "offset=length)", "offset=length + 1)"),
    "positions begin anew": ("dawn", "embedding", "offset=length)", "offset=0)"),
    "nothing is appended": ("gpt2", "block 0", "np.concatenate([before, new, after], axis=axis)", "room"),
    "appended one too far": ("gpt2", "block 0", "(room, [length, length +", "(room, [length + 1, length + 1 +"),
    "values are keys": ("gpt2", "block 0", "write(cache.values, values,", "write(cache.values, keys,"),
    "no offset of the causal mask": ("gpt2", "block 0", "causal = Causal(length)", "causal = Causal(0)"),
    "not causal within a step": ("gpt2", "block 0", "causal = Causal(length)", "causal = Causal(length + 2)"),
    "memory of other rows": ("dawn", "block 0", "*own, *cross)", "*own, *(a[[1, 0, 2]] for a in cross))"),
    "padding of the source seen": ("notebook-scratch", "block 0", "KeyPadding(cache.memory_real)", "None"),
    "padded keys seen": ("padded keys", "block 0", "return causal & KeyPadding(real)", "return causal"),
    "padding is forgotten": ("padded keys", "block 0", "write(cache.real, ", "write(cache.real | True, "),
    "padded queries ask": ("padded queries", "block 0", "return causal & Dense(", "return causal | Dense("),
    "no norm after the blocks": ("gpt2", "logits", "normalize_if(decoder.norm", "normalize_if(None"),
    "turned from 0": ("llama", "block 0", "layers, x, configured, length)", "layers, x, configured)"),
    "turned one too far": ("llama", "block 0", "layers, x, configured, length)", "layers, x, configured, stop)"),
    "window stays": ("mistral", "block 0", "windowed(mask, layer, length)", "windowed(mask, layer)"),
    "no window": ("mistral", "block 0", "windowed(mask, layer, length)", "mask"),
    "the second block's window for both": ("gemma2", "block 0", "layer=layer, rotation=",
          "layer=configured.attention_layers[-1], rotation="),
    "distances from 0": ("t5", "block 0", "stop, length)\n    options", "stop, 0)\n    options"),
    "bias left out": ("t5", "block 0", "None, configuration, bias)", "None, configuration)"),
}  # fmt: skip
"""By name: an example, the stage of it that shows the fault, and in the definition what becomes what."""


@pytest.mark.rule("GEN-1")
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.slow_where(unless=("positions", "memory", "padding"))
def test_faults_are_found(name: str) -> None:
    shown_by, stage, old, new = FAULTS[name]
    module, example = edited("reference_numpy.decoding", old, new), example_of(shown_by)
    found = ratios(example, watched(REFERENCE, module, example, "float32", CUTS[PLAIN]), "float32")
    assert found[stage] > 1, found
    earlier = list(found.values())[: list(found).index(stage)]
    assert all(ratio <= 1 for ratio in earlier), found


# --- rows that may attend to nothing ----------------------------------------------------------------------------------


def stepwise(implementation: Implementation, example: Example, cut: Sequence[int], tokens: np.ndarray) -> np.ndarray:
    return watched(implementation, decoding(implementation), example, "float32", cut, tokens).logits


def full(implementation: Implementation, example: Example, tokens: np.ndarray) -> np.ndarray:
    given = map(implementation.convert, (example.parameters("float32"), tokens, example.source()))
    parameters, tokens, source = given
    logits = generation(implementation).all_logits(
        parameters, tokens, configuration=example.configuration, source=source
    )
    return implementation.subject.framework.numpy(logits)


@pytest.mark.slow_where("jax_impl")
def test_rows_of_nan_are_those_of_the_full_pass(
    implementation: Implementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN at the same places, and elsewhere what it is when these rows are 0, since no key there is seen."""
    by_reference(implementation.package, monkeypatch)
    zero = EXAMPLES["padded keys"]
    nan = zero._replace(configuration=replace(zero.configuration, empty_rows="nan"))
    got = stepwise(implementation, nan, CUTS[PLAIN], zero.target())
    expected = stepwise(implementation, zero, CUTS[PLAIN], zero.target())
    missing = np.isnan(full(implementation, nan, zero.target()))
    assert 0 < missing.sum() < missing.size
    assert np.array_equal(got, np.where(missing, np.nan, expected), equal_nan=True)


LOOKING_AHEAD = {"dawn": ((1, 4),), "prenorm-blog": ((2, 0),)}
"""Examples whose empty rows take the mean of all values, and where padding makes such a row."""


@pytest.mark.rule("GEN-1")
@pytest.mark.parametrize("name", LOOKING_AHEAD)
@pytest.mark.slow_where("jax_impl", "prenorm")
@pytest.mark.slow_where("jax_impl")
def test_rows_that_look_ahead_are_refused(implementation: Implementation, name: str) -> None:
    """What the full pass gives at a position changes there with the tokens after it, so no cache could give it."""
    example = EXAMPLES[name]._replace(padded=LOOKING_AHEAD[name])
    tokens, others = example.target(), example.target()
    others[:, -1] = others[:, -1] % 10 + 1
    ((row, position),) = LOOKING_AHEAD[name]
    longer, changed = full(REFERENCE, example, tokens), full(REFERENCE, example, others)
    assert not np.array_equal(longer[row, position], changed[row, position])
    with pytest.raises(ValueError, match="needs the full forward pass") as refusal:
        stepwise(implementation, example, CUTS[PLAIN], tokens)
    with pytest.raises(ValueError, match="needs the full forward pass") as expected:
        stepwise(REFERENCE, example, CUTS[PLAIN], tokens)
    assert str(refusal.value) == str(expected.value)

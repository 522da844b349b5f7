"""Models of which every rank has a part of the sequence, beside models of the whole (DIST-7)."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
import torch
import torch.distributed as dist
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Spec

from conformance.bounds.arithmetic import Precision
from conformance.models.error_propagation import carried_bound
from jax_impl import distributed_models as on_devices
from specification import checks
from specification.checkpoints import flatten
from specification.dropout import Dropout, StackDropout, TransformerDropout
from specification.parameters import mapped
from tests.models.test_gradients import (
    EXAMPLES,
    Arguments,
    Example,
    arguments_of,
    by_hand,
    cotangent_of,
    joined,
    untied,
)
from tests.support.devices import Devices
from tests.support.models_on_ranks import (
    FAULTS,
    FAULTS_ON_DEVICES,
    SIZE,
    ModelCall,
    compute_model,
    compute_on_devices,
    compute_wrongly_on_devices,
    join_parts,
    sum_of_gradients,
)
from tests.support.ranks import Ranks
from torch_impl import distributed_models
from torch_impl.distributed import ring_attention
from torch_impl.distributed_models import sum_gradients
from torch_impl.ranks import Members

NOT_SHARED = ("dropout, classifier", "patch_size", "empty_rows", "pooling", "classifier", "embedding alone",
              "equal maxima", "nothing to pool", "masks beside padding, classifier", "today, vit")  # fmt: skip
NAMES = [name for name in EXAMPLES if not name.startswith(NOT_SHARED)]
"""Examples of models whose sequence ranks can share."""
DAILY = {
    "encoder": (3, "contiguous", "ring"),
    "positions=after_padding": (3, "zigzag", "ring"),
    "transformer": (2, "zigzag", "ring"),
    "target_mask=causal and real queries": (4, "zigzag", "ring"),
    "embedded decoder": (2, "contiguous", "heads"),
    "today, llama": (4, "zigzag", "ring"),
    "today, gpt_oss": (2, "zigzag", "heads"),
    "today, t5": (3, "contiguous", "ring"),
    "dropout, pre-norm": (3, "zigzag", "ring"),
}
WAYS = [(1, "contiguous", "ring"), (2, "contiguous", "heads"), (3, "contiguous", "ring"), (4, "zigzag", "ring"),
        (8, "zigzag", "ring")]  # fmt: skip


@cache
def example_of(name: str, length: int | None = None) -> Example:
    """Rows that may attend to nothing get zeros, no ReLU turns by what 16 bits round away, and no weight is dropped.

    length: of all inputs, which are repeated until then.
    """
    example = EXAMPLES[name]()
    changes = {"empty_rows": "zero"} | ({"activation": "gelu"} if example.configuration.activation == "relu" else {})
    example = example._replace(configuration=replace(example.configuration, **changes))
    if "dropout" in example.options:
        example = example._replace(options={"dropout": keep_weights(example.options["dropout"])})
    if length is None:
        return example
    options = {name: stretch(array, length) for name, array in example.options.items() if name == "token_types"}
    return example._replace(inputs=tuple(stretch(array, length) for array in example.inputs), options=options)


def keep_weights(dropout: Any) -> Any:
    """The dropout but for that of attention's weights."""
    if isinstance(dropout, TransformerDropout):
        return TransformerDropout(*map(keep_weights, dropout))
    blocks = [
        block._replace(**{name: site._replace(inner=None) for name, site in block._asdict().items() if "att" in name})
        for block in dropout.blocks
    ]
    return dropout._replace(blocks=blocks)


def stretch(array: np.ndarray, length: int) -> np.ndarray:
    return np.concatenate([array] * (length // array.shape[1] + 1), axis=1)[:, :length]


def model_call(example: Example, dtype: str, ranks: int, layout: str, scheme: str, **options: Any) -> ModelCall:
    given, cotangent = arguments_of(example, dtype), cotangent_of(example).astype(dtype)
    parameters = untied(example, given.parameters)
    return ModelCall(
        example.function, parameters, given.inputs, example.configuration, example.options, cotangent, ranks, layout,
        scheme, **options,
    )  # fmt: skip


@cache
def truth(name: str, dtype: str, length: int | None = None) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The definition's output and gradients, exactly, and their bounds."""
    example = example_of(name, length)
    given: Arguments = mapped(
        lambda array: array if array.dtype.kind == "i" else array.astype("float64"), arguments_of(example, dtype)
    )
    cotangent = cotangent_of(example).astype(dtype).astype("float64")
    parameters = untied(example, given.parameters)

    def run(functions: Any) -> Any:
        options: Any = {"configuration": example.configuration, **example.options}
        output = getattr(functions, example.function)(parameters, *given.inputs, **options)
        return output, by_hand(functions, example._replace(tied=False), parameters, given.inputs, cotangent)

    def name_arrays(found: Any) -> dict[str, np.ndarray]:
        output, gradients = found
        return {"output": output} | flatten({"parameters": gradients.parameters, "inputs": gradients.inputs})

    exact, bounds = carried_bound(run, parameters, dtype)
    return name_arrays(exact), name_arrays(bounds)


def list_violations(got: dict[str, np.ndarray], name: str, dtype: str, length: int | None = None) -> list[str]:
    """Where a result is missing, or of another shape, or beyond its bound.

    Of 16 bits, every rank rounds its part of a parameter's gradient before the sum: together at most one rounding of
    the sum of the parts' sizes.
    """
    exact, bounds = truth(name, dtype, length)
    unit = Precision.make(dtype).output if dtype in ("float16", "bfloat16") else 0.0
    wrong = sorted({one for one in got if not one.startswith(SIZE)} ^ exact.keys())
    for one in got.keys() & exact.keys():
        allowed = bounds[one] + unit * got.get(SIZE + one, 0)
        if got[one].shape != exact[one].shape or not (np.abs(got[one] - exact[one]) <= allowed).all():
            wrong.append(one)
    return wrong


def compute(processes: Ranks, call: ModelCall) -> dict[str, np.ndarray]:
    answers = processes.ask(compute_model, [call] * call.ranks)
    errors = [error for _, error in answers if error is not None]
    assert not errors, errors
    return name_joined_heads(call, join_parts(call, [results for results, _ in answers]))


def name_joined_heads(call: ModelCall, got: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Gradients of separate heads side by side, as the definition gives them."""
    own = flatten({"parameters": call.parameters})
    found = {name: array for name, array in got.items() if name.removeprefix(SIZE) not in own}
    for prefix in ("", SIZE):
        if all(prefix + name in got for name in own):
            following = iter([got[prefix + name] for name in own])
            gradients = joined(mapped(lambda _, following=following: next(following), call.parameters))
            found |= {prefix + name: array for name, array in flatten({"parameters": gradients}).items()}
        else:
            found |= {prefix + name: got[prefix + name] for name in own if prefix + name in got}
    return found


@pytest.mark.parametrize("name", DAILY)
@pytest.mark.rule("DIST-7")
def test_the_whole_model(processes: Ranks, name: str) -> None:
    assert (
        list_violations(compute(processes, model_call(example_of(name), "float32", *DAILY[name])), name, "float32")
        == []
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.rule("DIST-7")
def test_every_option_in_every_way(processes: Ranks, name: str, dtype: str) -> None:
    example = example_of(name)
    for ranks, layout, scheme in WAYS:
        got = compute(processes, model_call(example, dtype, ranks, layout, scheme))
        assert list_violations(got, name, dtype) == [], (ranks, layout, scheme)


UNEVEN = {
    "today, llama": [(0, 6, 1)],
    "today, t5": [(2, 0, 3), (0, 7, 0)],
    "transformer": [(5, 0, 0), (1, 3, 1)],
}
"""Lengths of each input's part on three ranks."""


@pytest.mark.parametrize("name", UNEVEN)
@pytest.mark.rule("DIST-3", "DIST-7")
def test_ranks_without_positions(processes: Ranks, name: str) -> None:
    call = model_call(example_of(name), "float32", 3, "contiguous", "ring", lengths=UNEVEN[name])
    assert list_violations(compute(processes, call), name, "float32") == []


SHOWN_BY = {
    "positions begin anew on every rank": "today, llama",
    "embedding at the first positions": "transformer",
    "padding of own tokens": "transformer",
    "gradients of parameters not summed": "encoder",
    "gradients of parameters averaged": "encoder",
    "attention within a rank": "embedded encoder",
    "bias of the first rows": "today, t5",
    "sinks summed twice": "today, gpt_oss",
}


REFUSED_FAULTS = {
    "padding of own tokens": "mask must be the same on every rank",
    "gradients of parameters not summed": "Arrays are not equal",
}
"""Ranks disagree about a mask, or in the end about gradients."""


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.rule("DIST-7")
def test_planted_faults(processes: Ranks, fault: str) -> None:
    name = SHOWN_BY[fault]
    call = model_call(example_of(name), "float32", 3, "contiguous", "ring")
    assert list_violations(compute(processes, call), name, "float32") == []
    wrong = call._replace(fault=fault)
    if fault in REFUSED_FAULTS:
        with pytest.raises(AssertionError, match=REFUSED_FAULTS[fault]):
            compute(processes, wrong)
    else:
        assert list_violations(compute(processes, wrong), name, "float32") != []


@pytest.mark.parametrize("target_mask", ["causal and real keys", "causal and real queries"])
@pytest.mark.rule("DIST-5", "DIST-7")
def test_what_ranks_compare_of_a_mask_grows_with_the_length(monkeypatch: pytest.MonkeyPatch, target_mask: str) -> None:
    """It does not grow with the square. Without a process group there is one rank, and it describes its calls too."""
    example, sizes = example_of("target_mask=causal and real queries", 24), []
    monkeypatch.setattr("torch_impl.ranks.fingerprint", lambda array: sizes.append(array.numel()))
    parameters, inputs = mapped(torch.tensor, (example.parameters, example.inputs))
    configuration, alone = replace(example.configuration, target_mask=target_mask), distributed_models.Ranks()
    getattr(distributed_models, example.function)(parameters, *inputs, configuration=configuration, ranks=alone)
    assert 0 < max(sizes) <= example.inputs[-1].size


# --- what all ranks refuse --------------------------------------------------------------------------------------------

REFUSED = {
    "another configuration on a rank": (
        lambda call, rank: call._replace(configuration=replace(call.configuration, norm_eps=1e-5 * (1 + (rank == 1)))),
        "configuration must be the same on every rank",
    ),
    "another batch on a rank": (
        lambda call, rank: call._replace(inputs=tuple(array[: 2 + (rank == 0)] for array in call.inputs)),
        "the shape of decoder without its length must be the same on every rank",
    ),
    "a token that no table has": (
        lambda call, rank: call._replace(inputs=tuple(array + 100 * (rank == 2) for array in call.inputs)),
        "tokens must lie in",
    ),
    "more positions than the table has": (
        lambda call, rank: call._replace(
            inputs=tuple(stretch(array, 99) for array in call.inputs), cotangent=stretch(call.cotangent, 99)
        ),
        "table must have 99 rows",
    ),
    "rows without keys as the mean": (
        lambda call, rank: call._replace(configuration=replace(call.configuration, empty_rows="mean")),
        "empty_rows must be 'zero' over ranks, got mean",
    ),
    "an unknown scheme": (lambda call, rank: call._replace(scheme="tree"), "scheme must be one of 'ring', 'heads'"),
    "an unknown layout": (lambda call, rank: call._replace(layout="striped"), "layout must be one of 'contiguous'"),
    "another model on a rank": (
        lambda call, rank: call._replace(
            function="decoder" if rank == 1 else call.function,
            parameters=call.parameters.decoder if rank == 1 else call.parameters,
        ),
        "the function must be the same on every rank, got language_model on rank 0 and decoder on rank 1",
    ),
    "parameters of another model": (
        lambda call, rank: call._replace(parameters=call.parameters.decoder if rank == 1 else call.parameters),
        "parameters must be a LanguageModel",
    ),
    "another output layer": (
        lambda call, rank: call._replace(
            parameters=call.parameters._replace(
                output=mapped(lambda array: array[..., : 9 + rank], call.parameters.output)
            )
        ),
        "parameters.output.weight must be the same on every rank",
    ),
    "narrower tokens on a rank": (
        lambda call, rank: call._replace(inputs=tuple(a.astype("int32" if rank else "int64") for a in call.inputs)),
        "the dtype of decoder must be the same on every rank, got int64 on rank 0 and int32 on rank 1",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.rule("DIST-5", "DIST-7")
def test_every_rank_refuses(processes: Ranks, name: str) -> None:
    change, message = REFUSED[name]
    call = model_call(example_of("three blocks, language model"), "float32", 3, "contiguous", "ring")
    answers = processes.ask(compute_model, [change(call, rank) for rank in range(3)])
    errors = {error for _, error in answers}
    assert len(errors) == 1, errors
    kind, text = errors.pop()
    assert kind in ("ValueError", "TypeError")
    assert message in text


@pytest.mark.rule("DIST-5", "DIST-7")
def test_every_rank_refuses_token_types_of_one(processes: Ranks) -> None:
    call = model_call(example_of("encoder"), "float32", 2, "contiguous", "ring")
    without = call._replace(options={})
    answers = processes.ask(compute_model, [call, without])
    assert len({error for _, error in answers}) == 1
    assert "the dtype of token_types must be the same on every rank" in answers[0][1][1]


def encode(given: tuple[ModelCall, dict[str, Any]], group: Any) -> None:
    """A rank's part of an encoder, with other options."""
    call, changes = given
    inputs, options, _ = call.cut(dist.get_rank(group))
    parameters, inputs, options = mapped(torch.tensor, (call.parameters, inputs, options))
    ranks = distributed_models.Ranks(group)
    distributed_models.encoder(parameters, *inputs, configuration=call.configuration, **options | changes, ranks=ranks)


OF_OTHER_LENGTHS: dict[str, tuple[dict[str, Any], str]] = {
    "token types": (
        {"token_types": torch.zeros(3, 4, dtype=torch.int64)}, "token_types must have shape [3, 3], got [3, 4]",
    ),
    "dropout": (
        {"dropout": StackDropout(Dropout(torch.ones(3, 4, 16, dtype=torch.bool), 0.1))},
        "dropout.embedding.keep must have shape [3, 3, ...], got [3, 4, 16]",
    ),
}  # fmt: skip
"""Options of one rank, which has three positions."""


@pytest.mark.parametrize("name", OF_OTHER_LENGTHS)
@pytest.mark.rule("DIST-5", "DIST-7")
def test_every_rank_refuses_what_one_has_of_another_length(processes: Ranks, name: str) -> None:
    changes, message = OF_OTHER_LENGTHS[name]
    call = model_call(example_of("encoder", 6), "float32", 2, "contiguous", "ring")
    answers = processes.ask(encode, [(call, {}), (call, changes)])
    assert [error for _, error in answers] == [("ValueError", message)] * 2


def attend_or_encode(call: ModelCall, group: Any) -> None:
    if dist.get_rank(group) == 0:
        ring_attention(*torch.ones(3, 1, 2, 3, 4), group=group)
    else:
        encode((call, {}), group)


@pytest.mark.rule("DIST-5", "DIST-7")
def test_a_model_does_not_meet_attention(processes: Ranks) -> None:
    call = model_call(example_of("encoder", 6), "float32", 2, "contiguous", "ring")
    message = "the function must be the same on every rank, got ring_attention on rank 0 and encoder on rank 1"
    answers = processes.ask(attend_or_encode, [call] * 2)
    assert [error for _, error in answers] == [("ValueError", message)] * 2


@pytest.mark.rule("DIST-7")
def test_token_types_of_the_whole_are_refused_on_devices() -> None:
    """Each rank would take the first of them for its own."""
    example, axis = example_of("encoder", 6), Spec(None, "ranks")
    types = np.concatenate([example.options["token_types"]] * 2, axis=1)

    def encode(tokens: jax.Array) -> jax.Array:
        ranks, configuration = on_devices.Ranks("ranks"), example.configuration
        return on_devices.encoder(
            example.parameters, tokens, configuration=configuration, token_types=types, ranks=ranks
        )

    mesh = Mesh(np.array(jax.devices()[:1]), ("ranks",))
    with pytest.raises(ValueError, match=r"token_types must have shape \[3, 6\], got \[3, 12\]"):
        jax.eval_shape(jax.shard_map(encode, mesh=mesh, in_specs=axis, out_specs=axis), *example.inputs)


@pytest.mark.rule("DIST-7")
def test_dropout_of_attention_weights_is_refused() -> None:
    example = EXAMPLES["dropout, encoder"]()
    configuration = replace(example.configuration, empty_rows="zero")
    with pytest.raises(ValueError, match="dropout must leave the weights of attention over ranks, got some for attent"):
        checks.model_over_ranks(example.parameters, configuration, *example.inputs, example.options["dropout"])


@pytest.mark.rule("DIST-7")
def test_parameters_that_want_no_gradient_stay_as_they_are() -> None:
    """Else a frozen body would be differentiated, and gradients that nobody wants would travel."""
    frozen = mapped(torch.tensor, example_of("three blocks, language model").parameters)
    assert sum_gradients(Members(None, 0, 2), frozen) is frozen
    norm = frozen.decoder.norm._replace(bias=frozen.decoder.norm.bias.requires_grad_())
    shared = sum_gradients(Members(None, 0, 2), frozen._replace(decoder=frozen.decoder._replace(norm=norm)))
    changed = [name for name, array in flatten(shared).items() if array is not flatten(frozen)[name]]
    assert changed == ["decoder.norm.bias"]


# --- on devices of JAX ------------------------------------------------------------------------------------------------

LENGTH = 8
ON_DEVICES = {
    "encoder": (4, "zigzag", "ring"),
    "transformer": (2, "contiguous", "heads"),
    "positions=after_padding": (2, "zigzag", "ring"),
    "three blocks, embedded encoder": (8, "contiguous", "ring"),
    "today, llama": (2, "zigzag", "ring"),
    "today, gemma2": (4, "contiguous", "heads"),
    "today, gpt_oss": (4, "zigzag", "ring"),
    "today, t5": (4, "zigzag", "ring"),
}


@pytest.mark.slow_where("", unless=("float32-today, gpt_oss", "bfloat16-encoder"))
@pytest.mark.parametrize("name", ON_DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.rule("DIST-7")
def test_the_whole_model_on_devices(process: Devices, dtype: str, name: str) -> None:
    call = model_call(example_of(name, LENGTH), dtype, *ON_DEVICES[name])
    got = name_joined_heads(call, process.ask(compute_on_devices, call))
    assert list_violations(got, name, dtype, LENGTH) == []


@pytest.mark.rule("DIST-7")
def test_gradients_on_devices_are_summed_in_32_bits(process: Devices) -> None:
    """In float16, 1 + 2 ** -11 is 1 again."""
    assert process.ask(sum_of_gradients, np.array([1, 2**-11, 2**-11, 0], "float16")) == 1 + 2**-10


SHOWN_ON_DEVICES = {
    "positions begin anew on every rank": "today, llama",
    "embedding at the first positions": "transformer",
    "attention within a rank": "three blocks, embedded encoder",
    "bias of the first rows": "today, t5",
    "padding of own tokens on devices": "transformer",
    "windows from the first position of a rank": "today, gpt_oss",
    "gradients of the first rank alone": "encoder",
    "gradients averaged": "encoder",
}


@pytest.mark.slow_where("", unless="windows")
@pytest.mark.parametrize("fault", FAULTS_ON_DEVICES)
@pytest.mark.rule("DIST-7")
def test_planted_faults_on_devices(process: Devices, fault: str) -> None:
    name = SHOWN_ON_DEVICES[fault]
    call = model_call(example_of(name, LENGTH), "float32", *ON_DEVICES[name], fault=fault)
    got = name_joined_heads(call, process.ask(compute_wrongly_on_devices, call))
    assert list_violations(got, name, "float32", LENGTH) != []

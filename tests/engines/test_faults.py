"""Planted faults: every test of the engines can fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from conformance.checks.independence import check_determinism
from conformance.peers.engines import Engine
from specification.engines import Choice
from tests.engines import test_inputs, test_transformations
from tests.engines.test_choice import explained, refusal
from tests.engines.test_isolation import isolated, long_sequences_hide
from tests.engines.test_skipping import COUNTED, T, work
from tests.engines.test_transformations import transform
from tests.support.engine_cases import (
    BLOCKED,
    CASES,
    FAR,
    FUSED,
    PIECES,
    agreement,
    conforms,
    error,
    lowered,
    module_of,
    subject,
    worst,
)
from tests.support.helpers import Case, truth_and_bounds
from tests.support.small_models import edited

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")


class Wrong(NamedTuple):
    """What `plant` makes wrong, `check` notices."""

    check: Callable[[pytest.MonkeyPatch], None]
    plant: Callable[[pytest.MonkeyPatch], None]


def with_ranges(engine: Engine, change: Callable[[Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """The engine is told other ranges of keys than the mask has."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        module = copied_blocks(patch) if engine.arrays == "jax" else module_of(engine, "engines.blocked")
        patch.setattr(module, "key_ranges", after(module.key_ranges, change))

    return plant


def copied_blocks(
    patch: pytest.MonkeyPatch, old: str = "from functools import partial", new: str = "from functools import partial"
) -> Any:
    """The blocks of the JAX port, edited, in the place of its own: what was compiled from those is not used again."""
    copy: Any = edited("jax_impl.engines.blocked", old, new)
    copy.Inputs = module_of(PIECES, "engines.blocked").Inputs
    patch.setattr(module_of(PIECES, "attention"), "blocked_attention", copy.blocked_attention)
    return copy


def edit_copy(old: str, new: str) -> Callable[[pytest.MonkeyPatch], Any]:
    return lambda patch: copied_blocks(patch, old, new)


def agrees(engine: Engine, name: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda _: conforms(agreement(engine, name))


def hides(engine: Engine, name: str, argument: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda _: conforms(isolated(engine, name, argument))


def careless(inputs: Any) -> torch.Tensor:
    """Attention as PyTorch has it: zeros times whatever stands behind the mask."""
    allowed = module_of(BLOCKED, "masks").allowed_pairs(
        inputs.mask, inputs.query.shape[2], inputs.key.shape[2], inputs.query.device
    )
    return torch.nn.functional.scaled_dot_product_attention(
        inputs.query, inputs.key, inputs.value, allowed, scale=inputs.scale, enable_gqa=True
    )


def in_module(module: str, name: str, function: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(module_of(BLOCKED, module), name, function)


def in_blocks(name: str, old: str, new: str) -> Callable[[pytest.MonkeyPatch], None]:
    """A function of the PyTorch port's blocks, edited."""
    copy = edited("torch_impl.engines.blocked", old, new)
    return lambda patch: patch.setattr(module_of(BLOCKED, "engines.blocked"), name, getattr(copy, name))


def changing_the_query(patch: pytest.MonkeyPatch) -> None:
    module = module_of(BLOCKED, "attention")
    right = module.blocked_attention

    def wrong(limits: Any, inputs: Any) -> Any:
        output = right(limits, inputs)
        with torch.no_grad():
            inputs.query.mul_(2)
        return output

    patch.setattr(module, "blocked_attention", wrong)


def always_the_reference(patch: pytest.MonkeyPatch) -> None:
    choice = module_of(BLOCKED, "engines.choice")
    patch.setattr(
        module_of(BLOCKED, "attention"), "choice",
        SimpleNamespace(LIMITS=choice.LIMITS, engine_for=lambda *_: Choice("reference", "", {})),
    )  # fmt: skip


def far_conforms(name: str, _: pytest.MonkeyPatch) -> None:
    conforms(error(PIECES, FAR[name]))


def forward_only(name: str) -> Case:
    return replace(CASES[name], cotangents={})


def transform_without_error(name: str) -> None:
    try:
        transform(name)
    except RuntimeError as error:
        raise AssertionError(name) from error


def everything(ranges: Any) -> Any:
    return ranges._replace(first=0 * ranges.first, stop=0 * ranges.stop + T)


WRONG: dict[str, Wrong] = {
    "blocked: the last key left out": Wrong(
        agrees(BLOCKED, "none"), with_ranges(BLOCKED, lambda r: r._replace(stop=r.stop - 1))
    ),
    "fused: a key too many unmasked": Wrong(
        agrees(FUSED, "causal"), with_ranges(FUSED, lambda r: r._replace(stop=r.stop + 1, full_stop=r.stop + 1))
    ),
    "JAX: the last key left out": Wrong(
        agrees(PIECES, "all"), with_ranges(PIECES, lambda r: r._replace(stop=r.stop - 1))
    ),
    "JAX: rows counted twice where blocks reach back": Wrong(
        agrees(PIECES, "all"), edit_copy(">= place.fresh, sizes.R", ">= place.query, sizes.R")
    ),
    **{
        f"JAX: {name} too far from 0 to sum exp(score)": Wrong(partial(far_conforms, name), edit_copy(*edit))
        for name, edit in {
            "scores": ("return usual & (score <= SCORE)", "return usual"),
            "small queries, a large scale": ("largest_of(square) + lost", "largest_of(square)"),
            "small values": (">= VALUES[0]", ">= 0"),
            "large values": ("<= VALUES[1]", "< jnp.inf"),
            "bias": ("score = score + largest", "score = score + 0 * largest"),
            "sinks": ("(jnp.abs(sinks) <= SCORE)", "(jnp.abs(sinks) < jnp.inf)"),
        }.items()
    },
    "JAX: what the log-sum-exp lost is forgotten": Wrong(
        lambda _: conforms(error(PIECES, lowered(4096), truth_and_bounds(lowered(0)))),
        edit_copy("piece.scores - lse - lost", "piece.scores - lse"),
    ),
    "JAX: few queries without their scale": Wrong(
        agrees(PIECES, "few queries"),
        edit_copy("flat(query).astype(dtype) * inputs.scale", "flat(query).astype(dtype)"),
    ),
    "JAX: few queries without sinks": Wrong(
        agrees(PIECES, "few queries"), edit_copy("None, PLAIN), sinks, sizes)", "None, PLAIN), None, sizes)")
    ),
    "JAX: few queries, and infinity taken for a number": Wrong(
        hides(PIECES, "few queries", "value"), edit_copy("jnp.isinf(output), jnp.nan", "False, jnp.nan")
    ),
    "JAX: cotangents of rows without keys get to the sinks": Wrong(
        hides(PIECES, "sinks", "cotangent"), edit_copy("jnp.where(seen, mean, -d_lse.reshape(sizes.rows))", "mean")
    ),
    "JAX: NaN left out of a maximum": Wrong(
        lambda _: long_sequences_hide("jax_impl"),
        edit_copy("jnp.all(sizes < jnp.inf), jnp.max(sizes)", "True, jnp.nanmax(sizes)"),
    ),
    "JAX: gradients of keys from all queries of a block, old ones too": Wrong(
        agrees(PIECES, "none"), edit_copy("jnp.where(fresh, rows, 0).T", "rows.T")
    ),
    "gradients of the last block only": Wrong(
        agrees(BLOCKED, "causal"), in_blocks("blocked_gradients", "total += gradient", "total.copy_(gradient)")
    ),
    "blocked: zero times NaN": Wrong(
        hides(BLOCKED, "dense", "value"),
        in_module("engines.blocked", "reference_attention", lambda **given: (careless(SimpleNamespace(**given)), None)),
    ),
    "fused: zero times NaN": Wrong(
        hides(FUSED, "dense", "value"),
        in_module("attention", "fused_attention", lambda limits, inputs: careless(inputs)),
    ),
    "fused: zero times infinity in the gradient": Wrong(
        hides(FUSED, "upper left", "cotangent"),
        in_module("attention", "fused_attention", lambda limits, inputs: careless(inputs)),
    ),
    "JAX: zero times NaN": Wrong(
        hides(PIECES, "dense", "key"), lambda patch: setattr(copy := copied_blocks(patch), "CAREFUL", copy.PLAIN)
    ),
    "one array three times counted as one": Wrong(
        lambda _: test_transformations.test_second_derivatives(BLOCKED, True),
        in_blocks("reference_gradients", ".view_as(t)", ""),
    ),
    "JAX: second derivatives of the inputs left out": Wrong(
        lambda _: test_transformations.test_second_derivatives(PIECES, False),
        edit_copy("return of_inputs, ", "return jax.tree.map(jnp.zeros_like, of_inputs), "),
    ),
    "numbers looked at under a transformation": Wrong(
        lambda _: transform_without_error("vmap"),
        lambda patch: patch.setattr(module_of(BLOCKED, "engines.choice"), "traced", lambda *tensors: False),
    ),
    "taken what cannot be done": Wrong(
        lambda _: refusal("torch_impl", "blocked", {"empty_rows": "mean"}, "empty_rows"),
        lambda patch: patch.setattr(module_of(BLOCKED, "engines.choice"), "hindrance_of_blocks", lambda *_: ""),
    ),
    "another engine than the explained one": Wrong(lambda patch: explained("torch_impl", patch), always_the_reference),
    "inputs changed": Wrong(
        lambda _: conforms(worst(check_determinism(subject(BLOCKED), forward_only("all"), None))), changing_the_query
    ),
    "strides not looked at": Wrong(
        lambda _: test_inputs.test_strides_do_not_matter(FUSED, "none"),
        lambda patch: patch.setattr(module_of(FUSED, "engines.fused"), "dense", lambda tensor: tensor),
    ),
    "narrowed by autocast": Wrong(
        lambda _: test_inputs.test_autocast_changes_nothing(BLOCKED, torch.bfloat16),
        in_module("attention_steps", "product", lambda left, right: left @ right),
    ),
    "blocked: nothing skipped": Wrong(
        lambda patch: work(COUNTED["torch_impl, blocked"], "window", patch), with_ranges(BLOCKED, everything)
    ),
    "fused: nothing skipped": Wrong(
        lambda patch: work(COUNTED["torch_impl, fused"], "segments", patch), with_ranges(FUSED, everything)
    ),
    "JAX: nothing skipped": Wrong(
        lambda patch: work(COUNTED["jax_impl, blocked"]._replace(limits=(64, 64, 2, 1)), "window", patch),
        lambda patch: patch.setattr(
            blocked := module_of(PIECES, "engines.blocked"), "key_ranges", after(blocked.key_ranges, everything)
        ),
    ),
}


def after(right: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *given: change(right(*given))


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_planted_fault_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    WRONG[name].plant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        WRONG[name].check(monkeypatch)

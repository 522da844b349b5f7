"""Formulas that differ from the definition's: allowed as far as declared, offered by the report, and no further."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from conformance import Report, check
from conformance.bounds import bound
from conformance.cases.case import Case
from conformance.cases.declaration import Declaration, read_conventions
from conformance.cases.facts import operation_facts
from conformance.checks.comparison import judge
from conformance.oracle.reference import evaluate_balls, evaluate_definition
from conformance.sampling.draws import draw_cases
from conformance.sampling.operations import operation_cases
from specification.optimizers import AdamState, SgdState
from tests.support.helpers import SMALL, judged, options_of

Function = Callable[..., Any]


def wide(array: torch.Tensor) -> torch.Tensor:
    return array.to(torch.promote_types(array.dtype, torch.float32))


# --- Adam's eps -------------------------------------------------------------------------------------------------------


def adam(denominator: Function) -> Function:
    """denominator: from the square, 1 - beta_2^t and eps."""

    def adam_step(
        parameters: Any, gradients: Any, state: Any, *, learning_rate: float, beta_1: float = 0.9,
        beta_2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0, decoupled: bool = True,
    ) -> Any:  # fmt: skip
        new, gradient, step = wide(parameters), wide(gradients), state.step + 1
        if decoupled:
            new = new * (1 - learning_rate * weight_decay)
        else:
            gradient = gradient + weight_decay * new
        mean = beta_1 * state.mean + (1 - beta_1) * gradient
        square = beta_2 * state.square + (1 - beta_2) * gradient * gradient
        update = mean / (1 - beta_1**step) / denominator(square, 1 - beta_2**step, eps)
        return (new - learning_rate * update).to(parameters.dtype), AdamState(step, mean, square)

    return adam_step


inside = adam(lambda square, correction, eps: (square / correction + eps).sqrt())
as_keras = adam(lambda square, correction, eps: (square.sqrt() + eps) / math.sqrt(correction))
squared = adam(lambda square, correction, eps: (square / correction + eps * eps).sqrt())


# --- gradient descent, clipping, losses, ALiBi ------------------------------------------------------------------------


def sgd(kept: Function) -> Function:
    """kept: from the old velocity, the new one and the momentum the velocity that is returned."""

    def sgd_step(
        parameters: Any, gradients: Any, state: Any, *, learning_rate: float, momentum: float = 0.0,
        nesterov: bool = False, weight_decay: float = 0.0,
    ) -> Any:  # fmt: skip
        theta = wide(parameters)
        gradient = wide(gradients) + weight_decay * theta
        velocity = momentum * state.velocity + gradient
        update = gradient + momentum * velocity if nesterov else velocity
        new = (theta - learning_rate * update).to(parameters.dtype)
        return new, SgdState(kept(state.velocity, velocity, momentum))

    return sgd_step


kept_at_0 = sgd(lambda old, new, momentum: new if momentum else old.clone())
always_kept = sgd(lambda old, new, momentum: old.clone())


def clip(added: float) -> Function:
    def clip_by_global_norm(gradients: list[Any], limit: float) -> Any:
        largest = max(float(array.abs().max()) if array.numel() else 0.0 for array in map(wide, gradients))
        scale = largest or 1.0
        if not math.isfinite(largest):
            return gradients, torch.tensor(largest, dtype=wide(gradients[0]).dtype)
        norm = sum((wide(array) / scale).square().sum() for array in gradients).sqrt() * scale
        factor = (limit / (norm + added)).clamp(max=1.0)
        return [(wide(array) * factor).to(array.dtype) for array in gradients], norm

    return clip_by_global_norm


def cross_entropy(logits: Any, targets: Any, *, ignore: int | None = None, reduction: str = "mean") -> Any:
    """As `torch.nn.functional.cross_entropy` has it, where no target counts."""
    counted = targets == targets if ignore is None else targets != ignore
    x = torch.where(counted[..., None], wide(logits), 0).reshape(-1, logits.shape[-1])
    classes = torch.where(counted, targets, -100).reshape(-1).long()
    loss = torch.nn.functional.cross_entropy(x, classes, reduction=reduction)
    return (loss.reshape(targets.shape) if reduction == "none" else loss).to(logits.dtype)


def always_nan(logits: Any, targets: Any, *, ignore: int | None = None, reduction: str = "mean") -> Any:
    loss = cross_entropy(logits, targets, ignore=ignore, reduction=reduction)
    return loss if ignore is None or bool((targets != ignore).all()) else loss * torch.nan


def alibi(of_distance: Function) -> Function:
    def alibi_bias(num_heads: int, query_length: int, key_length: int, *, offset: int = 0) -> Any:
        power = 2 ** (num_heads.bit_length() - 1)
        slopes = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
        slopes += [2.0 ** (-4 * h / power) for h in range(1, 2 * (num_heads - power), 2)]
        distance = np.arange(key_length) - (np.arange(query_length) + offset)[:, None]
        return (np.array(slopes)[:, None, None] * of_distance(distance))[None].astype(np.float32)

    return alibi_bias


def rotary(returned: Function) -> Function:
    """returned: what is made of the turned first and second numbers of all pairs; the others follow."""

    def rotary_embedding(
        x: Any, positions: Any, *, base: float = 10000.0, pairing: str = "halves", rotary_width: int | None = None
    ) -> Any:
        width = x.shape[-1] if rotary_width is None else rotary_width
        angles = positions.double()[..., None] * base ** (-torch.arange(0, width, 2).double() / width)
        angles = angles if angles.ndim == 2 else angles[:, None]
        cos, sin = (part.to(wide(x).dtype) for part in (angles.cos(), angles.sin()))
        turned, interleaved = wide(x)[..., :width], pairing == "interleaved"
        parts = turned.unflatten(-1, (-1, 2)).unbind(-1) if interleaved else turned.chunk(2, -1)
        pair = parts[0] * cos - parts[1] * sin, parts[1] * cos + parts[0] * sin
        found = returned(*pair) if interleaved else torch.cat(pair, -1)
        return torch.cat([found.to(x.dtype), x[..., width:]], -1)

    return rotary_embedding


def attention(scores: Function) -> Function:
    """scores: from products, bias and softcap."""

    def capped(
        query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: Any = None, softcap: Any = None
    ) -> Any:
        q, (k, v) = wide(query), (wide(x).repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
        products = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        found = scores(
            products, torch.zeros(()) if bias is None else wide(bias), math.inf if softcap is None else softcap
        )
        hidden = torch.zeros((), dtype=bool) if bias is None else bias == -torch.inf
        hidden = hidden if mask is None else hidden | ~mask
        return (torch.softmax(found.masked_fill(hidden, -1e30), -1) @ v).to(query.dtype)

    return capped


def cap(x: Any, softcap: float) -> Any:
    return x if softcap == math.inf else softcap * torch.tanh(x / softcap)


# --- what is declared, and what is not --------------------------------------------------------------------------------


class Row(NamedTuple):
    """honest: conforms only under the convention. faulty: does not conform under it."""

    operation: str
    convention: str
    honest: Function
    faulty: Function
    arrays: str = "torch"
    rule: str = ""
    given: Any = MappingProxyType({})


ROWS = (
    Row("adam_step", "epsilon=square", inside, squared),
    Row("adam_step", "epsilon=uncorrected", as_keras, inside),
    Row("sgd_step", "velocity=momentum", kept_at_0, always_kept),
    Row("clip_by_global_norm", "clipping=1e-6", clip(1e-6), clip(1e-5)),
    Row("cross_entropy", "no_targets=nan", cross_entropy, always_nan),
    Row(
        "rotary_embedding",
        "columns=halves",
        rotary(lambda first, second: torch.cat([first, second], -1)),
        rotary(lambda first, second: torch.cat([second, first], -1)),
    ),
    Row(
        "attention",
        "capped=scores",
        attention(lambda products, bias, softcap: cap(products + bias, softcap)),
        attention(lambda products, bias, softcap: cap(products + cap(bias, softcap), softcap)),
        rule="ATT-3",
        given={"limits": SMALL, "conventions": {"isolation": "finite", "empty_rows": "any"}},
    ),
    Row("alibi_bias", "distances=absolute", alibi(lambda d: -abs(d)), alibi(lambda d: -abs(d) - 1), "numpy"),
)
NAMES = [row.convention for row in ROWS]


def judge_row(row: Row, function: Function, declared: str = "") -> Report:
    conventions = row.given.get("conventions", {}) | (read_conventions(declared) if declared else {})
    given = {**row.given, "conventions": conventions}
    rule = row.rule or operation_facts(row.operation).rules[""]
    return check(function, row.operation, arrays=row.arrays, effort="quick", seed=1, shrink=False, rules=rule, **given)


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_a_formula_conforms_if_it_is_declared(row: Row) -> None:
    report = judge_row(row, row.honest, row.convention)
    assert report.conforms, report
    report = judge_row(row, row.honest)
    assert not report.conforms
    assert options_of(report) == [f"--conventions {row.convention}"]


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_another_formula_does_not_conform(row: Row) -> None:
    assert not judge_row(row, row.faulty, row.convention).conforms


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_balls_and_float64_have_the_same_formula(row: Row) -> None:
    declaration = Declaration().add_conventions(**read_conventions(row.convention))
    cases = operation_cases(row.operation, ("float64",), declaration)
    for _, case in draw_cases(cases, 20, 1):
        assert all(finding.ratio <= 1 for finding in judge(case, widened(case), evaluate_balls(case), bound(case)))


def widened(case: Case) -> dict[str, np.ndarray]:
    return {name: exact.high for name, exact in evaluate_definition(case).items()}


@pytest.mark.parametrize("convention", NAMES)
def test_formulas_mean_nothing_for_other_operations(convention: str) -> None:
    with pytest.raises(ValueError, match="means nothing for silu"):
        judged(torch.nn.functional.silu, operation="silu", conventions=convention)

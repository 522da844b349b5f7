"""Functions that return the output and the log-sum-exp, judged in one check."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import jax_impl
import reference_numpy
from conformance import replay
from tests.support.helpers import Report, judged, messages, name_of_cause, write_replay

Function = Callable[..., Any]
RULES = ["CALL", "MASK-7", "ATT-5", "ATT-6", "ATT-14"]


def kernel(log_of: Function = torch.log, total_of: Function = lambda total: total, layout: str = "BHTD") -> Function:
    """Attention in PyTorch. log_of: what the logarithm of a row's sum is. total_of: what is made of it first."""

    def attention(query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None, sinks: Any = None) -> Any:
        wide = torch.promote_types(query.dtype, torch.float32)
        axes = (1, 2) if layout == "BTHD" else (1, 1)
        q, k, v = (array.to(wide).transpose(*axes) for array in (query, key, value))
        k, v = (array.repeat_interleave(q.shape[1] // max(array.shape[1], 1), 1) for array in (k, v))
        allowed = torch.ones(1, dtype=torch.bool) if mask is None else mask
        scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        scores = torch.where(allowed, scores, -torch.inf)
        sink = None if sinks is None else sinks.to(wide)[:, None, None].expand(*scores.shape[:3], 1)
        both = scores if sink is None else torch.cat([scores, sink], -1)
        rows = both.detach().amax(-1, keepdim=True) if both.shape[-1] else both.new_zeros(*both.shape[:-1], 1)
        maximum = torch.where(rows.isfinite(), rows, 0)
        total = torch.exp(both - maximum).sum(-1, keepdim=True)
        some = total > 0
        safe = torch.where(some, total, 1)
        weights = torch.exp(scores - maximum) / safe
        seen = torch.where(allowed.expand(scores.shape).any(-2)[..., None], v, 0)
        logsumexp = torch.where(some, maximum + log_of(total_of(safe)), -torch.inf)[..., 0]
        return (weights @ seen).to(query.dtype).transpose(*axes), logsumexp

    return attention


def judge_kernel(function: Function, **given: Any) -> Report:
    return judged(function, **{"arrays": "torch", "supports": ["logsumexp"], "rules": RULES, "dtypes": None} | given)


def violated(function: Function, **given: Any) -> list[str]:
    return [violation.rule for violation in judge_kernel(function, **given).violations]


FINITE = {"isolation": "finite"}
HALF = {"dtypes": ["float32"], "rules": ["CALL", "ATT-14"], "conventions": FINITE}


@pytest.mark.parametrize("layout", [pytest.param("BHTD", marks=pytest.mark.slow), "BTHD"])
def test_both_results_conform(layout: str) -> None:
    given = {} if layout == "BHTD" else {"dtypes": ["float32"], "rules": ["CALL", "ATT-14"]}
    assert violated(kernel(layout=layout), layout=layout, conventions=FINITE, **given) == []


@pytest.mark.slow
def test_both_results_of_jax_conform() -> None:
    def attention(query: Any, key: Any, value: Any, *, mask: Any = None, sinks: Any = None) -> Any:
        output = jax_impl.attention(query, key, value, mask=mask, sinks=sinks)
        return output, jax_impl.attention_logsumexp(query, key, mask=mask, sinks=sinks)

    assert violated(attention, **HALF | {"arrays": "jax", "rules": ["ATT-6"]}) == []


def definition(
    query: Any, key: Any, value: Any, *, mask: Any, dropout_keep: Any = None, dropout_rate: Any = 0.0
) -> Any:
    dropout = {"dropout_keep": dropout_keep, "dropout_rate": dropout_rate}
    logsumexp = reference_numpy.attention_logsumexp(query, key, mask=mask)
    return reference_numpy.attention(query, key, value, mask=mask, **dropout), logsumexp


def definition_vjp(query: Any, key: Any, value: Any, bar: Any, other: Any, *, mask: Any = None, **dropout: Any) -> Any:
    of_output = reference_numpy.attention_vjp(query, key, value, bar, mask=mask, **dropout)
    of_sum = reference_numpy.attention_logsumexp_vjp(query, key, other, mask=mask)
    return of_output.query + of_sum.query, of_output.key + of_sum.key, of_output.value


@pytest.mark.slow
@pytest.mark.parametrize("convention", ["zero", "any"])
def test_a_function_for_the_gradients_gets_both_cotangents(convention: str) -> None:
    given = {"arrays": "numpy", "dtypes": ["float32"], "conventions": {"empty_rows": convention}}
    assert violated(definition, vjp=definition_vjp, **given) == []

    def without_the_second(*arrays: Any, **options: Any) -> Any:
        return definition_vjp(*arrays[:4], 0 * arrays[4], **options)

    assert "ATT-14" in violated(definition, vjp=without_the_second, **given)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_other_dtypes(dtype: str) -> None:
    given = HALF | {"dtypes": [dtype]}
    assert violated(kernel(), **given) == []
    assert violated(kernel(total_of=lambda total: total * (1 + 2e-3)), **given) == ["ATT-14"]


def returning(change: Function) -> Function:
    right = kernel()

    def attention(query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None, sinks: Any = None) -> Any:
        return change(*right(query, key, value, mask=mask, scale=scale, sinks=sinks))

    return attention


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda output, logsumexp: output, "returned torch.Tensor, expected output and logsumexp"),
        (lambda output, logsumexp: (logsumexp, output), "output: has dtype and shape float32 [3, 4, 1], expected"),
        (lambda output, logsumexp: (output, logsumexp[:, 0]), "logsumexp: has dtype and shape float32 [3, 1],"),
        (lambda output, logsumexp: (output, logsumexp.double()), "logsumexp: has dtype and shape float64 [3, 4, 1]"),
    ],
)
def test_what_is_no_pair_of_both(change: Function, message: str) -> None:
    found = messages(judge_kernel(returning(change), **HALF))
    assert [*found] == ["CALL"]
    assert message in found["CALL"]


@pytest.mark.parametrize(
    ("function", "name", "mistake"),
    [
        (kernel(lambda total: torch.log(total.detach())), "gradient of query", "backward.logsumexp-cotangent"),
        (returning(lambda output, logsumexp: (output, logsumexp / np.log(2))), "logsumexp", "numbers"),
        (returning(lambda output, logsumexp: (-output, logsumexp)), "output", "numbers"),
    ],
    ids=["no gradient", "base 2", "output"],
)
def test_a_mistake_in_either_is_told(function: Function, name: str, mistake: str) -> None:
    cause, *_ = judge_kernel(function, **HALF).causes
    assert cause.rules == ("ATT-14",)
    assert name_of_cause(cause) == mistake
    assert cause.lead.finding.name == name


def test_a_case_of_both_is_replayed(tmp_path: Path) -> None:
    wrong = returning(lambda output, logsumexp: (output, logsumexp / np.log(2)))
    report = judge_kernel(wrong, **HALF)
    assert "with its log-sum-exp" in str(report)
    file = write_replay(report, tmp_path)
    assert max(found.ratio for found in replay(file, wrong)) > 1
    assert max(found.ratio for found in replay(file, kernel())) <= 1

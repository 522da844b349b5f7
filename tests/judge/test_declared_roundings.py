"""Roundings of heads' gradients, of normalised rows, and in merges: allowed as far as declared, and no further."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.functional import gelu, silu

import torch_impl
from conformance import Report
from tests.support.helpers import SMALL, judged, keep_meaningful, names_of_causes, options_of

Function = Callable[..., Any]
HEADS = {"isolation": "finite", "empty_rows": "any"}


def judge_torch(function: Function, operation: str, rules: list[str], dtype: str, **given: Any) -> Report:
    return judged(function, *rules, operation=operation, arrays="torch", dtypes=[dtype], **given)


LIMITS = {name: size for name, size in SMALL.items() if name != "heads"} | {"group_ratio": 16}
PARTS = SMALL | {"keys": 40, "queries": 40}


def violated(
    function: Function, operation: str, rules: list[str], dtype: str, limits: Any = LIMITS, **conventions: str
) -> list[str]:
    limits = keep_meaningful(limits, operation)
    report = judge_torch(function, operation, rules, dtype, limits=limits, conventions=conventions)
    return [violation.rule for violation in report.violations]


# --- query heads that share a key head --------------------------------------------------------------------------------


class Repeated(torch.autograd.Function):
    """[B, G, K, W] for every query head; the gradient is added up head after head in a format."""

    @staticmethod
    def forward(ctx: Any, array: torch.Tensor, share: int, form: torch.dtype) -> torch.Tensor:
        ctx.share, ctx.form = share, form
        return array.repeat_interleave(share, 1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        first, *others = gradient.unflatten(1, (-1, ctx.share)).to(ctx.form).unbind(2)
        for other in others:
            first = first + other
        return first.to(gradient.dtype), None, None


def attention(repeated: Function) -> Function:
    """repeated: (array, query heads to a key head) -> the array for every query head, in the array's dtype."""

    def repeats_keys(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        share = query.shape[1] // max(key.shape[1], 1)
        q, k, v = query.float(), repeated(key, share).float(), repeated(value, share).float()
        scores = q @ k.mT * q.shape[-1] ** -0.5
        scores = scores if mask is None else scores.masked_fill(~mask, -1e30)
        return (torch.softmax(scores, -1) @ v).to(query.dtype)

    return repeats_keys


def in_format(form: torch.dtype | None) -> Function:
    """Gradients added up in a format; None: in float32, as PyTorch does, each rounded to the dtype of the array."""
    if form is None:
        return attention(lambda array, share: array.repeat_interleave(share, 1))
    return attention(lambda array, share: Repeated.apply(array, share, form))


def twice(array: Any, share: int) -> Any:
    """Each head's gradient is rounded to bfloat16 as well."""
    found = array.repeat_interleave(share, 1)
    return Repeated.apply(found.bfloat16(), 1, torch.bfloat16).to(array.dtype) * 0.5 + found * 0.5


HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    ("declared", "added_in"), [("rounded", "float32"), ("inputs", "float32"), ("inputs", "inputs")], ids=str
)
@pytest.mark.slow_where("-float16")
@pytest.mark.slow_where("inputs-float32")
def test_shared_heads_conform_as_declared(dtype: str, declared: str, added_in: str) -> None:
    function = in_format(None if added_in == "float32" else HALF[dtype])
    assert violated(function, "attention", ["ATT-12"], dtype, **HEADS, shared_heads=declared) == []
    assert violated(function, "attention", ["ATT-12"], dtype, **HEADS) == ["ATT-12"]


@pytest.mark.parametrize(
    ("declared", "function"),
    [("rounded", in_format(torch.float16)), ("inputs", in_format(torch.bfloat16)), ("inputs", attention(twice))],
    ids=["every sum rounded", "sums in bfloat16", "heads in bfloat16"],
)
def test_more_than_is_declared_of_shared_heads(declared: str, function: Function) -> None:
    assert violated(function, "attention", ["ATT-12"], "float16", **HEADS, shared_heads=declared) == ["ATT-12"]


# --- scores -----------------------------------------------------------------------------------------------------------


def eager(rounded: Function = lambda x: x) -> Function:
    """As transformers computes attention in 16 bits without a kernel. rounded: what else becomes of the products."""

    def attend_in_inputs(
        query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: Any = None, softcap: Any = None
    ) -> Any:
        k, v = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
        scores = rounded(query @ k.mT) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        scores = scores if bias is None else scores + bias
        scores = scores if mask is None else scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        return torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype) @ v

    return attend_in_inputs


SCORES = ["ATT-2", "ATT-3", "ATT-12"]
ROUNDED = HEADS | {"weights": "inputs", "shared_heads": "inputs"}
SHORT = LIMITS | {"keys": 16, "queries": 16}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounded_scores_conform_as_declared(dtype: str) -> None:
    given: dict[str, Any] = {"limits": SHORT, "supports": "no-scale"}
    report = judge_torch(eager(), "attention", SCORES, dtype, **given, conventions=ROUNDED | {"scores": "inputs"})
    assert report.conforms, report.causes
    assert not judge_torch(eager(), "attention", SCORES, dtype, **given, conventions=ROUNDED).conforms


def test_more_than_is_declared_of_scores() -> None:
    coarse = eager(lambda products: products.bfloat16().to(products.dtype))
    assert violated(coarse, "attention", SCORES, "float16", SHORT, **ROUNDED, scores="inputs")


def test_no_rounding_is_offered_where_its_bound_allows_anything() -> None:
    def hides_by_a_number(
        query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: Any = None
    ) -> Any:
        k, v = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
        scores = query @ k.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        scores = scores if bias is None else (scores + bias).masked_fill(bias == -torch.inf, -1e30)
        return torch.softmax(scores if mask is None else scores.masked_fill(~mask, -1e30), -1) @ v

    given: dict[str, Any] = {"supports": "no-gradients,no-empty"}
    report = judge_torch(hides_by_a_number, "attention", ["ATT-4"], "float32", **given, conventions=HEADS)
    assert [violation.rule for violation in report.violations] == ["ATT-4"]
    assert options_of(report) == [""]


# --- normalised rows --------------------------------------------------------------------------------------------------


def rms_norm(normalized: Function) -> Function:
    """normalized: (row, reciprocal, dtype of the inputs) -> what the weight multiplies."""

    def rounds_rows(x: Any, weight: Any, *, eps: float) -> Any:
        wide, axes = x.float(), tuple(range(-weight.ndim, 0))
        reciprocal = torch.rsqrt(wide.square().mean(axes, keepdim=True) + eps)
        return (weight * normalized(wide, reciprocal, x.dtype)).to(x.dtype)

    return rounds_rows


NORMS = ["NORM-6", "NORM-7"]
as_llama = rms_norm(lambda row, reciprocal, dtype: (row * reciprocal).to(dtype))


@pytest.mark.parametrize("dtype", HALF)
def test_normalized_rows_conform_as_declared(dtype: str) -> None:
    assert violated(as_llama, "rms_norm", NORMS, dtype, normalized="inputs") == []
    assert "NORM-7" in violated(as_llama, "rms_norm", NORMS, dtype)


@pytest.mark.parametrize(
    "normalized",
    [
        lambda row, reciprocal, dtype: row.to(dtype) * reciprocal.to(dtype),
        lambda row, reciprocal, dtype: (row * reciprocal).bfloat16().to(dtype),
    ],
    ids=["reciprocal too", "in bfloat16"],
)
@pytest.mark.slow_where("reciprocal too")
def test_more_than_is_declared_of_normalized_rows(normalized: Function) -> None:
    assert "NORM-7" in violated(rms_norm(normalized), "rms_norm", NORMS, "float16", normalized="inputs")


def unrounded(x: Any, weight: Any, *, eps: float) -> Any:
    """The product has the dtype of its wider side."""
    return weight * as_llama(x, torch.ones_like(weight), eps=eps)


def test_weights_wider_than_the_inputs_can_be_declined() -> None:
    given: tuple[Any, ...] = (unrounded, "rms_norm", ["NORM-7"], "bfloat16")
    found = judge_torch(*given, conventions={"normalized": "inputs"})
    assert ([one.rule for one in found.violations], options_of(found)) == (["NORM-7"], ["--supports no-wide_weights"])
    assert judge_torch(*given, conventions={"normalized": "inputs"}, supports="no-wide_weights").conforms


def test_a_norm_over_the_last_axis_is_told_to_decline_axes() -> None:
    def last_axis(x: Any, weight: Any, *, eps: float) -> Any:
        return weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)

    report = judge_torch(last_axis, "rms_norm", ["NORM-7"], "float32")
    assert names_of_causes(report) == [("NORM-7", "norms.last-axis-only")]
    assert options_of(report) == ["--supports no-axes"]


def layer_norm(rounded: Function) -> Function:
    """rounded: from the row and the dtype of the inputs, what the weight multiplies."""

    def rounds_rows(x: Any, weight: Any, bias: Any = None, *, eps: float = 1e-5) -> Any:
        wide, axes = x.float(), tuple(range(-weight.ndim, 0))
        centered = wide - wide.mean(axes, keepdim=True)
        row = centered * torch.rsqrt(centered.square().mean(axes, keepdim=True) + eps)
        scaled = weight * rounded(row, x.dtype)
        return (scaled if bias is None else scaled + bias).to(x.dtype)

    return rounds_rows


@pytest.mark.parametrize("dtype", HALF)
def test_rows_of_layer_norm_conform_as_declared(dtype: str) -> None:
    rounded = layer_norm(lambda row, dtype: row.to(dtype))
    assert violated(rounded, "layer_norm", ["NORM-1", "NORM-6"], dtype, normalized="inputs") == []
    assert "NORM-1" in violated(rounded, "layer_norm", ["NORM-1"], dtype)


def test_more_than_is_declared_of_layer_norm() -> None:
    coarse = layer_norm(lambda row, dtype: row.bfloat16().to(dtype))
    assert "NORM-1" in violated(coarse, "layer_norm", ["NORM-1"], "float16", normalized="inputs")


def test_a_layer_with_rounded_weights_is_told_to_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def attend_with_rounded_weights(query: Any, key: Any, value: Any, **given: Any) -> Any:
        k, v = (array.repeat_interleave(query.shape[1] // key.shape[1], 1) for array in (key, value))
        weights = torch.softmax(query @ k.mT * query.shape[-1] ** -0.5, -1)
        return weights.bfloat16().float() @ v

    def layer(parameters: Any, query: Any, key: Any, value: Any, *, num_heads: int) -> Any:
        return torch_impl.multi_head_attention(parameters, query, key, value, num_heads=num_heads)

    module = importlib.import_module("torch_impl.multi_head_attention")
    monkeypatch.setattr(module, "attention", attend_with_rounded_weights)
    given = {"supports": "no-gradients,no-empty", "limits": SMALL}
    report = judge_torch(layer, "multi_head_attention", ["MHA-1"], "float32", **given)
    assert names_of_causes(report) == [("MHA-1", "multi_head.precision-weights-rounded")]
    assert options_of(report) == ["--conventions weights=bfloat16"]


@pytest.mark.rule("FFN-1", "FFN-2")
def test_networks_may_round_what_they_multiply() -> None:
    def rounded(array: torch.Tensor) -> torch.Tensor:
        return (array.contiguous().view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32)  # 13 bits fewer

    def linear(x: torch.Tensor, parameters: Any) -> torch.Tensor:
        product = rounded(x) @ rounded(parameters.weight)
        return product if parameters.bias is None else product + parameters.bias

    def plain(parameters: Any, x: torch.Tensor, *, activation: str = "relu") -> torch.Tensor:
        functions = {"relu": torch.relu, "silu": silu, "gelu": gelu, "gelu_tanh": partial(gelu, approximate="tanh")}
        hidden = functions[activation](linear(x, parameters.inner))
        return linear(hidden, parameters.outer)

    def gated(parameters: Any, x: torch.Tensor) -> torch.Tensor:
        return linear(silu(linear(x, parameters.gate)) * linear(x, parameters.inner), parameters.outer)

    given = {"supports": "no-gradients", "limits": {"rows": 16, "model_width": 64, "inner_width": 64}}
    for function, name, rule in ((plain, "feed_forward", "FFN-1"), (gated, "gated_feed_forward", "FFN-2")):
        report = judge_torch(function, name, [rule], "float32", **given)
        assert [violation.rule for violation in report.violations] == [rule]
        assert options_of(report) == ["--conventions products=tf32"]
        assert judge_torch(function, name, [rule], "float32", conventions={"products": "tf32"}, **given).conforms


# --- parts of the keys ------------------------------------------------------------------------------------------------


def in_parts(log_of: Function = lambda log: log) -> Function:
    """Attention to 16 keys at a time; parts and sinks are merged by one log-sum-exp each."""

    def split(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: Any = None) -> Any:
        q, (k, v) = query.float(), (x.float().repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
        scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        scores = scores if bias is None else scores + bias.float()
        scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        outputs, logs = [], []
        for part, values in zip(scores.split(16, -1), v.split(16, -2), strict=True):
            empty = (part == -torch.inf).all(-1, keepdim=True)
            part = part.masked_fill(empty, 0)
            outputs.append(torch.softmax(part, -1) @ values)
            logs.append(log_of(torch.logsumexp(part, -1, keepdim=True)).masked_fill(empty, -torch.inf))
        log = torch.stack(logs)
        highest = log.detach().amax(0)
        shares = torch.exp(log - highest.masked_fill(highest == -torch.inf, 0))
        total = shares.sum(0)
        merged = (shares * torch.stack(outputs)).sum(0) / total.masked_fill(total == 0, 1)
        return merged.to(query.dtype)

    return split


def merged(function: Function, rules: list[str], dtype: str = "float32", **conventions: str) -> list[str]:
    """The rules that are violated."""
    return violated(function, "attention", rules, dtype, PARTS, isolation="finite", **conventions)


def test_parts_by_one_logsumexp_break_one_rule() -> None:
    assert merged(in_parts(), ["ATT-4"]) == ["ATT-4"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parts_by_one_logsumexp_keep_every_rule(dtype: str) -> None:
    rules = ["MASK-3", "ATT-3", "ATT-4", "ATT-5", "ATT-10", "ATT-12"]
    assert merged(in_parts(), rules, dtype, merging="logsumexp") == []


@pytest.mark.slow
@pytest.mark.parametrize("log_of", [lambda log: log.half().float(), lambda log: log / 2], ids=["float16", "halved"])
def test_more_than_is_declared_of_merging(log_of: Function) -> None:
    assert merged(in_parts(log_of), ["ATT-5"], merging="logsumexp")


# --- the report names the convention ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "rule", "dtype", "convention"),
    [
        pytest.param(as_llama, "NORM-7", "bfloat16", "normalized=inputs", id="normalized"),
        pytest.param(in_parts(), "ATT-4", "float32", "merging=logsumexp", id="merging"),
        pytest.param(in_format(None), "ATT-12", "bfloat16", "shared_heads=rounded", id="heads"),
    ],
)
def test_the_report_names_the_convention(function: Function, rule: str, dtype: str, convention: str) -> None:
    given: tuple[str, Any] = ("rms_norm", {}) if rule == "NORM-7" else ("attention", {"conventions": HEADS})
    report = judge_torch(function, given[0], [rule], dtype, limits=keep_meaningful(PARTS, given[0]), **given[1])
    assert [cause.conventions for cause in report.causes] == [dict([convention.split("=")])]


# --- merging needs no declaration -------------------------------------------------------------------------------------


def merge_by_logsumexp(rounded: Function = lambda logsumexp: logsumexp) -> Function:
    """Every part weighed by exp(its log-sum-exp - that of all parts)."""

    def merge(outputs: Any, logsumexps: Any) -> Any:
        stacked = torch.stack(list(logsumexps))
        seen = stacked > -torch.inf
        finite = torch.where(seen.any(0), stacked, 0)
        whole = rounded(torch.logsumexp(finite, 0))
        weights = torch.where(seen, torch.exp(torch.where(seen, finite - whole, 0)), 0)
        pairs = zip(weights, seen, outputs, strict=True)
        parts = [weight[..., None] * torch.where(some[..., None], part, 0).float() for weight, some, part in pairs]
        return sum(parts).to(outputs[0].dtype), torch.where(seen.any(0), whole, -torch.inf)

    return merge


def test_a_merge_by_one_logsumexp() -> None:
    assert violated(merge_by_logsumexp(), "merge_attention", ["ATT-14"], "float32") == []
    rounded = merge_by_logsumexp(lambda logsumexp: logsumexp.bfloat16().float())
    assert violated(rounded, "merge_attention", ["ATT-14"], "float32") == ["ATT-14"]

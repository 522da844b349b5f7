"""Adapters of other libraries: they pass on what they are given, refuse what their path lacks, and invent nothing.

Where a library departs from the definition is no test's matter; the cases here are some that all of them get right.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import find
from hypothesis import strategies as st

import reference_numpy
from conformance.cases import features
from conformance.cases.arguments import arguments
from conformance.cases.expectations import empty_rows
from conformance.checks.levels import STRICT
from conformance.checks.results import Cell
from conformance.judge import plan, trial
from conformance.judge.smallest_case import cut_down
from conformance.peers import (
    PEERS,
    heads,
    judging,
    markdown,
    matrix,
    probes,
    rows,
    terminal,
    torch_attention,
    torch_multi_head,
)
from conformance.peers.extra import bridge, fitting
from conformance.peers.extra.torch_modules import WITHOUT_AMX
from conformance.peers.peer import Peer
from conformance.sampling.draws import Rows
from conformance.subjects.callables import load
from specification import Causal, Dense, KeyLengths, KeyPadding, SlidingWindow
from specification.parameters import Linear, MultiHeadAttention
from tests.support import helpers
from tests.support.helpers import (
    CHECKS,
    Case,
    Finding,
    NumpySubject,
    Runner,
    Threshold,
    Violation,
    command,
    describe_finding,
    examine,
    find_violation,
    normal,
    rendered,
    runner_of,
)
from tests.support.targets import plain_norm

pytestmark = pytest.mark.filterwarnings("ignore")  # what other libraries warn of is their own

HERE = [peer for peer in PEERS if peer.environment in ({}, WITHOUT_AMX)]
ISOLATED = (
    "Keras on jax, layers.LayerNormalization",
    "Keras on torch, ops.dot_product_attention, flash_attention=False, mask",
    "transformers flex_attention_forward, not compiled (CPU)",
)


def attention(
    mask: Any = None,
    bias: np.ndarray | None = None,
    G: int = 4,
    Q: int = 5,
    K: int = 7,
    gradients: bool = False,
    **options: Any,
) -> Case:
    """B=2, H=4, D=V=8; every row may attend to something."""
    inputs = {"query": normal(1, 2, 4, Q, 8), "key": normal(2, 2, G, K, 8), "value": normal(3, 2, G, K, 8)}
    inputs |= {} if bias is None else {"bias": bias}
    cotangents = {"output": normal(4, 2, 4, Q, 8)} if gradients else {}
    return Case("attention", "float32", inputs, {"mask": mask} | options, cotangents)


def multi_head(mask: Any = None, keys: int = 7, gradients: bool = False) -> Case:
    """B=2, H=2, D=V=3, and a width of its own for every kind of token."""
    inputs = {"query": normal(1, 2, 5, 6), "key": normal(2, 2, keys, 5), "value": normal(3, 2, keys, 4)}
    widths = {"query": (6, 6), "key": (5, 6), "value": (4, 6), "output": (6, 3)}
    for number, (name, shape) in enumerate(widths.items()):
        inputs |= {f"{name}.weight": normal(4 + number, *shape), f"{name}.bias": normal(8 + number, shape[1])}
    options = {"num_heads": 2, "mask": mask}
    cotangents = {"output": normal(12, 2, 5, 3)} if gradients else {}
    return Case("multi_head_attention", "float32", inputs, options, cotangents)


def norm(operation: str, bias: bool, axes: int = 1, **options: Any) -> Case:
    inputs = {"x": normal(1, 4, 3, 6), "weight": normal(2, *(3, 6)[-axes:])}
    inputs |= {"bias": normal(3, *(3, 6)[-axes:])} if bias else {}
    return Case(operation, "float32", inputs, {"eps": 1e-5} | options, {"output": normal(4, 4, 3, 6)})


def loss(operation: str, reduction: str) -> Case:
    name = "logits" if operation == "cross_entropy" else "log_probabilities"
    inputs = {name: normal(1, 4, 3, 6), "targets": np.arange(12).reshape(4, 3) % 6}
    bar = normal(2, 4, 3) if reduction == "none" else normal(2)
    return Case(operation, "float32", inputs, {"reduction": reduction}, {"output": np.asarray(bar)})


def adam(step: int, decoupled: bool, decay: float = 0.1) -> Case:
    """With an eps that no place of it shows, late or early, and decay of either kind."""
    inputs = {name: normal(seed, 4, 3) for seed, name in enumerate(("parameters", "gradients", "mean"))}
    options = {"step": step, "learning_rate": 0.1, "eps": 1e-30, "weight_decay": decay, "decoupled": decoupled}
    return Case("adam_step", "float32", inputs | {"square": normal(3, 4, 3) ** 2}, options)


def sgd(nesterov: bool) -> Case:
    inputs = {name: normal(seed, 4, 3) for seed, name in enumerate(("parameters", "gradients", "velocity"))}
    return Case("sgd_step", "float32", inputs, {"learning_rate": 0.1, "momentum": 0.9, "nesterov": nesterov})


def clip() -> Case:
    """Of a norm far above 1e-6."""
    inputs = {"gradients[0]": 1000 * normal(1, 4, 3), "gradients[1]": 1000 * normal(2, 5)}
    return Case("clip_by_global_norm", "float32", inputs, {"limit": 100.0})


def network(activation: str, gated: bool) -> Case:
    """E=6, F=8, without biases, which one path lacks."""
    inputs = {"x": normal(1, 3, 6), "inner.weight": normal(2, 6, 8), "outer.weight": normal(3, 8, 6)}
    inputs |= {"gate.weight": normal(4, 6, 8)} if gated else {}
    operation = "gated_feed_forward" if gated else "feed_forward"
    return Case(operation, "float32", inputs, {"activation": activation}, {"output": normal(5, 3, 6)})


def relative_positions() -> Case:
    options = {"query_length": 5, "key_length": 200, "bidirectional": True, "furthest": 128, "offset": 20}
    inputs = {"table": normal(1, 32, 4)}
    return Case("relative_position_bias", "float32", inputs, options, {"output": normal(2, 1, 4, 5, 200)})


def alibi() -> Case:
    """Of queries past all keys, where libraries agree."""
    options = {"num_heads": 6, "query_length": 5, "key_length": 7, "offset": 6, "dtype": "float32"}
    return Case("alibi_bias", "float32", {}, options)


def rotary(pairing: str) -> Case:
    """At positions where angles in float32 lose nothing yet."""
    inputs = {"x": normal(1, 2, 4, 5, 8), "positions": np.arange(5)}
    return Case("rotary_embedding", "float32", inputs, {"pairing": pairing}, {"output": normal(2, 2, 4, 5, 8)})


def router(**options: Any) -> Case:
    """N=5, E=16, X=8: scores differ by more than roundings."""
    inputs = {"x": normal(1, 5, 16), "router.weight": normal(2, 16, 8)}
    bars = {"weights": normal(3, 5, 3), "scores": normal(4, 5, 8)}
    return Case("route", "float32", inputs, {"chosen": 3} | options, bars)


def mixture(shared: bool = False, **options: Any) -> Case:
    """The same tokens and router, and gated networks of E=16, F=8."""
    inputs = dict(router().inputs)
    for number, (name, lead) in enumerate((("experts", (8,)), *([("shared", ())] if shared else []))):
        shapes = {"gate": (16, 8), "inner": (16, 8), "outer": (8, 16)}
        for seed, (side, shape) in enumerate(shapes.items(), 3 + 3 * number):
            inputs[f"{name}.{side}.weight"] = normal(seed, *lead, *shape)
    return Case("mixture_of_experts", "float32", inputs, {"chosen": 3} | options, {"output": normal(9, 5, 16)})


def balance() -> Case:
    inputs = {"router_logits": normal(1, 2, 5, 8), "token_mask": np.arange(10).reshape(2, 5) % 4 > 0}
    return Case("load_balancing_loss", "float32", inputs, {"chosen": 3}, {"output": np.asarray(normal(2))})


def latents() -> Case:
    """B=2, T=5, E=6, H=2, D=R=V=C=4, with a causal mask."""
    widths = {"query": (6, 16), "key_value_down": (6, 8), "key_value_up": (4, 16), "output": (8, 6)}
    inputs = {"x": normal(1, 2, 5, 6), "key_value_norm.weight": normal(2, 4)}
    inputs |= {f"{name}.weight": normal(seed, *shape) for seed, (name, shape) in enumerate(widths.items(), 3)}
    options = {"num_heads": 2, "rotary_width": 4, "mask": Causal(0)}
    return Case("latent_attention", "float32", inputs, options, {"output": normal(7, 2, 5, 6)})


MASK = np.arange(35).reshape(5, 7) % 3 > 0
CASES = [
    attention(gradients=True),
    attention(G=2),
    attention(Dense(MASK)),
    attention(Dense(np.stack([MASK, ~MASK])[:, None])),
    attention(Dense(np.stack([MASK] * 4)[None])),
    attention(bias=normal(5, 5, 7)),
    attention(bias=normal(6, 2, 4, 5, 7)),
    attention(scale=0.3),
    attention(softcap=2.0),
    attention(Causal(), Q=7),
    attention(KeyLengths(np.array([3, 7]))),
    attention(KeyPadding(np.arange(14).reshape(2, 7) % 4 > 0)),
    attention(SlidingWindow(2, 1, 0)),
    *(attention(SlidingWindow(8, after, 0), Q=16, K=16, gradients=True) for after in (0, 8)),
    multi_head(),
    multi_head(keys=5),
    multi_head(Dense(MASK)),
    multi_head(Dense(MASK[:, :5] | np.eye(5, dtype=bool)), keys=5, gradients=True),
    norm("layer_norm", bias=True),
    norm("layer_norm", bias=False),
    norm("layer_norm", bias=True, axes=2),
    norm("rms_norm", bias=False),
    *(loss(operation, reduction) for operation in ("cross_entropy", "nll_loss") for reduction in ("mean", "none")),
    *(adam(step, decoupled) for step in (1, 99) for decoupled in (True, False)),
    adam(3, decoupled=True, decay=0.0),
    *(sgd(nesterov) for nesterov in (False, True)),
    clip(),
    Case("silu", "float32", {"x": normal(1, 3, 8)}, {}, {"output": normal(2, 3, 8)}),
    *(network(activation, gated) for activation in ("relu", "gelu", "gelu_tanh", "silu") for gated in (False, True)),
    norm("rms_norm", bias=False, plus_one=True),
    relative_positions(),
    alibi(),
    *(rotary(pairing) for pairing in ("halves", "interleaved")),
    *(router(scoring=scoring, weighting="scores") for scoring in ("softmax", "sigmoid")),
    router(),
    router(scoring="none", weighting="softmax"),
    router(scoring="sigmoid", groups=2, chosen_groups=1),
    mixture(),
    mixture(activation="clamped_swiglu"),
    mixture(shared=True, scoring="sigmoid", scale=2.5),
    balance(),
    latents(),
]


def cases_of(peer: Peer, runner: Runner) -> Iterator[Case]:
    """Those that its path has parameters for, with gradients if it gives any."""
    for case in CASES:
        case = case if "gradients" in runner.declaration else replace(case, cotangents={})
        if case.operation == peer.operation and features.supports_case(case, runner.declaration):
            fitted = peer.fitted(case)
            if peer.takes(fitted) and mask_fits(fitted):
                yield fitted


def mask_fits(case: Case) -> bool:
    """Where a path has the queries for keys, there may be fewer keys than the mask is for."""
    mask = case.options.get("mask")
    return not isinstance(mask, Dense) or mask.array.shape[-1] == case.inputs["key"].shape[-2]


def judged(peer: Peer) -> dict[str, float]:
    """The worst ratio of every case, but for what only `strict` asks; an exception is infinitely far off."""
    if peer.absent or peer.slow:
        pytest.skip(peer.absent or peer.slow)
    runner = judging.runner_of(peer)
    try:
        found = {repr(case): examine(runner, case) for case in cases_of(peer, runner)}
        return {case: max(one.ratio for one in some if one.level != STRICT) for case, some in found.items()}
    finally:
        runner.close()


@pytest.mark.slow
@pytest.mark.parametrize("peer", HERE, ids=lambda peer: peer.name)
def test_plain_cases_are_answered_rightly(peer: Peer) -> None:
    ratios = judged(peer)
    assert ratios
    assert {case: ratio for case, ratio in ratios.items() if ratio > 1} == {}


@pytest.mark.parametrize("name", ISOLATED)
@pytest.mark.slow
def test_peers_with_an_environment_are_asked_in_a_process_of_their_own(name: str) -> None:
    before = dict(os.environ)
    ratios = judged(next(peer for peer in PEERS if peer.name == name))
    assert max(ratios.values()) <= 1
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("package", "subject", "mask"),
    [
        ("torch", "torch_attention:math_causal", Causal(1)),
        ("torch", "torch_attention:math_causal", Dense(MASK)),
        ("jax", "jax_functions:xla_lengths", Causal(0)),
        ("jax", "jax_functions:xla_window", KeyLengths(np.array([3, 7]))),
        ("onnx", "onnx_peers:reference_window", Causal(0)),
    ],
)
def test_what_a_path_has_no_parameter_for_is_refused(package: str, subject: str, mask: Any) -> None:
    pytest.importorskip(package)
    adapter = load(f"conformance.peers.{subject}")
    with pytest.raises(NotImplementedError, match=r"has no parameter for (Causal|KeyLengths|ndarray)"):
        adapter(*(normal(1, 2, 4, 5, 8),) * 3, mask=mask)


def test_threads_leave_each_other_the_kernel_of_the_path() -> None:
    """The switches are the process's: the first to end must not turn on what the other has turned off."""
    allowed = torch.backends.cuda.flash_sdp_enabled
    first, second = torch_attention.restrict_kernel("MATH"), torch_attention.restrict_kernel("MATH")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not allowed()
    with pytest.raises(RuntimeError, match="FLASH_ATTENTION is asked for while calls with MATH run"):
        torch_attention.restrict_kernel("FLASH_ATTENTION").__enter__()
    second.__exit__(None, None, None)
    assert allowed()


def test_a_module_of_one_width_refuses_another() -> None:
    adapter = load("conformance.peers.torch_multi_head:slow")
    subject = NumpySubject()
    case = multi_head()
    positional, keywords = arguments(case.operation, {n: torch.tensor(a) for n, a in case.inputs.items()}, case.options)
    assert subject(case)["output"].shape == (2, 5, 3)
    with pytest.raises(NotImplementedError, match="one width"):
        adapter(*positional, **keywords)


def test_every_adapter_can_be_found() -> None:
    """Without importing any of the libraries: what an adapter declares is known where they are absent."""
    assert len({peer.name for peer in PEERS}) == len(PEERS)
    for peer in PEERS:
        assert callable(load(peer.subject))
        assert peer.operation in {case.operation for case in CASES}


def test_a_name_with_commas_is_chosen_whole() -> None:
    chosen = [peer.name for peer in matrix.choose_peers(["torch SDPA, math, is_causal"], lambda line: None)]
    assert chosen == ["torch SDPA, math, is_causal"]


def test_what_cannot_be_judged_is_told_in_one_line() -> None:
    lines: list[str] = []
    absent = replace(PEERS[0], name="a name that no other has", packages=("no_such_package",))
    assert absent.absent == "no_such_package is not installed"
    assert (
        replace(absent, packages=(), program="no-such-program").absent == "there is no no-such-program on this machine"
    )
    list(matrix.choose_peers((), lines.append))
    assert all(" is skipped: " in line for line in lines)
    assert sum("FlexAttention, compiled" in line for line in lines) == 1


def test_a_whole_name_is_that_peer_alone_although_it_has_commas() -> None:
    names = [peer.name for peer in matrix.choose_peers(("torch SDPA, math, attn_mask of numbers",), print)]
    assert names == ["torch SDPA, math, attn_mask of numbers"]
    parts = [peer.name for peer in matrix.choose_peers(("SDPA, math,F.silu",), print)]
    assert {"torch F.silu", "torch SDPA, math, is_causal"} <= set(parts)


@pytest.mark.parametrize("fitted", [heads.square, heads.make_self_attention, heads.resize_case])
def test_refitted_calls_are_calls_of_the_same_operation(fitted: Any) -> None:
    case = fitted(multi_head(keys=5, gradients=True))
    answers = NumpySubject()(case)
    assert answers["output"].shape == case.cotangents["output"].shape
    assert set(answers) == {"output", *(f"gradient of {name}" for name in case.inputs)}
    if fitted is not heads.resize_case:
        assert {case.inputs[name].shape[-1] for name in ("query", "key", "value")} == {6}


def test_one_mask_for_all_heads() -> None:
    assert heads.one_mask_for_all_heads(multi_head())
    assert heads.one_mask_for_all_heads(multi_head(Dense(MASK)))
    assert not heads.one_mask_for_all_heads(multi_head(Dense(np.stack([MASK] * 2)[None])))


def test_level_rows() -> None:
    """A constant row is level, one with a mean far from its deviation is not."""
    case = norm("layer_norm", bias=True)
    assert probes.level(case)
    assert probes.level(replace(case, inputs=case.inputs | {"x": np.full((4, 3, 6), 300, np.float32)}))
    assert not probes.level(replace(case, inputs=case.inputs | {"x": case.inputs["x"] + 300}))
    assert probes.level(replace(case, inputs=case.inputs | {"x": case.inputs["x"] + np.float32("nan")}))


def test_hidden_tokens_are_hidden_from_every_query() -> None:
    case = multi_head(KeyLengths(np.array([3, 7])))
    dirty, clean = find(probes.hidden_tokens(st.just(case)), lambda twins: True)
    assert not np.isfinite(dirty.inputs["key"][0, 3:]).any()
    assert np.isfinite(dirty.inputs["key"][0, :3]).all()
    assert np.isfinite(dirty.inputs["key"][1]).all()
    truth = NumpySubject()
    np.testing.assert_array_equal(truth(dirty)["output"], truth(clean)["output"])


def test_a_leak_of_a_layer_is_not_shown_in_an_empty_row() -> None:
    """Where it does otherwise, too: that breaks another rule."""

    def leak(parameters: Any, query: Any, key: Any, value: Any, *, num_heads: int, mask: Any = None) -> Any:
        options: dict[str, Any] = {"num_heads": num_heads, "mask": mask, "empty_rows": "nan"}
        return reference_numpy.multi_head_attention(parameters, query, key, value, **options) + 0 * key.sum()

    twins = find(probes.hidden_tokens(st.just(multi_head(KeyLengths(np.array([3, 7]))))), lambda twins: True)
    runner = runner_of(leak, "multi_head_attention")
    smallest = cut_down(find_violation(runner, twins, "twin", "MASK-7"), runner, 30)
    assert smallest.case.inputs["key"].size < twins[0].inputs["key"].size
    assert not empty_rows(smallest.case).any()


def test_functions_of_other_arrays_have_gradients_by_name() -> None:
    """Of every floating array, wherever it stands; an undeclared dtype is refused."""

    def pull(function: Any, arrays: list[Any], cotangent: Any) -> list[Any]:
        return [cotangent * function(*(np.ones_like(b) if a is b else b for b in arrays)) for a in arrays]

    library = bridge.Arrays(np.array, np.array, pull)

    def scale(x: Any, state: Any, *, factor: float = 1.0) -> Any:
        return x * state.weight * factor

    adapted = bridge.adapt_arrays(library, scale, dtypes=("float32",))
    x, state = np.full(2, 3, np.float32), Linear(np.full(2, 5, np.float32))
    np.testing.assert_array_equal(adapted(x, state, factor=2.0), 30)
    gradients = adapted.conformance["vjp"](x, state, np.ones(2, np.float32), factor=2.0)
    np.testing.assert_array_equal(gradients["x"], 10)
    np.testing.assert_array_equal(gradients["state"].weight, 6)
    assert (gradients["state"].bias, gradients["factor"]) == (None, None)
    with pytest.raises(NotImplementedError, match="an array of float64"):
        adapted(x.astype(float), state)


def test_calls_are_fitted_to_what_a_library_has() -> None:
    assert not fitting.is_last_at_last(relative_positions())
    assert fitting.is_last_at_last(fitting.put_last_at_last(relative_positions()))


# --- a peer of our own ------------------------------------------------------------------------------------------------


def one_pass(x: Any, weight: Any, bias: Any = None, *, eps: float = 1e-6) -> Any:
    """Layer norm with E[x^2] - E[x]^2, another default eps, and no refusals."""
    wide = x.astype(np.float64 if x.dtype == np.float64 else np.float32)
    mean = wide.mean(-1, keepdims=True)
    variance = np.maximum((wide * wide).mean(-1, keepdims=True) - mean * mean, 0)
    normalised = (wide - mean) / np.sqrt(variance + wide.dtype.type(eps)) * weight
    return (normalised if bias is None else normalised + bias).astype(x.dtype)


def columns_up_to_256(x: Any, weight: Any, *, eps: float = 1e-5) -> Any:
    """RMS norm that leaves wider rows unfinished."""
    wide = x.astype(np.float64)
    output = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + eps) * weight
    output[..., 256:] = 0
    return output.astype(x.dtype)


def last_axis(case: Case) -> bool:
    return "weight" not in case.inputs or case.inputs["weight"].ndim == 1


def in_dtypes(*names: str, gradients: bool = False) -> judging.DtypeRemark:
    return judging.DtypeRemark(tuple(judging.WrongDtype(name, {}) for name in names), gradients)


@pytest.mark.parametrize(("wide", "rule"), [(0.5, "ATT-9"), (7.0, "MHA-2"), (-1.0, "MHA-2")])
def test_roundings_of_16_bits_are_told_by_the_rule_of_dtypes(wide: float, rule: str) -> None:
    """Where float32 and float64 conform."""
    executor, found = judged_heads("MHA-2", wide)
    trial.settle_violations(executor.results, executor.charge_to_dtype)
    assert [one.rule for one in executor.results.violations.values()] == [rule]
    assert executor.results.rules[found.rule, found.subject].worst == (0.9 if rule == "ATT-9" else 47.3)
    assert executor.remarks == ({"ATT-9": [in_dtypes("bfloat16")]} if rule == "ATT-9" else {})


def judged_heads(rule: str, wide: float = 0.5, name: str = "output") -> tuple[judging.PeerExecutor, Violation]:
    """A executor of a peer with a violation in bfloat16. wide: the largest ratio in float32 and float64."""
    peer = next(one for one in HERE if one.operation == "multi_head_attention")
    runner = judging.runner_of(peer)
    executor = judging.PeerExecutor(runner, peer, 1, 0)
    case = replace(attention(), operation=peer.operation, dtype="bfloat16")
    finding = Finding(name, 47.3, (0, 0, 0, 0), 9.5e-05, 9.6e-05, 7.2e-07)
    found = Violation(rule, runner.name, finding, "separate heads", CHECKS["agreement"], case)
    executor.results.rules[rule, runner.name] = Cell(9, 47.3, wide, kept=(0.9, 0.5))
    executor.results.violations[found.key] = found
    return executor, found


WEIGHTS = judging.WrongDtype("bfloat16", {"weights": "inputs", "products": "float64"})


@pytest.mark.parametrize(
    ("remarks", "said", "dtype", "name", "told"),
    [
        ("several", "in bfloat16, float64; gradients in float32", "float32", "output", True),
        ("several", "in bfloat16, float64; gradients in float32", "float32", "gradient of x", False),
        ("several", "in bfloat16, float64; gradients in float32", "bfloat16", "output", False),
        ("excused", "in bfloat16 (conforms under weights=inputs, products=float64)", "float64", "output", True),
        ("halves", "in bfloat16, float16", "float16", "gradient of x", False),
        ("none", "", "float32", "output", False),
    ],
)
def test_dtypes_that_a_remark_lacks_are_wrong_too(remarks: str, said: str, dtype: str, name: str, told: bool) -> None:
    """The call beside it is in such a dtype: the remark must not say that it is right there."""
    kinds = {"several": [in_dtypes("bfloat16", "float64"), in_dtypes("float32", gradients=True)], "none": []}
    kinds |= {"excused": [judging.DtypeRemark((WEIGHTS,))], "halves": [in_dtypes("bfloat16", "float16")]}
    case = replace(attention(), dtype=dtype)
    found = Violation("ACT-1", "a path", Finding(name, 9.0, (0,), 1.5, 1.0), "a probe", CHECKS["agreement"], case)
    assert rows.describe_dtypes(kinds[remarks], found) == (f"also {said}" if told else said)


@pytest.mark.parametrize(("name", "rule"), [("output", "ATT-9"), ("gradient of key", "ATT-12")])
def test_a_gradient_with_such_roundings_stands_under_the_rule_of_gradients(name: str, rule: str) -> None:
    for broken in ("MHA-1", "MHA-2", "MASK-3"):
        executor, found = judged_heads(broken, name=name)
        assert executor.charge_to_dtype(found).rule == rule
        executor.remark(rule, [])
        assert executor.remarks == {rule: [in_dtypes("bfloat16")]}


@pytest.mark.slow
def test_a_divergence_stands_under_its_own_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """What only follows from another divergence is not laid to further rules, and accepting is no wrong answer."""
    peer = Peer("one pass", f"{__name__}:one_pass", "layer_norm", "numpy", ("numpy",), takes=last_axis)
    lines: list[str] = []
    monkeypatch.setattr("conformance.peers.matrix.PEERS", (peer, replace(peer, name="slow", slow="it is slow")))
    (report,) = matrix.matrix("default", 1, say=lines.append)
    judged_line = f"one pass: {len(report.violations)} divergences in {report.seconds:.0f} s"
    assert lines == ["slow is skipped: it is slow", judged_line]
    expected = {"NORM-1": rows.VIOLATED, "NORM-2": rows.ACCEPTS, "NORM-4": rows.VIOLATED}
    expected |= {"NORM-5": rows.CONFORMS, "NORM-6": rows.NOT_ASKED, "NORM-7": rows.NOT_ASKED}
    assert {rule: rows.state_of(report, rule) for rule in expected} == expected
    assert next(v for v in report.violations if v.rule == "NORM-1").title == "eps left out"
    assert report.accepted == {"NORM-1": ["eps 0"], "NORM-2": ["mixed dtypes"]}
    found = rows.rows_of([report])
    text = markdown.format_markdown(found)
    assert "| one pass | " in text
    assert f"numpy {np.__version__}" in text
    assert "- **NORM-4** conditioning (core): output[" in text
    assert "- Takes what should be refused: NORM-1 eps 0; NORM-2 mixed dtypes." in text
    shown = rendered(lambda console: console.print(terminal.render_rows(found)))
    assert "one pass breaks NORM-4 (conditioning, core)" in shown


def test_matrix_of_libraries_stands_by_level() -> None:
    plain = helpers.judged(plain_norm, "NORM-1", "NORM-3", "NORM-5", operation="layer_norm")
    given = {name: getattr(plain, name) for name in plain.__dataclass_fields__}
    report = matrix.PeerReport(**given, peer=Peer("plain", "here:plain_norm", "layer_norm", "numpy", ("numpy",)))
    row = rows.row_of(report, rows.Run("2026-01-02", 0, "quick", {}))
    assert rows.columns([row]) == ["core", "NORM-1", "NORM-3", "robust", "NORM-5", "strict"]
    for one, keeps in ((row, "robust ✓ ✓ △ ✓ ✓ ✗"), (row._replace(broken=None), "? ? ✓ △ ? ✓ ?")):
        text = markdown.format_markdown([one])
        header, line = (found for found in text.splitlines() if found.startswith("|") and "---" not in found)
        assert header == "|  | run | keeps | **core** | NORM-1 | NORM-3 | **robust** | NORM-5 | **strict** |"
        assert line == f"| plain\\_norm | 1 | {' | '.join(keeps.split())} |"
        assert ("? the run told no levels" in text) == (one.broken is None)


def made_row(name: str, run: rows.Run, *marks: str) -> rows.Row:
    return rows.Row(name, "layer_norm", dict(zip(("NORM-1", "NORM-3"), marks, strict=True)), [], (), {}, "", run)


def test_a_run_renews_its_rows_and_keeps_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row says which run it is from; rows of peers that are no longer there go."""
    first, second, third = (peer.name for peer in PEERS[:3])
    old = rows.Run("2026-01-02", 3, "quick", {"numpy": "1"})
    stored, page = tmp_path / "page.json", tmp_path / "page.md"
    before = [made_row(name, old, rows.CONFORMS, rows.CONFORMS) for name in (third, "gone", first)]
    rows.write(before, stored)
    assert rows.read(stored) == [before[2], before[0], before[1]]

    new = old._replace(date="2027-01-02", seed=5)
    judged_now = [made_row(name, new, rows.VIOLATED, rows.CONFORMS) for name in (second, third)]
    monkeypatch.setattr("conformance.cli.dev.peers.judge_peers", lambda *given, **others: iter(judged_now))
    monkeypatch.setattr("conformance.peers.rows.rows_of", lambda reports: reports)
    code, output = command("dev", "peers", "--markdown", page)
    assert code == 0, output
    found = {row.path: (row.run.seed, row.marks["NORM-1"]) for row in rows.read(stored)}
    assert found == {first: (3, rows.CONFORMS), second: (5, rows.VIOLATED), third: (5, rows.VIOLATED)}
    assert page.with_name("found.md").read_text() == Path("docs/found.md").read_text()
    text = page.read_text()
    assert f"1. {old.summary}\n2. 2027-01-02: numpy 1; seed 5, effort quick.\n" in text
    assert [line.split(" | ")[1] for line in text.splitlines() if line.startswith("| torch")] == ["1", "2", "2"]

    stored.write_text("{}")
    code, _ = command("dev", "peers", "--markdown", page)
    assert (code, stored.read_text(), page.read_text()) == (2, "{}", text)


def test_the_page_says_what_is_stored() -> None:
    page = Path("docs/divergences.md")
    assert page.read_text() == markdown.format_page(rows.read(page.with_suffix(".json")))


def test_the_page_names_peers_without_a_row() -> None:
    """So a peer that is new changes the page, and the test above tells."""
    stored = rows.read(Path("docs/divergences.json"))
    name = stored[0].path
    assert name not in markdown.format_page(stored).partition("\n1. ")[0]
    assert f"Not judged yet: {markdown.escape_markdown(name)}" in markdown.format_page(stored[1:]).partition("\n1. ")[0]


@pytest.mark.slow
def test_what_is_wrong_past_a_size_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer("a block", f"{__name__}:columns_up_to_256", "rms_norm", "numpy", ("numpy",), takes=last_axis)
    peer = replace(peer, given={"supports": [], "dtypes": ("float32",)})
    monkeypatch.setattr("conformance.peers.matrix.PEERS", (peer,))
    (report,) = matrix.matrix("quick", 1, say=lambda line: None)
    assert [violation.rule for violation in report.violations] == ["NORM-7"]
    assert "(first wrong at 257 columns of a row (256 are right)" in markdown.format_markdown(rows.rows_of([report]))
    assert rows.describe_sizes(replace(report.violations[0], threshold=())) == ""
    odd = Threshold(("K",), "no multiple", (3, 5), (4,), multiple=2)
    small = Threshold(("Q",), "first", (3, 4), (2,), 2)
    found = replace(report.violations[0], threshold=(odd, small))
    assert rows.describe_sizes(found) == "wrong where the number of keys is odd"


def test_what_is_slow_gets_a_share_of_the_planned_sizes() -> None:
    """At least one case of each probe; small ones as many as ever."""
    peer = next(peer for peer in PEERS if peer.name == "torch F.rms_norm")
    runner = Runner(peer.target.make())
    executor = judging.PeerExecutor(runner, peer, 10, 0)
    declaration = runner.declaration
    probes = list(executor.probes(declaration))
    assert all(executor.limit_probe(probe).weight == probe.weight for probe in probes)
    runner.declaration = replace(declaration, compiled=True)
    fewer = [probe for probe in probes if executor.limit_probe(probe).weight < probe.weight]
    assert fewer == [probe for probe in probes if isinstance(probe.cases, Rows)] != []
    assert all(0 < plan.count_cases(executor.limit_probe(probe), 10) < plan.count_cases(probe, 10) for probe in fewer)


def test_a_case_that_is_made_smaller_stays_within_the_path() -> None:
    """What an adapter would have to refuse is nobody's mistake."""
    peer = next(peer for peer in PEERS if peer.name == "torch SDPA, math, is_causal")
    runner = judging.runner_of(peer)
    executor = judging.PeerExecutor(runner, peer, 10, 0)
    within_path, beyond = attention(Causal(0), Q=7), attention(Causal(-6), Q=7)
    assert executor.asks(within_path)
    assert not executor.asks(beyond)
    assert examine(runner, within_path) != []
    assert examine(runner, beyond) == []
    (refused,) = examine(judging.runner_of(peer), beyond)
    assert describe_finding(refused).startswith("call: raised NotImplementedError: ")


def test_a_case_that_is_made_smaller_stays_in_sizes_of_the_path() -> None:
    peer = next(peer for peer in PEERS if peer.name == "torch nn.MultiheadAttention, slow path")
    executor = judging.PeerExecutor(judging.runner_of(peer), peer, 10, 0)
    assert not executor.asks(multi_head())
    assert executor.asks(peer.fitted(multi_head()))


def test_threads_do_not_share_the_module_that_holds_their_parameters() -> None:
    """What one thread puts into a module would be another one's weights."""
    generator = torch.Generator().manual_seed(0)

    def drawn_call() -> tuple[Any, ...]:
        parts = [Linear(torch.randn(8, 8, generator=generator), torch.randn(8, generator=generator)) for _ in "qkvo"]
        return MultiHeadAttention(*parts), torch.randn(2, 5, 8, generator=generator)

    calls = [drawn_call() for _ in range(3)]

    def answer(call: tuple[Any, ...]) -> Any:
        parameters, x = call
        return torch_multi_head.slow(parameters, x, x, x, num_heads=2)

    right = [answer(call) for call in calls]
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(1e-5)
        with ThreadPoolExecutor(3) as threads:
            found = list(threads.map(answer, calls * 60))
    finally:
        sys.setswitchinterval(before)
    assert all(torch.allclose(got, right[number % 3], rtol=0, atol=1e-5) for number, got in enumerate(found))

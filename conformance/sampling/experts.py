"""Strategies of routers, mixtures of experts, and the losses of routers.

A choice that rounding may flip says nothing. So a token whose choice is not decided by more than its errors is drawn
again, but for those of the probes about ties.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from conformance.bounds import experts as bounds_of
from conformance.bounds.arithmetic import Precision, exact
from conformance.cases.case import Case, numpy_dtype
from conformance.cases.declaration import EVERYTHING, Declaration, fit_width, roundings
from conformance.oracle.reference import ball_work
from conformance.sampling.strategies import (
    DTYPES,
    Draw,
    draw_dtype,
    draw_memory,
    draw_option,
    draw_row_cotangents,
    reset_lacking,
    seeds,
    select_cotangents,
)
from specification.configuration import CHOICES
from specification.dtypes import compute_dtype_name
from specification.routing import GROUP_SCORES, SCORINGS, WEIGHTINGS

Router = tuple[tuple[int, ...], int, int, int]
"""The shape of the tokens, their width, the experts, and how many are chosen."""
ROUTERS: tuple[Router, ...] = (
    *(((5,), 7, 8, 2), ((2, 3), 12, 16, 4), ((4,), 16, 64, 6), ((3,), 24, 128, 8), ((6,), 5, 8, 1)),
    *(((2,), 40, 256, 8), ((1,), 9, 32, 4), ((2, 2), 10, 4, 4)),
)
WIDE_ROUTERS: tuple[Router, ...] = (((3,), 512, 32, 4), ((4,), 300, 8, 2), ((2,), 1024, 64, 6))
"""Where sums of products have digits that 16 bits do not hold."""
FULL_GROUPS: tuple[Router, ...] = (((5,), 7, 16, 4), ((3,), 9, 32, 8))
"""Of four groups, one may hold all that are chosen."""
NO_TOKENS: tuple[Router, ...] = (((0,), 7, 8, 2), ((2, 0), 5, 16, 4))
ONE_TOKEN: tuple[Router, ...] = (((1,), 7, 8, 2), ((1,), 9, 32, 4), ((1,), 5, 16, 1), ((1,), 12, 64, 6))
Mixture = tuple[tuple[int, ...], int, int, int, int, int]
"""The same, and the experts' inner and outer width."""
MIXTURES: tuple[Mixture, ...] = (
    *(((5,), 6, 8, 2, 5, 4), ((2, 3), 8, 4, 2, 7, 8), ((4,), 10, 16, 4, 6, 10), ((3,), 6, 64, 6, 4, 5)),
    *(((2,), 5, 128, 8, 3, 4), ((9,), 12, 8, 1, 16, 12), ((1,), 9, 8, 2, 8, 9), ((7,), 8, 8, 2, 8, 8)),
)
NO_TOKENS_MIXED: tuple[Mixture, ...] = (((0,), 6, 8, 2, 5, 4), ((2, 0), 5, 4, 2, 3, 5))
SEVERAL: tuple[Mixture, ...] = tuple(plan for plan in MIXTURES if prod(plan[0]) > 3)
CROWDED: tuple[Mixture, ...] = (*SEVERAL, ((3, 4), 6, 4, 2, 5, 4), ((4, 3), 5, 4, 1, 4, 3))
"""More tokens than experts have places, also in a batch of sequences."""
ONE_TOKEN_MIXED: tuple[Mixture, ...] = (((1,), 6, 8, 2, 5, 4), ((1,), 7, 16, 3, 4, 5))
GROUPINGS = (1, 4, 8)
SCALES = (1.0, 1.0, 2.5, 0.3)
TRIES = 30
"""How often a token is drawn again. With 256 experts one in three is decided even where logits have 16 bits."""
LOSSES: tuple[tuple[tuple[int, ...], int, int], ...] = (
    *(((7,), 8, 2), ((3, 4), 16, 4), ((1,), 8, 1), ((9,), 64, 6), ((2, 3, 2), 4, 4), ((40,), 128, 8)),
)
"""The shape of the tokens, the experts, and how many are chosen."""


def few_plans(plans: tuple[Any, ...], declaration: Declaration) -> tuple[Any, ...]:
    """Where shapes are compiled, the first three."""
    return plans[:3] if declaration.compiled else plans


def routing_options(
    draw: st.DrawFn, operation: str, X: int, chosen: int, declaration: Declaration, choices: dict[str, Any]
) -> dict[str, Any]:
    """Options of a router. choices: those to draw from, in place of the usual ones."""

    def pick(name: str, usual: tuple[Any, ...]) -> Any:
        return draw_option(draw, operation, name, choices.get(name, usual), declaration)

    options: dict[str, Any] = {"chosen": chosen, "scoring": pick("scoring", SCORINGS)}
    usual = WEIGHTINGS if options["scoring"] != "none" else ("scores", "softmax")
    able = tuple(name for name in choices.get("weighting", usual) if name in usual)
    options["weighting"] = draw_option(draw, operation, "weighting", able, declaration)
    options["scale"] = pick("scale", SCALES)
    groups = draw(st.sampled_from([n for n in choices.get("groups", GROUPINGS) if X % n == 0 and X // n > 1] or [1]))
    if groups > 1 and not {"groups", "chosen_groups"} & declaration.lacking:
        least = -(-chosen // (X // groups))
        some = range(least, max(groups, least + 1))
        options |= {"groups": groups, "chosen_groups": draw(st.sampled_from(some))}
        options["group_score"] = pick("group_score", GROUP_SCORES)
    return reset_lacking(operation, options, declaration)


def router_arrays(draw: st.DrawFn, d: Draw, E: int, X: int, scoring: str, biased: bool | None) -> dict[str, np.ndarray]:
    """A router's weight, half of the time its bias, and half of the time a choice bias as large as scores differ."""
    size = draw(st.sampled_from((1.0, 3.0)))
    arrays = {"router.weight": d.normal(E, X, scale=size * max(E, 1) ** -0.5)}
    if draw(st.booleans()):
        arrays["router.bias"] = d.normal(X, scale=0.5)
    if draw(st.booleans()) if biased is None else biased:
        dtype = draw(st.sampled_from((d.dtype, compute_dtype_name(d.dtype))))
        spread = {"softmax": 2.0 / X, "sigmoid": 0.3, "none": 1.0}[scoring]
        arrays["choice_bias"] = d.normal(X, scale=spread, dtype=dtype)
    return arrays


def decide(case: Case, d: Draw) -> Case:
    """The case with other tokens in place of those whose choice is not decided."""
    p, options = Precision.make(case.dtype, case.rounding), bounds_of.Options.read(case)
    inputs = {name: exact(array) for name, array in bounds_of.wide_inputs(case).items()}
    x = case.inputs["x"].reshape(-1, case.inputs["x"].shape[-1]).copy()
    with np.errstate(all="ignore"):
        for _ in range(TRIES):
            logits = bounds_of.router_logits(inputs | {"x": exact(x)}, p)
            bias = case.inputs.get("choice_bias")
            wide = None if bias is None else bias.astype(float)
            decided = bounds_of.routed(logits, wide, options, p).choice.decided
            again = ~decided & np.isfinite(x.astype(float)).all(axis=-1)
            if not again.any():
                break
            x[again] = d.normal(int(again.sum()), x.shape[1])
    inputs_now = case.inputs | {"x": x.reshape(case.inputs["x"].shape)}
    return Case(case.operation, case.dtype, inputs_now, case.options, case.cotangents, case.special, case.rounding)


def spoil_tokens(d: Draw, x: np.ndarray, where: np.ndarray) -> np.ndarray:
    """NaN or infinity somewhere in these tokens [...]."""
    places = where[..., None] & d.booleans(*x.shape, share=0.5)
    return np.where(places, d.choice((np.nan, np.inf, -np.inf), *x.shape).astype(x.dtype), x)


@st.composite
def route_cases(
    draw: st.DrawFn,
    biased: bool | None = None,
    spoiled: bool = False,
    choices: dict[str, Any] | None = None,
    dtypes: tuple[str, ...] = DTYPES,
    plans: tuple[Router, ...] = ROUTERS,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """biased: whether there is a choice bias; None for either. spoiled: NaN and infinity stand in some tokens.

    choices: of options, in place of the usual ones. plans: the sizes to draw from.
    """
    shape, E, X, chosen = draw(st.sampled_from(few_plans(plans, declaration)))
    assume(prod(shape) > 0 or "empty" in declaration)
    E = fit_width(E, "model_width", declaration)
    dtype = draw_dtype(draw, dtypes, declaration, ball_work("route", gradients=True, rows=prod(shape), E=E, X=X))
    d = Draw(draw(seeds), dtype)
    options = routing_options(draw, "route", X, chosen, declaration, choices or {})
    unbiased = biased if "choice_bias" not in declaration.lacking else False
    inputs = {"x": d.normal(*shape, E)} | router_arrays(draw, d, E, X, options["scoring"], unbiased)
    case = decide(Case("route", dtype, inputs, options, rounding=roundings(declaration, dtype)), d)
    wide = compute_dtype_name(dtype)
    bars = {"weights": d.normal(*shape, chosen, dtype=wide), "scores": d.normal(*shape, X, dtype=wide, scale=0.3)}
    if spoiled:
        x = spoil_tokens(d, case.inputs["x"], d.booleans(*shape, share=0.5))
        return Case("route", dtype, case.inputs | {"x": x}, options, special=True, rounding=case.rounding)
    cotangents = select_cotangents(bars, declaration)
    case = Case("route", dtype, case.inputs, options, cotangents, rounding=case.rounding)
    return draw_memory(draw, case, declaration)


@st.composite
def mixture_cases(
    draw: st.DrawFn,
    networks: tuple[str, ...] = ("plain", "gated", "gated"),
    activations: tuple[str, ...] = (*CHOICES["activation"], "clamped_swiglu"),
    shared: bool | None = None,
    biased: bool | None = None,
    masked: bool | None = None,
    capacities: tuple[int | None, ...] = (None, None, None, 1, 2),
    spoiled: str = "",
    choices: dict[str, Any] | None = None,
    dtypes: tuple[str, ...] = DTYPES,
    plans: tuple[Mixture, ...] = MIXTURES,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """networks, activations, capacities: the choices. shared, biased, masked: whether there is a shared network, a
    choice bias, and a mask of tokens; None for either.

    spoiled: where NaN and infinities stand: in "tokens", in what is no token ("padding"), or in the parameters of
    "experts" that take no token.
    """
    shape, E, X, chosen, F, out = draw(st.sampled_from(few_plans(plans, declaration)))
    assume(prod(shape) > 0 or "empty" in declaration)
    E, out = fit_width(E, "model_width", declaration), fit_width(out, "model_width", declaration)
    F, count = fit_width(F, "inner_width", declaration), prod(shape)
    sizes = {"rows": count, "E": E, "X": X, "F": F, "out": out, "chosen": chosen, "shared": F}
    dtype = draw_dtype(draw, dtypes, declaration, ball_work("mixture_of_experts", gradients=True, **sizes))
    d, operation = Draw(draw(seeds), dtype), "mixture_of_experts"
    options = routing_options(draw, operation, X, chosen, declaration, choices or {})
    gated = draw(st.sampled_from(networks)) == "gated"
    able = tuple(name for name in activations if gated or name != "clamped_swiglu")
    options["activation"] = draw_option(draw, operation, "activation", able, declaration)
    options["capacity"] = draw_option(draw, operation, "capacity", capacities, declaration)
    inputs = {"x": d.normal(*shape, E)} | router_arrays(draw, d, E, X, options["scoring"], biased)
    if draw(st.integers(0, 3)) == 0:  # most tokens choose one expert
        inputs["router.bias"] = d.cast(4.0 * (np.arange(X) == d.integers(0, X - 1)))
    inputs |= network_arrays(draw, d, "experts", (X,), gated, E, F, out, options["activation"])
    if draw(st.booleans()) if shared is None else shared:
        inputs |= network_arrays(draw, d, "shared", (), gated, E, F + 2, out, options["activation"])
    case = decide(Case(operation, dtype, inputs, options, rounding=roundings(declaration, dtype)), d)
    inputs = dict(case.inputs)
    masked = draw(st.booleans()) if masked is None else masked
    if (masked or spoiled == "padding") and "token_mask" not in declaration.lacking:
        inputs["token_mask"] = d.booleans(*shape, share=0.6)
    options = {name: value for name, value in options.items() if value is not None}
    case = Case(operation, dtype, inputs, options, rounding=case.rounding)
    bars = {"output": draw_row_cotangents(draw, d, (*shape, out))}
    if spoiled == "tokens":
        x = spoil_tokens(d, inputs["x"], d.booleans(*shape, share=0.5))
        return Case(operation, dtype, inputs | {"x": x}, options, special=True, rounding=case.rounding)
    if spoiled == "padding":
        assume("token_mask" in inputs)
        inputs["x"] = spoil_tokens(d, inputs["x"], ~inputs["token_mask"])
    if spoiled == "experts":
        busy = ~idle_experts(case)
        assume(not busy.all())
        for name in [name for name in inputs if name.startswith("experts.")]:
            stack = busy.reshape(X, *(1 for _ in inputs[name].shape[1:]))
            inputs[name] = np.where(stack, inputs[name], numpy_dtype(dtype).type(np.nan))
    case = Case(operation, dtype, inputs, options, select_cotangents(bars, declaration), bool(spoiled), case.rounding)
    return draw_memory(draw, case, declaration)


@st.composite
def tied_cases(draw: st.DrawFn, cases: st.SearchStrategy[Case], near: bool = False) -> tuple[Case, ...]:
    """A case of one token, for which the last expert that is chosen and another are equal, and the same case with
    either of them preferred by a choice bias, first that of the lower index.

    Logits are exact, with few digits each. near: they are not, so that rounding decides.
    """
    case = replace(draw(cases), memory={})
    d, inputs = Draw(draw(seeds), case.dtype), dict(case.inputs)
    E, X = inputs["router.weight"].shape
    if not near:
        inputs["x"] = d.cast(d.integers(-7, 7, *inputs["x"].shape) / 4.0)
        inputs["router.weight"] = d.cast(d.integers(-127, 127, E, X) / 64.0)
        inputs.pop("router.bias", None)
    plain = replace(case, inputs=inputs)
    order = np.argsort(-preferences_of(plain)[0], kind="stable")
    last, other = order[case.options["chosen"] - 1], draw(st.sampled_from(sorted(map(int, order))))
    assume(other not in order[: case.options["chosen"]])
    for name in ("router.weight", "router.bias"):
        if name in inputs:
            inputs[name] = inputs[name].copy()
            inputs[name][..., other] = inputs[name][..., last]
    numbers = preferences_of(plain)[0]
    pair = sorted((int(last), other))
    gap = np.min(np.abs(np.delete(numbers, pair) - numbers[last]))
    choices = []
    for expert in pair:
        bias = np.zeros(X, compute_dtype_name(case.dtype))
        bias[expert] = gap / 4
        choices.append(replace(plain, inputs=inputs | {"choice_bias": bias}, constants=("choice_bias",)))
    assume(all(is_decided(choice) for choice in choices))
    return plain, *choices


def routing_of(case: Case) -> bounds_of.Routed:
    p, wide = Precision.make(case.dtype, case.rounding), bounds_of.wide_inputs(case)
    with np.errstate(all="ignore"):
        logits = bounds_of.router_logits({name: exact(array) for name, array in wide.items()}, p)
        return bounds_of.routed(logits, wide.get("choice_bias"), bounds_of.Options.read(case), p)


def preferences_of(case: Case) -> np.ndarray:
    """[N, X], without the choice bias."""
    return routing_of(case).scores.value


def is_decided(case: Case) -> bool:
    return bool(routing_of(case).choice.decided.all())


def idle_experts(case: Case) -> np.ndarray:
    """Which experts [X] take no token."""
    choice = routing_of(case).choice
    real = bounds_of.real_tokens(case, case.inputs["x"].shape[:-1])
    X = case.inputs["router.weight"].shape[1]
    return np.asarray(~bounds_of.taken_places(choice.indices, X, real, case.options.get("capacity")).any(axis=0))


def network_arrays(
    draw: st.DrawFn, d: Draw, name: str, lead: tuple[int, ...], gated: bool, E: int, F: int, out: int, activation: str
) -> dict[str, np.ndarray]:
    """Of one network or of a stack; where a gate is cut off at 7, some numbers are beyond that."""
    size = draw(st.sampled_from((4.0, 8.0))) if activation == "clamped_swiglu" else 1.0
    sides = ("gate", "inner") if gated else ("inner",)
    arrays = {f"{name}.{side}.weight": d.normal(*lead, E, F, scale=size * E**-0.5) for side in sides}
    arrays[f"{name}.outer.weight"] = d.normal(*lead, F, out, scale=F**-0.5)
    if draw(st.booleans()):
        arrays |= {f"{name}.{side}.bias": d.normal(*lead, F) for side in sides}
        arrays[f"{name}.outer.bias"] = d.normal(*lead, out)
    return arrays


@st.composite
def router_loss_cases(
    draw: st.DrawFn,
    operation: str,
    masked: bool | None = None,
    none_counts: bool = False,
    spoiled: str = "",
    dtypes: tuple[str, ...] = DTYPES,
    plans: tuple[tuple[tuple[int, ...], int, int], ...] = LOSSES,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """masked: whether there is a mask of tokens; None for either. none_counts: nothing is a token.

    spoiled: where NaN and infinities stand: in "padding", or in any of the "tokens".
    """
    shape, X, chosen = draw(st.sampled_from(plans))
    assume(prod(shape) > 0 or "empty" in declaration)
    count = prod(shape)
    dtype = draw_dtype(draw, dtypes, declaration, ball_work(operation, gradients=True, rows=count, experts=X))
    d, p = Draw(draw(seeds), dtype), Precision.make(dtype)
    size, mean = draw(st.sampled_from((0.5, 2.0, 5.0))), draw(st.sampled_from((0.0, 0.0, 4.0)))
    x = d.normal(count, X, scale=size, mean=mean)
    if operation == "load_balancing_loss":
        with np.errstate(all="ignore"):
            for _ in range(TRIES):
                decided = bounds_of.choose(bounds_of.softmax(exact(x), p), chosen).decided | (chosen == X)
                if decided.all():
                    break
                x[~decided] = d.normal(int((~decided).sum()), X, scale=size)
    inputs = {"router_logits": x.reshape(*shape, X)}
    if (draw(st.booleans()) if masked is None else masked) and "token_mask" not in declaration.lacking:
        inputs["token_mask"] = d.booleans(*shape, share=0.0 if none_counts else 0.7)
    if spoiled:
        where = ~inputs["token_mask"] if spoiled == "padding" else d.booleans(*shape, share=0.2)
        inputs["router_logits"] = spoil_tokens(d, inputs["router_logits"], where)
    options = {"chosen": chosen} if operation == "load_balancing_loss" else {}
    cotangents = select_cotangents({"output": np.asarray(d.normal())}, declaration)
    case = Case(operation, dtype, inputs, options, cotangents, bool(spoiled), roundings(declaration, dtype))
    return draw_memory(draw, case, declaration)

"""Routers, mixtures of experts, and the losses that keep routers in balance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.checks.catalogue import NEAR_TIES, TIES, Probe, make_probe
from conformance.checks.levels import ROBUST
from conformance.checks.refusals import Kind, Numbers, Refusal
from conformance.operations import JudgedOperation
from conformance.sampling.draws import Rows
from conformance.sampling.experts import (
    CROWDED,
    FULL_GROUPS,
    NO_TOKENS,
    NO_TOKENS_MIXED,
    ONE_TOKEN,
    ONE_TOKEN_MIXED,
    SEVERAL,
    WIDE_ROUTERS,
    mixture_cases,
    route_cases,
    router_loss_cases,
    tied_cases,
)
from conformance.sampling.plan.covering import Row
from conformance.sampling.plan.layers import rows_of_layers
from specification.dtypes import HALF

GROUPED: dict[str, Any] = {"groups": (4, 8)}
FEW_GROUPS = {"groups": (4,), "scoring": ("none",)}

# --- route ------------------------------------------------------------------------------------------------------------


def route_probes(declaration: Declaration) -> list[Probe]:
    probe = partial(make_probe, "route")
    cases = partial(route_cases, declaration=declaration)

    def row_cases(row: Row) -> st.SearchStrategy[Case]:
        return cases(plans=(((row["rows"],), row["model_width"], 8, 2),))

    def scored(scoring: str) -> st.SearchStrategy[Case]:
        return cases(choices={"scoring": (scoring,)})

    def weighed(weighting: str) -> st.SearchStrategy[Case]:
        return cases(choices={"weighting": (weighting,)})

    alone = partial(cases, biased=False, choices={"groups": (1,)})
    return [
        probe("MOE-1", "scores by softmax", scored("softmax"), 1.5),
        probe("MOE-1", "scores by sigmoid", scored("sigmoid"), 1.5),
        probe("MOE-1", "logits as scores", scored("none")),
        probe("MOE-1", "logits of 16-bit inputs", cases(dtypes=HALF, plans=WIDE_ROUTERS)),
        probe("MOE-1", "sizes", rows_of_layers("route", row_cases, declaration)),
        probe("MOE-2", "choice", cases(biased=False, choices={"groups": (1,)}), 1.5),
        probe("MOE-2", "choice bias", cases(biased=True), 1.5),
        probe("MOE-2", "groups by two", cases(choices=GROUPED | {"group_score": ("two_largest",)}), 1.5),
        probe("MOE-2", "groups by one", cases(choices=GROUPED | {"group_score": ("largest",)})),
        probe("MOE-2", "logits below 0 in few groups", cases(choices=FEW_GROUPS, plans=FULL_GROUPS)),
        probe("MOE-2", "equal scores", tied_cases(alone(plans=ONE_TOKEN)), check=TIES),
        probe("MOE-2", "nearly equal scores", tied_cases(alone(plans=ONE_TOKEN), near=True), 0.7, check=NEAR_TIES),
        probe("MOE-2", "NaN and infinity in tokens of route", cases(spoiled=True), 0.7, ROBUST),
        probe("MOE-2", "no token to route", cases(plans=NO_TOKENS), 0.3, ROBUST),
        probe("MOE-3", "weights normalised", weighed("normalized"), 1.5),
        probe("MOE-3", "weights as they are", weighed("scores")),
        probe("MOE-3", "weights by softmax", weighed("softmax")),
        probe("MOE-3", "scale", cases(choices={"scale": (2.5, 0.3, 16.0)})),
    ]


def route_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    inputs = {"x": array(4, 5), "router.weight": array(5, 6)}

    def make_refusal(rule: str, title: str, changes: dict[str, Any] | None = None, **options: object) -> Refusal:
        given = {"chosen": 2} | options
        return array.refusal("route", rule, title, ValueError, inputs | (changes or {}), **given)

    yield make_refusal("MOE-1", "a router of another width", {"router.weight": array(4, 6)})
    yield make_refusal("MOE-1", "an unknown scoring", scoring="tanh")
    yield make_refusal("MOE-2", "no expert chosen", chosen=0)
    yield make_refusal("MOE-2", "more experts chosen than there are", chosen=7)
    yield make_refusal("MOE-2", "groups that do not divide the experts", groups=4)
    yield make_refusal("MOE-2", "more groups chosen than there are", groups=2, chosen_groups=3)
    yield make_refusal("MOE-2", "more experts chosen than the groups have", groups=3, chosen=3)
    yield make_refusal("MOE-2", "a choice bias of another length", {"choice_bias": array(5)})
    yield make_refusal("MOE-3", "an unknown weighting", weighting="sum")
    yield make_refusal("MOE-3", "logits to be normalised", scoring="none", weighting="normalized")


ROUTE = JudgedOperation("route", route_probes, route_refusals)


# --- mixture_of_experts -----------------------------------------------------------------------------------------------


def mixture_rows(cases: Callable[..., st.SearchStrategy[Case]], declaration: Declaration) -> Rows:
    def row_cases(row: Row) -> st.SearchStrategy[Case]:
        return cases(plans=(((row["rows"],), row["model_width"], 8, 2, row["inner_width"], row["model_width"]),))

    return rows_of_layers("mixture_of_experts", row_cases, declaration)


def mixture_of_experts_probes(declaration: Declaration) -> list[Probe]:
    probe = partial(make_probe, "mixture_of_experts")
    cases = partial(mixture_cases, declaration=declaration)
    alone: dict[str, Any] = {"capacities": (None,), "masked": False}
    clamped = ("clamped_swiglu",)
    ungrouped = partial(cases, biased=False, choices={"groups": (1,)}, **alone)
    lossy = partial(cases, capacities=(1, 2), plans=SEVERAL[:2], choices={"weighting": ("normalized",)})
    return [
        probe("MOE-2", "choice of experts that compute", cases(biased=True, **alone)),
        probe("MOE-2", "groups of experts", cases(choices=GROUPED, **alone)),
        probe("MOE-2", "equal experts", tied_cases(ungrouped(plans=ONE_TOKEN_MIXED)), 0.7, check=TIES),
        probe(
            "MOE-2",
            "nearly equal experts",
            tied_cases(ungrouped(plans=ONE_TOKEN_MIXED), near=True),
            0.5,
            check=NEAR_TIES,
        ),
        probe("MOE-3", "weights of experts", cases(choices={"scale": (2.5, 0.3)}, **alone)),
        probe("MOE-4", "plain experts", cases(("plain",), shared=False, **alone)),
        probe("MOE-4", "gated experts", cases(("gated",), shared=False, **alone), 1.5),
        probe("MOE-4", "clamped gates", cases(("gated",), clamped, **alone), 1.5),
        probe("MOE-4", "a shared expert", cases(shared=True, **alone), 1.5),
        probe("MOE-4", "experts in 16 bits", cases(dtypes=HALF, **alone)),
        probe("MOE-4", "NaN in experts that nobody chose", cases(spoiled="experts"), 0.7, ROBUST),
        probe("MOE-4", "mixtures, sizes", mixture_rows(cases, declaration)),
        probe("MOE-5", "tokens beside padding", cases(masked=True, capacities=(None,))),
        probe("MOE-5", "capacity", cases(capacities=(1, 2, 3), plans=CROWDED), 2.0),
        probe("MOE-5", "capacity and normalised weights", lossy()),
        probe("MOE-5", "NaN and infinity in padding", cases(spoiled="padding", plans=SEVERAL), 0.7, ROBUST),
        probe("MOE-5", "NaN and infinity in tokens", cases(spoiled="tokens", capacities=(None,)), 0.7, ROBUST),
        probe("MOE-5", "no token", cases(plans=NO_TOKENS_MIXED), 0.3, ROBUST),
    ]


def mixture_of_experts_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    inputs = {"x": array(4, 5), "router.weight": array(5, 6)}
    inputs |= {f"experts.{side}.weight": array(6, 5, 3) for side in ("gate", "inner")}
    inputs["experts.outer.weight"] = array(6, 3, 5)

    def make_refusal(
        rule: str, title: str, changes: dict[str, Any] | None = None, error: Kind = ValueError, **options: object
    ) -> Refusal:
        given = {"chosen": 2} | options
        return array.refusal("mixture_of_experts", rule, title, error, inputs | (changes or {}), **given)

    stacks = {name: array(5, *inputs[name].shape[1:]) for name in inputs if name.startswith("experts.")}
    yield make_refusal("MOE-2", "more experts chosen than there are to compute", chosen=7)
    yield make_refusal("MOE-4", "fewer experts than the router chooses among", stacks)
    yield make_refusal("MOE-4", "an unknown activation of experts", activation="swish")
    yield make_refusal("MOE-5", "a capacity of 0", capacity=0)
    yield make_refusal("MOE-5", "a mask of other tokens", {"token_mask": np.ones(3, bool)})


MIXTURE_OF_EXPERTS = JudgedOperation("mixture_of_experts", mixture_of_experts_probes, mixture_of_experts_refusals)


# --- losses of routers ------------------------------------------------------------------------------------------------


def router_loss_probes(operation: str, declaration: Declaration) -> list[Probe]:
    name = operation.replace("_", " ")
    probe = partial(make_probe, operation, "MOE-6")
    cases = partial(router_loss_cases, operation, declaration=declaration)
    return [
        probe(name, cases(masked=False), 1.5),
        probe(f"{name} beside padding", cases(masked=True)),
        probe(f"{name} without a token", cases(masked=True, none_counts=True), 0.3, ROBUST),
        probe(f"NaN and infinity in padding of {name}", cases(masked=True, spoiled="padding"), 0.7, ROBUST),
        probe(f"NaN and infinity in {name}", cases(spoiled="tokens"), 0.5, ROBUST),
        probe(
            f"{name}, sizes",
            rows_of_layers(operation, lambda row: cases(plans=(((row["rows"],), 8, 2),)), declaration),
        ),
    ]


def load_balancing_loss_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    refuse = partial(array.refusal, "load_balancing_loss", "MOE-6")
    logits = {"router_logits": array(4, 6)}
    yield refuse("more experts in balance than there are", ValueError, logits, chosen=7)
    yield refuse("a mask of other logits", ValueError, logits | {"token_mask": np.ones(3, bool)}, chosen=2)


def router_z_loss_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    logits = {"router_logits": array(4, 6), "token_mask": np.ones(3, bool)}
    yield array.refusal("router_z_loss", "MOE-6", "a mask of other tokens' logits", ValueError, logits)


LOAD_BALANCING_LOSS = JudgedOperation(
    "load_balancing_loss", partial(router_loss_probes, "load_balancing_loss"), load_balancing_loss_refusals
)
ROUTER_Z_LOSS = JudgedOperation("router_z_loss", partial(router_loss_probes, "router_z_loss"), router_z_loss_refusals)

"""Checks on the arguments of mixtures of experts."""

from __future__ import annotations

from typing import Any

from specification.arrays import Array
from specification.checks.arguments import finite, natural, one_of, refuse, structure
from specification.checks.losses import check_chosen
from specification.checks.shapes import Declaration, arrays_of, declare, match
from specification.configuration import CHOICES
from specification.dtypes import compute_dtype_name, dtype_name
from specification.parameters import FeedForward, GatedFeedForward, Linear, MixtureOfExperts
from specification.routing import GROUP_SCORES, SCORINGS, WEIGHTINGS

__all__ = ["expert_choice", "mixture_of_experts", "route"]

ROUTER = declare(
    {
        "x": 'Float[Array, "... E"]',
        "router": 'Projection[Linear, "E X"]',
        "choice_bias": 'Wide[Array, "X"] | None',
        "token_mask": 'Bool[Array, "..."] | None',
    }
)


def declare_experts(kind: type, shared: bool, axis: str) -> Declaration:
    """Declare the arrays of a mixture: the router's, those of its experts, and those of the network that all share.

    axis: the letter of how many experts there are.
    """
    annotations = {}
    for field in kind._fields:  # type: ignore[attr-defined]
        rows, columns = ("F", "E_out") if field == "outer" else ("E", "F")
        annotations[f"experts.{field}.weight"] = f'Float[Array, "{axis} {rows} {columns}"]'
        annotations[f"experts.{field}.bias"] = f'Float[Array, "{axis} {columns}"] | None'
    for field in kind._fields if shared else ():  # type: ignore[attr-defined]
        rows, columns = ("S", "E_out") if field == "outer" else ("E", "S")
        annotations[f"shared.{field}"] = f'Projection[Linear, "{rows} {columns}"]'
    return ROUTER + declare(annotations)


MIXTURES = {
    (kind, shared, on_ranks): declare_experts(kind, shared, "X_local" if on_ranks else "X")
    for kind in (FeedForward, GatedFeedForward)
    for shared in (False, True)
    for on_ranks in (False, True)
}
"""By the kind of the networks, whether one is shared, and whether other ranks have experts too."""


def route(
    x: Array,
    router: Linear,
    choice_bias: Array | None,
    *,
    chosen: int,
    scoring: str,
    groups: int,
    chosen_groups: int,
    group_score: str,
    weighting: str,
    scale: float,
) -> None:
    """Check the arguments of route (MOE-1 to MOE-3)."""
    match(ROUTER, {"x": x, "choice_bias": choice_bias} | arrays_of("router", router))
    options: Any = {"scoring": scoring, "groups": groups, "chosen_groups": chosen_groups, "group_score": group_score}
    expert_choice(router.weight.shape[1], chosen=chosen, weighting=weighting, **options)
    finite("scale", scale, compute_dtype_name(dtype_name(x)), fixed=True)


def expert_choice(
    experts: int,
    *,
    chosen: int,
    scoring: str,
    groups: int,
    chosen_groups: int,
    group_score: str,
    weighting: str,
    scale: float = 1.0,
) -> None:
    """Check how so many experts are chosen and weighed, but for the dtype of the scale (MOE-1 to MOE-3)."""
    check_chosen(chosen, experts)
    one_of("scoring", scoring, SCORINGS)
    one_of("group_score", group_score, GROUP_SCORES)
    one_of("weighting", weighting, WEIGHTINGS)
    if scoring == "none" and weighting == "normalized":
        refuse("weighting", "be 'scores' or 'softmax' with scoring 'none', whose sum may be 0", repr(weighting))
    if experts % natural("groups", groups, least=1) != 0:
        refuse("router.weight", f"have columns that {groups} groups share equally", f"{experts} columns")
    if natural("chosen_groups", chosen_groups, least=1) > groups:
        refuse("chosen_groups", f"be at most {groups}, the number of groups", chosen_groups)
    if chosen > experts // groups * chosen_groups:
        expected = f"be at most {experts // groups * chosen_groups}, the number of experts in the chosen groups"
        refuse("chosen", expected, chosen)


def mixture_of_experts(
    parameters: MixtureOfExperts,
    x: Array,
    activation: str,
    capacity: int | None,
    token_mask: Array | None,
    *,
    on_ranks: bool = False,
) -> None:
    """Check the arguments of mixture_of_experts but for those that `route` has too (MOE-4, MOE-5).

    on_ranks: the experts are some of those among which the router chooses (DIST-6).
    """
    structure("parameters", parameters, MixtureOfExperts)
    router, experts, choice_bias, shared = parameters
    kind = FeedForward if isinstance(experts, FeedForward) else GatedFeedForward
    arrays = {"x": x, "choice_bias": choice_bias, "token_mask": token_mask} | arrays_of("router", router)
    for name, network in (("experts", experts), ("shared", shared)):
        if network is not None or name == "experts":
            structure(name, network, kind)
            for field in kind._fields:
                arrays |= arrays_of(f"{name}.{field}", getattr(network, field))
    match(MIXTURES[kind, shared is not None, on_ranks], arrays)
    clamped = ("clamped_swiglu",) if kind is GatedFeedForward else ()
    one_of("activation", activation, (*CHOICES["activation"], *clamped))
    if capacity is not None:
        natural("capacity", capacity, least=1)

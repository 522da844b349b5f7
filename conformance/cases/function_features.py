"""What one function supports: by what is said of it, by what it is decorated with, or by its signature."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from conformance.cases.declaration import (
    FEATURES,
    MASK_KINDS,
    NAMED_ONLY,
    PARAMETERS,
    SIMPLEST_FIRST,
    UNCLAIMED,
    Declaration,
    DeclarationOptions,
)
from conformance.cases.options import read_options
from conformance.cases.signatures import parameter_names, requires_mask
from specification.dtypes import FLOATING


def declaration_of(function: Any, differentiated: bool, **given: Any) -> Declaration:
    """From what the caller gives, else from what the function was decorated with, else from its signature.

    Conventions and limits are taken one by one: what the caller says of one leaves the function's others as they are.
    differentiated: the function's framework differentiates by itself. The dtypes that a caller gives only choose; those
    that a function is decorated with say that it takes no others.
    """
    own = read_options(DeclarationOptions, getattr(function, "conformance", {}))
    given = read_options(DeclarationOptions, given)
    said = own | given
    said |= {name: own.get(name, {}) | given.get(name, {}) for name in ("conventions", "limits")}
    supports = said.pop("supports", ())
    features, room = read_features(supports, function), room_for(function)
    required = requires_mask(function) and bool(features & {*MASK_KINDS}) and "unmasked" not in supports
    features -= {"unmasked"} if required else set()
    if "unmasked" not in features and not features & {*MASK_KINDS}:
        raise ValueError("supports: without unmasked calls there must be a kind of mask, and there is none")
    if not differentiated and "vjp" not in said and "gradients" not in supports:
        features -= {"gradients"}
    widths = said.get("head_widths", ())
    if widths and all(D == V for D, V in widths):
        features -= {"value_width"}
    unsure = (features & room) - features_in_signature(function) - set(supports)
    dtypes = said.get("dtypes", FLOATING)
    said["dtypes"] = tuple(dtype for dtype in SIMPLEST_FIRST if dtype in dtypes)
    said["refused_dtypes"] = tuple(dtype for dtype in FLOATING if dtype not in own.get("dtypes", FLOATING))
    said |= {"room": frozenset(room), "unsure": frozenset(unsure), "mask_required": required}
    declaration = Declaration(features=features, **said)
    declaration.refuse_contradictions()
    return declaration


def read_features(supports: Collection[str], function: Any) -> frozenset[str]:
    """Names as they are; if every one starts with "no-", all that the signature has room for, without those.

    Who has causal masks or windows has them at any offset, and who has several kinds of masks has them combined, by &
    and by |, unless "no-offset", "no-combined" or "no-or" is said beside them. Calls without a mask are among them too,
    unless "no-unmasked" is said.
    """
    removed = {name.removeprefix("no-") for name in supports if name.startswith("no-")}
    added = {name for name in supports if not name.startswith("no-")}
    if not added - {*UNCLAIMED, "unmasked"}:
        added |= room_for(function)
    added |= {"unmasked"}
    if added & {"causal", "window"}:
        added |= {"offset"}
    if len(added & set(MASK_KINDS)) > 1:
        added |= {"combined"}
    if "combined" in added:
        added |= {"or"}
    if "combined" in removed:
        removed |= {"or"}
    return frozenset(added - removed)


def room_for(function: Any) -> set[str]:
    """Every feature that does not lack its parameters."""
    _, anything = parameter_names(function)
    return features_in_signature(function) | (set(PARAMETERS) - set(NAMED_ONLY) if anything else set())


def features_in_signature(function: Any) -> set[str]:
    """Every feature that needs no parameter of its own, or whose parameters the signature names."""
    names, _ = parameter_names(function)
    lacking = {feature for feature, needed in PARAMETERS.items() if not names.issuperset(needed)}
    return set(FEATURES) - set(UNCLAIMED) - lacking

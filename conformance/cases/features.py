"""Which features of a declaration a case uses, and the rules that speak of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from conformance.cases.arguments import KERNEL_ARGUMENTS
from conformance.cases.case import Case, heads_and_keys, widths_of
from conformance.cases.declaration import FEATURES, WIDTH_NAMES, Declaration
from conformance.cases.facts import operation_facts
from conformance.cases.signatures import definition, required_arguments
from specification import Causal, KeyLengths, KeyPadding, Segments, SlidingWindow
from specification.masks import And, Or

if TYPE_CHECKING:
    from specification.masks import Mask

KINDS = {
    Causal: "causal",
    SlidingWindow: "window",
    KeyLengths: "lengths",
    KeyPadding: "padding",
    Segments: "segments",
}


def rule_of(feature: str, operation: str) -> str:
    """The rule that a subject breaks which claims the feature and lacks it."""
    rules = operation_facts(operation).rules
    return rules.get(feature, rules[""])


LENGTHS = ("length", "query_length", "key_length")
"""Options that are sizes of results."""


def features_of(case: Case) -> set[str]:
    """Names of `declaration.FEATURES`."""
    inputs, options = case.inputs, case.options
    uses = {name: options.get(name) is not None for name in ("scale", "softcap", "empty_rows", "rotary_width")}
    uses |= {
        "dropout": options.get("dropout_keep") is not None or bool(options.get("dropout_rate")),
        "gradients": bool(case.cotangents),
        "logsumexp": case.with_logsumexp,
        "empty": any(0 in array.shape for array in inputs.values()) or any(options.get(n) == 0 for n in LENGTHS),
        "interleaved": options.get("pairing") == "interleaved" != definition(case.operation).get("pairing"),
        "rotary_scaling": options.get("scaling") is not None,
        "batch_positions": "positions" in inputs and inputs["positions"].ndim == 2,
        "zero_betas": 0 in (options.get("beta_1"), options.get("beta_2")),
    }
    if is_norm(case.operation):
        uses["axes"] = inputs["weight"].ndim > 1
        uses["wide_weights"] = any(str(array.dtype) != case.dtype for name, array in inputs.items() if name != "x")
    if has_masks(case.operation):
        (H, G, Q, K), widths = heads_and_keys(case), widths_of(case)
        uses |= {name: name in inputs for name in ("bias", "sinks", *KERNEL_ARGUMENTS)}
        uses |= {"gqa": H != G, "cross": Q != K, "value_width": len(set(widths)) > 1}
    return mask_features(options.get("mask")) | {name for name, used in uses.items() if used}


def basics_of(case: Case) -> set[str]:
    """Names of `declaration.BASIC`, but for calls without a mask."""
    inputs, found = case.inputs, set[str]()
    if is_norm(case.operation) and "bias" in definition(case.operation):
        found.add("biased" if "bias" in inputs else "unbiased")
    if case.operation == "multi_head_attention":
        found.add("fused" if "query.weight" in inputs else "separate")
    if case.operation == "rotary_embedding" and case.options.get("pairing") != "interleaved":
        found.add("halves")
    return found


def is_norm(operation: str) -> bool:
    return operation_facts(operation).norm


def has_masks(operation: str) -> bool:
    """Attention, its companions that have a mask, and multi-head attention."""
    return operation_facts(operation).masked


def dimensions(case: Case) -> dict[str, int]:
    """The sizes of the case, by names of `declaration.DIMENSIONS`."""
    return operation_facts(case.operation).dimensions(case)


def mask_parts(mask: Mask | None) -> list[Any]:
    """The masks that are joined, one by one; a mask that is not made of others is its only part."""
    if isinstance(mask, And | Or):
        return mask_parts(mask.left) + mask_parts(mask.right)
    return [] if mask is None else [mask]


def replace_parts(mask: Mask | None, parts: Sequence[Mask]) -> Mask | None:
    """The mask made of other parts, one for each of its own in their order."""
    others = iter(parts)

    def rebuild(part: Mask | None) -> Any:
        return type(part)(rebuild(part.left), rebuild(part.right)) if isinstance(part, And | Or) else next(others, part)

    return rebuild(mask)


def set_offset(mask: Mask | None, offset: int) -> Any:
    """The same with every causal mask and window at this offset."""
    shifted = (Causal, SlidingWindow)
    parts = [replace(part, offset=offset) if isinstance(part, shifted) else part for part in mask_parts(mask)]
    return replace_parts(mask, parts)


def mask_kinds(mask: Mask | None) -> set[str]:
    return {KINDS.get(type(part), "dense") for part in mask_parts(mask)}


def has_or(mask: Mask | None) -> bool:
    return isinstance(mask, Or) or (isinstance(mask, And) and (has_or(mask.left) or has_or(mask.right)))


def is_shifted(mask: Mask | None, aligned: int) -> bool:
    """Whether a causal mask or a window in it stands elsewhere than at this offset."""
    offsets = [part.offset for part in mask_parts(mask) if isinstance(part, Causal | SlidingWindow)]
    return any(offset is not None and not (isinstance(offset, int) and offset == aligned) for offset in offsets)


def alignment(query_length: int, key_length: int, declaration: Declaration) -> int:
    """The offset at which causal masks and windows stand for a subject that knows no other."""
    return key_length - query_length if declaration.convention("causal") == "bottom_right" else 0


def has_declared_masks(case: Case, declaration: Declaration) -> bool:
    """Whether there is a mask where there has to be one, and each window is one that the subject takes."""
    return not has_masks(case.operation) or not any(undeclared_masks(case.options.get("mask"), declaration))


def undeclared_masks(mask: Mask | None, declaration: Declaration) -> Iterator[str]:
    """Name a missing mask and windows of other sides, where the subject does not take them."""
    if mask is None and "unmasked" not in declaration:
        yield "unmasked"
    if declaration.windows:
        windows = {(part.left, part.right) for part in mask_parts(mask) if isinstance(part, SlidingWindow)}
        for window in windows - {*declaration.windows}:
            yield f"windows {'/'.join('all' if side is None else str(side) for side in window)}"


def mask_features(mask: Mask | None) -> set[str]:
    """Features that the mask alone needs, "offset" if it stands anywhere but at 0."""
    features = mask_kinds(mask) | ({"offset"} if is_shifted(mask, 0) else set())
    return features | ({"combined"} if isinstance(mask, And | Or) else set()) | ({"or"} if has_or(mask) else set())


def list_unsupported(mask: Mask | None, query_length: int, key_length: int, declaration: Declaration) -> Iterator[str]:
    """Name what a mask needs and the subject does not take; nothing where it takes such a mask."""
    lacking = mask_features(mask) - {"offset"} - declaration.features
    if "offset" not in declaration and is_shifted(mask, alignment(query_length, key_length, declaration)):
        lacking.add("offset")
    yield from (name for name in FEATURES if name in lacking)
    yield from undeclared_masks(mask, declaration)


def supports_case(case: Case, declaration: Declaration) -> bool:
    """Whether the subject takes such a case."""
    return not any(unsupported_features(case, declaration))


def unsupported_features(case: Case, declaration: Declaration) -> Iterator[str]:
    """Name what a case has and the subject does not take, as a declaration has it; nothing where it takes the case."""
    features, masked, mask = features_of(case), has_masks(case.operation), case.options.get("mask")
    if masked:
        features -= mask_features(mask)
        yield from list_unsupported(mask, *heads_and_keys(case)[2:], declaration)
    if case.options.get("empty_rows") == declaration.convention("empty_rows"):
        features.discard("empty_rows")  # it is not asked for them, since it knows no others
    if declaration.head_widths:
        features.discard("value_width")  # the widths say it
    yield from (name for name in FEATURES if name in (features | basics_of(case)) - declaration.features)
    if case.dtype not in declaration.dtypes:
        yield f"dtype {case.dtype}"
    yield from (f"parameter {name}" for name in sorted(required_arguments(case) & declaration.lacking))
    sizes = dimensions(case)
    yield from (f"{name} {size}" for name, size in sizes.items() if size > declaration.limits.get(name, size))
    yield from (f"{name} {size}" for name, size in sizes.items() if size < declaration.least.get(name, size))
    if not declaration.takes_scaling(case.options.get("scaling")):
        yield f"scaling {type(case.options['scaling']).__name__}"
    if masked and not declaration.takes_counts(*heads_and_keys(case)):
        yield f"{' '.join(map(str, heads_and_keys(case)))} heads, key heads, queries and keys"
    if masked and not declaration.takes_widths(*widths_of(case)):
        yield f"head width {'/'.join(map(str, widths_of(case)))}"
    if not masked:
        multiple = declaration.width_multiple
        yield from (f"{name} {size}" for name, size in sizes.items() if name in WIDTH_NAMES and size % multiple)

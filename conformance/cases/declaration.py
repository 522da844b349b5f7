"""What a subject says of itself: what it takes, in which layout, and where it departs from the definition on purpose.

Cases are drawn within the declaration. What lies outside it the subject must refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from conformance.cases.kernel_arguments import KERNEL_ARGUMENTS
from conformance.cases.signatures import parameter_names, requires_mask
from specification.dtypes import FLOATING

Window = tuple[int | None, int | None]
LONGEST = 2000
"""Keys of the longest declared window beside as many queries as keys: a case that is larger needs too much memory."""
MASK_KINDS = ("causal", "window", "lengths", "padding", "segments", "dense")

FEATURES = {
    "causal": "masks that are causal",
    "window": "sliding-window masks",
    "offset": "causal masks and windows at any offset, also one for each batch element",
    "lengths": "masks by the number of keys of each batch element",
    "padding": "masks by a boolean for every key of each batch element",
    "segments": "masks of packed sequences",
    "dense": "any boolean mask",
    "combined": "several masks at once, joined by &",
    "or": "several masks at once, joined by |",
    "unmasked": "calls without a mask",
    "scale": "a scale other than 1 / sqrt(D)",
    "softcap": "softcap",
    "bias": "an additive bias",
    "sinks": "a sink logit for every head",
    "alibi_slopes": "a bias by ALiBi's slopes",
    "query_lengths": "a number of queries of each batch element",
    "dropout": "dropout by a given keep mask",
    "empty_rows": "a choice of what rows that allow nothing get",
    "gqa": "fewer key heads than query heads",
    "cross": "as many queries as keys, or not",
    "value_width": "values of another width than the keys",
    "empty": "lengths of 0",
    "axes": "norms over several axes, those of their weight",
    "wide_weights": "weights and biases of norms in float32 beside 16-bit inputs",
    "interleaved": "rotary pairs of neighbouring columns",
    "rotary_width": "rotary embeddings of some columns of a head",
    "rotary_scaling": "scalings of rotary frequencies",
    "batch_positions": "positions of their own for each batch element",
    "gradients": "gradients",
    "structured": "masks come as descriptions, not as boolean arrays",
    "refusals": "bad input is refused, as the rules say",
    "logsumexp": "attention returns (output, logsumexp)",
}
"""Names for `supports`. All for which the signature has room are claimed unless something else is said, but for the
last three."""

SIMPLEST_FIRST = ("float32", "bfloat16", "float16", "float64")
"""The dtypes in the order in which they are tried, and in which a failing case is made simpler."""

UNCLAIMED = ("structured", "refusals", "logsumexp")
OPTIONS = ("scale", "softcap", "bias", "sinks", "empty_rows")
PARAMETERS: dict[str, tuple[str, ...]] = {name: (name,) for name in (*OPTIONS, *KERNEL_ARGUMENTS)}
PARAMETERS |= {"dropout": ("dropout_keep", "dropout_rate")}
PARAMETERS |= {"interleaved": ("pairing",), "rotary_width": ("rotary_width",), "rotary_scaling": ("scaling",)}
PARAMETERS |= dict.fromkeys((*MASK_KINDS, "offset", "combined", "or"), ("mask",))
"""Features that need parameters of their own."""
NAMED_ONLY = ("dropout", "empty_rows", *KERNEL_ARGUMENTS)
"""Features that a signature which takes any keyword is not taken to have."""

DIMENSIONS = {
    "batch": "batch elements",
    "heads": "heads",
    "group_ratio": "query heads to a key head",
    "queries": "queries",
    "keys": "keys",
    "key_width": "columns of keys",
    "value_width": "columns of values",
    "rows": "rows",
    "norm_width": "numbers in a row",
    "vocabulary": "rows of the table",
    "classes": "classes",
    "length": "positions",
    "model_width": "columns",
    "inner_width": "inner columns",
}
"""Names for `limits`: dimensions of which a subject may take no more than so many; with what is counted in each."""

CONVENTIONS = {
    "polarity": ("allowed", "masked"),
    "empty_rows": ("zero", "mean", "nan", "any"),
    "causal": ("explicit", "top_left", "bottom_right"),
    "heads": ("repeated", "tiled"),
    "isolation": ("strict", "finite"),
    "weights": ("float32", "inputs", "bfloat16", "float16"),
    "products": ("float32", "inputs", "tf32", "bfloat16", "float16"),
    "shared_heads": ("float32", "rounded", "inputs"),
    "normalized": ("float32", "inputs"),
    "saved": ("maximum", "logsumexp"),
    "merging": ("maximum", "logsumexp"),
    "angles": ("exact", "float32"),
    "rotation": ("float32", "rounded", "inputs"),
}
"""Names for `convention`, each with its values; the first is the definition's.

polarity: what True means in a dense mask. empty_rows: what a row gets that allows nothing; "any" promises nothing.
causal: where `Causal()` without an offset stands when Q != K (for subjects that take descriptions). heads: which key
head query head h reads, h // (H / G) or h % G. isolation: "finite" promises nothing about NaN or infinity behind a
mask. weights: the precision to which attention weights (and the gradients of scores) are rounded before they are
multiplied, "inputs" being the dtype of the inputs. products: that to which both sides of matrix products are rounded.
shared_heads: how the gradients of query heads that share a key head are added up. "rounded": each is rounded to the
dtype of the inputs first; "inputs": every sum is, too. normalized: the precision to which the normalised row of
`rms_norm` is rounded before the weight multiplies it. saved: what attention's backward pass takes the weights from once
more, each row's maximum and sum or its log-sum-exp. merging: what parts of the keys are weighed by, their maxima and
sums or one log-sum-exp each. angles: "float32" if rotary frequencies and angles, their sines and cosines are computed
in float32, whatever the dtype of the inputs. rotation: in what x is turned. "rounded": sines and cosines are rounded to
the dtype of the inputs; "inputs": their products with x are, too.
"""


OTHER_LAYOUT = "--layout BTHD is for arrays [batch, length, heads, width]"
"""A hint for who has these arrays and has not said so."""


@dataclass(frozen=True)
class Declaration:
    """features: names of `FEATURES`. width_multiple: what D and V must be multiples of. vjp: gives the gradients.

    dtypes: those to be judged. refused_dtypes: those that the function says it does not take. room: features for which
    its signature has parameters, supported or not. unsure: features that nobody has named, of a signature that takes
    any keyword. lacking: optional arguments of the operation for which its signature has no parameter.
    limits: the largest size that it takes of dimensions named in `DIMENSIONS`. tile: queries and keys of its tiles.
    head_widths: (D, V) of the only heads that it takes; empty where it takes any. windows: the same of windows, keys
    before and after the query's own, None for all of them. mask_required: its signature says that a mask is always
    there.
    compiled: its framework compiles for every shape. strides: arrays of its framework can lie in memory in several
    ways.
    """

    features: frozenset[str] = frozenset(FEATURES) - {"logsumexp", *KERNEL_ARGUMENTS}
    dtypes: tuple[str, ...] = FLOATING
    layout: str = "BHTD"
    width_multiple: int = 1
    conventions: Mapping[str, str] = field(default_factory=dict)
    vjp: Callable[..., Any] | None = None
    refused_dtypes: tuple[str, ...] = ()
    room: frozenset[str] = frozenset()
    unsure: frozenset[str] = frozenset()
    lacking: frozenset[str] = frozenset()
    limits: Mapping[str, int] = field(default_factory=dict)
    tile: tuple[int, int] | None = None
    head_widths: tuple[tuple[int, int], ...] = ()
    windows: tuple[Window, ...] = ()
    mask_required: bool = False
    compiled: bool = False
    strides: bool = True

    def __contains__(self, feature: str) -> bool:
        return feature in self.features

    def takes_widths(self, *widths: int) -> bool:
        """Whether it takes heads of these widths: (D, V), or (D,) where there are no values."""
        whole = all(width % self.width_multiple == 0 for width in widths)
        return whole and (not self.head_widths or any(widths == pair[: len(widths)] for pair in self.head_widths))

    def convention(self, name: str) -> str:
        return self.conventions.get(name, CONVENTIONS[name][0])

    def remove_features(self, *features: str) -> Declaration:
        return replace(self, features=self.features - set(features))

    def keep_features(self, *features: str) -> Declaration:
        """The same with these features alone; where there is always a mask, with the first kind of mask too."""
        left = self.features & {*UNCLAIMED, "unmasked"} | {*features}
        if "unmasked" not in left and not left & {*MASK_KINDS}:
            left |= {*self.masks[:1]}
        return replace(self, features=left)

    def promising(self, **conventions: str) -> Declaration:
        """The same under these conventions too."""
        return replace(self, conventions={**self.conventions, **conventions})

    @property
    def masks(self) -> tuple[str, ...]:
        return tuple(kind for kind in MASK_KINDS if kind in self)


EVERYTHING = Declaration()


def declare(
    supports: Collection[str] | None = None,
    *,
    dtypes: Iterable[str] | None = None,
    layout: str | None = None,
    width_multiple: int | None = None,
    conventions: Mapping[str, str] | None = None,
    vjp: Callable[..., Any] | None = None,
    limits: Mapping[str, int] | None = None,
    tile: tuple[int, int] | None = None,
    head_widths: Iterable[int | tuple[int, int]] | None = None,
    windows: Iterable[Window] | None = None,
) -> Callable[[Any], Any]:
    """Say of a function what it supports, where it is defined. The arguments are those of `check`."""
    given: dict[str, Any] = {"supports": supports, "dtypes": dtypes, "layout": layout, "vjp": vjp}
    given |= {"width_multiple": width_multiple, "conventions": conventions, "limits": limits, "tile": tile}
    given |= {"head_widths": head_widths, "windows": windows}

    def decorate(function: Any) -> Any:
        function.conformance = {name: value for name, value in given.items() if value is not None}
        return function

    return decorate


def declaration_of(function: Any, differentiated: bool, **given: Any) -> Declaration:
    """From what the caller gives, else from what the function was decorated with, else from its signature.

    Conventions and limits are taken one by one: what the caller says of one leaves the function's others as they are.
    differentiated: the function's framework differentiates by itself. The dtypes that a caller gives only choose; those
    that a function is decorated with say that it takes no others.
    """
    own = dict(getattr(function, "conformance", {}))
    said = own | {n: v for n, v in given.items() if v is not None}
    supports = split_names(said.pop("supports", None) or ())
    features, room = read_features(supports, function), room_for(function)
    required = requires_mask(function) and bool(features & {*MASK_KINDS}) and "unmasked" not in supports
    features -= {"unmasked"} if required else set()
    if "unmasked" not in features and not features & {*MASK_KINDS}:
        raise ValueError("supports: without unmasked calls there must be a kind of mask, and there is none")
    if not differentiated and "vjp" not in said and "gradients" not in supports:
        features -= {"gradients"}
    unsure = (features & room) - features_in_signature(function) - set(supports)
    said["refused_dtypes"] = tuple(dtype for dtype in FLOATING if dtype not in split_names(own.get("dtypes", FLOATING)))
    said["conventions"] = {}
    for conventions in (own.get("conventions"), given.get("conventions")):
        said["conventions"] |= validate_conventions(conventions or {})
    said["dtypes"] = validate_names("dtypes", said.get("dtypes", FLOATING), FLOATING)
    said["dtypes"] = tuple(dtype for dtype in SIMPLEST_FIRST if dtype in said["dtypes"])
    if not said["dtypes"]:
        raise ValueError("dtypes: got none")
    if said.get("layout", "BHTD") not in ("BHTD", "BTHD"):
        raise ValueError(f"layout must be BHTD or BTHD, got {said['layout']!r}")
    if "vjp" in said and not callable(said["vjp"]):
        raise ValueError(f"vjp must be a function, got {said['vjp']!r}")
    if int(said.get("width_multiple", 1)) < 1:
        raise ValueError(f"width_multiple must be positive, got {said['width_multiple']!r}")
    said["limits"] = {**own.get("limits", {}), **(given.get("limits") or {})}
    validate_names("limits", said["limits"], DIMENSIONS)
    for name, size in said["limits"].items():
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"limit of {name} must be a positive integer, got {size!r}")
    if "tile" in said:
        tile = tuple(said["tile"])
        if len(tile) != 2 or any(not isinstance(size, int) or size < 1 for size in tile):
            raise ValueError(f"tile must be two positive integers, got {said['tile']!r}")
        said["tile"] = tile
    widths = said.get("head_widths", ())
    said["head_widths"] = tuple(map(pair_of_widths, [widths] if isinstance(widths, str | int) else widths))
    if said["head_widths"] and all(D == V for D, V in said["head_widths"]):
        features -= {"value_width"}
    for name in ("key_width", "value_width"):
        if said["limits"].get(name, said.get("width_multiple", 1)) < said.get("width_multiple", 1):
            raise ValueError(f"limit of {name} is below width_multiple {said['width_multiple']}")
        if any(pair[name == "value_width"] > said["limits"].get(name, max(pair)) for pair in said["head_widths"]):
            raise ValueError(f"head_widths has a width beyond the limit of {name}, {said['limits'][name]}")
    said["windows"] = tuple(check_window(window) for window in said.get("windows", ()))
    if said["windows"] and "window" not in features:
        raise ValueError("windows are declared of a function that does not support window")
    if "cross" not in features and any(
        side is not None and side > LONGEST for pair in said["windows"] for side in pair
    ):
        raise ValueError(
            f"windows: past {LONGEST} keys none can be tried where queries and keys are as many (no-cross)"
        )
    said |= {"room": frozenset(room), "unsure": frozenset(unsure), "mask_required": required}
    return Declaration(features=features, **said)


def pair_of_widths(given: int | tuple[int, int]) -> tuple[int, int]:
    """64 as (64, 64), and (576, 512) as it is."""
    pair = (given, given) if isinstance(given, int) else tuple(given)
    if len(pair) != 2 or any(not isinstance(width, int) or width < 1 for width in pair):
        raise ValueError(f"head_widths must be positive integers or pairs of them, got {given!r}")
    return pair


def check_window(given: Window) -> Window:
    """The keys before and after the query's own, as a pair."""
    pair = tuple(given) if isinstance(given, tuple | list) else ()
    sizes = [size for size in pair if size is not None]
    if len(pair) != 2 or not sizes or any(not isinstance(size, int) or size < 0 for size in sizes):
        raise ValueError(f"windows must be pairs (before, after) of numbers of keys or None, got {given!r}")
    return pair


def split_names(names: str | Iterable[str]) -> tuple[str, ...]:
    """Names one by one; a string holds one, or several with commas between them."""
    if not isinstance(names, str):
        return tuple(names)
    return tuple(name.strip() for name in names.split(",") if name.strip())


def read_features(supports: Collection[str], function: Any) -> frozenset[str]:
    """Names as they are; if every one starts with "no-", all that the signature has room for, without those.

    Who has causal masks or windows has them at any offset, and who has several kinds of masks has them combined, by &
    and by |, unless "no-offset", "no-combined" or "no-or" is said beside them. Calls without a mask are among them too,
    unless "no-unmasked" is said.
    """
    validate_names("supports", [name.removeprefix("no-") for name in supports], FEATURES)
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


def validate_conventions(given: Mapping[str, str]) -> dict[str, str]:
    validate_names("conventions", given, CONVENTIONS)
    for name, value in given.items():
        validate_names(f"convention {name}", [value], CONVENTIONS[name])
    return dict(given)


def validate_names(what: str, given: str | Iterable[str], names: Iterable[str]) -> tuple[str, ...]:
    """Return the names, as `split_names` reads them; ValueError for one that is not among those expected."""
    given = split_names(given)
    wrong = [name for name in given if name not in names]
    if wrong:
        raise ValueError(f"{what}: got {wrong[0]!r}, expected one of {', '.join(names)}")
    return given

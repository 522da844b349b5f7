"""What a subject says of itself: what it takes, in which layout, and where it departs from the definition on purpose.

Cases are drawn within the declaration. What lies outside it the subject must refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, lcm
from typing import Annotated, Any, NamedTuple, TypedDict, Unpack

from conformance.cases.options import (
    Function,
    Option,
    document_options,
    options_of,
    read_number,
    read_options,
    read_pairs,
    refuse_mapping,
    refuse_unknown,
    split_items,
    split_names,
    validate_names,
    whole_number,
    whole_numbers,
)
from specification.dtypes import FLOATING
from specification.rotary import DynamicScaling, LinearScaling, Llama3Scaling, LongRopeScaling, YarnScaling

Window = tuple[int | None, int | None]
LONGEST = 2000
"""Keys of the longest declared window beside as many queries as keys: a case that is larger needs too much memory."""
KERNEL_ARGUMENTS = ("alibi_slopes", "query_lengths")
"""Arguments of kernels that the definition lacks; `arguments.py` says what they mean."""
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
    "biased": "norms with a bias",
    "unbiased": "norms without a bias",
    "fused": "projections of all heads in one",
    "separate": "a projection for each head",
    "halves": "rotary pairs of columns in either half",
    "interleaved": "rotary pairs of neighbouring columns",
    "rotary_width": "rotary embeddings of some columns of a head",
    "rotary_scaling": "scalings of rotary frequencies",
    "batch_positions": "positions of their own for each batch element",
    "zero_betas": "Adam's steps with a beta of 0",
    "gradients": "gradients",
    "structured": "masks come as descriptions, not as boolean arrays",
    "refusals": "bad input is refused, as the rules say",
    "logsumexp": "attention returns (output, logsumexp)",
}
"""Names for `supports`. All for which the signature has room are claimed unless something else is said, but for the
last three."""
BASIC = ("unmasked", "biased", "unbiased", "fused", "separate", "halves")
"""Those that are claimed unless it is said that they are not, as by "no-fused", whatever else is named."""

ALTERNATIVES = (("unbiased", "biased"), ("fused", "separate"), ("halves", "interleaved"))
"""Features of which every call of some operations has one or the other, the plainer first."""

SIMPLEST_FIRST = ("float32", "bfloat16", "float16", "float64")
"""The dtypes in the order in which they are tried, and in which a failing case is made simpler."""

UNCLAIMED = ("structured", "refusals", "logsumexp")
OPTIONS = ("scale", "softcap", "bias", "sinks", "empty_rows")
PARAMETERS: dict[str, tuple[str, ...]] = {name: (name,) for name in (*OPTIONS, *KERNEL_ARGUMENTS)}
PARAMETERS |= {"dropout": ("dropout_keep", "dropout_rate")}
PARAMETERS |= {"interleaved": ("pairing",), "halves": ("pairing",), "biased": ("bias",)}
PARAMETERS |= {"rotary_width": ("rotary_width",), "rotary_scaling": ("scaling",)}
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
    "table": "rows of a table of positions",
    "model_width": "columns",
    "inner_width": "inner columns",
}
"""Names for `limits`: dimensions of which a subject may take no more than so many; with what is counted in each."""
WIDTH_NAMES = ("key_width", "value_width", "norm_width", "model_width", "inner_width")
"""Those of them that are widths, all multiples of `width_multiple`; of attention only the widths of heads are."""

SCALINGS: dict[str, type[Any]] = {
    "linear": LinearScaling,
    "dynamic": DynamicScaling,
    "yarn": YarnScaling,
    "llama3": Llama3Scaling,
    "longrope": LongRopeScaling,
}
"""Names for `scalings`: those of rotary frequencies."""

CONVENTIONS = {
    "polarity": ("allowed", "masked"),
    "empty_rows": ("zero", "mean", "nan", "any"),
    "causal": ("explicit", "top_left", "bottom_right"),
    "heads": ("repeated", "tiled"),
    "isolation": ("strict", "finite"),
    "weights": ("float32", "inputs", "bfloat16", "float16"),
    "products": ("float32", "inputs", "tf32", "bfloat16", "float16"),
    "scores": ("float32", "inputs", "bfloat16", "float16"),
    "capped": ("products", "scores"),
    "shared_heads": ("float32", "rounded", "inputs"),
    "normalized": ("float32", "inputs"),
    "saved": ("maximum", "logsumexp"),
    "merging": ("maximum", "logsumexp"),
    "moments": ("products", "lerp"),
    "epsilon": ("root", "square", "uncorrected"),
    "velocity": ("always", "momentum"),
    "clipping": ("0", "1e-6"),
    "no_targets": ("zero", "nan"),
    "distances": ("signed", "absolute"),
    "columns": ("paired", "halves"),
    "angles": ("exact", "float32"),
    "rotation": ("float32", "rounded", "inputs"),
    "combined": ("float32", "inputs"),
}
"""Names for `conventions`, each with its values; the first is the definition's.

polarity: what True means in a dense mask. empty_rows: what a row gets that allows nothing; "any" promises nothing.
causal: where `Causal()` without an offset stands when Q != K (for subjects that take descriptions). heads: which key
head query head h reads, h // (H / G) or h % G. isolation: "finite" promises nothing about NaN or infinity behind a
mask. weights: the precision to which attention weights (and the gradients of scores) are rounded before they are
multiplied, "inputs" being the dtype of the inputs. products: that to which both sides of matrix products are rounded.
scores: that to which scores are rounded after every step up to the softmax, and their gradients after every step back.
capped: "scores" if the softcap is that of the products and the bias together. shared_heads: how the gradients of query
heads that share a key head are added up. "rounded": each is rounded to the dtype of the inputs first; "inputs": every
sum is, too. normalized: the precision to which the normalised row of a norm is rounded before the weight multiplies it,
and their product before a bias is added. saved: what attention's backward pass takes the weights from once more, each
row's maximum and sum or its log-sum-exp. merging: what parts of the keys are weighed by, their maxima and sums or one
log-sum-exp each. moments: how Adam takes the mean of gradients. "lerp": as mean + (1 - beta) (gradient - mean), which
may be NaN where either is infinite. epsilon: what Adam's eps is added to, the root of the corrected square, this square
itself, or the root of the uncorrected square, which is then corrected. velocity: "momentum" if `sgd_step` leaves the
velocity as it is at momentum 0. clipping: what is added to the norm that gradients are divided by. no_targets: the mean
of losses where no target counts. distances: "absolute" if ALiBi's bias is negative on both sides of a query. columns:
"halves" if an interleaved rotation returns the first numbers of all pairs, and then the second ones. angles: "float32"
if rotary frequencies and angles, their sines and cosines are computed in float32, whatever the dtype of the inputs.
rotation: in what x is turned. "rounded": sines and cosines are rounded to the dtype of the inputs; "inputs": their
products with x are, too. combined: in what experts' results, times weights, are added up. Of routers, scores are the
logits, and weights those of the chosen experts.
"""

FORMULAS = ("epsilon", "velocity", "clipping", "no_targets", "distances", "columns", "capped")
"""Conventions that change what the exact results are; `oracle/departures.py` computes these."""

PRECISIONS = tuple(
    name for name in CONVENTIONS if name not in (*FORMULAS, "polarity", "empty_rows", "causal", "heads", "isolation")
)
"""Conventions that say how numbers are computed: error bounds depend on them, and exact results do not."""

OPEN_AT_INFINITY = ("moments",)
"""Those of them that allow NaN where the exact result is infinite."""

OTHER_LAYOUT = "--layout BTHD is for arrays [batch, length, heads, width]"
"""A hint for who has these arrays and has not said so."""


# --- how values are read ----------------------------------------------------------------------------------------------


def read_supports(given: str | Iterable[str]) -> tuple[str, ...]:
    names = split_names(given)
    refuse_mapping("supports", given)
    refuse_unknown("supports", [name.removeprefix("no-") for name in names], FEATURES)
    return names


def read_tile(given: object) -> tuple[int, int]:
    """Read (128, 64) or "128x64"."""
    tile = whole_numbers(given, "x")
    if len(tile) != 2 or min(tile) < 1:
        raise ValueError(f"tile must be two positive integers, such as 128x64, got {given!r}")
    return tile[0], tile[1]


def read_head_widths(given: object) -> tuple[tuple[int, int], ...]:
    """Read [64, (576, 512)] or "64,576/512" as ((64, 64), (576, 512))."""
    widths = [whole_numbers(item, "/") for item in split_items(given)]
    if any(len(pair) not in (1, 2) or min(pair) < 1 for pair in widths):
        raise ValueError(
            f"head_widths must be positive integers or pairs of them, such as 64,128,576/512, got {given!r}"
        )
    return tuple((pair[0], pair[-1]) for pair in widths)


def read_windows(given: object) -> tuple[Any, ...]:
    """Read [(31, 0), (63, None)] or "31/0,63/all"."""
    windows = []
    for item in split_items(given):
        sides = item.split("/") if isinstance(item, str) else item if isinstance(item, tuple | list) else ()
        windows.append(tuple(None if side in ("all", None) else whole_number(side) for side in sides))
        if len(sides) != 2 or -1 in windows[-1] or windows[-1] == (None, None):
            raise ValueError(
                f"windows must be pairs (before, after) of numbers of keys or None, such as 31/0,63/all, got {given!r}"
            )
    return tuple(windows)


def read_limits(given: Mapping[str, Any] | str | Iterable[str]) -> dict[str, int]:
    """Read {"keys": 4096} or "keys=4096"."""
    limits = read_pairs("limits", given)
    validate_names("limits", limits, DIMENSIONS)
    for name, size in limits.items():
        if whole_number(size) < 1:
            raise ValueError(f"limit of {name} must be a positive integer, got {size!r}")
    sizes = {name: whole_number(size) for name, size in limits.items()}
    if "table" in sizes:  # no more positions than the table has
        sizes["length"] = min(sizes.get("length", sizes["table"]), sizes["table"])
    return sizes


def read_least(given: Mapping[str, Any] | str | Iterable[str]) -> dict[str, int]:
    """Read {"key_width": 16} or "key_width=16"."""
    least = read_pairs("least", given)
    validate_names("least", least, WIDTH_NAMES)
    return {name: read_number(f"least {name}", 1, size) for name, size in least.items()}


def read_conventions(given: Mapping[str, Any] | str | Iterable[str]) -> dict[str, str]:
    """Read {"empty_rows": "mean"} or "empty_rows=mean"."""
    conventions = read_pairs("conventions", given)
    validate_names("conventions", conventions, CONVENTIONS)
    for name, value in conventions.items():
        refuse_unknown(f"convention {name}", [value], CONVENTIONS[name])
    return conventions


def read_vjp(given: object) -> str | Callable[..., Any]:
    if not callable(given) and not isinstance(given, str):
        raise ValueError(f"vjp must be a function, got {given!r}")
    return given


# --- the options ------------------------------------------------------------------------------------------------------

Names = str | Collection[str]
"""A collection of names, or a string with commas between them."""


class DeclarationOptions(TypedDict, total=False):
    """What can be declared of a function. None says nothing."""

    supports: Annotated[
        Names | None,
        Option(
            "features that it supports, or no-softcap for all but that; by default, all that its signature allows",
            read_supports,
            lambda: [*FEATURES, *(f"no-{name}" for name in FEATURES)],
            many=True,
        ),
    ]
    dtypes: Annotated[
        Names | None,
        Option(
            "dtypes to judge, such as float32,float16; all by default, float32 of a model",
            names=lambda: FLOATING,
            many=True,
        ),
    ]
    layout: Annotated[
        str | None, Option("BTHD if its arrays are [batch, length, heads, width]", names=lambda: ("BHTD", "BTHD"))
    ]
    width_multiple: Annotated[
        int | None, Option("every width must be a multiple of this", partial(read_number, "width_multiple", 1))
    ]
    length_multiple: Annotated[
        int | None,
        Option("numbers of queries and keys must be multiples of this", partial(read_number, "length_multiple", 1)),
    ]
    head_multiple: Annotated[
        int | None,
        Option("numbers of heads must be multiples of this, key heads too", partial(read_number, "head_multiple", 1)),
    ]
    tile: Annotated[
        str | tuple[int, int] | None,
        Option("its tiles of queries and keys, such as 128x64; adds sizes around them", read_tile),
    ]
    head_widths: Annotated[
        str | Collection[int | tuple[int, int]] | None,
        Option(
            "it supports only heads of these widths, such as 64,128,576/512 (keys/values)", read_head_widths, many=True
        ),
    ]
    windows: Annotated[
        str | Collection[Window] | None,
        Option(
            "its windows have only these numbers of keys before and after the query's own, such as 31/0,63/all",
            read_windows,
            many=True,
        ),
    ]
    limits: Annotated[
        str | Mapping[str, int] | None,
        Option(
            "largest sizes that it supports, such as keys=4096,key_width=128",
            read_limits,
            lambda: [f"{name}=" for name in DIMENSIONS],
            many=True,
        ),
    ]
    least: Annotated[
        str | Mapping[str, int] | None,
        Option(
            "smallest widths that it supports, such as key_width=16",
            read_least,
            lambda: [f"{name}=" for name in WIDTH_NAMES],
            many=True,
        ),
    ]
    scalings: Annotated[
        Names | None,
        Option(
            "scalings of rotary embeddings that it supports, such as linear,yarn", names=lambda: SCALINGS, many=True
        ),
    ]
    conventions: Annotated[
        str | Mapping[str, str] | None,
        Option(
            "intended departures, such as empty_rows=mean,polarity=masked, or angles=float32 of rotary embeddings",
            read_conventions,
            lambda: [f"{name}={value}" for name, values in CONVENTIONS.items() for value in values],
            many=True,
        ),
    ]
    vjp: Annotated[
        str | Callable[..., Any] | None,
        Option("the function of its gradients, as package.module:function or path/to/file.py:function", read_vjp),
    ]


@dataclass(frozen=True)
class Declaration:
    """The declared options as they are read, and what else a subject is known by.

    features: names of `FEATURES`, by `supports` and the signature. refused_dtypes: those that the function says it does
    not take. room: features for which its signature has parameters, supported or not. unsure: features that nobody has
    named, of a signature that takes any keyword. lacking: optional arguments of the operation for which its signature
    has no parameter. mask_required: its signature says that a mask is always there. compiled: its framework compiles
    for every shape. strides: arrays of its framework can lie in memory in several ways. ranks: that call the
    function together, 0 for no such ones. shard: what they have a part of.
    """

    features: frozenset[str] = frozenset(FEATURES) - {"logsumexp", *KERNEL_ARGUMENTS}
    dtypes: tuple[str, ...] = FLOATING
    layout: str = "BHTD"
    width_multiple: int = 1
    length_multiple: int = 1
    head_multiple: int = 1
    tile: tuple[int, int] | None = None
    head_widths: tuple[tuple[int, int], ...] = ()
    windows: tuple[Window, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)
    scalings: tuple[str, ...] = tuple(SCALINGS)
    conventions: Mapping[str, str] = field(default_factory=dict)
    vjp: Callable[..., Any] | None = None
    refused_dtypes: tuple[str, ...] = ()
    room: frozenset[str] = frozenset()
    unsure: frozenset[str] = frozenset()
    lacking: frozenset[str] = frozenset()
    mask_required: bool = False
    compiled: bool = False
    strides: bool = True
    ranks: int = 0
    shard: str = ""

    def __contains__(self, feature: str) -> bool:
        return feature in self.features

    def takes_widths(self, *widths: int) -> bool:
        """Whether it takes heads of these widths: (D, V), or (D,) where there are no values."""
        whole = all(width % self.width_multiple == 0 for width in widths)
        return whole and (not self.head_widths or any(widths == pair[: len(widths)] for pair in self.head_widths))

    def takes_counts(self, H: int, G: int, Q: int, K: int) -> bool:
        """Whether it takes so many query heads, key heads, queries and keys, by its multiples."""
        heads = H % self.head_multiple == G % self.head_multiple == 0
        return heads and Q % self.length_multiple == K % self.length_multiple == 0

    def takes_scaling(self, scaling: object) -> bool:
        """Whether it takes a scaling of rotary frequencies, or None."""
        return scaling is None or isinstance(scaling, tuple(SCALINGS[name] for name in self.scalings))

    def returns_both(self, operation: str) -> bool:
        """Whether the subject returns the output and the log-sum-exp."""
        return operation == "attention" and "logsumexp" in self

    def convention(self, name: str) -> str:
        return self.conventions.get(name, CONVENTIONS[name][0])

    def remove_features(self, *features: str) -> Declaration:
        return replace(self, features=self.features - set(features))

    def keep_features(self, *features: str) -> Declaration:
        """The same with these features alone, and what every call needs: a mask, or rotary pairs, of some kind."""
        left = self.features & {*UNCLAIMED, *BASIC} | {*features}
        if "unmasked" not in left and not left & {*MASK_KINDS}:
            left |= {*self.masks[:1]}
        for plain, other in ALTERNATIVES:
            if plain not in left:
                left |= self.features & {other}
            elif other not in features:
                left -= {other}
        return replace(self, features=left)

    def add_conventions(self, **conventions: str) -> Declaration:
        """The same under these conventions too."""
        return replace(self, conventions={**self.conventions, **conventions})

    def contents(self) -> dict[str, Any]:
        """Return the features and every option but `vjp`, as plain data for a report: cases are drawn by these."""
        values: dict[str, Any] = {"features": sorted(self.features)}
        values |= {name: getattr(self, name) for name in options_of(DeclarationOptions) if name in vars(self)}
        values |= {"conventions": {name: self.convention(name) for name in CONVENTIONS}}
        return {name: convert_tuples(value) for name, value in values.items() if name != "vjp"}

    def refuse_contradictions(self, unit: int = 1) -> None:
        """Raise ValueError where two options leave nothing to be tried. unit: of the operation's widths."""
        if not self.dtypes:
            raise ValueError("dtypes: got none")
        for one, other in ALTERNATIVES:
            if one not in self and other not in self:
                raise ValueError(f"supports: neither {one} nor {other} leaves nothing to be tried")
        multiple = lcm(self.width_multiple, unit)
        for name in WIDTH_NAMES:
            most = self.limits.get(name, inf)
            if most < multiple:
                of_option = "width_multiple" if multiple == self.width_multiple else "the smallest width,"
                raise ValueError(f"limit of {name} is below {of_option} {multiple}")
            least = -(-self.least.get(name, 0) // multiple) * multiple
            if most < least:
                raise ValueError(f"limit of {name} is below the least, {least}")
        for side, name in enumerate(("key_width", "value_width")):
            limit = self.limits.get(name)
            if limit is not None and any(pair[side] > limit for pair in self.head_widths):
                raise ValueError(f"head_widths has a width beyond the limit of {name}, {limit}")
            if any(pair[side] < self.least.get(name, 0) for pair in self.head_widths):
                raise ValueError(f"head_widths has a width below the least {name}, {self.least[name]}")
        if self.windows and "window" not in self:
            raise ValueError("windows are declared of a function that does not support window")
        if self.scalings != tuple(SCALINGS) and "rotary_scaling" not in self:
            raise ValueError("scalings are declared of a function that does not support rotary_scaling")
        if "cross" not in self and any(size is not None and size > LONGEST for pair in self.windows for size in pair):
            raise ValueError(
                f"windows: past {LONGEST} keys none can be tried where queries and keys are as many (no-cross)"
            )

    @property
    def masks(self) -> tuple[str, ...]:
        return tuple(kind for kind in MASK_KINDS if kind in self)


def convert_tuples(value: object) -> Any:
    """Return tuples as lists, as JSON has them."""
    return [convert_tuples(item) for item in value] if isinstance(value, tuple) else value


EVERYTHING = Declaration()


# --- sizes of attention, as a subject takes them ----------------------------------------------------------------------


class Sizes(NamedTuple):
    """B batch, H query heads, G key heads, Q queries, K keys, D width of query and key, V of value."""

    B: int
    H: int
    G: int
    Q: int
    K: int
    D: int
    V: int


def adapt_sizes(s: Sizes, declaration: Declaration) -> Sizes:
    """The sizes as the subject takes them: within its limits, in its multiples or the nearest widths that it takes."""
    limits, of_heads = declaration.limits, declaration.head_multiple
    heads = min(s.H, limits.get("heads", s.H))
    ratio = s.H // max(s.G, 1) if "gqa" in declaration else 1
    ratio = max(1, min(ratio, heads, limits.get("group_ratio", ratio)))
    groups = min(s.G if "gqa" in declaration else s.H, heads // ratio)
    Q = min(s.Q, limits.get("queries", s.Q), s.Q if "cross" in declaration else limits.get("keys", s.Q))
    K = min(s.K, limits.get("keys", s.K)) if "cross" in declaration else Q
    if of_heads > 1:
        groups = fit_multiple(groups, of_heads, limits.get("heads"))
        ratio = max(1, min(ratio, limits.get("heads", ratio * groups) // max(groups, 1)))
    if declaration.length_multiple > 1:
        Q, K = (
            fit_multiple(size, declaration.length_multiple, limits.get(name))
            for name, size in (("queries", Q), ("keys", K))
        )
    D, V = fit_width(s.D, "key_width", declaration), fit_width(s.V, "value_width", declaration)
    V = V if "value_width" in declaration else D
    if declaration.head_widths:
        D, V = nearest_widths(D, V, declaration)
    batch = min(s.B, limits.get("batch", s.B))
    return Sizes(batch, groups * ratio, groups, Q, K, D, V)


def nearest_widths(D: int, V: int, declaration: Declaration) -> tuple[int, int]:
    """Of the widths that the subject takes; two alike where values of another width are not asked for."""
    alike = [pair for pair in declaration.head_widths if pair[0] == pair[1]]
    pairs = declaration.head_widths if "value_width" in declaration else alike or declaration.head_widths
    return min(pairs, key=lambda pair: abs(pair[0] - D) + abs(pair[1] - V))


def fit_width(size: int, name: str, declaration: Declaration, unit: int = 1) -> int:
    """The next multiple that the subject takes, unless that is beyond its limit. unit: of the operation's widths."""
    multiple = lcm(declaration.width_multiple, unit)
    return fit_multiple(max(size, declaration.least.get(name, 0)), multiple, declaration.limits.get(name))


def fit_multiple(size: int, multiple: int, limit: int | None = None) -> int:
    """The next multiple, or the last one within a limit."""
    whole = -(-size // multiple) * multiple
    return whole if limit is None else min(whole, limit // multiple * multiple)


def roundings(declaration: Declaration, dtype: str) -> dict[str, str]:
    """What the subject declares of arithmetic and formulas, in a case of this dtype, other than the definition's."""
    declared = {name: declaration.convention(name) for name in (*FORMULAS, *PRECISIONS)}
    declared = {name: value for name, value in declared.items() if value != CONVENTIONS[name][0]}
    if declared.get("shared_heads") == "inputs":
        declared["shared_sums"] = "inputs"
    if "rotation" in declared:
        declared["sines"] = "inputs"
    if declared.get("rotation") == "rounded":  # the sines alone
        del declared["rotation"]
    if declaration.ranks:
        declared |= {"ranks": str(declaration.ranks), "shard": declaration.shard}
        if "merging" in declared:
            declared["parts"] = str(declaration.ranks * (2 if declaration.shard == "zigzag" else 1))
    formats = {name: dtype if value in ("inputs", "rounded") else value for name, value in declared.items()}
    return {name: value for name, value in formats.items() if name == "angles" or value not in ("float32", "float64")}


# --- what a function says of itself -----------------------------------------------------------------------------------


@document_options(DeclarationOptions)
def declare(supports: Names | None = None, /, **options: Unpack[DeclarationOptions]) -> Callable[[Function], Function]:
    """Say of a function what it supports, where it is defined; `check` reads it there.

    Args:
        supports: The option of that name, which may stand first and without its name.
        **options: What the function supports, and departs from on purpose.

    Returns:
        A decorator, which returns the function itself.
    """
    if callable(supports):
        raise TypeError("declare takes options and returns a decorator: write @declare(...)")
    given = {"supports": supports, **options}
    read_options(DeclarationOptions, given)  # what is wrong is told where it stands

    def decorate(function: Any) -> Any:
        function.conformance = {name: value for name, value in given.items() if value is not None}
        return function

    return decorate

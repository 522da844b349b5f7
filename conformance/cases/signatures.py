"""What a function takes and supports, by its signature, by its decoration or by what is said of it.

And how the arguments of an operation are handed to it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Unpack

import reference_numpy
from conformance.cases.arguments import arguments, kernel_arguments
from conformance.cases.case import Case
from conformance.cases.declaration import (
    BASIC,
    FEATURES,
    MASK_KINDS,
    NAMED_ONLY,
    PARAMETERS,
    SIMPLEST_FIRST,
    UNCLAIMED,
    WIDTH_NAMES,
    Declaration,
    DeclarationOptions,
)
from conformance.cases.facts import operation_facts
from conformance.cases.options import read_options, refuse_unknown
from specification.dtypes import FLOATING

OPTIONAL = ("bias",)
"""Positional arguments that a call may leave out, by None."""
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

Parameters = tuple[inspect.Parameter, ...]


@cache
def definition(operation: str) -> dict[str, Any]:
    """The operation's own parameters by name, each with its default, or `inspect.Parameter.empty`."""
    signature = inspect.signature(getattr(reference_numpy, operation)).parameters
    return {name: parameter.default for name, parameter in signature.items()}


def default(operation: str, name: str) -> Any:
    """None where there is none."""
    own = definition(operation).get(name)
    return None if own is inspect.Parameter.empty else own


def equals_default(operation: str, name: str, value: object) -> bool:
    """Whether a call with this value means the same as one without."""
    return value is None or (isinstance(value, bool | int | float | str) and value == default(operation, name))


def required_arguments(case: Case) -> set[str]:
    """Names of the arguments that the case cannot do without."""
    positional, keywords = arguments(case.operation, case.inputs, case.options)
    values = dict(zip(operation_facts(case.operation).arguments, positional, strict=True)) | keywords
    return {name for name, value in values.items() if not equals_default(case.operation, name, value)}


def parameters(function: Callable[..., Any]) -> Parameters | None:
    """Those of the function; of a module, which passes on whatever it gets, those of its `forward`. None: not told."""
    forward = getattr(function, "forward", None)
    compiled = getattr(getattr(function, "_orig_mod", None), "forward", None)  # of a module that torch.compile wraps
    candidates = [one for one in map(own_parameters, (function, forward, compiled)) if one is not None]
    return next(
        (one for one in candidates if any(p.kind not in VARIADIC for p in one)), candidates[0] if candidates else None
    )


def own_parameters(function: Any) -> Parameters | None:
    try:
        return tuple(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


def parameter_names(function: Callable[..., Any]) -> tuple[set[str], bool]:
    """(names of its parameters, whether it may take others too)."""
    own = parameters(function)
    if own is None:
        return set(), True
    return {p.name for p in own if p.kind not in VARIADIC}, any(p.kind is p.VAR_KEYWORD for p in own)


MASK_REQUIRED = (
    "its parameter mask has no default of None, so every call has a mask; "
    "--supports unmasked tries calls with a mask of None too"
)


def requires_mask(function: Callable[..., Any]) -> bool:
    """Whether it has a parameter `mask`, and None is not its default."""
    return any(
        p.name == "mask" and p.kind not in VARIADIC and p.default is not None for p in parameters(function) or ()
    )


@dataclass(frozen=True)
class Signature:
    """How one function takes the arguments of one operation.

    slots: how many of the operation's positional arguments it takes by place. extras: parameters behind them that it
    takes by place alone. keywords: names of those that it takes by keyword. required: those of them without a default.
    open: it takes any keyword, or does not tell. never_given: its parameters that are none of the operation's. implied:
    options that always have the one value that it takes, and need no parameter.
    """

    operation: str
    slots: int
    extras: Parameters
    keywords: frozenset[str]
    required: frozenset[str]
    open: bool
    never_given: tuple[str, ...] = ()
    implied: tuple[str, ...] = ()

    @property
    def lacking(self) -> frozenset[str]:
        """The operation's optional arguments for which there is no parameter."""
        own, empty = operation_facts(self.operation).arguments, inspect.Parameter.empty
        optional = {n for n, value in definition(self.operation).items() if n in OPTIONAL or value is not empty}
        taken = {*own[: self.slots], *self.keywords, *(p.name for p in self.extras), *self.implied}
        return frozenset() if self.open else frozenset(optional - taken)

    def bind_arguments(self, positional: list[Any], keywords: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The operation's arguments as those of the function; an absent one is given only where it insists."""
        own, extra_names = operation_facts(self.operation).arguments, {p.name for p in self.extras}
        by_place, by_name = positional[: self.slots], {n: v for n, v in keywords.items() if v is not None}
        for name, value in zip(own[self.slots :], positional[self.slots :], strict=True):
            if name in self.keywords or self.open:
                by_name |= {} if value is None else {name: value}
            elif value is not None:
                by_place.append(value)
        taken = self.keywords | extra_names
        dispensable = {n for n, v in by_name.items() if n in self.implied or equals_default(self.operation, n, v)}
        by_name = {n: v for n, v in by_name.items() if n in taken or n not in dispensable}
        for extra in self.extras:
            absent = default(self.operation, extra.name) if extra.default is extra.empty else extra.default
            by_place.append(by_name.pop(extra.name, absent))
        own_names = {*definition(self.operation), *kernel_arguments(self.operation)}
        missing = (self.required - by_name.keys()) & own_names
        return by_place, by_name | {name: default(self.operation, name) for name in missing}


def signature_of(function: Callable[..., Any], operation: str) -> Signature:
    """Positional parameters may have any name but that of one of the operation's keywords."""
    own, declared = operation_facts(operation).arguments, parameters(function)
    if declared is None:
        return Signature(operation, len(own), (), frozenset(), frozenset(), True)
    places = [p for p in declared if p.kind in BY_PLACE]
    keyword_names = definition(operation).keys() - set(own)
    slots = min(len(places), len(own))
    slots = next((i for i in range(slots) if places[i].name in keyword_names or is_other(places[i], own[i])), slots)
    if slots == len(places) and any(p.kind is p.VAR_POSITIONAL for p in declared):
        slots = len(own)
    behind = [p for p in places[slots:] if p.kind is p.POSITIONAL_OR_KEYWORD]
    behind += [p for p in declared if p.kind is p.KEYWORD_ONLY]
    return Signature(
        operation,
        slots,
        tuple(p for p in places[slots:] if p.kind is p.POSITIONAL_ONLY),
        frozenset(p.name for p in behind),
        frozenset(p.name for p in behind if p.default is p.empty),
        any(p.kind is p.VAR_KEYWORD for p in declared),
        tuple(p.name for p in (*places[slots:], *declared[len(places) :]) if is_foreign(p, operation)),
    )


def is_other(parameter: inspect.Parameter, argument: str) -> bool:
    """Whether a parameter in the place of an optional argument is another one: an epsilon, or a number by default."""
    if argument not in OPTIONAL or parameter.name == argument:
        return False
    return parameter.name.startswith("eps") or parameter.default not in (parameter.empty, None)


def is_foreign(parameter: inspect.Parameter, operation: str) -> bool:
    """Whether the parameter has a name that is none of the operation's."""
    known = {*definition(operation), *kernel_arguments(operation)}
    return parameter.kind not in VARIADIC and parameter.name not in known


def describe_never_given(names: Iterable[str], operation: str) -> str:
    how = f"no parameters of {operation}; what they do can be judged in a function that sets them"
    return f"never given: {', '.join(names)} ({how})"


# --- what one function supports ---------------------------------------------------------------------------------------


def declaration_of(
    function: Callable[..., object], differentiated: bool, operation: str = "", **given: Unpack[DeclarationOptions]
) -> Declaration:
    """From what the caller gives, else from what the function was decorated with, else from its signature.

    Conventions, limits and least widths are taken one by one: what the caller says of one leaves the others as they
    are. differentiated: the function's framework differentiates by itself. operation: for which every option must mean
    something; empty for any. The dtypes that a caller gives only choose; those that a function is decorated with say
    that it takes no others.
    """
    own = read_options(DeclarationOptions, getattr(function, "conformance", {}))
    chosen = read_options(DeclarationOptions, given)
    options = own | chosen
    if operation:
        refuse_meaningless(operation, own)
        refuse_meaningless(operation, chosen)
    options |= {name: own.get(name, {}) | chosen.get(name, {}) for name in ("conventions", "limits", "least")}
    supports = options.pop("supports", ())
    features, room = read_features(supports, function), room_for(function)
    required = requires_mask(function) and bool(features & {*MASK_KINDS}) and "unmasked" not in supports
    features -= {"unmasked"} if required else set()
    if "unmasked" not in features and not features & {*MASK_KINDS}:
        raise ValueError("supports: without unmasked calls there must be a kind of mask, and there is none")
    if not differentiated and "vjp" not in options and "gradients" not in supports:
        features -= {"gradients"}
    widths = options.get("head_widths", ())
    if widths and all(D == V for D, V in widths):
        features -= {"value_width"}
    unsure = (features & room) - features_in_signature(function) - set(supports)
    dtypes = options.get("dtypes", FLOATING)
    options["dtypes"] = tuple(dtype for dtype in SIMPLEST_FIRST if dtype in dtypes)
    options["refused_dtypes"] = tuple(dtype for dtype in FLOATING if dtype not in own.get("dtypes", FLOATING))
    options |= {"room": frozenset(room), "unsure": frozenset(unsure), "mask_required": required}
    declaration = Declaration(features=features, **options)
    declaration.refuse_contradictions(operation_facts(operation).width_unit if operation else 1)
    return declaration


def refuse_meaningless(operation: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError for an option, a convention, a feature or a size that says nothing of the operation.

    A softcap of scores and bias together would mean something for a layer too, whose exact results do not know it.
    """
    if operation == "multi_head_attention" and "capped" in options.get("conventions", ()):
        raise ValueError("convention capped is judged for attention only: judge the layer's attention by itself")
    facts = operation_facts(operation)
    sizes = {"limits": facts.dimension_names, "least": [name for name in facts.dimension_names if name in WIDTH_NAMES]}
    of_masked = ("tile", "head_widths", "windows", "length_multiple", "head_multiple")
    refused = [] if facts.masked else [name for name in of_masked if options.get(name)]
    refused += [] if sizes["least"] else [name for name in ("width_multiple", "least") if options.get(name)]
    if options.get("scalings") and "scaling" not in definition(operation):
        refused.append("scalings")
    if options.get("layout") == "BTHD" and not operation.startswith("attention"):
        refused.append("layout")
    refused += [f"convention {name}" for name in options.get("conventions", ()) if name not in facts.conventions]
    named = {name.removeprefix("no-") for name in options.get("supports", ())}
    refused += [f"feature {name}" for name in FEATURES if name in named - operation_features(operation)]
    if refused:
        raise ValueError(f"{', '.join(refused)} mean{'s' * (len(refused) == 1)} nothing for {operation}")
    for option, names in sizes.items():
        refuse_unknown(f"{option} of {operation}", options.get(option, ()), names)


def operation_features(operation: str) -> set[str]:
    """Those of `FEATURES` that may be named of the operation."""
    facts, own = operation_facts(operation), definition(operation)
    features = {"empty", "refusals", "gradients"}
    if facts.masked:
        features |= {*operation_facts("attention").rules, "unmasked", "structured"} & FEATURES.keys()
    elif "mask" in own:
        features |= {"unmasked", "structured"}
    features |= {"axes", "wide_weights"} if facts.norm else set()
    features |= {"dropout"} if "dropout_keep" in own else set()
    return features | facts.rules.keys() & FEATURES.keys()


def read_features(supports: Collection[str], function: Callable[..., object]) -> frozenset[str]:
    """Names as they are; if every one starts with "no-", all that the signature has room for, without those.

    Who has causal masks or windows has them at any offset, and who has several kinds of masks has them combined, by &
    and by |, unless "no-offset", "no-combined" or "no-or" is said beside them. What is in `BASIC` is among them too,
    unless "no-unmasked" or the like is said.
    """
    removed = {name.removeprefix("no-") for name in supports if name.startswith("no-")}
    added = {name for name in supports if not name.startswith("no-")}
    if not added - {*UNCLAIMED, *BASIC}:
        added |= room_for(function)
    added |= {*BASIC} | ({"interleaved"} if "halves" in removed else set())
    if added & {"causal", "window"}:
        added |= {"offset"}
    if len(added & set(MASK_KINDS)) > 1:
        added |= {"combined"}
    if "combined" in added:
        added |= {"or"}
    if "combined" in removed:
        removed |= {"or"}
    return frozenset(added - removed)


def room_for(function: Callable[..., object]) -> set[str]:
    """Every feature that does not lack its parameters."""
    _, anything = parameter_names(function)
    return features_in_signature(function) | (set(PARAMETERS) - set(NAMED_ONLY) if anything else set())


def features_in_signature(function: Callable[..., object]) -> set[str]:
    """Every feature that needs no parameter of its own, or whose parameters the signature names."""
    names, _ = parameter_names(function)
    lacking = {feature for feature, needed in PARAMETERS.items() if not names.issuperset(needed)}
    return set(FEATURES) - set(UNCLAIMED) - lacking

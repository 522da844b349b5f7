"""`compare`: results that were computed elsewhere, held to the exact ones."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import pairwise, product
from typing import Any

import numpy as np

import reference_numpy
from conformance.bounds import bound
from conformance.cases.arguments import (
    expected_dtype,
    gradient_input,
    gradient_name,
    is_gradient,
    name_arguments,
    result_names,
    results_of,
)
from conformance.cases.case import Case, heads_and_keys, numpy_dtype
from conformance.cases.declaration import Declaration, read_conventions, roundings
from conformance.cases.facts import operation_facts, operations
from conformance.cases.features import mask_parts, replace_parts
from conformance.cases.options import refuse_unknown
from conformance.cases.signatures import refuse_meaningless
from conformance.checks.catalogue import has_special_values
from conformance.checks.comparison import breaks, fill_unpromised, judge, ratio, worst
from conformance.checks.findings import Finding
from conformance.checks.levels import DEFAULT, LEVELS
from conformance.diagnosis.cause import Diagnosis
from conformance.diagnosis.choice import Chooser
from conformance.diagnosis.evidence import Evidence, weigh
from conformance.diagnosis.explanation import Explanation, screen
from conformance.diagnosis.pattern import Pattern, find_places
from conformance.mistakes.call import Call
from conformance.mistakes.catalogue import mistakes_of
from conformance.mistakes.condition import Condition
from conformance.oracle.reference import balls_available, oracle
from conformance.runner.dimensions import Part, array_axes, layout_of, resize_array, take_parts, work
from conformance.subjects.conventions import (
    has_layout,
    invert_mask,
    map_dense_masks,
    permute_answer_heads,
    permute_heads,
    swap_answers,
    swap_layout,
    tiled_order,
)
from conformance.subjects.frameworks import TorchArrays
from conformance.subjects.gradients import gradients_by_name
from conformance.subjects.subject import (
    Answers,
    NumpySubject,
    describe_value,
    differentiable,
    expected_shape,
    name_results,
)
from conformance.subjects.wrong_answers import (
    DtypeOrShape,
    OtherType,
    Returned,
    ReturnedGradients,
    WrongAnswer,
    WrongPart,
)
from reference_numpy.masks import checked_mask
from specification.arrays import Array
from specification.dtypes import FLOATING
from specification.masks import Causal, as_mask, map_arrays
from specification.parameters import Tree

LARGEST_PART = 2**21
"""Scores, or numbers, of a part that is judged at once: in float64 with its bounds it takes up to a gigabyte."""
MOST_AT_ONCE = 2**26
"""The same of a part that cannot be cut, as gradients of keys are sums over all queries: about 30 gigabytes."""
MOST_BY_BALLS = 10**8
"""Multiplications of a float64 case, whose exact results ball arithmetic computes: about a minute."""
LARGEST_EVIDENCE = 2**14
"""Scores, or numbers, of a piece that all known mistakes are tried on: a few seconds."""
MOST_EVIDENCE = 4 * LARGEST_EVIDENCE
"""What trying them on a piece that cannot be cut may cost, as `count_cost` counts: up to half a minute."""
LARGEST_HINT = 2**22
"""Scores of a part of a call that is judged in the other layout as well: seconds. Others follow where it conforms."""
PIECES = 6
"""Pieces that fail, and pieces that pass, by which mistakes are told apart."""
LAYOUTS = ("BHTD", "BTHD")

NUMPY = NumpySubject()

INDEPENDENT = ("B", "G", "H", "Q", "rows")
"""Dimensions whose places are computed each by itself, where results have an axis of them."""

Box = dict[str, Part]
"""Parts of the dimensions along which a case can be cut."""


@dataclass(frozen=True)
class Comparison:
    """What is found of one call's results.

    Attributes:
        operation: Its name.
        profile: What decides the verdict: "core", "robust" or "strict".
        findings: The largest error of each result and gradient, or what else is wrong with it.
        pattern: Where the first wrong result is wrong; None where nothing is.
        diagnosis: The known mistake that explains the results; None where none does.
        condition: Where in the results the mistake shows; None where it shows everywhere.
        too_large: Whether no known mistake could be tried, since no piece of the call is small enough.
        conforms_with: The layout or the causal mask with which the results conform, where they do not as they are.
    """

    operation: str
    profile: str
    findings: tuple[Finding, ...]
    pattern: Pattern | None = None
    diagnosis: Diagnosis | None = None
    condition: Condition | None = None
    too_large: bool = False
    conforms_with: str = ""

    @property
    def conforms(self) -> bool:
        """Whether no result breaks what the profile asks for."""
        return not breaks(self.findings, self.profile)

    @property
    def worst(self) -> Finding:
        """The finding of the lowest level, and of these the largest error."""
        return worst(self.findings)

    @property
    def error_ratio(self) -> float:
        """The largest error in units of its bound: at most 1 for results within their bounds."""
        return max(finding.ratio for finding in self.findings)

    def __bool__(self) -> bool:
        return self.conforms

    def __str__(self) -> str:
        from conformance.reports.given_results import describe_comparison

        return describe_comparison(self)


def compare(
    operation: str,
    got: Tree,
    *,
    profile: str = DEFAULT,
    cotangent: Array | Mapping[str, Array] | None = None,
    gradients: Tree = None,
    layout: str = "BHTD",
    conventions: str | Mapping[str, str] = "",
    **inputs: object,
) -> Comparison:
    """Judge results that were computed elsewhere: in another language, on a GPU, in a log or a notebook.

    Every number is held to its exact value within the bound of honest arithmetic in its dtype. Large calls are judged
    in parts of about a gigabyte, along batch elements, heads and rows. Arrays are NumPy's, PyTorch's or JAX's.

    Args:
        operation: Its name, such as "attention".
        got: Its result; for several a tuple of them in the operation's order, or a dictionary by name. For attention
            a tuple (output, logsumexp) will do.
        profile: "core", "robust" or "strict"; see `check`.
        cotangent: The gradient of a loss by the output, where gradients are judged too; a dictionary by name for
            several results.
        gradients: Of the inputs, in a dictionary by name, or in a tuple in the order of the arguments.
        layout: "BTHD" if arrays of attention are [batch, length, heads, width].
        conventions: Intended departures, as in `declare`; causal says where `Causal()` without an offset stands.
        **inputs: The operation's own arguments by name.

    Returns:
        The verdict, with the worst element, the pattern of what is wrong, and the known mistake that explains it.

    Raises:
        TypeError: Arguments that the operation does not have, or of another kind.
        ValueError: Shapes or numbers that do not fit, or a call that is too large to be judged.
    """
    refuse_unknown("operation", [operation], operations())
    refuse_unknown("profile", [profile], LEVELS)
    refuse_unknown("layout", [layout], LAYOUTS)
    chosen = read_conventions(conventions or {})
    refuse_meaningless(operation, {"layout": layout, "conventions": chosen})
    if "isolation" in chosen:
        raise ValueError(
            "conventions: isolation cannot be given here: it speaks of two calls, with and without NaN behind a mask, "
            "and compare has one result; check makes both calls"
        )
    signature = inspect.signature(getattr(reference_numpy, operation))
    if "gradients" in signature.parameters:  # an optimizer's own argument, and none is judged
        inputs, gradients = inputs | {"gradients": gradients}, None
    if "dtype" in signature.parameters:
        inputs = {"dtype": signature.parameters["dtype"].default} | inputs
    refuse_other_arguments(operation, inputs, signature)
    case = make_case(operation, convert_arrays(inputs), chosen)
    call = GivenCall(case, convert_arrays(got), convert_arrays(cotangent), convert_arrays(gradients), chosen)
    other = LAYOUTS[layout == LAYOUTS[0]]
    try:
        found = call.judge(layout, profile)
    except (TypeError, ValueError) as error:
        if call.conforms(other, profile):
            raise type(error)(f"{error}; the results conform with layout {other}") from None
        raise
    if found.conforms:
        return found
    others = [(f"layout {other}", call, other)]
    if operation_facts(operation).masked and case.options.get("mask") is None:
        others += [(f"mask={mask}", call.add_mask(mask), layout) for mask in causal_masks(case, layout)]
    meant = (words for words, changed, placed in others if changed.conforms(placed, profile))
    return replace(found, conforms_with=next(meant, ""))


@dataclass(frozen=True)
class GivenCall:
    """A call as it was given, in NumPy's arrays, before its layout is known to be right."""

    case: Case
    got: Tree
    cotangent: Any
    gradients: Tree
    conventions: Mapping[str, str]

    def add_mask(self, mask: Causal) -> GivenCall:
        return replace(self, case=replace(self.case, options=self.case.options | {"mask": mask}))

    def place(self, layout: str) -> tuple[Case, Answers, Origin]:
        """The case and its answers in the definition's conventions; WrongAnswer, TypeError or ValueError for others."""
        case = align_causal(self.case, self.conventions.get("causal", ""), layout)
        refuse_misfits(case if layout == "BHTD" else swap_layout(case))
        got = self.got
        pair = isinstance(got, tuple) and len(got) == 2 and case.operation == "attention"
        case = replace(case, with_logsumexp=pair or (isinstance(got, dict) and "logsumexp" in got and "output" in got))
        case = add_cotangents(case, self.cotangent, self.gradients)
        refuse_other_gradients(case, self.gradients)
        answers = name_answers(case, got, self.gradients)
        if case.cotangents:  # gradients that were not given are not asked for
            others = [name for name in differentiable(case) if gradient_name(name) not in answers]
            case = replace(case, constants=tuple(others))
        case = complete_cotangents(case, layout)
        require_shapes(case, answers, layout)
        origin = Origin(case, answers, layout, self.conventions)
        case, answers = translate(case, answers, layout, self.conventions)
        refuse_costly(case)
        return case, answers, origin

    def judge(self, layout: str, profile: str) -> Comparison:
        try:
            case, answers, origin = self.place(layout)
        except WrongAnswer as error:
            if not isinstance(error.detail, DtypeOrShape):
                raise TypeError(describe_misfit(error.name, error.detail)) from None
            return Comparison(self.case.operation, profile, (Finding(error.name, math.inf, detail=error.detail),))
        with np.errstate(all="ignore"):
            return judge_answers(case, answers, profile, origin)

    def conforms(self, layout: str, profile: str) -> bool:
        """Whether results of attention conform in a layout; other parts of a large call follow where the first does."""
        if not self.case.operation.startswith("attention"):
            return False
        try:
            case, answers, _ = self.place(layout)
            boxes = [*list_boxes(case, cuttable_dimensions(case, answers), LARGEST_HINT)]
            if count_numbers(cut_box(case, answers, boxes[0])[0]) > LARGEST_HINT:
                return False
            with np.errstate(all="ignore"):
                some = (find_errors(case, answers, part)[0] for part in (boxes[:1], boxes[1:]))
                return not any(breaks(findings, profile) for findings in some)
        except (TypeError, ValueError, LookupError, WrongAnswer):  # what does not fit at all
            return False


# --- from arguments to a case -----------------------------------------------------------------------------------------


def convert_arrays(value: object) -> Any:
    """The same with NumPy arrays in the place of every framework's, in structures and masks too."""
    home = type(value).__module__.partition(".")[0]
    if home == "torch":
        return TorchArrays().numpy(value)
    if home in ("jax", "jaxlib"):
        return np.asarray(value)
    if isinstance(value, dict):
        return {name: convert_arrays(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        parts = [convert_arrays(one) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if value is None or isinstance(value, np.ndarray | np.generic):
        return value if value is None else np.asarray(value)
    return map_arrays(value, convert_arrays)


def make_case(operation: str, given: Mapping[str, Any], conventions: Mapping[str, str]) -> Case:
    inputs, options = name_arguments(operation, given)
    if options.get("mask") is not None:
        options["mask"] = as_mask(options["mask"])
    floating = [str(array.dtype) for array in inputs.values() if str(array.dtype) in FLOATING]
    dtype = floating[0] if floating else str(options.get("dtype", "float64"))
    if conventions.get("empty_rows", "zero") != "zero":
        options["empty_rows"] = conventions["empty_rows"]
    rounding = roundings(Declaration().add_conventions(**conventions), dtype)
    special = any(has_special_values(name, array) for name, array in inputs.items())
    return Case(operation, dtype, inputs, options, rounding=rounding, special=special)


def refuse_other_arguments(operation: str, given: Collection[str], signature: inspect.Signature) -> None:
    """Raise TypeError for arguments that an operation does not have, and for those that it needs and has not got."""
    missing = [n for n, one in signature.parameters.items() if one.default is one.empty and n not in given]
    unknown = [name for name in given if name not in signature.parameters]
    if not missing and not unknown:
        return
    told = [f"needs {' and '.join(missing)}"] if missing else []
    if unknown:
        told.append(f"does not know {' and '.join(unknown)}")
        near = get_close_matches(unknown[0], missing or [*signature.parameters], 1)
        told[-1] += f": did you mean {near[0]}?" if near else ""
    raise TypeError(f"{operation} {', and '.join(told)}")


def causal_masks(case: Case, layout: str) -> list[Causal]:
    """Those that align the first query and key, and the last ones."""
    lengths = [case.inputs[name].shape[1 if layout == "BTHD" else -2 :] for name in ("query", "key")]
    offsets = (0, lengths[1][0] - lengths[0][0] if all(lengths) else 0)
    return [Causal(offset) for offset in dict.fromkeys(offsets)]


def align_causal(case: Case, convention: str, layout: str) -> Case:
    """The case with an offset for `Causal()`, where a convention says where that stands."""
    if convention not in ("top_left", "bottom_right") or case.options.get("mask") is None:
        return case
    if not {"query", "key"} <= case.inputs.keys():  # what they are in place of arrays is refused with the shapes
        return case
    aligned = causal_masks(case, layout)
    offset = aligned[0 if convention == "top_left" else -1].offset
    mask = case.options["mask"]
    parts = [Causal(offset) if isinstance(one, Causal) and one.offset is None else one for one in mask_parts(mask)]
    return replace(case, options=case.options | {"mask": replace_parts(mask, parts)})


def refuse_misfits(case: Case) -> None:
    """Raise the definition's own error for shapes that do not fit, and for dtypes that it does not take."""
    try:
        sizes = layout_of(case).sizes
        for name in results_of(case):
            expected_shape(name, case)
    except Exception:
        NUMPY(case)
        raise
    if case.options.get("mask") is not None:  # of a single row less would be asked
        H, _, Q, K = heads_and_keys(case)
        checked_mask(case.options["mask"], Q, K, sizes["B"], H)
    row = take_parts(case, {name: Part(0, min(sizes[name], 1)) for name in independent_dimensions(case)})
    with np.errstate(all="ignore"):
        try:
            NUMPY(case if row is None else row)
        except (TypeError, ValueError):
            NUMPY(case)  # which says the same of the call's own sizes
            raise


def add_cotangents(case: Case, cotangent: np.ndarray | dict[str, np.ndarray] | None, gradients: Tree) -> Case:
    if cotangent is None or (isinstance(cotangent, dict) and not cotangent):
        if gradients is not None:
            raise ValueError("gradients need cotangent, the gradient of a loss by the output")
        return case
    if gradients is None:
        raise ValueError("cotangent is for gradients, and there are none")
    names = results_of(case)
    cotangents = cotangent if isinstance(cotangent, dict) else {names[0]: cotangent}
    refuse_unknown("cotangent", cotangents, names)
    return replace(case, cotangents=cotangents)


def complete_cotangents(case: Case, layout: str) -> Case:
    """The case with a cotangent of 0 for every result that has none; ValueError for one that does not fit."""
    if not case.cotangents:
        return case
    cotangents = {}
    for name in results_of(case):
        shape, dtype = expected_shape(name, case, layout), expected_dtype(name, case)
        given = cotangents[name] = case.cotangents.get(name, np.zeros(shape, numpy_dtype(dtype)))
        if not isinstance(given, np.ndarray):
            raise TypeError(f"cotangent of {name} must be an array, got {describe_value(given)}")
        if given.shape != shape or str(given.dtype) != dtype:
            expected = f"expected {list(shape)} of {dtype}"
            raise ValueError(f"cotangent of {name}: got {list(given.shape)} of {given.dtype}, {expected}")
    return replace(case, cotangents=cotangents)


def refuse_other_gradients(case: Case, gradients: Tree) -> None:
    """Raise ValueError for gradients by names that are no inputs of the call, and where none is left."""
    if isinstance(gradients, dict):
        record = operation_facts(case.operation)
        made = ("parameters", *record.lists, *record.projections)
        structured = [name for name in record.differentiated if name in made]
        refuse_unknown("gradients", gradients, [*structured, *differentiable(case)])
        if all(gradient is None for gradient in gradients.values()):
            raise ValueError("gradients: there are none")


def name_answers(case: Case, got: Tree, gradients: Tree) -> Answers:
    """By name, still in the conventions of whoever computed them."""
    names = ("output", "logsumexp") if case.with_logsumexp else result_names(case.operation)
    if isinstance(got, dict):
        refuse_unknown("results", got, ("output", "logsumexp") if case.operation == "attention" else results_of(case))
        if missing := [name for name in results_of(case) if got.get(name) is None]:
            raise ValueError(f"results: {', '.join(missing)} must be among them")
        named = {name: np.asarray(part, np.int32) if isinstance(part, int) else part for name, part in got.items()}
    else:
        named = name_results(case, names, got, NUMPY.framework)
    if gradients is not None:
        flat = gradients_by_name(case, gradients, np.ndarray)
        named |= {gradient_name(name): gradient for name, gradient in flat.items()}
    return named


def describe_misfit(name: str, detail: WrongPart) -> str:
    """Say what was given in place of a result or of gradients."""
    match detail:
        case Returned(got, names):
            return f"got must be {'a tuple of ' * bool(names)}{', '.join(names) or 'an array'}, got {got}"
        case OtherType(got, _, count):
            return f"{name} must be {'an array' if count is None else f'{count} arrays'}, got {got}"
        case ReturnedGradients(got, "", names):
            return f"gradients must be those of {', '.join(names)}, got {got}"
        case ReturnedGradients(got, of, _, array, count, lacks):
            others = (
                f"{count} arrays" if count is not None else f"a structure with {lacks}" if lacks else "a projection"
            )
            return f"gradient of {of} must be {'an array' if array else others}, got {got}"
    raise AssertionError(detail)  # nothing else is found in arrays of NumPy


def translate(case: Case, answers: Answers, layout: str, conventions: Mapping[str, str]) -> tuple[Case, Answers]:
    """The case and its answers in the definition's conventions."""
    if conventions.get("polarity") == "masked" and case.options.get("mask") is not None:
        case = replace(case, options=case.options | {"mask": map_dense_masks(case.options["mask"], invert_mask)})
    if layout == "BTHD":
        case, answers = swap_layout(case), swap_answers(case, answers)
    tiled = tiled_order(case) if conventions.get("heads") == "tiled" else None
    if tiled is not None:
        order = np.argsort(tiled)
        case, answers = permute_heads(case, order), permute_answer_heads(case, answers, order)
    return case, answers


class Origin:
    """Where the elements of translated answers stood in those that were given.

    Elements are numbered through all answers, and the numbers translated as the answers are.
    """

    def __init__(self, case: Case, answers: Answers, layout: str, conventions: Mapping[str, str]) -> None:
        self.translated = layout == "BTHD" or conventions.get("heads") == "tiled"
        self.swapped = [name for name in answers if layout == "BTHD" and has_layout(case, name)]
        if self.translated:
            self.shapes = {name: array.shape for name, array in answers.items()}
            self.ends = dict(zip(answers, np.cumsum([array.size for array in answers.values()]), strict=True))
            numbers = {n: np.arange(end - answers[n].size, end).reshape(self.shapes[n]) for n, end in self.ends.items()}
            self.numbers = translate(case, numbers, layout, conventions)[1]

    def move_finding(self, finding: Finding) -> Finding:
        """The finding at its place in the answers that were given."""
        if not self.translated or not finding.index:
            return finding
        number = self.numbers[finding.name][finding.index]
        name = next(name for name, end in self.ends.items() if number < end)
        index = np.unravel_index(number - self.ends[name] + math.prod(self.shapes[name]), self.shapes[name])
        return replace(finding, name=name, index=tuple(map(int, index)))

    def move_elements(self, wrong: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """What is wrong, as arrays of the shapes that were given."""
        if not self.translated:
            return wrong
        flat = np.zeros(max(self.ends.values()), bool)
        for name, array in wrong.items():
            flat[self.numbers[name]] = array
        parts = np.split(flat, [*self.ends.values()])
        return {name: part.reshape(self.shapes[name]) for name, part in zip(self.ends, parts, strict=False)}

    def move_axes(self, name: str, axes: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        """A result's axes in the order in which it was given."""
        return (axes[0], axes[2], axes[1], axes[3]) if name in self.swapped and len(axes) == 4 else axes


def require_shapes(case: Case, answers: Answers, layout: str) -> None:
    """Raise WrongAnswer for a result of another shape or dtype; the case is in that layout."""
    subject = NumpySubject()
    subject.declaration = replace(subject.declaration, layout=layout)
    for name in (*results_of(case), *(map(gradient_name, differentiable(case)) if case.cotangents else ())):
        subject.answer(name, case, answers)


def refuse_costly(case: Case) -> None:
    """Raise ValueError for a case in float64 whose exact results cannot be had."""
    if case.dtype == "float64" and not case.special and work(case) > MOST_BY_BALLS:
        raise ValueError("the exact results of so large a call in float64 take minutes: compare a part of it")
    if case.dtype == "float64" and not balls_available():
        raise ValueError("float64 needs python-flint, which is not installed")


# --- parts of a call --------------------------------------------------------------------------------------------------


def axes_of(case: Case, names: Sequence[str]) -> dict[str, tuple[tuple[str, ...], ...]]:
    """The axes of results and gradients."""
    layout, described = layout_of(case), operation_facts(case.operation).axes(case)[1]
    found = {}
    for name in names:
        of = gradient_input(name)
        found[name] = described.get(f"-> {name}", ()) if of is None else layout.arrays.get(of, ())
    return found


def cuttable_dimensions(case: Case, names: Iterable[str]) -> list[str]:
    """Dimensions along which results and gradients can be computed one part at a time, the outermost first.

    Each of them has such an axis: what is a sum over it, as the gradient of a key is over queries, lacks that.
    """
    axes = axes_of(case, [*names])
    common = [set().union(*axes[name]) if axes[name] else set() for name in axes]
    return [name for name in independent_dimensions(case) if all(name in one for one in common)]


def independent_dimensions(case: Case) -> list[str]:
    """Those of `INDEPENDENT`, where they do not change with others: tokens that attend to one another are one whole."""
    tied = operation_facts(case.operation).tied
    return [name for name in layout_of(case).sizes if name.partition(" ")[0] in INDEPENDENT and name not in tied]


def count_numbers(case: Case) -> int:
    """Scores of attention, or else numbers of inputs and results."""
    s = layout_of(case).sizes
    inputs = sum(array.size for array in case.inputs.values())
    scores = math.prod(s[name] for name in ("B", "G", "S", "Q", "K")) if {"G", "K"} <= s.keys() else 0
    return max(inputs, scores, 1)


def list_boxes(case: Case, names: Sequence[str], most: int, total: int | None = None) -> Iterator[Box]:
    """Cut the case into boxes of at most so many scores or numbers, as far as it can be cut along these dimensions.

    total: how many it has.
    """
    sizes, pieces = layout_of(case).sizes, dict[str, int]()
    total = count_numbers(case) if total is None else total
    for name in names:
        needed = -(-total // most)
        pieces[name] = max(min(needed, sizes[name]), 1)
        total = -(-total // pieces[name])
    # A dimension that stays whole is left out: to take all of it would copy every array for every box.
    starts = {name: [sizes[name] * i // n for i in range(n + 1)] for name, n in pieces.items() if n > 1}
    parts = [[Part(a, b - a) for a, b in pairwise(edges)] for edges in starts.values()]
    for chosen in product(*parts):
        yield dict(zip(starts, chosen, strict=True))


def cut_answers(case: Case, answers: Answers, box: Box) -> Answers:
    sizes, cut = layout_of(case).sizes, {}
    for name, axes in axes_of(case, [*answers]).items():
        cut[name] = resize_array(answers[name], array_axes(axes, answers[name], sizes), sizes, box, None)
    return cut


def cut_box(case: Case, answers: Answers, box: Box) -> tuple[Case, Answers]:
    if not box:
        return case, answers
    part = take_parts(case, box)
    assert part is not None  # no part of a box is empty where its dimension is not
    return part, cut_answers(case, answers, box)


def starts_in(case: Case, name: str, box: Box) -> list[int]:
    """Where a box begins along each axis of a result."""
    sizes, starts = layout_of(case).sizes, list[int]()
    for axis in axes_of(case, [name])[name]:
        start = 0
        for dimension in axis:
            start = start * sizes[dimension] + (box[dimension].start if dimension in box else 0)
        starts.append(start)
    return starts


def judge_answers(case: Case, answers: Answers, profile: str, origin: Origin) -> Comparison:
    """Judge the answers part by part, and look for what explains those that are wrong."""
    dimensions = cuttable_dimensions(case, answers)
    boxes = [*list_boxes(case, dimensions, LARGEST_PART)]
    largest = max((count_numbers(cut_box(case, answers, box)[0]) for box in boxes[:1]), default=1)
    if largest > MOST_AT_ONCE:
        raise ValueError(
            f"{largest:,} scores or numbers depend on one another, and more than {MOST_AT_ONCE:,} are too many"
        )
    findings, wrong = find_errors(case, answers, boxes)
    comparison = Comparison(case.operation, profile, tuple(map(origin.move_finding, findings)))
    moved = origin.move_elements(wrong)
    first = next((name for name in moved if moved[name].any()), None)
    if first is None:
        return comparison
    axes = origin.move_axes(first, axes_of(case, [first])[first])
    comparison = replace(comparison, pattern=pattern_of(first, axes, moved[first]))
    return explain(comparison, case, answers, wrong, dimensions)


def find_errors(case: Case, answers: Answers, boxes: Sequence[Box]) -> tuple[list[Finding], Mapping[str, np.ndarray]]:
    """The worst finding of each result and gradient, and which of their elements are beyond their bounds."""
    findings: dict[str, Finding] = {}
    wrong = {name: np.zeros(array.shape, bool) for name, array in answers.items()}
    for box in boxes:
        part, own = cut_box(case, answers, box)
        exact, bounds = oracle(part), bound(part)
        own = fill_unpromised(part, own, exact)
        for finding in judge(part, own, exact, bounds):
            if box and finding.index:
                starts = starts_in(case, finding.name, box)
                finding = replace(
                    finding, index=tuple(i + start for i, start in zip(finding.index, starts, strict=True))
                )
            findings[finding.name] = worst([findings.get(finding.name, finding), finding])
        for name in own.keys() & exact.keys() & bounds.keys():
            beyond = ratio(own[name].astype(float), exact[name], bounds[name], str(own[name].dtype)) > 1
            if beyond.any():
                wrong[name][places_of(case, name, box, wrong[name].shape)] = beyond
    return [*findings.values()], wrong


def places_of(case: Case, name: str, box: Box, shape: Sequence[int]) -> Any:
    """What indexes a box in a result."""
    sizes, axes = layout_of(case).sizes, axes_of(case, [name])[name]
    if not box or len(axes) != len(shape):
        return ...
    indices = []
    for axis, size in zip(axes, shape, strict=True):
        where = np.arange(size)
        if box.keys() & set(axis) and size == math.prod(sizes[d] for d in axis):
            where = resize_array(where, (axis,), sizes, box, None)
        indices.append(where)
    return np.ix_(*indices)


def pattern_of(name: str, axes: tuple[tuple[str, ...], ...], wrong: np.ndarray) -> Pattern:
    axes = axes if len(axes) == wrong.ndim else ((),) * wrong.ndim
    along = (np.asarray(wrong.any(axis=tuple(j for j in range(wrong.ndim) if j != i))) for i in range(wrong.ndim))
    places = tuple(find_places(axis, one) for axis, one in zip(axes, along, strict=True))
    return Pattern(name, places, float(wrong.mean()))


# --- what explains them -----------------------------------------------------------------------------------------------


def explain(
    comparison: Comparison, case: Case, answers: Answers, wrong: Mapping[str, np.ndarray], dimensions: Sequence[str]
) -> Comparison:
    """Add the known mistake that explains what is wrong, as far as mistakes can be tried.

    Gradients that are sums over rows or queries keep a call whole. Without them it can be cut; what is told of a wrong
    output then holds for them too, as they follow from it.
    """
    views = [(case, answers, dimensions)]
    results = [name for name in answers if not is_gradient(name)]
    names = cuttable_dimensions(case, results)
    axes = axes_of(case, [*answers])
    apart = {name: array for name, array in answers.items() if {*names} <= set().union(*axes[name])}
    if apart.keys() < answers.keys() and any(wrong[name].any() for name in apart):
        others = [gradient_input(name) or "" for name in answers if name not in apart]
        cotangents = case.cotangents if any(map(is_gradient, apart)) else {}
        part = replace(case, constants=(*case.constants, *others), cotangents=cotangents)
        views.append((part, apart, names))
        if any(wrong[name].any() for name in results):
            views.reverse()
    tried = False
    for part, own, along in views:
        evidence = [*collect_pieces(part, own, {name: wrong[name] for name in own}, along)]
        failing, passing = ([one for one in evidence if bool(one.wrong) is kind] for kind in (True, False))
        tried |= bool(failing)
        best = choose_mistake(case.operation, failing, passing)
        if best is not None:
            counts = len(best.explained), len(failing), len(passing)
            diagnosis = Diagnosis(best.mistake, *counts, tuple(best.alternatives))
            return replace(comparison, diagnosis=diagnosis, condition=best.mistake.condition)
    return replace(comparison, too_large=not tried)


def choose_mistake(operation: str, failing: list[Evidence], passing: list[Evidence]) -> Explanation | None:
    """The known mistake that explains the pieces that fail, with nothing against it in those that pass."""
    if not failing:
        return None
    mistakes = mistakes_of(operation)
    chosen = Chooser(failing, passing, mistakes, lambda one: iter(()), lambda other: None).choose()
    if not chosen and len(failing) == 1:  # nothing else of the call can tell mistakes apart
        possible = {one.id: one for one in screen(mistakes, failing[0])}
        chosen = [Explanation(one, [failing[0]]) for one in possible.values() if len(possible) == 1]
    return chosen[0] if chosen else None


def count_cost(case: Case) -> int:
    """How long the known mistakes take to be tried on the case, in scores of attention.

    As long as one of these take about 8 numbers of a norm, and 64 of keys and values, which every query head reads.
    """
    s = layout_of(case).sizes
    if operation_facts(case.operation).norm:
        return count_numbers(case) // 8
    if case.operation.startswith("attention"):
        scores = math.prod(s[name] for name in ("B", "G", "S", "Q", "K"))
        return max(scores, math.prod(s[name] for name in ("B", "G", "S", "K")) * (s["D"] + s.get("V", 0)) // 64)
    return count_numbers(case)


def collect_pieces(
    case: Case, answers: Answers, wrong: Mapping[str, np.ndarray], dimensions: Sequence[str]
) -> Iterator[Evidence]:
    """Yield small pieces of the call, wrong and right ones, or the call itself where it is small.

    Heads stay together, as which key head a query head reads cannot be seen in one of them, unless a single row of all
    heads is too large a piece.
    """
    names, sizes = [name for name in dimensions if name not in ("G", "H")], layout_of(case).sizes
    row = {name: Part(0, 1) for name in names if sizes[name]}
    if count_cost(cut_box(case, answers, row)[0]) > MOST_EVIDENCE:
        one_by_one = all("S" in set().union(*axes) for axes in axes_of(case, [*answers]).values())
        names = [*(["S"] if one_by_one else []), *(name for name in dimensions if name in ("G", "H")), *names]
    boxes = [*list_boxes(case, names, LARGEST_EVIDENCE, max(count_numbers(case), count_cost(case)))]
    if len(boxes) == 1 and names and sizes[names[0]] > 1:  # one for each batch element or row as well
        first = sizes[names[0]]
        boxes += [{names[0]: Part(i, 1)} for i in range(min(first, 2 * PIECES))]
    counts = {True: 0, False: 0}
    for box in boxes:
        fails = any(array[places_of(case, name, box, array.shape)].any() for name, array in wrong.items())
        if counts[fails] < PIECES:
            counts[fails] += 1
            part, own = cut_box(case, answers, box)
            if count_cost(part) <= MOST_EVIDENCE:
                evidence = weigh(Call(part), own)
                if evidence is not None:
                    yield evidence

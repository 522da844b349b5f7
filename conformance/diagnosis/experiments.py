"""Cases for experiments: like one that fails, in other sizes and with other numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.cases.facts import operation_facts
from conformance.cases.features import supports_case
from conformance.cases.operation import OFFSET
from conformance.checks.catalogue import Probe
from conformance.diagnosis.evidence import Evidence
from conformance.runner.dimensions import Part, cast, sizes_of, take_parts
from conformance.runner.shrinking import align_masks
from specification.dtypes import FLOATING

NUMBERS, EXACT_NUMBERS = 2**18, 2**12
"""Numbers in the inputs of a case that is drawn, at most; the second in float64, whose exact results are slow."""
LEAST, FEW = 5, 3
"""A size from which on heads, rows and columns are told apart; what the others are, of a case with one large size."""
PROBED, SEED = 12, 2**31
"""Cases that are drawn from a probe anew, and their seed, which no run has by chance alone."""
FAR = 4
"""Standard deviations by which numbers are far from 0, as those of rows with a large mean are."""


def draw_experiments(evidence: Evidence, declaration: Declaration, probes: Mapping[str, Probe]) -> Iterator[Case]:
    """Draw cases by turns: like one that fails, and others of its probe, which have other options."""
    from conformance.sampling.draws import draw_cases  # Hypothesis, which `compare` does without

    drawn = draw_cases(probes[evidence.probe].cases, PROBED, SEED) if evidence.probe in probes else ()
    probed = (example for _, example in drawn if isinstance(example, Case) and not example.special)
    return filter(affordable, take_turns((draw_like(evidence, declaration), probed)))


def take_turns(sources: Iterable[Iterator[Case]]) -> Iterator[Case]:
    """One case of each in turn, until none has any more."""
    left = [*sources]
    while left:
        for source in [*left]:
            case = next(source, None)
            if case is None:
                left.remove(source)
            else:
                yield case


def draw_like(evidence: Evidence, declaration: Declaration) -> Iterator[Case]:
    """Draw cases like one that fails: other numbers in its sizes, then each size grown alone, then all of them."""
    case = evidence.case
    if case.special:
        return
    rng = np.random.default_rng(len(evidence.probe))
    for sizes in grow_sizes(case):
        for _ in range(2):
            other = align_masks(redraw(case, sizes, rng), declaration)
            if other is not None and supports_case(other, declaration):
                yield other


def grow_sizes(case: Case) -> Iterator[dict[str, int]]:
    """The sizes of the case; each large one alone; larger ones, of which many leave tiles a rest."""
    fixed, unit = operation_facts(case.operation).fixed, operation_facts(case.operation).width_unit
    sizes = {name: size for name, size in sizes_of(case).items() if name not in (OFFSET, *fixed) and size}
    yield sizes
    wide = {name: max(size, LEAST + unit - 1 if name == "E" else LEAST) for name, size in sizes.items() if name != "B"}
    yield sizes | {name: size - size % unit if name == "E" else size for name, size in wide.items()}
    few = {name: FEW * unit if name == "E" else FEW for name in sizes}
    for name, size in sizes.items():
        if size > LEAST:
            yield few | {name: size}
    grown = {name: 2 * size + (unit if name == "E" else 1) for name, size in sizes.items()}
    for name, size in grown.items():
        yield sizes | {name: max(size, 3)}
    yield grown


def redraw(case: Case, sizes: dict[str, int], rng: np.random.Generator) -> Case | None:
    """The call in these sizes on other numbers, as large as its own and as far from 0."""
    tied = operation_facts(case.operation).tied
    alike = max((size for name, size in sizes.items() if name in tied), default=0)
    larger = take_parts(case, {n: Part(0, alike if n in tied else size) for n, size in sizes.items()}, rng)
    if larger is None:
        return None
    inputs = {name: redraw_array(case.inputs.get(name, array), array, rng) for name, array in larger.inputs.items()}
    inputs |= {n: np.abs(inputs[n]) for n in operation_facts(case.operation).positive if n in inputs}
    cotangents = {
        name: redraw_array(case.cotangents.get(name, array), array, rng) for name, array in larger.cotangents.items()
    }
    return replace(larger, inputs=inputs, cotangents=cotangents, memory={})


def redraw_array(array: np.ndarray, grown: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Normal numbers of the array's size and mean; ids, -inf and other values that mean something stay."""
    if str(array.dtype) not in FLOATING:
        return grown
    wide = array.astype(float)
    finite = wide[np.isfinite(wide)]
    unit = float(np.abs(finite).max(initial=0)) or 1.0  # in which no square overflows
    statistics = (lambda a: np.sqrt(np.mean(a**2)), np.mean, np.std)
    size, mean, spread = (float(f(finite / unit)) if finite.size else 1.0 for f in statistics)
    far = abs(mean) > FAR * spread > 0
    numbers = rng.normal(size=grown.shape) * ((spread if far else size) or 1.0) + mean * far
    with np.errstate(over="ignore"):
        numbers = numbers * unit
    return np.where(np.isfinite(grown.astype(float)), cast(numbers, array.dtype), grown).astype(array.dtype)


def affordable(case: Case) -> bool:
    count = sum(array.size for array in case.inputs.values())
    if "query" in case.inputs and case.inputs["query"].ndim == 4:
        (B, H, Q, _), K = case.inputs["query"].shape, case.inputs["key"].shape[2]
        count += B * H * Q * K
    return count <= (EXACT_NUMBERS if case.dtype == "float64" else NUMBERS)

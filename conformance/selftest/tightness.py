"""How tight the bounds are, and what they let pass.

    conformance dev tightness [--seconds 900] [--operation attention] [--dtype float32]
    conformance dev tightness --faults
    conformance dev tightness --markdown docs/tightness.md

The first climbs (`hypothesis.target`) towards the largest error that honest implementations make, in units of its
bound: this project's three and the variants, for every operation, dtype and result. A ratio above 1 would be a wrong
bound, one below 0.02 a bound that lets nearly everything pass. The second (`sensitivity.py`) counts the cases that
catch attention which is slightly wrong. The third writes both tables to a file; with `--operation` or `--dtype` it
renews only these figures of it.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import hypothesis
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from rich.table import Table
from rich.text import Text

from conformance.bounds import bound
from conformance.cases.case import Case
from conformance.cases.declaration import roundings
from conformance.cases.features import supports_case
from conformance.checks.comparison import judge
from conformance.checks.results import WIDE
from conformance.oracle.reference import oracle
from conformance.reports.markdown import format_markdown
from conformance.sampling.draws import draw_settings
from conformance.sampling.layers import norm_cases
from conformance.sampling.operations import operation_cases
from conformance.sampling.strategies import DTYPES
from conformance.selftest import sensitivity
from conformance.selftest.variants import VARIANTS
from conformance.subjects.subject import IMPLEMENTATIONS, Subject

WANTED = (0.02, 1.0)
"""Between these the largest ratio of every row should lie."""
CASES = 400
"""So many cases at a time for one group and dtype: the first half drawn at random, the others climbing."""
SEED = 20260103

Ratios = dict[str, float]
"""The largest ratio of every result."""


PAGE = """\
# How tight the bounds are

A large bound is never exceeded by an honest implementation, and catches nothing. So this page measures both sides.
`conformance dev tightness --markdown docs/tightness.md` writes it.

## What they catch

The faults here are slightly larger than the rounding errors of float32 arithmetic. The table shows the share of cases
with a result beyond its bound, the median of the cases' largest error ratios, and how often a default run of the rule
catches the fault.

{wrong}

## What they allow

The largest error ratio of any honest implementation, by a search for large errors. These are the definition, its ports
and the variants. Above {high:g} a bound would be wrong, and below {low:g} it would catch hardly anything. In 16 bits
the one rounding at the end outweighs everything else, and reaches its bound.

{honest}
"""
FIRST = "| operation | result |"
"""How the second table begins."""


@dataclass(frozen=True)
class Group:
    """Cases of one kind, and who answers them."""

    title: str
    operation: str
    cases: st.SearchStrategy[Case]
    subjects: tuple[Subject, ...]


def groups(dtype: str, operations: Iterable[str], jax: bool = False) -> Iterable[Group]:
    """Every operation by those that declare nothing, then each variant that declares roundings by itself."""
    own = [IMPLEMENTATIONS[name]() for name in ("reference_numpy", "torch_impl", *(("jax_impl",) if jax else ()))]
    for operation in operations:
        variants = [(v, v.subject()) for v in VARIANTS if v.operation == operation and (jax or v.arrays != "jax")]
        plain = tuple(subject for _, subject in variants if not declares_rounding(subject, dtype))
        yield Group(operation, operation, operation_cases(operation, (dtype,)), (*own, *plain))
        if operation == "layer_norm" and dtype in WIDE:
            far = norm_cases(means=(1e3, -1e4), dtypes=(dtype,))
            yield Group("layer_norm, far from zero", operation, far, (*own, *plain))
        for variant, subject in variants:
            if declares_rounding(subject, dtype) and dtype in subject.declaration.dtypes:
                cases = operation_cases(operation, (dtype,), subject.declaration)
                yield Group(f"{operation}, {variant.name}", operation, cases, (subject,))


def declares_rounding(subject: Subject, dtype: str) -> bool:
    return bool(roundings(subject.declaration, dtype))


# --- climbing ---------------------------------------------------------------------------------------------------------


def ratios_of(case: Case, subjects: Sequence[Subject]) -> Ratios:
    """For every result the largest ratio of those subjects that take the case."""
    truth, bounds = oracle(case), bound(case)
    found: Ratios = defaultdict(float)
    for subject in subjects:
        if supports_case(case, subject.declaration):
            for finding in judge(case, subject(case), truth, bounds):
                name = re.sub(r"\[\d+\]", "", finding.name)
                found[name] = max(found[name], finding.ratio)
    return found


class Enough(BaseException):
    """Raised to end a search at once; no `Exception`, which Hypothesis would take for a failure of the test."""


def climb(group: Group, seconds: float, cases: int = CASES, seed: int = SEED) -> Ratios:
    """The largest ratios found in so many cases, and in as many again while one is still small and time is left.

    None where the operation has no case of this dtype, as frequencies have none in 16 bits.
    """
    largest: Ratios = defaultdict(float)
    end, small = time.process_time() + seconds, True

    def climb_by_case(case: Case) -> None:
        if time.process_time() > end:
            raise Enough
        for name, ratio in ratios_of(case, group.subjects).items():
            largest[name] = max(largest[name], ratio)
            if 0 < ratio < math.inf:
                hypothesis.target(math.log(ratio), label=name)

    search = draw_settings(cases, Phase.generate, Phase.target)(hypothesis.given(group.cases)(climb_by_case))
    with contextlib.suppress(Enough, Unsatisfiable):
        while small:
            hypothesis.seed(seed)(search)()
            small, seed = any(0 < ratio < WANTED[0] for ratio in largest.values()), seed + 1
    return largest


@dataclass
class Tightness:
    """The largest ratios by title of the group, result and dtype."""

    rows: dict[tuple[str, str], dict[str, float]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, group: Group, dtype: str, ratios: Ratios) -> None:
        for name, ratio in ratios.items():
            self.rows[group.title, name][dtype] = ratio

    @property
    def unwanted(self) -> list[tuple[str, str, str, float]]:
        """(title, result, dtype, ratio) outside the wanted range; an exact result is within it."""
        low, high = WANTED
        rows = [(*key, dtype, ratio) for key, found in self.rows.items() for dtype, ratio in found.items()]
        return [row for row in rows if row[-1] > high or 0 < row[-1] < low]


def measure(
    seconds: float, operations: Iterable[str], dtypes: Iterable[str], cases: int = CASES, jax: bool = False
) -> Tightness:
    tightness, operations = Tightness(), tuple(operations)
    for dtype in dtypes:
        # Ball arithmetic takes its time: fewer cases, so that the climbing begins.
        most = cases // 8 if dtype == "float64" else cases
        for group in groups(dtype, operations, jax):
            tightness.add(group, dtype, climb(group, seconds, most))
    return tightness


# --- tables -----------------------------------------------------------------------------------------------------------


def cell(ratio: float | None) -> Text:
    if ratio is None:
        return Text("-")
    if ratio == 0:
        return Text("exact", style="green")
    return Text(f"{ratio:.3g}", style="green" if WANTED[0] <= ratio <= WANTED[1] else "bold red")


def tightness_table(tightness: Tightness) -> Table:
    dtypes = [dtype for dtype in DTYPES if any(dtype in row for row in tightness.rows.values())]
    table = Table(title="Largest error ratio of honest implementations", title_justify="left")
    table.add_column("operation")
    table.add_column("result")
    for dtype in dtypes:
        table.add_column(dtype, justify="right")
    before = ""
    for (title, name), row in tightness.rows.items():
        table.add_row(title if title != before else "", name, *(cell(row.get(dtype)) for dtype in dtypes))
        before = title
    return table


def page(tightness: Tightness, sensitivities: Sequence[sensitivity.Sensitivity]) -> str:
    """docs/tightness.md."""
    low, high = WANTED
    wrong, honest = sensitivity.sensitivity_table(sensitivities), tightness_table(tightness)
    return PAGE.format(low=low, high=high, wrong=format_markdown(wrong), honest=format_markdown(honest))


def renew_page(text: str, found: Tightness) -> str:
    """That page with these figures; all others stay."""
    head, honest = text[: text.index(FIRST)], read_page(text)
    for key, row in found.rows.items():
        honest.rows[key] |= row
    return head + format_markdown(tightness_table(honest)) + "\n"


def read_page(text: str) -> Tightness:
    """The figures of a page."""
    header, _, *lines = text[text.index(FIRST) :].splitlines()
    found, title = Tightness(), ""
    for line in lines:
        cells = [part.strip() for part in line.strip("|").split(" | ")]
        title, ratios = cells[0] or title, zip(header.strip("| ").split(" | ")[2:], cells[2:], strict=True)
        read = {dtype: 0.0 if ratio == "exact" else float(ratio) for dtype, ratio in ratios if ratio != "-"}
        found.rows[title, cells[1]] = read
    return found

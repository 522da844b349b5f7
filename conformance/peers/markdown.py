"""The divergence matrix as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conformance.checks.catalogue import REFUSAL
from conformance.checks.levels import LEVELS
from conformance.judge.judged_rules import JUDGED
from conformance.peers import cells
from conformance.peers.matrix import PeerReport
from conformance.reports.markdown import row

KEEPS = "keeps"
"""The column of the highest profile that a path keeps."""
PREFACE = """\
# Where other libraries depart from the definition

Each row is one path through a library. The judge tries it like any function by the rules of [SPEC.md](../SPEC.md), as
far as the path has parameters for them. A violation is a departure from this project's definition. It may agree with
the library's own documentation: a library may intend the mean of the values for an empty row. If one cause violates
several rules, the page shows it once, under the rule of the cause, and the cases of other rules avoid it.

Cases are small, or have [sizes that matter to kernels](judging.md#sizes) in one or two dimensions. Paths that compile
for every shape, or run in a subprocess, get a third of the large cases. If a divergence depends on a size, the page
says so: "first wrong at 257 keys (256 are right)". The row of `jax.numpy.einsum` is not a library's function. It is
attention as many people write it, compiled as a whole and differentiated from outside.

Every rule, or part of one, has a level: `core`, `robust` or `strict`. A row says the highest
[profile](judging.md#profiles) that the path keeps. The columns stand by level: first whether the level is kept, then
its rules.

`make peers` writes this page. Compiled FlexAttention compiles for every shape, also in transformers, and has a command
of its own: `conformance dev peers "FlexAttention, compiled" flex_attention_forward`.
[test_divergences.py](../tests/peers/test_divergences.py) shows the most important divergences once more, in plain calls
of the libraries and without the judge.

"""


def as_page(reports: Sequence[PeerReport]) -> str:
    """The page docs/divergences.md."""
    return PREFACE + as_markdown(reports)


def as_markdown(reports: Sequence[PeerReport], level: int = 2) -> str:
    """One table for each operation, and below it every divergence with its smallest case.

    level: of the headings.
    """
    return "\n".join(lines(reports, "#" * level)) + "\n"


def as_tables(reports: Sequence[PeerReport], level: int = 2) -> str:
    """The same without the cases."""
    return "\n".join(lines(reports, "#" * level, cases=False)) + "\n"


def lines(reports: Sequence[PeerReport], heading: str, cases: bool = True) -> Iterator[str]:
    if not reports:
        yield "No peer is installed."
        return
    told = ", ".join(f"{name} {version}" for name, version in cells.versions(reports).items())
    yield f"{told}; seed {reports[0].seed}, effort {reports[0].effort}."
    yield ""
    yield "; ".join(f"{cells.SIGNS[state]} {meaning}" for state, meaning in cells.LEGEND.items()) + "."
    for operation, title in cells.OPERATIONS.items():
        chosen = [report for report in reports if report.operation == operation]
        if chosen:
            yield from ["", f"{heading} {title}", "", *table(chosen)]
            if cases:
                yield from divergences(chosen, heading)


def table(reports: Sequence[PeerReport]) -> Iterator[str]:
    """Rows are peers. Columns are the profile that a peer keeps, and every level with its rules."""
    columns = cells.columns(reports)
    yield row("", KEEPS, *(f"**{name}**" if name in LEVELS else name for name in columns))
    yield row("---", *[":-:"] * (len(columns) + 1))
    for report in reports:
        signs = (cells.SIGNS[cells.cell(report, column)] for column in columns)
        yield row(escaped(report.subject), cells.kept_by(report), *signs)


def divergences(reports: Sequence[PeerReport], heading: str) -> Iterator[str]:
    for report in reports:
        if report.violations or report.untried:
            yield from ["", f"{heading}# {report.subject}", ""]
            yield from (line for violation in report.violations for line in divergence(report, violation.rule))
            if cells.accepted(report):
                yield f"- Takes what should be refused: {cells.accepted(report)}."
            if report.untried:
                yield f"- Not everything was tried: {report.untried}."


def divergence(report: PeerReport, rule: str) -> Iterator[str]:
    """Two lines: what came of it, and the call."""
    violation = cells.violation_of(report, rule)
    if violation is None or violation.check == REFUSAL:
        return
    remark = cells.remark(report, rule)
    yield f"- **{rule}** {JUDGED[rule].title} ({violation.level}): {escaped(cells.seen(violation))}." + (
        f" ({remark})" if remark else ""
    )
    yield f"  `{cells.asked(violation)}`"


def escaped(text: str) -> str:
    """As it stands, where Markdown would read signs into it."""
    for sign in "\\|*_<":
        text = text.replace(sign, f"\\{sign}")
    return text

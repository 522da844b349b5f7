"""The divergence matrix as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conformance.checks.catalogue import REFUSAL
from conformance.judge.judged_rules import JUDGED
from conformance.peers import cells
from conformance.peers.matrix import PeerReport
from conformance.reports.markdown import row

PREFACE = """\
# What libraries compute otherwise

Each row is one path through a library, judged like anybody's function against the rules of [SPEC.md](../SPEC.md),
within what the path has parameters for. A rule that is not kept is a departure from this project's definition, and not
always from the library's own documentation: where an empty row gives the mean of the values, somebody may have wanted
that. What one cause breaks is told once, under the rule that it belongs to, and left out of the cases of the others.

Cases are small, or have the [sizes that kernels have](judging.md) in one or two dimensions. What compiles for every
shape, or answers from a process of its own, gets a third of the large ones. Where a divergence depends on a size, it
says so: "first wrong at 257 keys (256 are right)". The row of `jax.numpy.einsum` is no library's function, but
attention as many write it, compiled as a whole and differentiated from outside.

Written by `make peers`; compiled FlexAttention, which compiles for every shape, by
`conformance dev peers "FlexAttention, compiled"`. [test_divergences.py](../tests/peers/test_divergences.py) shows the
weightiest of it once more, in plain calls of the libraries and without the judge.

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
    """Rows are peers, columns rules."""
    rules = cells.rules_asked(reports)
    yield row("", *rules)
    yield row("---", *[":-:"] * len(rules))
    for report in reports:
        yield row(escaped(report.subject), *(cells.SIGNS[cells.state(report, rule)] for rule in rules))


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
    yield f"- **{rule}** {JUDGED[rule].title}: {escaped(cells.seen(violation))}." + (f" ({remark})" if remark else "")
    yield f"  `{cells.asked(violation)}`"


def escaped(text: str) -> str:
    """As it stands, where Markdown would read signs into it."""
    for sign in "\\|*_<":
        text = text.replace(sign, f"\\{sign}")
    return text

"""What the divergence matrix says of one rule, in one sign and in two lines: of a report, and then of a row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from conformance.checks.catalogue import REFUSAL
from conformance.checks.judged_rules import JUDGED
from conformance.checks.levels import LEVELS, STRICT, kept, least_level
from conformance.checks.results import Violation
from conformance.peers.judging import GRADIENTS_IN
from conformance.peers.matrix import PeerReport
from conformance.reports.blocks import error
from conformance.reports.content import real, violation_content
from conformance.reports.sentences import describe_finding

if TYPE_CHECKING:
    from conformance.peers.rows import Row

CONFORMS, VIOLATED, AT_STRICT, ACCEPTS, NOT_ASKED = "conforms", "violated", "at strict", "accepts", "not asked"
SIGNS = {CONFORMS: "✓", VIOLATED: "✗", AT_STRICT: "△", ACCEPTS: "○", NOT_ASKED: "·"}
LEGEND = {
    CONFORMS: "conforms on every case",
    VIOLATED: "a case shows otherwise",
    AT_STRICT: "a case shows otherwise, but only the profile strict asks for that",
    ACCEPTS: "right wherever it returns, but accepts a call that the rule refuses",
    NOT_ASKED: "the path has no parameter for it, or documents no result",
}
UNKNOWN = "?"
"""Of levels, where a run told none."""
PRECISION = ("ATT-9", "NORM-2")
"""Rules whose remark says in which dtypes they are broken, and under which convention they are not."""
LONG = re.compile(r"-?\d+\.\d{6,}(e[+-]\d+)?")
"""A number that is written with more digits than anybody reads."""
OF_SIZES = re.compile(r"first wrong at [\d,]{2,} [^();]+ \([^()]+\)|wrong where [^();]+\b")
"""What is said of sizes, without the examples; of first ones below ten nothing, for they are no kernel's."""
OPERATIONS = {
    "attention": "Attention",
    "multi_head_attention": "Multi-head attention",
    "layer_norm": "Layer norm",
    "rms_norm": "RMS norm",
    "feed_forward": "Feed-forward network",
    "gated_feed_forward": "Gated feed-forward network",
    "silu": "SiLU",
    "relative_position_bias": "Relative positions",
    "rotary_embedding": "Rotary embeddings",
    "cross_entropy": "Cross-entropy",
    "nll_loss": "Negative log-likelihood",
    "adam_step": "Adam",
    "sgd_step": "Gradient descent",
    "clip_by_global_norm": "Gradient clipping",
}


def violation_of(report: PeerReport, rule: str) -> Violation | None:
    return next((violation for violation in report.violations if violation.rule == rule), None)


def state(report: PeerReport, rule: str) -> str:
    """CONFORMS, VIOLATED, AT_STRICT, ACCEPTS or NOT_ASKED."""
    violation = violation_of(report, rule)
    if violation is not None and violation.check != REFUSAL:
        return AT_STRICT if violation.level == STRICT else VIOLATED
    if violation is not None:
        return ACCEPTS
    return CONFORMS if rule in report.rules else NOT_ASKED


def asked(violation: Violation) -> str:
    """The call, in one line; numbers with six digits."""
    return LONG.sub(lambda number: f"{float(number[0]):.6g}", repr(violation.case))


def seen(violation: Violation) -> str:
    """What came of it, and what should have."""
    content = violation_content(violation)
    if content["dtype"] is None:
        return describe_finding(violation.finding)
    got, expected = (f"{real(content[name]):.9g}" for name in ("got", "expected"))
    return f"{content['result']}{content['index']} is {got}, expected {expected}: {error(content)}"


def at_sizes(violation: Violation) -> str:
    """At which sizes it is seen, in one phrase; empty where no simple rule says so."""
    return " and ".join(OF_SIZES.findall(violation.threshold))


def message(report: PeerReport, violation: Violation) -> str:
    """What came of it, and what else is known."""
    said = remark(report, violation.rule)
    return seen(violation) + (f". ({said})" if said else ".")


def remark(report: PeerReport, rule: str) -> str:
    """What else is known: in which dtypes, at which sizes, which mistake explains it, and what it accepts."""
    violation = violation_of(report, rule)
    parts = [beside(report.remarks.get(rule, ""), violation), "" if violation is None else at_sizes(violation)]
    if violation is not None and violation.check != REFUSAL:
        parts += [] if rule in PRECISION else violation.mistakes[:1]
        cell = report.rules[rule]
        parts += ["float32 and float64 conform"] if 0 <= cell.wide <= 1 and not parts[0] else []
    return "; ".join(part for part in parts if part)


def beside(said: str, violation: Violation | None) -> str:
    """What is said of dtypes; beside a violation in a dtype of which it says nothing, that it is so in these, too."""
    if violation is None or violation.case is None or not re.search(r"\bin b?float\d", said):
        return said
    parts = said.split("; ")
    of_gradients = violation.finding.name.startswith("gradient") and any(p.startswith(GRADIENTS_IN) for p in parts)
    own = " ".join(part for part in parts if part.startswith(GRADIENTS_IN) == of_gradients)
    named = re.findall(r"\bb?float\d+\b", re.sub(r"\([^)]*\)", "", own))
    return said if violation.case.dtype in named else f"also {said}"


def rules_asked(rows: Sequence[Row]) -> list[str]:
    """In the specification's order; the plain call itself only where it fails."""
    return [
        rule
        for rule in JUDGED
        if any(rule in row.marks and (rule != "CALL" or row.marks[rule] == VIOLATED) for row in rows)
    ]


def columns(rows: Sequence[Row]) -> list[str]:
    """Every level, and after it the rules that have it as a whole, or but for some part."""
    rules = rules_asked(rows)
    return [name for level in LEVELS for name in (level, *(rule for rule in rules if least_level(rule) == level))]


def kept_by(row: Row) -> str:
    """The highest profile that a path keeps; a dash where it keeps none, or not everything was tried.

    It claims to refuse nothing, so what it accepts counts for none.
    """
    if row.broken is None:
        return UNKNOWN
    return "-" if row.untried else kept(set(row.broken)) or "-"


def sign(row: Row, column: str) -> str:
    """For the state of a rule, or of a level as a whole."""
    return UNKNOWN if column in LEVELS and row.broken is None else SIGNS[cell(row, column)]


def cell(row: Row, column: str) -> str:
    """The state of a rule, or of a level as a whole."""
    if column not in LEVELS:
        return row.marks.get(column, NOT_ASKED)
    return VIOLATED if column in (row.broken or ()) else CONFORMS


def accepted(row: Row) -> str:
    """Every call that it should refuse and takes, by rule; empty if there is none."""
    return "; ".join(f"{rule} {', '.join(titles)}" for rule, titles in row.accepted.items())


def legend(rows: Sequence[Row]) -> str:
    """What the signs of these rows mean."""
    unknown = [f"{UNKNOWN} the run told no levels"] if any(row.broken is None for row in rows) else []
    return "; ".join([*(f"{SIGNS[state]} {meaning}" for state, meaning in LEGEND.items()), *unknown])

"""Rows of the divergence matrix: what a report says of one path through a library, as a file keeps it.

A row names the run that it is from. So a run of some peers renews their rows in the file, and all others stay.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from conformance.cases.arguments import is_gradient
from conformance.cases.case import six_digits
from conformance.checks.catalogue import REFUSAL
from conformance.checks.levels import EVERY_RULE, ISOLATION_RULE, JUDGED, LEVELS, STRICT, highest_profile, least_level
from conformance.checks.results import Violation
from conformance.peers import PEERS
from conformance.peers.judging import DtypeRemark
from conformance.peers.matrix import PeerReport
from conformance.peers.models import MODELS
from conformance.peers.peer import installed_version, is_installed
from conformance.ports.report import ModelReport
from conformance.reports.blocks import error
from conformance.reports.causes import cause_content, describe_cause
from conformance.reports.content import real, violation_content
from conformance.reports.sentences import describe_finding
from conformance.reports.threshold_sentences import summarize_threshold

SCHEMA = {"name": "transformer-conformance divergences", "version": 1}
PLACES = {peer.name: number for number, peer in enumerate((*PEERS, *MODELS))}
State = Literal["conforms", "violated", "at strict", "accepts", "not asked"]
"""What a path does with a rule."""
CONFORMS: State = "conforms"
VIOLATED: State = "violated"
AT_STRICT: State = "at strict"
ACCEPTS: State = "accepts"
NOT_ASKED: State = "not asked"
SIGNS: dict[State, str] = {CONFORMS: "✓", VIOLATED: "✗", AT_STRICT: "△", ACCEPTS: "○", NOT_ASKED: "·"}
LEGEND: dict[State, str] = {
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
LEAST_TOLD = 10
"""The least first wrong size that is told: a smaller one is no kernel's."""
MODEL = "model"
"""The operation of rows that are whole models, which have a table of their own."""
OPERATION_TITLES = {
    "attention": "Attention",
    "multi_head_attention": "Multi-head attention",
    "layer_norm": "Layer norm",
    "rms_norm": "RMS norm",
    "feed_forward": "Feed-forward network",
    "gated_feed_forward": "Gated feed-forward network",
    "silu": "SiLU",
    "route": "Routers",
    "mixture_of_experts": "Mixtures of experts",
    "load_balancing_loss": "Load-balancing loss",
    "latent_attention": "Latent attention",
    "sinusoidal_positions": "Sinusoidal positions",
    "alibi_bias": "ALiBi",
    "relative_position_bias": "Relative positions",
    "rotary_embedding": "Rotary embeddings",
    "cross_entropy": "Cross-entropy",
    "nll_loss": "Negative log-likelihood",
    "adam_step": "Adam",
    "sgd_step": "Gradient descent",
    "clip_by_global_norm": "Gradient clipping",
}


class Run(NamedTuple):
    """When and with what a row was made. note: what else differs from a run of today."""

    date: str
    seed: int
    effort: str
    versions: dict[str, str]
    note: str = ""

    @property
    def summary(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        note = f" {self.note}" if self.note else ""
        return f"{self.date}: {versions}; seed {self.seed}, effort {self.effort}.{note}"


class Divergence(NamedTuple):
    """A rule that a path breaks.

    level: empty where the run told none. call: the smallest that shows it, in a line. step: of a model, the first
    sublayer that is wrong.
    """

    rule: str
    title: str
    level: str
    message: str
    call: str
    step: str = ""


class Row(NamedTuple):
    """One path through a library.

    marks: by rule, what the path does with it. broken: the levels that it does not keep; None where the run told none.
    accepted: by rule, titles of calls that it should refuse. untried: why not everything was tried.
    dialect: of a model, what it is a port of. settings: what its configs always have. left_out: what it has no
    argument for.
    """

    path: str
    operation: str
    marks: dict[str, State]
    broken: list[str] | None
    divergences: tuple[Divergence, ...]
    accepted: dict[str, list[str]]
    untried: str
    run: Run
    dialect: str = ""
    settings: str = ""
    left_out: str = ""


# --- from a report ----------------------------------------------------------------------------------------------------


def rows_of(reports: Sequence[PeerReport | ModelReport]) -> list[Row]:
    """The rows of a run that ends now."""
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    found = list[Row]()
    for report in reports:
        run = Run(today, report.seed, report.effort, versions())
        found.append(model_row(report, run) if isinstance(report, ModelReport) else row_of(report, run))
    return found


def model_row(report: ModelReport, run: Run) -> Row:
    broken = {one.rule: AT_STRICT if one.level == STRICT else VIOLATED for one in report.violations}
    settings = next((peer.settings for peer in MODELS if peer.name == report.target.title), {})
    return Row(
        report.target.title,
        MODEL,
        {rule: broken.get(rule, CONFORMS) for rule in EVERY_RULE if rule in {*report.rules, *broken}},
        sorted({one.level for one in report.violations}),
        tuple(
            Divergence(
                one.rule, EVERY_RULE[one.rule].title, one.level, one.message.removesuffix(".") + ".", one.case, one.step
            )
            for one in report.violations
        ),
        {},
        "",
        run,
        report.dialect,
        ", ".join(f"{name}={value!r}" for name, value in settings.items()),
        report.left_out,
    )


def row_of(report: PeerReport, run: Run) -> Row:
    states = {rule: state_of(report, rule) for rule in JUDGED}
    wrong = [violation for violation in report.violations if violation.check != REFUSAL]
    found = [
        Divergence(one.rule, JUDGED[one.rule].title, one.level, message_of(report, one), call_of(one)) for one in wrong
    ]
    return Row(
        report.subject,
        report.operation,
        {rule: state for rule, state in states.items() if state != NOT_ASKED},
        sorted({violation.level for violation in wrong}),
        tuple(found),
        report.accepted,
        report.untried,
        run,
    )


def versions() -> dict[str, str]:
    """Of everything here that peers need. It is the same for all rows of a run, whichever peers are judged."""
    packages = dict.fromkeys(["numpy", *(package for peer in (*PEERS, *MODELS) for package in peer.packages)])
    installed = {name: installed_version(name) for name in packages if is_installed(name)}
    return {"python": platform.python_version()} | installed


def state_of(report: PeerReport, rule: str) -> State:
    violation = next((violation for violation in report.violations if violation.rule == rule), None)
    if violation is not None and violation.check != REFUSAL:
        return AT_STRICT if violation.level == STRICT else VIOLATED
    if violation is not None:
        return ACCEPTS
    return CONFORMS if rule in report.rules else NOT_ASKED


def call_of(violation: Violation) -> str:
    """The call, in one line; numbers with six digits."""
    return str(violation.case) if violation.case is None else violation.case.call_text(six_digits)


def message_of(report: PeerReport, violation: Violation) -> str:
    """What came of it and what should have, and what else is known: in which dtypes, at which sizes, which mistake."""
    content = violation_content(violation)
    if content["dtype"] is None:
        message = describe_finding(violation.finding)
    else:
        got, expected = (f"{real(content[name]):.9g}" for name in ("got", "expected"))
        message = f"{content['result']}{content['index']} is {got}, expected {expected}: {error(content)}"
    dtypes = describe_dtypes(report.remarks.get(violation.rule, []), violation)
    parts = [dtypes, describe_sizes(violation)]
    parts += list(known_mistakes(report, violation)) if is_told_apart(violation.rule, report.operation) else []
    wide = report.rules[violation.rule].wide
    parts += ["float32 and float64 conform"] if 0 <= wide <= 1 and not dtypes else []
    known = "; ".join(part for part in parts if part)
    return f"{message}. ({known})" if known else f"{message}."


def is_told_apart(rule: str, operation: str) -> bool:
    """Whether the known mistakes that break a rule differ in its cases.

    In a layer, a token that is NaN is so as key and as value: all that multiplies it by a weight of 0 gives NaN.
    """
    return rule not in PRECISION and (rule, operation) != (ISOLATION_RULE, "multi_head_attention")


def known_mistakes(report: PeerReport, violation: Violation) -> Iterator[str]:
    """The known mistake behind a violation, in one line, where there is one."""
    causes = (cause for cause in report.causes if any(one.rule == violation.rule for one in cause.violations))
    yield from (describe_cause(cause_content(cause)) for cause in causes if cause.diagnosis is not None)


def describe_sizes(violation: Violation) -> str:
    """At which sizes it is seen, in one phrase; empty where no simple rule says so."""
    thresholds = [
        one for one in violation.threshold if one.kind not in ("first", "product") or one.wrong[0] >= LEAST_TOLD
    ]
    return " and ".join(filter(None, map(summarize_threshold, thresholds)))


def describe_dtypes(remarks: Sequence[DtypeRemark], violation: Violation) -> str:
    """The dtypes in which the rule is broken; beside a call in a dtype that is none of them, in these, too."""
    gradients = is_gradient(violation.finding.name) and any(remark.gradients for remark in remarks)
    named = {dtype.name for remark in remarks if remark.gradients == gradients for dtype in remark.wrong}
    also = "also " if remarks and violation.case is not None and violation.case.dtype not in named else ""
    return also + "; ".join(map(describe_remark, remarks))


def describe_remark(remark: DtypeRemark) -> str:
    names = []
    for dtype in remark.wrong:
        conventions = ", ".join(f"{name}={value}" for name, value in dtype.conventions.items())
        names.append(f"{dtype.name} (conforms under {conventions})" if conventions else dtype.name)
    return f"{'gradients in' if remark.gradients else 'in'} {', '.join(names)}"


# --- what a table shows of it -----------------------------------------------------------------------------------------


def list_rules(rows: Sequence[Row]) -> list[str]:
    """In the specification's order; the plain call itself only where it fails."""
    return [
        rule
        for rule in JUDGED
        if any(rule in row.marks and (rule != "CALL" or row.marks[rule] == VIOLATED) for row in rows)
    ]


def columns(rows: Sequence[Row]) -> list[str]:
    """Every level, and after it the rules that have it as a whole, or but for some part."""
    rules = list_rules(rows)
    return [name for level in LEVELS for name in (level, *(rule for rule in rules if least_level(rule) == level))]


def kept_profile(row: Row) -> str:
    """The highest profile that a path keeps; a dash where it keeps none, or not everything was tried.

    It claims to refuse nothing, so what it accepts counts for none.
    """
    if row.broken is None:
        return UNKNOWN
    return "-" if row.untried else highest_profile(set(row.broken)) or "-"


def sign(row: Row, column: str) -> str:
    """For the state of a rule, or of a level as a whole."""
    return UNKNOWN if column in LEVELS and row.broken is None else SIGNS[state_in(row, column)]


def state_in(row: Row, column: str) -> State:
    """The state of a rule, or of a level as a whole."""
    if column not in LEVELS:
        return row.marks.get(column, NOT_ASKED)
    return VIOLATED if column in (row.broken or ()) else CONFORMS


def describe_accepted(row: Row) -> str:
    """Every call that it should refuse and takes, by rule; empty if there is none."""
    return "; ".join(f"{rule} {', '.join(titles)}" for rule, titles in row.accepted.items())


def legend(rows: Sequence[Row]) -> str:
    """What the signs of these rows mean."""
    unknown = [f"{UNKNOWN} the run told no levels"] if any(row.broken is None for row in rows) else []
    return "; ".join([*(f"{SIGNS[state]} {meaning}" for state, meaning in LEGEND.items()), *unknown])


# --- files ------------------------------------------------------------------------------------------------------------


def runs(rows: Iterable[Row]) -> list[Run]:
    """Every run once, the oldest first."""
    found: list[Run] = []
    for row in rows:
        found += [] if row.run in found else [row.run]
    return sorted(found, key=lambda run: run.date)


def renew_rows(old: Iterable[Row], new: Sequence[Row]) -> list[Row]:
    """The new rows, and the old ones of all other peers that there still are, in the order of the table."""
    paths = {row.path for row in new}
    return sorted((*new, *(row for row in old if row.path in PLACES.keys() - paths)), key=place)


def place(row: Row) -> int:
    return PLACES.get(row.path, len(PLACES))


def read(path: Path) -> list[Row]:
    """The rows of a file, in the order of the table. ValueError for a file that is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as a divergence matrix: {error}") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ValueError(f"{path} is no divergence matrix of version {SCHEMA['version']}")
    rows = []
    for run in content["runs"]:
        made = Run(**{name: run[name] for name in Run._fields})
        for row in run["rows"]:
            divergences = tuple(Divergence(**one) for one in row["divergences"])
            rows.append(Row(**row | {"divergences": divergences, "run": made}))
    return sorted(rows, key=place)


def write(rows: Sequence[Row], path: Path) -> None:
    """Write a file, with a line for each row, so that a change can be read."""
    found = [run._asdict() | {"rows": [content(row) for row in rows if row.run == run]} for run in runs(rows)]
    text = json.dumps({"schema": SCHEMA, "runs": found}, ensure_ascii=False, separators=(",", ":"))
    for first in ("date", "path"):
        text = text.replace(f'{{"{first}":', f'\n{{"{first}":')
    path.write_text(text + "\n", encoding="utf-8")


def content(row: Row) -> dict[str, Any]:
    """What only models have is left out of other rows."""
    own = {*Row._field_defaults, *Divergence._field_defaults} if row.operation != MODEL else set[str]()
    divergences = [{name: value for name, value in one._asdict().items() if name not in own} for one in row.divergences]
    found = row._asdict() | {"divergences": divergences}
    return {name: value for name, value in found.items() if name != "run" and name not in own}

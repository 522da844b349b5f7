"""Sentences about ports of models, and their reports as data."""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.cases.case import brief, numpy_dtype
from conformance.checks.findings import Finding, GradientLost, InputChanged, NoAnswer, NotANumber, ProcessEnded, Raised
from conformance.checks.levels import CONTRACT, EVERY_RULE, LEVELS
from conformance.reports.blocks import draw_model
from conformance.reports.causes import describe_beside, describe_condition
from conformance.reports.content import Content, clean_text, number, rule_content
from conformance.reports.sentences import describe_detail, describe_finding
from conformance.subjects.wrong_answers import Detail, DtypeOrShape

if TYPE_CHECKING:
    from conformance.ports.cases import ModelCase
    from conformance.ports.diagnosis import PortCause
    from conformance.ports.gradients import GradientCause
    from conformance.ports.mistakes.mistake import ModelMistake
    from conformance.ports.observation import Observation
    from conformance.ports.report import ModelReport, ModelViolation
    from conformance.ports.subject import Reply


# --- sentences --------------------------------------------------------------------------------------------------------


def describe_build(reply: Reply, config: Mapping[str, Any], entries: Collection[str], tensors: str) -> str:
    """Say why `build` made nothing to call, or its function gave no answers.

    Args:
        reply: says why.
        config, entries: what `build` was given, with which a KeyError may be compared.
        tensors: the framework whose arrays the entries are, where they are none of NumPy's.
    """
    detail = reply.detail
    if isinstance(detail, InputChanged):
        return f"build changed the state dict: {reply.raised_at}"
    what = "build" if reply.where == "build" else "its function"
    if detail is None:
        return f"{what} gave no answer"
    at = f" (at {reply.raised_at})" if reply.raised_at else ""
    hint = f"; with --gradients the state dict has arrays of {tensors}" if tensors else ""
    if isinstance(detail, Raised) and detail.error == "KeyError":
        key = detail.text.strip("'\"")
        near = difflib.get_close_matches(key, entries, 3)
        if key not in config:
            hint += f"; the state dict has {', '.join(near)}" if near else f"; the config has {', '.join(config)}"
    if isinstance(detail, ProcessEnded):  # which says so itself, and not where
        return f"{describe_detail(detail)}, in build or its function"
    return f"{what} {describe_detail(detail)}{at}{hint}"


def describe_observation(one: Observation) -> str:
    """Say what is wrong with an answer that holds no numbers to compare."""
    detail = one.detail
    assert detail is not None
    at = f" (at {one.answer.raised_at})" if one.answer.raised_at else ""
    what = describe_part(detail)
    beside = "" if one.case.probe == "plain" else f", in the case: {one.case.probe}"
    told = f"{what}{describe_detail(detail)}{describe_nan_place(one)}{at}{beside}"
    if isinstance(detail, NotANumber):
        told += "; a row whose keys are all masked by -inf is NaN: mask by -1e9, and the numbers show what is wrong"
    if isinstance(detail, DtypeOrShape) and detail.shape[:-1] == detail.due[:-1]:
        told += "; hidden states in the place of logits" if looks_hidden(one, detail) else ""
    return told


def describe_nan_place(one: Observation) -> str:
    """Say where the first NaN is that counts; empty where none is."""
    if not isinstance(one.detail, NotANumber):
        return ""
    counted = np.isnan(np.asarray(one.answer.result).astype(float))
    if one.case.counted is not None:
        counted &= one.case.counted[..., None]
    return f" at {np.argwhere(counted)[0].tolist()}"


def describe_part(detail: Detail) -> str:
    """Name what a detail is about."""
    if isinstance(detail, ProcessEnded):  # which says so itself
        return ""
    return (
        "its function "
        if isinstance(detail, NoAnswer)
        else "an input "
        if isinstance(detail, InputChanged)
        else ("the result ")
    )


def looks_hidden(one: Observation, detail: DtypeOrShape) -> bool:
    places: Any = one.case.checkpoint.places
    decoder = getattr(places, "decoder", None)
    return decoder is not None and detail.shape[-1:] == np.shape(decoder.embedding.tokens)[1:]


def describe_refusal(one: Observation, changed: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    """Say that a port cannot build a config, and how to declare that it need not."""
    options = ", ".join(f"{key}={value!r}" for key, value in changed.items())
    fixed = [key for key in changed if key in first]
    if "rope_scaling" in fixed:  # which the other entries of the rotation follow, as far as they must
        fixed = [key for key in fixed if key not in ("rope_parameters", "rope_theta")]
    declared = [format_setting(key, first[key]) for key in fixed]
    # Which of them stops the port is not known; to fix all of them would hide mistakes, such as an eps of its own.
    which = "this" if len(declared) == 1 else "one of these, fix that alone"
    some = ", or --scalings with those that it has" if "rope_scaling" in fixed else ""
    advice = f"; if it is not meant to support {which}: {' '.join(declared)}{some}" if declared else ""
    detail = one.answer.detail
    told = describe_detail(detail) if detail is not None else "gives no answer"
    return f"with {options} it {told}{advice}"


def describe_limits(
    settings: Mapping[str, Any], scalings: Collection[str] | None, checkpoint: str | Path | None
) -> list[str]:
    """Say what the options of a check leave out."""
    limits = []
    if checkpoint is not None:
        limits.append(f"all models have the options of {checkpoint}")
    if settings:
        limits.append(f"all models have {', '.join(f'{key}={value!r}' for key, value in settings.items())}")
    if scalings is not None:
        supported = f" except {' and '.join(scalings)}" if scalings else ""
        limits.append(f"no scalings of rotary frequencies are tried{supported}")
    return limits


def format_setting(key: str, value: Any) -> str:
    """Write the option that fixes an entry of the config, so that a shell passes it whole."""
    return f"--set {shlex.quote(f'{key}={value if isinstance(value, str) else json.dumps(value)}')}"


RANDOM = (
    "build makes another model of the same state dict each time: entries of it are not loaded, and stay random; its "
    "results do not depend on them"
)
NOT_ANEW = (
    "step gives other results for the same tokens when it is given them again without a cache: what it keeps from call "
    "to call does not begin anew"
)
NO_GRADIENT = (
    "no gradient reaches any entry of the state dict: build copies it, as load_state_dict, .detach() and NumPy do, or "
    "the function runs without gradients; call the module by torch.func.functional_call with the entries, or give the "
    "function an attribute vjp"
)
GRADIENT_MISTAKES = {
    "gradient.detached": "no gradient reaches {paths}",
    "gradient.rows-missing": "no gradient reaches some rows of {paths}",
    "gradient.part-missing": "the gradient of an entry that is read twice lacks what comes from {paths}",
}
MOST_ENTRIES = 4


def describe_gradients(shown: Finding, cause: GradientCause | None, wrong: int, count: int) -> str:
    """Say which gradients are wrong, first where they begin to be.

    Args:
        shown: the worst of the first wrong ones, or what stands in the place of all.
        cause: what is known of wrong ones.
        wrong, count: how many entries have a wrong gradient, of how many.
    """
    if isinstance(shown.detail, GradientLost):
        return NO_GRADIENT
    if shown.detail is not None and shown.name == "gradients":
        return f"there are no gradients: {describe_detail(shown.detail)}"
    if cause is None:
        return f"{wrong} of {count} gradients are wrong: {describe_finding(shown)}"
    named = GRADIENT_MISTAKES.get(cause.mistake, "").format(paths=" and ".join(cause.paths))
    first = join_names(cause.entries, MOST_ENTRIES)
    told = f"{wrong} of {count} gradients are wrong, on the way back first {first}, or what is next to read its result"
    return f"{named}{'; ' * bool(named)}{told}; {describe_finding(shown)}"


def join_names(names: Sequence[str], most: int) -> str:
    """List the first names, and say how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def describe_case(case: ModelCase) -> str:
    """Write the call of a case, and what is particular to its config."""
    given = [array.astype(numpy_dtype(case.dtype)) if array.dtype.kind == "f" else array for array in case.call.inputs]
    inputs = [brief(array) for array in given]
    options = [f"{name}={brief(array)}" for name, array in case.call.options.items()]
    cached = f" by step, in parts of {', '.join(map(str, case.call.chunks))}" if case.call.chunks else ""
    config = case.checkpoint.config | {"dtype": case.dtype}
    return f"build({{{format_config(config)}}}, ...)({', '.join([*inputs, *options])}){cached}"


def describe_request(config: Mapping[str, Any], entries: Mapping[str, np.ndarray]) -> str:
    """Write what `build` is given: the config, and the entries of the state dict by their shapes."""
    shapes = ", ".join(f"{name} {[*array.shape]}" for name, array in entries.items())
    return f"build({{{format_config(config)}}}, {{{shapes}}})"


def format_config(config: Mapping[str, Any]) -> str:
    shown = {key: value for key, value in config.items() if key not in ("architectures", "model_type")}
    return ", ".join(f"{key}={value!r}" for key, value in shown.items())


def describe_mistake(mistake: ModelMistake) -> str:
    return f"{mistake.says}{describe_scope(mistake.scope)}"


def describe_scope(scope: Sequence[str]) -> str:
    """Say where a mistake is made, such as " in blocks 0, 1"; nothing for everywhere."""
    if not scope:
        return ""
    if len(scope) > 1:
        places = [part.rstrip(".").rpartition("blocks.")[2].partition(".") for part in scope]
        # A scope of several names has the same parts of each block, or whole blocks.
        blocks, parts = (list(dict.fromkeys(place[index] for place in places)) for index in (0, 2))
        of = f"the {' and '.join(parts)} of " if parts[0] else ""
        return f", in {of}blocks {', '.join(blocks)}"
    return f", in {scope[0].rstrip('.')}"


def describe_cause(cause: PortCause) -> str:
    """Say what is wrong, where, how much it explains, and what else it could be."""
    where = f" (first wrong in {cause.step})" if cause.step else ""
    if not cause.mistakes:
        shown = cause.observations[0].finding
        narrow = f"; errors are roundings to 16 bits, as large as those of arithmetic in {' or '.join(cause.narrow)}"
        told = f"no known mistake explains it{where}{narrow * bool(cause.narrow)}"
        return f"{told}; {describe_finding(shown)}"
    told = "; and ".join(map(describe_mistake, cause.mistakes))
    rivals = [describe_mistake(one) for one in cause.alternatives[:2]]
    other = f"; or {'; or '.join(rivals)}" if rivals else ""
    against = f", {cause.against} speak against it" if cause.against else ""
    beside = f", and {describe_beside(len(cause.beside))}" if cause.beside else ""
    explained = f"explains {len(cause.observations)} of {cause.failing} failing cases"
    return f"{told}{other}{where}; {explained}{against}{beside}"


def describe_verdict(report: ModelReport) -> str:
    count = len(report.violations)
    verdict = "conforms" if report.conforms else f"is wrong in {count} way{'s' * (count != 1)}"
    return f"{report.target.title} {verdict} as {report.dialect}; {report.cases} cases, seed {report.seed}"


def describe_violation(violation: ModelViolation) -> str:
    when = describe_condition(condition_content(violation))
    told = f"{violation.rule}{' in ' * bool(violation.step)}{violation.step}: {violation.message}"
    return told if when is None else f"{told}; {when}"


def describe_report(report: ModelReport) -> str:
    lines = [describe_verdict(report), *map(describe_violation, report.violations), *draw_model(model_content(report))]
    return "\n".join(lines)


# --- data -------------------------------------------------------------------------------------------------------------


def model_content(report: ModelReport) -> Content:
    """Return the report's part about a port, as `subject_content` does for a function."""
    broken = {violation.rule: violation.level for violation in report.violations}
    listed = [rule for rule in EVERY_RULE if rule in {*report.rules, *broken}]
    violations = [violation_content(one, place) for place, one in enumerate(report.violations)]
    causes = [cause_content(one, content) for one, content in zip(report.violations, violations, strict=True)]
    target = report.target
    return {
        "name": clean_text(target.title),
        "peer": False,
        "target": target.subject if isinstance(target.subject, str) else None,
        "operations": ["model"],
        "arrays": target.arrays,
        "arrays_guessed": clean_text(target.guessed) or None,
        "source": None,
        "device": target.device,
        "declaration": None,
        "profile": report.profile,
        "conforms": report.conforms,
        "kept": "strict" if report.conforms else None,
        "levels": {level: [rule for rule in listed if broken.get(rule) == level] for level in LEVELS},
        "untried": None,
        "left_out": clean_text(report.left_out) or None,
        "never_given": [],
        "seconds": round(report.seconds, 3),
        "rules": [rule_content(rule, report.rules.get(rule), broken.get(rule)) for rule in listed],
        "violations": violations,
        "causes": causes,
        "model": {
            "dialect": report.dialect,
            "dtypes": list(report.dtypes),
            "sublayers": [{"name": one.name, "ratio": number(one.ratio)} for one in report.sublayers],
        },
    }


STATEMENTS = {
    CONTRACT.id: "build takes a config and a state dict, and its function returns an array of the model's dtype and "
    "shape for every call.",
    "NORM-1": "Norms are those of the model's kind, with the eps that the config names.",
    "ATT-12": "The gradients of all entries of the state dict are those of the definition.",
}
"""What rules say of a port of a model, where they speak of one operation elsewhere."""


def violation_content(violation: ModelViolation, cause: int) -> Content:
    rule, finding = EVERY_RULE[violation.rule], violation.finding
    is_value = finding.kind == "value" and bool(finding.index)
    dtype = violation.cause.observations[0].case.dtype if violation.cause is not None else None
    return {
        "rule": rule.id,
        "title": rule.title,
        "statement": STATEMENTS.get(rule.id, rule.statement),
        "level": violation.level,
        "probe": violation.probe,
        "kind": finding.kind,
        "message": clean_text(violation.message),
        "ratio": number(finding.ratio),
        "result": clean_text(finding.name),
        "dtype": dtype if is_value else None,
        "index": list(finding.index) if is_value else None,
        **{name: number(getattr(finding, name)) if is_value else None for name in ("got", "expected", "bound")},
        "ulp": None,
        "raised_at": clean_text(finding.raised_at) or None,
        "case": clean_text(violation.case) or None,
        "worst": [],
        "threshold": None,
        "thresholds": [],
        "replay": None,
        "replay_file": None,
        "replay_command": None,
        "called_with": None,
        "cause": cause,
        "step": violation.step or None,
    }


def cause_content(violation: ModelViolation, content: Content) -> Content:
    """Return the cause of a violation."""
    cause, mistake = violation.cause, None
    if cause is not None and cause.mistakes:
        every = [mistake_content(one) for one in cause.mistakes]
        mistake = every[0] | {"says": "; and ".join(one["says"] for one in every)}
        mistake |= {
            "explained": len(cause.observations),
            "failing": cause.failing,
            "passing": cause.passing - cause.against,
            "against": cause.against,
            "beside": len(cause.beside),
        }
        mistake["alternatives"] = [mistake_content(one) for one in cause.alternatives]
    numbers = violation.finding.kind == "value"
    return {
        "kind": "mistake" if mistake else "numbers" if numbers and violation.rule != CONTRACT.id else "error",
        "level": violation.level,
        "rules": [violation.rule],
        "mistake": mistake,
        "condition": condition_content(violation),
        "pattern": None,
        "conventions": {},
        "lacks": [],
        "limits": {},
        "layout": False,
        "violation": content,
    }


def condition_content(violation: ModelViolation) -> Content | None:
    """Return the entries of configs in which alone a cause shows."""
    settings = () if violation.cause is None else violation.cause.settings[:MOST_ENTRIES]
    return {"settings": [f"{key}={value!r}" for key, value in settings]} if settings else None


def mistake_content(mistake: ModelMistake) -> Content:
    return {"id": mistake.id, "rule": mistake.rule, "says": describe_mistake(mistake), "parameters": {}}

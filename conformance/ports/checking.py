"""`check` for ports: one port, one dialect, every kind of case."""

from __future__ import annotations

import difflib
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from conformance.checks.findings import Finding, GradientLost, NotANumber
from conformance.checks.levels import CONTRACT, CORE, STATE_RULE, STRICT
from conformance.checks.results import Cell
from conformance.ports.cases import (
    Calls,
    ModelCase,
    list_isolated,
    list_sublayers,
    sharpen_attention,
    shrink_stream,
)
from conformance.ports.checkpoints import Checkpoint, Config, draw_checkpoint
from conformance.ports.configs import derive_entries, drop_scalings, list_configs, settle_rotary
from conformance.ports.diagnosis import PortCause, explain_empty_rows, find_causes, has_wrong_output_layer, shorten
from conformance.ports.folder import read_folder, shrink_config
from conformance.ports.gradients import FUNCTIONS, compare_gradients, make_gradient_case
from conformance.ports.observation import TWICE, Observation
from conformance.ports.report import ModelReport, ModelViolation, SublayerError
from conformance.ports.subject import TIME_LIMIT, Answer, Call, PortRunner, Reply, Request, Traits
from conformance.reports.ports import (
    NOT_ANEW,
    RANDOM,
    describe_build,
    describe_case,
    describe_cause,
    describe_gradients,
    describe_limits,
    describe_observation,
    describe_refusal,
    describe_request,
)
from conformance.reports.versions import versions
from conformance.subjects.callables import Target
from specification.dialects import DIALECTS
from specification.loading.config_file import with_defaults

ROUNDS = {"quick": 1, "default": 1, "thorough": 8}
"""Checkpoints that are drawn for each config; quick has the first two configs alone."""
Progress = Callable[[str, str], None]


def check_port(
    target: Target,
    dialect: str,
    *,
    effort: str = "default",
    seed: int | None = None,
    dtypes: Sequence[str] = ("float32",),
    settings: Mapping[str, Any] | None = None,
    scalings: Collection[str] | None = None,
    checkpoint: str | Path | None = None,
    gradients: bool = False,
    time_limit: float = TIME_LIMIT,
    isolate: bool | None = None,
    profile: str = "robust",
    progress: Progress = lambda rule, title: None,
) -> ModelReport:
    """Judge a port of a dialect.

    Args:
        target: the port, a function build(config, state_dict).
        dialect: of its models.
        effort, seed, dtypes, time_limit, isolate, profile: as for `conformance.check`.
        settings: entries of the config that always have this value.
        scalings: of rotary frequencies, those that the port supports; None for all.
        checkpoint: a folder of Hugging Face's, on which the port is judged too; small configs have its options.
        gradients: whether `build` is given arrays of the framework, which differentiates through it.
        progress: is called with rule and title of each case.

    Raises:
        ValueError: the port cannot be loaded, or an option is wrong.
    """
    seed = secrets.randbelow(2**32) if seed is None else seed
    settings = settings or {}
    start = time.monotonic()
    runner = PortRunner(target, time_limit, isolate, gradients)
    try:
        check = PortCheck(runner, dialect, seed, tuple(dtypes), progress)
        configs = list_small_configs(dialect, effort, settings, checkpoint, scalings)
        check.judge(configs, ROUNDS[effort], checkpoint)
    finally:
        runner.close()
    return ModelReport(
        runner.target, dialect, effort, seed, tuple(dtypes), check.rules(), check.violations, check.sublayers,
        sum(one.failed for one in check.observations),
        "; ".join(dict.fromkeys([*describe_limits(settings, scalings, checkpoint), *check.left_out])),
        time.monotonic() - start, versions(), profile,
    )  # fmt: skip


def list_small_configs(
    dialect: str,
    effort: str,
    settings: Mapping[str, Any],
    checkpoint: str | Path | None = None,
    scalings: Collection[str] | None = None,
) -> list[Config]:
    """Return the configs of which checkpoints are drawn; with a folder, one that has its options.

    A config that the settings make impossible, such as 8 heads with 3 heads of keys, is left out where others remain.

    Raises:
        ValueError: an entry is set that no config of the dialect has, no config has a model with the settings, or
            scalings are declared where none is tried.
    """
    small = [shrink_config(dialect, checkpoint)] if checkpoint is not None else list_configs(dialect)
    record = DIALECTS[dialect]
    known = {key for config in (*small, *list_configs(dialect)) for key in config}
    known |= {*record.described.hyperparameters, *record.example_sizes} if record.config is None else set()
    for key in settings:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"set: no config of {dialect} has the entry {key}{hint}")
    if scalings is not None:
        if checkpoint is not None:
            raise ValueError("scalings: the checkpoint has one rotation, which alone is tried")
        if all(drop_scalings(config, ()) == config for config in small):
            raise ValueError(f"scalings: no config of {dialect} that is tried has one")
        small = [drop_scalings(config, scalings) for config in small]
    derived = derive_entries(settings)
    with_derived = [config | {key: value for key, value in derived.items() if key in config} for config in small]
    configs = [settle_nulls(dialect, config | dict(settings), settings) for config in with_derived]
    configs = [settle_rotary(config, settings) for config in configs]
    if settings:
        misfits = [explain_misfit(dialect, config) for config in configs]
        if all(misfits):
            raise ValueError(f"set: {misfits[0]}")
        configs = [config for config, misfit in zip(configs, misfits, strict=True) if not misfit]
    distinct = [config for number, config in enumerate(configs) if config not in configs[:number]]
    return distinct[:2] if effort == "quick" else distinct


def settle_nulls(dialect: str, config: Config, settings: Mapping[str, Any]) -> Config:
    """Return the config with the default of the dialect where null is set, and no model has it or it is no switch."""
    record = DIALECTS[dialect].config
    defaults = {} if record is None else record.defaults.get(config["model_type"], {})
    for key, value in settings.items():
        default = defaults.get(key)
        if value is None and (isinstance(default, bool) or explain_misfit(dialect, config)) and default is not None:
            config = config | {key: default}
    return config


def explain_misfit(dialect: str, config: Config) -> str:
    """Say why no model has a config; nothing where one has."""
    try:
        draw_checkpoint(dialect, config, np.random.default_rng(0))
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


class PortCheck:
    """One check: what was asked, and what is wrong."""

    def __init__(
        self, runner: PortRunner, dialect: str, seed: int, dtypes: tuple[str, ...], progress: Progress
    ) -> None:
        self.runner, self.dialect, self.seed, self.dtypes, self.progress = runner, dialect, seed, dtypes, progress
        self.observations: list[Observation] = []
        self.violations: list[ModelViolation] = []
        self.sublayers: list[SublayerError] = []
        self.left_out: list[str] = []
        self.plain: list[tuple[ModelCase, np.random.Generator]] = []
        """For each checkpoint that the port can build: its first case, and what draws for it."""
        self.contract, self.gradients = Cell(), Cell()

    def rules(self) -> dict[str, Cell]:
        found: dict[str, Cell] = defaultdict(Cell)
        found[CONTRACT.id] = self.contract
        if self.gradients.cases:
            found["ATT-12"] = self.gradients
        causes = [violation.cause for violation in self.violations if violation.cause is not None]
        shown = {id(one): cause.rule for cause in causes for one in (*cause.observations, *cause.beside)}
        for one in self.observations:  # what a cause explains breaks the cause's rule
            is_refused = one.detail is not None and not isinstance(one.detail, NotANumber)
            rule = CONTRACT.id if is_refused else shown.get(id(one), one.case.rule)
            found[rule].add(one.finding.ratio, one.case.dtype)
        for violation in self.violations:  # a cause may show in sublayers alone, about which the port was asked later
            if violation.cause is not None and not found[violation.rule].cases:
                found[violation.rule].add(violation.finding.ratio, violation.cause.observations[0].case.dtype)
        return dict(found)

    # --- asking ---

    def ask(self, cases: Sequence[ModelCase]) -> list[Observation]:
        """Ask the port; cases of one checkpoint and dtype, which follow one another, build its function once."""
        found: list[Observation] = []
        for group in group_cases(cases):
            first = group[0]
            request = make_request(first.checkpoint, tuple(case.call for case in group), first.dtype)
            reply = self.runner.ask(request)
            # Where there is none, the reply says why: of every call.
            answers = reply.answers or (Answer(detail=reply.detail, raised_at=reply.raised_at),) * len(group)
            found += [Observation(case, answer) for case, answer in zip(group, answers, strict=True)]
        return found

    def judge(self, configs: Sequence[Config], rounds: int, folder: str | Path | None) -> None:
        """Ask about all configs, find causes, and keep the violations."""
        traits = self.read_traits(configs[0])
        if traits is None:
            return
        for dtype, (number, config) in product(self.dtypes, enumerate(configs)):
            for round_number in range(rounds):
                if not self.judge_config(config, configs[0], number, round_number, dtype, traits):
                    break
            if not any(one.has_numbers for one in self.observations):
                break  # what holds no numbers in the first config has one reason, and others take as long to see it
        if folder is not None:
            self.judge_folder(folder, traits)
        self.explain()
        if traits.vjp or self.runner.gradients:
            self.judge_gradients(traits)

    def draw(self, config: Config, *numbers: int) -> tuple[Checkpoint, np.random.Generator]:
        generator = np.random.default_rng([self.seed, *numbers])
        return draw_checkpoint(self.dialect, config, generator), generator

    def read_traits(self, config: Config) -> Traits | None:
        """Build the first function, and see what it takes; None where there is nothing to judge."""
        checkpoint, _ = self.draw(config, 0, 0)
        self.contract.add(0.0, "float32")
        request = make_request(checkpoint, (), self.dtypes[0])
        traits = self.runner.traits(request)
        if isinstance(traits, Reply):
            self.refuse(traits, request)
            return None
        inputs = len(Calls(checkpoint, (), np.random.default_rng(0)).draw_inputs(1, 1, 1))
        surplus = traits.required[inputs:]
        if surplus:
            message = f"its function needs {', '.join(surplus)}, which a model of {self.dialect} is not called with"
            self.violations.append(ModelViolation(CONTRACT.id, "", (), message, Finding("call", np.inf)))
            return None
        calls = Calls(checkpoint, traits.parameters, np.random.default_rng(0))
        for name in OPTIONS:
            if not calls.accepts(name) and calls.could_take(name):
                self.left_out.append(f"{name} is not judged: the function takes none")
        return traits

    def judge_config(
        self, config: Config, first: Config, number: int, round_number: int, dtype: str, traits: Traits
    ) -> bool:
        """Ask about checkpoints of a config; return whether the port can build them."""
        checkpoint, generator = self.draw(config, number, round_number)
        checkpoint = checkpoint.round(dtype) if dtype != "float64" else checkpoint
        calls = Calls(checkpoint, traits.parameters, generator)
        cases = [replace(case, dtype=dtype) for case in calls.list_cases(traits.step)]
        plain = cases[0]
        if traits.step and not any(case.call.chunks for case in cases):
            self.left_out.append("step is not judged: only a decoder alone is called step by step")
        cases += [
            replace(plain, probe=probe, rule=rule, checkpoint=change(checkpoint).round(dtype))
            for probe, rule, change in CHECKPOINTS
        ]
        if number == 0 and round_number == 0:
            cases += list_isolated(checkpoint, plain)
        found: list[Observation] = []
        for group in group_cases(cases):
            for case in group:
                self.progress(case.rule, case.probe)
            found += self.ask(group)
            if not any(one.has_numbers for one in found):
                break
        refused = found[0].answer if found[0].answer.result is None and number > 0 else None
        # The same error in every call, though its text may name the call's sizes.
        if refused is not None and all(
            one.answer.raised_at == refused.raised_at and one.answer.result is None for one in found
        ):
            usual = meant_config(self.dialect, first)
            changed = {
                key: value for key, value in meant_config(self.dialect, config).items() if usual.get(key) != value
            }
            self.add_violation(CONTRACT.id, describe_refusal(found[0], changed, usual), found[0])
            return False
        self.observations += found
        self.plain.append((plain, generator))
        return True

    def judge_gradients(self, traits: Traits) -> None:
        """Ask for gradients in all configs until one is wrong, which is a violation."""
        if any(one.failed for one in self.observations):
            self.left_out.append("gradients are not judged until the forward pass is right, of which they are")
            return
        for plain, generator in self.plain:
            if type(plain.checkpoint.places) not in FUNCTIONS:
                self.left_out.append("gradients are not judged: the definition has none of a single attention")
                return
            case = make_gradient_case(plain, generator)
            (observation,) = self.ask([case])
            findings, cause = compare_gradients(case, observation.answer)
            worst = max(findings, key=lambda finding: finding.ratio)
            if worst.ratio <= 1:
                self.gradients.add(worst.ratio, case.dtype)
                continue
            wrong = sum(not finding.ratio <= 1 for finding in findings)
            fields: dict[str, Any] = {"step": "", "diagnosis": (), "finding": worst}
            if cause is not None:
                diagnosis = (cause.mistake,) * bool(cause.mistake)
                fields = {"step": cause.step, "diagnosis": diagnosis, "finding": cause.shown}
            # What no gradient reaches has no wrong ones: the port is not built as it must be for this.
            lost = isinstance(worst.detail, GradientLost)
            if not lost:
                self.gradients.add(worst.ratio, case.dtype)
            message = describe_gradients(fields["finding"], cause, wrong, len(findings))
            rule, described = CONTRACT.id if lost else case.rule, describe_case(case)
            self.violations.append(ModelViolation(rule, message=message, probe=case.probe, case=described, **fields))
            return

    def judge_folder(self, folder: str | Path, traits: Traits) -> None:
        """Ask about a real checkpoint, whole and sublayer by sublayer."""
        checkpoint = read_folder(self.dialect, folder)
        generator = np.random.default_rng([self.seed, 1])
        calls = Calls(checkpoint, traits.parameters, generator)
        cases = [replace(case, probe=f"{case.probe}, {Path(folder).name}") for case in calls.list_real_cases()]
        self.observations += self.ask(cases)

    # --- explaining ---

    def explain(self) -> None:
        """Keep a violation for everything that is wrong: what gives no numbers first, then those with a known cause."""
        empty = explain_empty_rows(self.observations)
        known = [] if empty is None else empty.observations
        others = distinct_details(one for one in self.observations if one not in known)
        for one in others:
            if not isinstance(one.detail, NotANumber):
                self.add_violation(CONTRACT.id, describe_observation(one), one)
        if empty is not None:
            self.add_cause(empty)
        for one in others:
            if isinstance(one.detail, NotANumber):
                self.add_violation(CONTRACT.id, describe_observation(one), one, step=self.find_nan(one))
        wrong = [one for one in self.observations if one.failed and one.has_numbers]
        unsteady = [one for one in self.observations if not one.is_steady]
        if unsteady:
            message = f"two equal calls give different results{', as dropout does' * bool(wrong)}"
            fields: Any = {"level": CORE, "diagnosis": ("dropout.left-on",)} if wrong else {"level": STRICT}
            self.add_violation(STATE_RULE, message, unsteady[0], step=self.find_unsteady(unsteady[0]), **fields)
        elif wrong and self.ignores_state_dict():
            self.add_violation(CONTRACT.id, "its results do not depend on the state dict", wrong[0])
        elif wrong and self.is_random(wrong[0]):
            kept = wrong[0].case.call.chunks and not any(one.failed for one in wrong if not one.case.call.chunks)
            message, step = (NOT_ANEW, "") if kept else (RANDOM, self.find_random(wrong[0]))
            self.add_violation(CONTRACT.id, message, wrong[0], step=step)
        elif wrong:
            self.explain_numbers()

    def explain_numbers(self) -> None:
        causes, isolated = find_causes(self.observations, self.ask)
        ratios: dict[str, float] = {}
        for one in isolated:
            name = shorten(one.case.sublayer or "", one.case)
            ratios[name] = max(ratios.get(name, 0.0), one.finding.ratio)
        if isolated:
            case = isolated[0].case
            names = [shorten(name, case) for name in ("", *list_sublayers(case.checkpoint))]
            self.sublayers = [SublayerError(name, ratios[name]) for name in names if name in ratios]
        parts = sum(one.failed and bool(one.case.call.chunks) for one in self.observations)
        if parts and not any(one.case.call.chunks for cause in causes for one in cause.observations):
            self.left_out.append(f"step fails in {parts} cases, which are not explained until the whole pass is right")
        for cause in causes:
            self.add_cause(cause)

    def add_cause(self, cause: PortCause) -> None:
        ids = tuple(one.id for one in cause.mistakes) or (
            ("precision." + "-or-".join(cause.narrow),) * bool(cause.narrow)
        )
        message, fields = describe_cause(cause), {"step": cause.step, "diagnosis": ids, "cause": cause}
        self.add_violation(cause.rule, message, cause.observations[0], **fields)

    def find_nan(self, shown: Observation) -> str:
        """Return the first sublayer that alone gives NaN; empty where the model without sublayers gives it too."""
        alone = self.ask([*list_isolated(shown.case.checkpoint, shown.case)])
        wrong = [one.case for one in alone if isinstance(one.detail, NotANumber)]
        return shorten(wrong[0].sublayer or "", wrong[0]) if wrong else ""

    def find_unsteady(self, shown: Observation) -> str:
        """Return the first sublayer that alone gives other results for the same call."""
        case = replace(shown.case, call=replace(shown.case.call, twice=True))
        alone = self.ask([*list_isolated(case.checkpoint, case)])
        return next((shorten(one.case.sublayer or "embedding", one.case) for one in alone if not one.is_steady), "")

    def add_violation(self, rule: str, message: str, shown: Observation, **fields: Any) -> None:
        fields = {"step": "", "diagnosis": ()} | fields
        case = describe_case(shown.case)
        self.violations.append(
            ModelViolation(rule, message=message, finding=shown.finding, probe=shown.case.probe, case=case, **fields)
        )

    def ignores_state_dict(self) -> bool:
        """Whether two checkpoints give the same bits for the same call."""
        results: dict[int, list[np.ndarray]] = defaultdict(list)
        for one in self.observations:
            if one.has_numbers and one.answer.result is not None:
                results[id(one.case.call)].append(one.answer.result)
        several = [found for found in results.values() if len(found) > 1]
        return bool(several) and all(np.array_equal(found[0], other) for found in several for other in found[1:])

    def is_random(self, shown: Observation) -> bool:
        """Whether `build` makes another function of the same state dict, as where random weights stay as they are."""
        again = self.ask([shown.case])[0]
        return again.has_numbers and again.distance(np.asarray(shown.answer.result).astype(float)) > TWICE

    def find_random(self, shown: Observation) -> str:
        """Return the first sublayer that alone gives other results when the port is built anew."""
        for case in list_isolated(shown.case.checkpoint, shown.case):
            (one,) = self.ask([case])
            if one.has_numbers and self.is_random(one):
                around = "output" if has_wrong_output_layer(one) else "embedding or norm"
                return shorten(case.sublayer or around, case)
        return ""

    def refuse(self, reply: Reply, request: Request) -> None:
        finding = Finding("build", np.inf, detail=reply.detail, raised_at=reply.raised_at)
        tensors = str(self.runner.target.arrays) if self.runner.gradients else ""
        message = describe_build(reply, request.config, request.state_dict, tensors)
        case = describe_request(request.config, request.state_dict)
        self.violations.append(ModelViolation(CONTRACT.id, "", (), message, finding, case=case))


OPTIONS = ("key_padding", "token_types", "source_key_padding", "target_key_padding")
CHECKPOINTS = (
    ("little in the residual stream", "NORM-1", shrink_stream),
    ("attention to few keys", "ATT-5", sharpen_attention),
)
"""Checkpoints that are made of a drawn one: what they are, the rule that they speak of, and how they are made."""


def meant_config(dialect: str, config: Config) -> Config:
    """Return a config with what is meant where it does not say."""
    record = DIALECTS[dialect].config
    return dict(config) if record is None else with_defaults(record, config)


def make_request(checkpoint: Checkpoint, calls: tuple[Call, ...], dtype: str) -> Request:
    config = checkpoint.config | {"dtype": dtype}
    wide = "float64" if dtype == "float64" else "float32"  # NumPy has no bfloat16, and the numbers are the same
    return Request(config, checkpoint.state_dict(wide), calls, dtype)


def group_cases(cases: Iterable[ModelCase]) -> Iterator[list[ModelCase]]:
    group: list[ModelCase] = []
    for case in cases:
        if group and (case.checkpoint is not group[0].checkpoint or case.dtype != group[0].dtype):
            yield group
            group = []
        group.append(case)
    if group:
        yield group


def distinct_details(observations: Iterable[Observation]) -> list[Observation]:
    """The first of the observations with each kind of answer that is no number."""
    found: dict[Any, Observation] = {}
    for one in observations:
        if one.detail is not None:
            key = (one.detail.kind, one.answer.raised_at)
            found.setdefault(key, one)
    return [*found.values()]

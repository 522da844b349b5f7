"""Conformance as ordinary tests, one for each question that the judge asks.

From the command line, for any target:

    pytest --conformance path/to/file.py:my_attention --conformance-operation attention

In a test file of one's own:

    from conformance.pytest_plugin import conformance_test

    test_my_attention = conformance_test(my_attention, "attention", arrays="torch")

Every pytest where the project is installed loads this module. It loads the judge only when it is needed, and never
NumPy before that.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack, overload

import pytest

from conformance.cases.options import document_options, options_of
from conformance.judge.options import CheckOptions, ModelCheckOptions, list_options

if TYPE_CHECKING:
    from conformance.judge.executor import Executor
    from conformance.judge.plan import Question

BEYOND = "conformance: beyond the profile"
"""The property of a test that passes though it found a violation, for which the profile does not ask."""
NOTE = "conformance: note"
"""The property of a test that says which of the function's parameters no case gives, and which arrays were guessed."""
SEED = 0
"""Of a test in a test file: it draws the same cases every time, unless another seed is given."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "judging an implementation of a Transformer's operations")
    group.addoption("--conformance", metavar="TARGET", help="package.module:callable or path/to/file.py:callable")
    group.addoption(
        "--conformance-operation", metavar="OPERATION", help="what it computes; by default what its name says"
    )
    for name, option in list_options().items():
        actions = ["store_true", "store_false"] if option.switch else ["append" if option.many else "store"]
        named: dict[str, Any] = {"dest": f"conformance_{name}", "default": None, "help": option.help}
        named |= {} if option.switch else {"metavar": name.upper()}
        for spelling, action in zip(option.spellings(name), actions, strict=True):
            group.addoption(f"--conformance-{spelling}", action=action, **named)


def pytest_configure(config: pytest.Config) -> None:
    if config.option.conformance is None:
        return
    if config.option.conformance_operation is None:
        from conformance.subjects.callables import name_operation

        config.option.conformance_operation = name_operation(config.option.conformance)
    if not config.option.conformance_operation:
        raise pytest.UsageError("--conformance needs --conformance-operation: the function's name says none")
    if config.option.conformance_seed is None:
        config.option.conformance_seed = secrets.randbelow(2**32)  # one for all processes of a distributed run
    if config.args_source is not config.ArgsSource.ARGS:
        config.args = []  # only the target, unless tests are named too


def pytest_report_header(config: pytest.Config) -> str | None:
    if config.option.conformance is None:
        return None
    from conformance.judge.report import NO_ORACLE
    from conformance.oracle.reference import balls_available

    told = f"conformance: {config.option.conformance}, seed {config.option.conformance_seed}"
    return told if balls_available() else f"{told}; {NO_ORACLE}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print notes, and what was found beyond the profile, once, from wherever the tests ran."""
    reports = [report for several in terminalreporter.stats.values() for report in several]
    properties = [p for report in reports for p in getattr(report, "user_properties", ())]
    for kind in (NOTE, BEYOND):
        for line in dict.fromkeys(told for name, told in properties if name == kind):
            terminalreporter.write_line(f"conformance: {line}", yellow=True)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """The session collects one thing more."""
    report: Any = yield
    if isinstance(collector, pytest.Session) and collector.config.option.conformance is not None and report.passed:
        name = f"conformance[{collector.config.option.conformance}]"
        report.result = [*report.result, TargetCollector.from_parent(collector, name=name, nodeid=name)]
    return report


class TargetCollector(pytest.Collector):
    """A target of the command line."""

    def collect(self) -> Iterator[pytest.Item]:
        option = self.config.option
        if option.conformance_operation == "model":
            known = {name: getattr(option, f"conformance_{name}") for name in options_of(ModelCheckOptions)}
            yield ModelItem.from_parent(self, name=f"model {option.conformance_dialect}", given=known)
            return
        given = {name: getattr(option, f"conformance_{name}") for name in options_of(CheckOptions)}
        try:
            judge = make_judge(option.conformance, option.conformance_operation, None, given)
            self.config.add_cleanup(judge.executor.close)
            questions = questions_of(judge.executor)
        except (ValueError, ImportError, RuntimeError) as error:
            raise self.CollectError(f"not judged: {error}") from error
        for question in questions:
            yield QuestionItem.from_parent(self, name=str(question), judge=judge, question=question)


class QuestionItem(pytest.Item):
    """One question to the target."""

    def __init__(self, *, judge: Judge, question: Question, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.judge, self.question = judge, question

    def runtest(self) -> None:
        put(self.judge, self.question, self)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.config.rootpath, None, f"{self.parent.name if self.parent else ''} {self.name}"


class ModelItem(pytest.Item):
    """The check of a port of a model."""

    def __init__(self, *, given: Mapping[str, Any], **keywords: Any) -> None:
        super().__init__(**keywords)
        self.given = given

    def runtest(self) -> None:
        judge_port(self.config.option.conformance, self.given, self)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.config.rootpath, None, f"{self.parent.name if self.parent else ''} {self.name}"


def judge_port(subject: str | Callable[..., Any], options: Mapping[str, Any], item: pytest.Item) -> None:
    """Fails with all that is wrong with a port."""
    __tracebackhide__ = True
    from conformance.judge.checking import check

    report = check(subject, "model", **options)
    if report.left_out:
        item.user_properties.append((NOTE, f"{report.target.title}: {report.left_out}"))
    if not report.conforms:
        pytest.fail(str(report), pytrace=False)


@overload
def conformance_test(
    subject: str | Callable[..., Any],
    operation: Literal["model"],
    *,
    name: str | None = None,
    **options: Unpack[ModelCheckOptions],
) -> Callable[..., None]: ...


@overload
def conformance_test(
    subject: str | Callable[..., Any], operation: str, *, name: str | None = None, **options: Unpack[CheckOptions]
) -> Callable[..., None]: ...


@document_options(CheckOptions)
def conformance_test(
    subject: str | Callable[..., Any], operation: str, *, name: str | None = None, **options: Any
) -> Callable[..., None]:
    """A test function, parametrised with every question that the judge asks of the subject.

    The arguments are those of `conformance.check`, with a seed of 0 unless another is given. Assign the result to a
    name that pytest collects. ValueError says what is wrong with a subject that cannot be judged. A port of a model,
    with the operation "model", is one test.
    """
    if operation == "model":

        def test_model(request: pytest.FixtureRequest) -> None:
            judge_port(subject, {"seed": SEED, "name": name, **options}, request.node)

        return test_model
    judge = make_judge(subject, operation, name, {"seed": SEED, **options})

    @pytest.mark.parametrize("question", questions_of(judge.executor), ids=str)
    def test(question: Question, request: pytest.FixtureRequest) -> None:
        request.config.add_cleanup(judge.executor.close)
        put(judge, question, request.node)

    test.__doc__ = f"{judge.executor.runner.name} computes {operation}."
    return test


class Judge(NamedTuple):
    """What asks the questions, and the profile that decides which tests fail."""

    executor: Executor
    profile: str


def make_judge(
    subject: str | Callable[..., Any], operation: str, name: str | None, options: Mapping[str, Any]
) -> Judge:
    """options: those of `conformance.check`. ValueError says what is wrong with them, or with the subject."""
    from conformance.judge.checking import make_executor, read_target

    target, chosen = read_target(subject, operation, name, options)
    profile = chosen.pop("profile")
    return Judge(make_executor(target, **chosen), profile)


def questions_of(executor: Executor) -> list[Question]:
    """ValueError where there is none."""
    questions = executor.list_all()
    if not questions:
        raise ValueError(f"rules: nothing in {', '.join(executor.rules or ())} speaks of {executor.operation}")
    return questions


def put(judge: Judge, question: Question, item: pytest.Item) -> None:
    """Fails with all that is known of a violation, where the profile asks for it; skips where it cannot be asked."""
    __tracebackhide__ = True
    from conformance.cases.signatures import MASK_REQUIRED
    from conformance.checks.levels import is_required
    from conformance.judge.executor import NotAsked
    from conformance.reports.blocks import block
    from conformance.reports.sentences import describe_finding
    from conformance.reports.subjects import cause_with_violation

    executor = judge.executor
    title, target = executor.runner.name, executor.target
    if target is not None and target.guessed:
        told = f"{title} was called with arrays of {target.arrays}, a guess: {target.guessed}"
        item.user_properties.append((NOTE, told))
    if executor.never_given:
        item.user_properties.append((NOTE, f"{title} was {executor.never_given}"))
    if executor.runner.declaration.mask_required:
        item.user_properties.append((NOTE, f"{title}: {MASK_REQUIRED}"))
    try:
        found = executor.find_cause(question)
    except NotAsked as reason:
        pytest.skip(str(reason))
    if found is not None and not is_required(found.level, judge.profile):
        told = f"{question.rule} is violated at the level {found.level}: {describe_finding(found.lead.finding)}"
        item.user_properties.append((BEYOND, f"{title}: {told}"))
    elif found is not None:
        content = cause_with_violation(found, replays_folder(item.config), titled=True)
        pytest.fail(block(content), pytrace=False)


def replays_folder(config: pytest.Config) -> Path:
    """In pytest's cache, where the files outlive the run; a temporary folder where there is none."""
    cache: Any = getattr(config, "cache", None)
    return Path(mkdtemp(prefix="conformance-replays-")) if cache is None else cache.mkdir("conformance-replays")

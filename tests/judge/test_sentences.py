"""Every kind of finding has facts of its own, and a sentence that reports make of them."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from conformance.checks import findings as kinds
from conformance.judge import plan
from conformance.reports.sentences import describe_detail
from conformance.subjects import wrong_answers
from tests.support.helpers import Case, Finding, describe_finding, probes_of_all

OFF = Finding("output", 2.5, (0, 1), 1.5, 1.0, 0.2)
BEFORE = Case("sgd_step", "float32", {}, {})
SWAPPED = wrong_answers.DtypeOrShape("float32", (1, 3, 2, 4), ("float32",), (1, 2, 3, 4), swapped=True)
WIDE = wrong_answers.DtypeOrShape("float64", (2,), ("float16", "float32"), (2,))
MISSING = wrong_answers.Missing()
THREADS = kinds.Phase("threads", count=2)
TOLD = "output[0, 1]: got 1.5, expected 1.0, 2.5 bounds of 0.2"
SENTENCES: list[tuple[kinds.Detail, str]] = [
    (MISSING, "no such result"),
    (wrong_answers.Returned("a list of 1", names=("state", "step")), "returned a list of 1, expected state and step"),
    (wrong_answers.Returned("builtins.int", array="numpy.ndarray"), "returned builtins.int, expected numpy.ndarray"),
    (wrong_answers.OtherType("builtins.int", array="numpy.ndarray"), "is builtins.int, expected numpy.ndarray"),
    (wrong_answers.OtherType("a list of 1", count=2), "is a list of 1, expected 2 arrays"),
    (wrong_answers.ReturnedGradients("3.0", of="logits", count=2), "vjp returned 3.0 for logits, expected 2 gradients"),
    (wrong_answers.Materialized("builtins.int"), "materialize gave builtins.int"),
    (wrong_answers.OtherDevice("cuda:0"), "lies on cuda:0, and the inputs do not"),
    (WIDE, "has dtype and shape float64 [2], expected float16 or float32 [2]"),
    (
        SWAPPED,
        "has dtype and shape float32 [1, 3, 2, 4], expected float32 [1, 2, 3, 4] "
        "(--layout BTHD is for arrays [batch, length, heads, width])",
    ),
    (
        replace(SWAPPED, layout="BHTD"),
        "is float32 [1, 3, 2, 4], expected float32 [1, 2, 3, 4] [batch, heads, queries, width]; "
        "heads and queries have changed places",
    ),
    (replace(WIDE, rank=1), "has dtype and shape float64 [2] on rank 1, expected float16 or float32 [2]"),
    (
        wrong_answers.RanksDiffer(1),
        "is another one on rank 1 than on rank 0, and must be that of the whole on each, bit for bit",
    ),
    (kinds.Raised("ValueError", "no"), "raised ValueError: no"),
    (
        kinds.Raised("ValueError", "no", threads=3, size=kinds.Size("keys", 4096)),
        "raised ValueError while 3 threads call at the same time: no at 4,096 keys",
    ),
    (kinds.TookTooLong(1.5), "took longer than 1.5 s"),
    (kinds.TookTooLong(2, ended=True), "took longer than 2 s, and its process was ended"),
    (
        kinds.TookTooLong(2, ended=True, ranks=(1, 2)),
        "took longer than 2 s on ranks 1, 2, for which the others waited, and its process was ended",
    ),
    (kinds.ProcessEnded(3), "its process ended with exit code 3"),
    (kinds.ProcessEnded(7, rank=2), "on rank 2 its process ended with exit code 7"),
    (kinds.ProcessEnded(-6), "its process died of SIGABRT"),
    (kinds.ProcessEnded(-99), "its process died of signal 99"),
    (kinds.ProcessEnded(None), "its process lost its connection to the judge, and was ended"),
    (kinds.Printed("a\n"), "prints to standard output: 'a\\n'"),
    (kinds.MaskDiffers(), "differs from the predicate"),
    (kinds.NotANumber(), "is NaN"),
    (kinds.NotZero(0.5), "holds 0.5, expected 0"),
    (kinds.NotSpoiled((float(np.float32(0.1)),), "float32"), "holds [0.1]"),
    (kinds.NotSpoiled((), "bfloat16"), "holds []"),
    (kinds.Accepted("TypeError"), "accepted, expected TypeError"),
    (kinds.Accepted("", MISSING), "accepted, expected an error: no such result"),
    (kinds.WrongError("KeyError", "TypeError", "mask"), "raised KeyError, expected TypeError: mask"),
    (kinds.ErrorWithoutText("TypeError"), "raised TypeError without a message"),
    (kinds.Unrefused(OFF), f"neither supported nor refused, and wrong: {TOLD}"),
    (kinds.WrongInPhase(kinds.Phase("in_a_row", 2, 3), OFF), f"wrong in call 2 of 3: {TOLD}"),
    (kinds.WrongInPhase(kinds.Phase("after_forward_passes"), OFF), f"wrong after other forward passes: {TOLD}"),
    (kinds.WrongInPhase(kinds.Phase("second_backward_pass"), OFF), f"wrong in the second backward pass: {TOLD}"),
    (kinds.WrongInPhase(THREADS, MISSING), "wrong while 2 threads call at the same time: no such result"),
    (kinds.NotDeterministic(), "differs between two equal calls"),
    (kinds.NotDeterministic(7), "differs in call 7 of equal calls"),
    (kinds.NoGradientsAgain(), "has no gradients when the same is asked again"),
    (kinds.Unreadable(), "cannot be read any more after the call"),
    (kinds.InputChanged(), "was changed by the call"),
    (kinds.ResultChanged(), "was changed by a later call"),
    (kinds.SharedMemory("input", "query"), "shares memory with input query"),
    (kinds.SharedMemory("cotangent", "cotangent of output"), "shares memory with the cotangent of output"),
    (kinds.GradientLost(), "is missing: the output has no gradient"),
    (
        kinds.NotReproducible(True, OFF),
        f"depends on earlier calls, or is not reproducible: right in a fresh process; it was {TOLD}",
    ),
    (kinds.NotReproducible(False, OFF), f"is not reproducible: right when the same is asked again; it was {TOLD}"),
    (
        kinds.DependsOnCalls(BEFORE, 2, OFF),
        f"depends on earlier calls: right in a fresh process, wrong after {BEFORE} and 2 calls before that: {TOLD}",
    ),
    (kinds.SurplusStep(), "is a step that the definition does not take"),
    (kinds.OtherSource("add", 1), "is given the result of add, where the definition has input 1"),
    (kinds.OtherSource(None, "x", True), "is what is no step's result, where the definition has the result of x"),
    (kinds.ChangedLater(), "is changed after it was given"),
    (kinds.TimesTaken(2), "is taken 2 times"),
    (kinds.SurplusTensor(), "the definition has no such tensor"),
    (kinds.KnownMistake("the mask is ignored"), "the mask is ignored"),
]


@pytest.mark.parametrize(("detail", "sentence"), SENTENCES, ids=[sentence for _, sentence in SENTENCES])
def test_sentences(detail: kinds.Detail, sentence: str) -> None:
    finding = Finding("output", np.inf, detail=detail)
    assert describe_finding(finding) == f"output: {sentence}"
    assert pickle.loads(pickle.dumps(finding)) == finding


def test_every_kind_has_one_class() -> None:
    known = {*kinds.Detail.__subclasses__()} - {wrong_answers.WrongPart} | {*wrong_answers.WrongPart.__subclasses__()}
    assert {type(detail) for detail, _ in SENTENCES} == known
    assert len({"value", *(kind.kind for kind in known)}) == len(known) + 1


def test_facts_of_findings_within_a_finding() -> None:
    inner = Finding("output", np.inf, detail=WIDE)
    outer = Finding("output", np.inf, detail=kinds.NotReproducible(True, inner))
    assert [*kinds.details(outer)] == [outer.detail, WIDE]
    assert (kinds.wrong_dtype(outer), kinds.wrong_dtype(OFF)) == ("float64", None)
    swapped = Finding("a title", np.inf, detail=kinds.Accepted("TypeError", SWAPPED))
    assert (kinds.has_swapped_heads(swapped), kinds.wrong_dtype(swapped)) == (True, None)
    assert not kinds.has_swapped_heads(outer)


def test_a_wrong_answer_keeps_its_facts_between_processes() -> None:
    error = pickle.loads(pickle.dumps(wrong_answers.WrongAnswer(SWAPPED, "output")))
    assert (error.name, error.detail) == ("output", SWAPPED)
    assert describe_detail(error.detail).startswith("has dtype and shape")


def test_a_title_changes_no_seed() -> None:
    for probe in probes_of_all()[:5]:
        called = replace(probe, title="another title")
        assert (called.id, plan.seed_of(called, 3)) == (probe.id, plan.seed_of(probe, 3))
        assert (called.title, probe.title) == ("another title", probe.name)

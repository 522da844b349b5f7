"""Violations that a gradient alone shows: which rule tells of them, what follows, and what they are called."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conformance.diagnosis.attribution import Failure, attributed
from conformance.diagnosis.following import separated, shows_its_rule
from conformance.diagnosis.matches import SWALLOWED, known, of_judged_dtypes, wrong_in
from conformance.diagnosis.matching import Failing
from conformance.diagnosis.naming import diagnosis
from conformance.diagnosis.precision import AT_MOST, excused
from conformance.diagnosis.steps import pulled_back, scores_of

from conformance import declare
from conformance.bounds import bound
from conformance.cases.case import Case
from conformance.cases.declaration import FEATURES, Declaration
from conformance.checks.catalogue import AGREEMENT, UNSUPPORTED, check_empty_rows, check_unsupported
from conformance.checks.comparison import judge, no_others
from conformance.checks.results import WRONG_IN, Results, Violation
from conformance.diagnosis import naming, precision
from conformance.judge.judgement import Judgement
from conformance.judge.run import cut_down
from conformance.oracle.reference import oracle
from conformance.reports.blocks import MEND, block
from conformance.reports.content import violation_content
from conformance.runner.in_process import Runner
from conformance.subjects.targets import Target
from reference_numpy import attention, attention_vjp, rms_norm, rms_norm_vjp
from specification import Causal


def asked(keys: int, queries: int = 1, dtype: str = "float32", **options: Any) -> Case:
    """A call of attention with gradients."""
    generator = np.random.default_rng(0)
    shapes = {"query": (1, 1, queries, 2), "key": (1, 1, keys, 2), "value": (1, 1, keys, 2)}
    inputs = {name: generator.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
    return Case("attention", dtype, inputs, options, {"output": generator.normal(size=shapes["query"]).astype(dtype)})


def rows(operation: str, width: int) -> Case:
    generator = np.random.default_rng(0)
    names = ("x", "weight", "bias") if operation == "layer_norm" else ("x", "weight")
    inputs = {n: generator.normal(size=(3, width) if n == "x" else width).astype("float32") for n in names}
    return Case(operation, "float32", inputs, {"eps": 1e-5}, {"output": np.flip(inputs["x"]).copy()})


def exact(case: Case) -> dict[str, np.ndarray]:
    """The right results, rounded."""
    return {name: result.high.astype(case.dtype) for name, result in oracle(case).items()}


def violated(rule: str, case: Case, of: str = "key") -> Violation:
    """By a gradient that is off by 1, where all else is right."""
    got = exact(case)
    got[f"gradient of {of}"] = got[f"gradient of {of}"] + 1
    finding = max(judge(case, got, oracle(case), bound(case), no_others), key=lambda one: one.ratio)
    assert finding.name == f"gradient of {of}"
    return Violation(rule, "a subject", finding, "a probe", AGREEMENT, case, diagnosis=("gradient of key is off",))


def separate(*violations: Violation) -> list[list[str]]:
    return [[violation.rule for violation in part] for part in separated(list(violations))]


# --- which rule -------------------------------------------------------------------------------------------------------


def test_a_gradient_of_a_plain_call_is_told_by_the_rule_of_gradients() -> None:
    """However small the other case is. A rule of results alone stands for itself where nothing else is violated."""
    of_scale, of_gradients = violated("ATT-1", asked(2)), violated("ATT-12", asked(3))
    assert separate(of_scale) == [["ATT-1"], []]
    assert separate(of_scale, of_gradients) == [["ATT-12"], ["ATT-1"]]
    assert separate(violated("ATT-1", asked(2, softcap=2.0)), of_gradients) == [["ATT-12"], ["ATT-1"]]
    unnamed = [replace(violated(rule, asked(3)), diagnosis=()) for rule in ("ATT-8", "ATT-9", "ATT-12")]
    assert separate(*unnamed)[0][0] in ("ATT-8", "ATT-9", "ATT-12")
    of_result, own = (violated(rule, rows("layer_norm", 3), "x") for rule in ("NORM-1", "NORM-6"))
    assert separate(of_result, own) == [["NORM-6"], ["NORM-1"]]


@pytest.mark.parametrize(
    ("rule", "bias", "mask", "shown"),
    [
        ("MASK-6", 1.0, None, False),
        ("MASK-6", -np.inf, None, False),
        ("MASK-6", -np.inf, Causal(0), True),
        ("MASK-1", 1.0, None, False),
        ("MASK-1", -np.inf, None, True),
    ],
)
def test_a_bias_that_forbids_nothing_shows_no_rule_of_masks(rule: str, bias: float, mask: Any, shown: bool) -> None:
    """Nor does one thing that forbids show how several are combined."""
    plain = asked(3)
    biased = replace(plain, inputs=plain.inputs | {"bias": np.array([[1, 2, 1]], "float32")})
    other = replace(plain, inputs=plain.inputs | {"bias": np.array([[1, bias, 1]], "float32")}, options={"mask": mask})
    of_masks, of_bias = replace(violated(rule, other), diagnosis=()), violated("ATT-3", biased)
    assert separate(of_masks, of_bias)[1] == ([] if shown else [rule])


def test_a_missing_refusal_follows_from_nothing_else() -> None:
    """Whatever the numbers are: a right result would not refuse it. Its block says what to do."""
    case = asked(3, softcap=2.0)

    class Wrong:
        declaration = Declaration(FEATURES.keys() - {"softcap"})

        def __call__(self, case: Case) -> dict[str, np.ndarray]:
            return {name: array + 1 for name, array in exact(case).items()}

    wrong: Any = Wrong()
    (found,) = check_unsupported(wrong, case, (oracle(case), bound(case)))
    plain = asked(3)  # what is left of the case without softcap has nothing to be refused
    assert check_unsupported(wrong, plain, (oracle(plain), bound(plain))) == []
    of_gradients = violated("ATT-12", asked(3))
    lacking = replace(of_gradients, rule="ATT-2", finding=found, title="softcap is not supported", example=case)
    lacking = replace(lacking, check=UNSUPPORTED)
    assert separate(of_gradients, lacking) == [["ATT-12", "ATT-2"], []]
    text = block(violation_content(lacking))
    assert text.startswith("ATT-2 softcap is not supported: A call beyond what is supported must raise an error")
    assert MEND in text
    assert MEND not in block(violation_content(of_gradients))


# --- norms ------------------------------------------------------------------------------------------------------------


def without_weight(case: Case, names: str) -> np.ndarray:
    """The gradient of x where the weight is forgotten inside some means: "mean", "projection" or both."""
    x, bar = case.inputs["x"].astype(float), case.cotangents["output"].astype(float)
    centred = case.operation == "layer_norm"
    x = x - x.mean(-1, keepdims=True) * centred
    inverse = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + case.options["eps"])
    normal, g = x * inverse, bar * case.inputs["weight"].astype(float)
    first, second = (bar if name in names else g for name in ("mean", "projection"))
    return (g - first.mean(-1, keepdims=True) * centred - normal * (second * normal).mean(-1, keepdims=True)) * inverse


@pytest.mark.parametrize(
    ("operation", "where", "words"),
    [
        ("rms_norm", "projection", "of gradient times normalised row"),
        ("layer_norm", "projection", "of gradient times normalised row"),
        ("layer_norm", "mean", "of the gradient"),
        ("layer_norm", "mean, projection", "s over a row"),
    ],
)
def test_a_weight_forgotten_inside_a_mean_has_a_name(operation: str, where: str, words: str) -> None:
    case = rows(operation, 5)
    got = exact(case)
    np.testing.assert_allclose(without_weight(case, ""), got["gradient of x"], rtol=1e-5)
    got["gradient of x"] = without_weight(case, where).astype("float32")
    failing = Failing(case, got, oracle(case), bound(case))
    name = next(known(failing, "gradient of x", np.inf))
    assert name.startswith("the weight is forgotten inside the mean" + (words if words[0] == "s" else f" {words}"))


def wrong_vjp(x: Any, weight: Any, output_bar: Any, *, eps: float = 1e-6) -> Any:
    case = Case("rms_norm", str(x.dtype), {"x": x, "weight": weight}, {"eps": eps}, {"output": output_bar})
    found = without_weight(case, "projection").astype(x.dtype)
    return rms_norm_vjp(x, weight, output_bar, eps=eps)._replace(x=found)


@declare(vjp=wrong_vjp)
def with_wrong_vjp(x: Any, weight: Any, *, eps: float = 1e-6) -> Any:
    return rms_norm(x, weight, eps=eps)


def test_a_row_of_one_number_is_no_smallest_case_of_a_norm() -> None:
    """Its gradient is nearly 0, and says nothing of what is wrong: it is found only where no other row fails."""
    runner = Runner(Target(with_wrong_vjp, "rms_norm").make())

    def violation_of(case: Case) -> Violation:
        worst = max(runner(AGREEMENT, case, AGREEMENT.prepare(case)), key=lambda one: one.ratio)
        return Violation("NORM-6", "a subject", worst, "a probe", AGREEMENT, case)

    narrow, wide = violation_of(rows("rms_norm", 1)), violation_of(rows("rms_norm", 5))
    assert narrow.ratio > 1
    assert wide.stands_before(narrow)
    assert not narrow.stands_before(wide)
    smallest = cut_down(wide, runner, 10.0)
    assert smallest.case.inputs["x"].shape == (1, 2)
    assert abs(smallest.finding.expected) > 1e-3
    assert cut_down(narrow, runner, 10.0).case.inputs["x"].shape == (1, 1)


# --- attention --------------------------------------------------------------------------------------------------------


def answered(case: Case, **gradients: np.ndarray) -> Failing:
    """The right results, but for these gradients."""
    got = exact(case) | {f"gradient of {name}": array.astype(case.dtype) for name, array in gradients.items()}
    return Failing(case, got, oracle(case), bound(case))


def in_bfloat16(array: Any) -> np.ndarray:
    return np.asarray(array, "float32").astype("bfloat16").astype(float)


def several(dtype: str = "bfloat16", **inputs: tuple[int, ...]) -> Case:
    """With 70 queries and 100 keys."""
    generator = np.random.default_rng(0)
    shapes = {"query": (2, 2, 70, 4), "key": (2, 2, 100, 4), "value": (2, 2, 100, 4)} | inputs
    arrays = {name: generator.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
    return Case("attention", dtype, arrays, {}, {"output": generator.normal(size=(2, 2, 70, 4)).astype(dtype)})


def added_in_blocks(case: Case, name: str, n: int) -> np.ndarray:
    """A gradient that is added up in bfloat16: over blocks of n keys, queries or batch elements."""
    failing = Failing(case, {}, oracle(case), bound(case))
    s, p, weights = failing.steps, failing.parts, failing.forward.weights
    count, part = {
        "query": (100, lambda some: p.products[..., some] @ s.key[:, :, some] * s.scale),
        "key": (70, lambda some: np.einsum("bhqk,bhqd->bhkd", p.products[:, :, some], s.query[:, :, some]) * s.scale),
        "value": (70, lambda some: np.einsum("bhqk,bhqd->bhkd", weights[:, :, some], failing.bar[:, :, some])),
        "bias": (2, lambda some: p.scores[some].sum(axis=0)),
    }[name]
    total: Any = 0.0
    for start in range(0, count, n):
        total = in_bfloat16(total + in_bfloat16(part(slice(start, start + n))))
    return np.asarray(total)


@pytest.mark.parametrize(
    ("name", "block", "things"), [("query", 48, "keys"), ("key", 16, "queries"), ("value", 32, "queries")]
)
def test_a_gradient_added_up_in_16_bits_has_a_name(name: str, block: int, things: str) -> None:
    case = several()
    failing = answered(case, **{name: added_in_blocks(case, name, block)})
    assert failing.wrong == [f"gradient of {name}"]
    found = list(known(failing, f"gradient of {name}", np.inf))
    assert found == [f"gradient of {name} is added up in bfloat16 (blocks of {block} {things})"]
    off = answered(case, **{name: 0.01 + exact(case)[f"gradient of {name}"].astype(float)})
    assert not list(known(off, f"gradient of {name}", np.inf))
    assert not [line for line in excused(failing) if "rounded" in line or "products" in line]


def test_a_name_holds_for_the_results_that_conform(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded weights make the output and the gradient of value wrong as well."""
    case = several()
    right = exact(case)["gradient of query"].astype(float)
    noise = 1 + 2.0**-8 * np.sin(np.arange(right.size)).reshape(right.shape)
    failing = answered(case, query=right * noise)
    assert failing.wrong == ["gradient of query"]
    hint = f"{AT_MOST} weights or their sum rounded to bfloat16 would make them"
    assert hint not in list(excused(failing))
    monkeypatch.setattr(precision, "only_in_wrong", lambda *given: True)
    assert hint in list(excused(failing))


def test_a_16_bit_dtype_that_is_not_judged_has_no_name() -> None:
    lines = ["weights are rounded to float16", "weights are rounded to bfloat16", "products in TF32"]
    case = asked(3)

    def named(*dtypes: str) -> list[str]:
        subject: Any = SimpleNamespace(declaration=SimpleNamespace(dtypes=dtypes))
        return [line for line in lines if of_judged_dtypes(line, subject, case)]

    assert named("float32", "bfloat16") == lines[1:]
    assert named("float32") == lines


def stale_gradients(case: Case, n: int) -> Failing:
    """Weights of the backward pass from the maximum before the last block, with the sum of the last one."""
    failing = Failing(case, {}, oracle(case), bound(case))
    s, f = failing.steps, failing.forward
    before = (f.scores.shape[-1] - 1) // n * n
    grown = np.exp(f.scores.max(-1, keepdims=True) - f.scores[..., :before].max(-1, keepdims=True))
    mean = (failing.bar * f.output).sum(-1, keepdims=True)
    parts = pulled_back(s, failing.bar, f.weights * grown, mean=mean)
    assert parts.value is not None
    return answered(case, query=parts.query, key=parts.key, value=parts.value)


def test_a_stale_maximum_in_the_backward_pass_has_a_name() -> None:
    failing = stale_gradients(several("float32", key=(2, 2, 70, 4), value=(2, 2, 70, 4)), 48)
    name = "the backward pass rescales with the maximum before the last block (blocks of 48 keys)"
    assert list(known(failing, failing.wrong[0], np.inf)) == [name]


@pytest.mark.parametrize("words", ["each block of keys", "the blocks of keys so far"])
@pytest.mark.parametrize("n", [16, 48])
def test_a_mean_that_is_not_that_of_the_row_has_a_name(n: int, words: str) -> None:
    case = several("float32", key=(2, 2, 70, 4), value=(2, 2, 70, 4))
    failing = Failing(case, {}, oracle(case), bound(case))
    s, f = failing.steps, failing.forward
    terms, start = f.weights * (failing.bar @ s.value.swapaxes(-1, -2)), np.arange(70) // n
    counted = start[:, None] == start if words.startswith("each") else start[:, None] >= start
    parts = pulled_back(s, failing.bar, f.weights, mean=np.stack([terms[..., one].sum(-1) for one in counted], axis=-1))
    failing = answered(case, query=parts.query, key=parts.key, value=failing.parts.value)
    name = f"the mean rowsum(P * P_bar) is taken over {words}, not over the row (blocks of {n} keys)"
    assert list(known(failing, failing.wrong[0], np.inf)) == [name]


@pytest.mark.parametrize(("queries", "keys"), [(1, 40), (2, 70), (40, 90)])
def test_tiles_skipped_without_the_offset_have_a_name(queries: int, keys: int) -> None:
    """Its place is the first of all names: that the gradient of value ends early is what follows."""
    case = asked(keys, queries, mask=Causal(keys - queries))
    failing = Failing(case, {}, oracle(case), bound(case))
    seen = np.arange(keys) // 32 <= np.arange(queries)[:, None] // 32
    mean = (failing.bar * failing.forward.output).sum(-1, keepdims=True)
    parts = pulled_back(failing.steps, failing.bar, failing.forward.weights * seen, mean=mean)
    assert parts.value is not None
    failing = answered(case, query=parts.query, key=parts.key, value=parts.value)
    names = list(known(failing, "gradient of value", np.inf))
    assert names[0] == (
        "in the backward pass only: the mask's offset is forgotten where tiles of keys are skipped (blocks of 32 keys)"
    )


def by_hand(failing: Failing, weights: Any = None, mean: Any = None, scores: Any = None) -> dict[str, Any]:
    """Gradients of FlashAttention's backward pass with one of its quantities given."""
    s, f, bar = failing.steps, failing.forward, failing.bar
    weights = f.weights if weights is None else weights
    mean = np.sum(bar * f.output, axis=-1, keepdims=True) if mean is None else mean
    scores = weights * (bar @ s.value.swapaxes(-1, -2) - mean) if scores is None else scores
    return {
        "query": scores @ s.key * s.scale,
        "key": scores.swapaxes(-1, -2) @ s.query * s.scale,
        "value": weights.swapaxes(-1, -2) @ bar,
    }


def from_other_logsumexp(failing: Failing, change: Any) -> dict[str, Any]:
    f = failing.forward
    return by_hand(failing, weights=np.exp(f.scores - change(f.logsumexp, f.scores.max(-1, keepdims=True))))


SLIPS: dict[str, Any] = {
    "rowsum(P * P_bar) is added, not subtracted, in the backward pass": lambda f: by_hand(
        f, mean=-(f.bar * f.forward.output).sum(-1, keepdims=True)
    ),
    "rowsum(P * P_bar) is multiplied by the scale in the backward pass": lambda f: by_hand(
        f, mean=f.steps.scale * (f.bar * f.forward.output).sum(-1, keepdims=True)
    ),
    "the backward pass subtracts the mean of O * O_bar over the width, not its sum": lambda f: by_hand(
        f, mean=(f.bar * f.forward.output).mean(-1, keepdims=True)
    ),
    "the gradient of the scores is not multiplied by the weights": lambda f: by_hand(
        f, scores=f.bar @ f.steps.value.swapaxes(-1, -2) - (f.bar * f.forward.output).sum(-1, keepdims=True)
    ),
    "gradient of key is made from the weights, not from the gradient of the scores": lambda f: (
        by_hand(f) | {"key": f.forward.weights.swapaxes(-1, -2) @ f.steps.query}
    ),
    "gradient of query is made from the weights, not from the gradient of the scores": lambda f: (
        by_hand(f) | {"query": f.steps.scale * f.forward.weights @ f.steps.key}
    ),
    "the backward pass takes rowsum(O_bar * O) from the output before it is divided by its sum": lambda f: by_hand(
        f,
        mean=(f.bar * (np.exp(f.forward.scores - f.forward.scores.max(-1, keepdims=True)) @ f.steps.value)).sum(
            -1, keepdims=True
        ),
    ),
    "rowsum(P^2 * P_bar) is subtracted in the backward pass, not rowsum(P * P_bar)": lambda f: by_hand(
        f, mean=(f.forward.weights**2 * (f.bar @ f.steps.value.swapaxes(-1, -2))).sum(-1, keepdims=True)
    ),
    "the gradient of the scores is P * P_bar - rowsum(P * P_bar), without a bracket after P": lambda f: by_hand(
        f,
        scores=f.forward.weights * (f.bar @ f.steps.value.swapaxes(-1, -2))
        - (f.bar * f.forward.output).sum(-1, keepdims=True),
    ),
    "the log-sum-exp of the backward pass lacks the maximum": lambda f: from_other_logsumexp(f, lambda lse, m: lse - m),
    "the log-sum-exp of the backward pass has the maximum twice": lambda f: from_other_logsumexp(
        f, lambda lse, m: lse + m
    ),
    "the log-sum-exp of the backward pass is the maximum alone": lambda f: from_other_logsumexp(f, lambda lse, m: m),
    "the log-sum-exp of the backward pass is of base 2, and its scores are of base e": lambda f: from_other_logsumexp(
        f, lambda lse, m: lse * np.log2(np.e)
    ),
    "the log-sum-exp of the backward pass is of base e, and its scores are of base 2": lambda f: from_other_logsumexp(
        f, lambda lse, m: lse / np.log2(np.e)
    ),
}


@pytest.mark.parametrize("name", SLIPS)
def test_a_slip_in_a_backward_pass_has_a_name(name: str) -> None:
    case = several("float32")
    failing = answered(case, **SLIPS[name](Failing(case, {}, oracle(case), bound(case))))
    assert next(known(failing, failing.wrong[0], np.inf)) == name


def test_a_gradient_that_loses_a_nan_shows_the_rule_of_special_values() -> None:
    """NaN and infinity are what that rule speaks of."""
    plain = asked(3)
    attended = replace(plain, inputs=plain.inputs | {"key": plain.inputs["key"] * np.float32(np.nan)}, special=True)
    found = violated("ATT-10", plain, "value")
    assert not shows_its_rule(found)
    assert shows_its_rule(replace(found, example=attended))


def test_a_slope_of_capped_scores_has_a_name() -> None:
    case = replace(several("float32"), options={"softcap": 0.7})
    f = Failing(case, {}, oracle(case), bound(case))
    capped = 0.7 * np.tanh(f.steps.query @ f.steps.key.swapaxes(-1, -2) * f.steps.scale / 0.7)
    scores = f.forward.weights * (
        f.bar @ f.steps.value.swapaxes(-1, -2) - (f.bar * f.forward.output).sum(-1)[..., None]
    )
    failing = answered(case, **by_hand(f, scores=scores * (1 - capped**2)))
    name = "the softcap's slope is 1 - s^2 of the capped scores s, not 1 - (s / softcap)^2"
    assert name in list(known(failing, failing.wrong[0], np.inf))


def test_a_missing_transpose_in_the_backward_pass_has_a_name() -> None:
    shapes = {"query": (1, 2, 3, 4), "key": (1, 2, 3, 4), "value": (1, 2, 3, 5), "output": (1, 2, 3, 5)}
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    case = Case("attention", "float32", arrays, {}, {"output": arrays.pop("output")})
    f = Failing(case, {}, oracle(case), bound(case))
    for name, array in (("key", f.parts.scores @ f.steps.query / 2), ("value", f.forward.weights @ f.bar)):
        failing = answered(case, **(by_hand(f) | {name: array}))
        assert failing.wrong == [f"gradient of {name}"]
        assert (
            next(known(failing, failing.wrong[0], np.inf)) == "gradients of key or value are made without a transpose"
        )


@pytest.mark.parametrize(("things", "n"), [("keys", 32), ("queries", 64)])
def test_a_rest_that_the_backward_pass_leaves_out_has_a_name(things: str, n: int) -> None:
    """100 keys or 70 queries, of which whole blocks are gone through."""
    case = several("float32")
    failing = Failing(case, {}, oracle(case), bound(case))
    weights = failing.forward.weights.copy()
    weights[np.s_[..., 96:] if things == "keys" else np.s_[:, :, 64:]] = 0
    found = answered(case, **by_hand(failing, weights=weights))
    names = list(known(found, "gradient of query", np.inf))
    assert (
        f"in the backward pass only: {things} past the last whole block are left out (blocks of {n} {things})" in names
    )


@pytest.mark.parametrize("saved", [np.inf, 0], ids=["no weights", "a log-sum-exp of 0"])
def test_rows_that_allow_nothing_hide_no_mask_of_the_backward_pass(saved: float) -> None:
    """Their log-sum-exp is -inf: whoever looks after such rows gives them weights of 0, or saves another number."""
    case = asked(5, 9, mask=Causal(-4))
    failing = Failing(case, {}, oracle(case), bound(case))
    s, f = failing.steps, failing.forward
    sees, logsumexp = np.arange(5) <= np.arange(9)[:, None], np.where(np.isfinite(f.logsumexp), f.logsumexp, saved)
    weights = np.where(sees, np.exp(s.query @ s.key.mT * s.scale - logsumexp), 0)
    found = answered(case, **by_hand(failing, weights=weights))
    name = "in the backward pass only: the causal mask is aligned to the first query and key (top left)"
    assert name in list(known(found, "gradient of query", np.inf))


def first_queries_lost(case: Case, n: int) -> Failing:
    """Of each block of n keys the backward pass leaves out the query that sees its first key alone."""
    failing = Failing(case, {}, oracle(case), bound(case))
    Q, K = failing.steps.visible.shape[2:]
    own = np.arange(Q)[:, None] + (K - Q) == np.arange(K)
    mean = (failing.bar * failing.forward.output).sum(-1, keepdims=True)
    weights = failing.forward.weights * ~(own & (np.arange(K) % n == 0))
    parts = pulled_back(failing.steps, failing.bar, weights, mean=mean)
    assert parts.value is not None
    return answered(case, query=parts.query, key=parts.key, value=parts.value)


def test_a_first_query_that_is_left_out_has_a_name() -> None:
    lost = first_queries_lost(asked(90, 70, mask=Causal(20)), 32)
    name = "in the backward pass only: the first query that sees a tile of keys is left out of it (blocks of 32 keys)"
    assert name in list(known(lost, "gradient of value", np.inf))


def test_keys_counted_anew_in_every_block_have_a_name_and_refute_others() -> None:
    """With fewer keys all is right: no mistake that would show there, too, is named."""
    case = asked(33, 2, mask=Causal(31))

    def vjp(query: Any, key: Any, value: Any, output_bar: Any, *, mask: Any = None) -> Any:
        found = attention_vjp(query, key, value, output_bar, mask=mask)
        K = key.shape[2]
        if mask is None or K < 33:
            return found
        asked_here = replace(case, inputs={"query": query, "key": key, "value": value}, options={"mask": mask},
                             cotangents={"output": output_bar})  # fmt: skip
        right = Failing(asked_here, {}, oracle(asked_here), bound(asked_here))
        seen = mask[..., np.arange(K) % 32]
        weights = np.exp(scores_of(right.steps) - right.forward.logsumexp) * seen
        mean = (right.bar * right.forward.output).sum(-1, keepdims=True)
        parts = pulled_back(right.steps, right.bar, weights, mean=mean)
        assert parts.value is not None
        return found._replace(**{n: getattr(parts, n).astype(query.dtype) for n in ("query", "key", "value")})

    @declare(vjp=vjp)
    def function(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        return attention(query, key, value, mask=mask)

    assert diagnosed_on(function, case) == [
        "in the backward pass only: every block of keys has the mask of the first one"
    ]


def test_right_gradients_that_are_0_are_not_told() -> None:
    """A softmax over one key has no gradient, whatever the function does."""
    line = "wrong in: gradient of value; output conforms"
    assert list(wrong_in(first_queries_lost(asked(1, 1, mask=Causal(0)), 32))) == [line]


def test_what_is_0_was_not_rounded() -> None:
    case = asked(3, 3, "bfloat16")
    zero = answered(case, value=np.zeros((1, 1, 3, 2)))
    assert list(excused(zero)) == []


def test_gradients_of_heads_beside_frozen_keys_are_explained() -> None:
    shape = (2, 1, 100, 4)
    case = replace(several("bfloat16", key=shape, value=shape), constants=("key",))
    got = exact(case)
    got["gradient of value"] = got["gradient of value"] + 1
    list(excused(Failing(case, got, oracle(case), bound(case))))  # the keys' gradient, which nobody asks for, has none


def skipping_vjp(query: Any, key: Any, value: Any, output_bar: Any, *, mask: Any = None) -> Any:
    """The gradients of keys and values are lost where the first row sees none."""
    found = attention_vjp(query, key, value, output_bar, mask=mask)
    lost = mask is not None and np.max(mask.offset) < 0
    return found._replace(value=found.value * 0) if lost else found


@declare(vjp=skipping_vjp)
def skipping(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    return attention(query, key, value, mask=mask)


@declare(vjp=lambda query, key, value, output_bar, *, mask=None: last_rows_lost(query, key, value, output_bar))
def losing(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    return attention(query, key, value, mask=mask)


def last_rows_lost(query: Any, key: Any, value: Any, output_bar: Any) -> Any:
    found = attention_vjp(query, key, value, output_bar)
    return found._replace(value=found.value * 0)


def diagnosed_on(function: Any, case: Case) -> list[str]:
    runner = Runner(Target(function, "attention").make())
    worst = max(runner(AGREEMENT, case, AGREEMENT.prepare(case)), key=lambda one: one.ratio)
    found = diagnosis(Violation("ATT-12", "a subject", worst, "a probe", AGREEMENT, case), runner)
    return [line for line in found if not line.startswith(WRONG_IN)]


def test_what_fits_one_number_must_not_show_where_larger_cases_are_right() -> None:
    """With more keys this gradient is right, and no mistake of every call is named. One that is always lost is."""
    one = asked(1, 2, mask=Causal(-1))
    one = replace(one, inputs=one.inputs | {n: one.inputs[n][..., :1] for n in ("value",)})
    one = replace(one, cotangents={"output": one.cotangents["output"][..., :1]})
    assert diagnosed_on(skipping, one) == []
    plain = replace(one, options={})
    assert diagnosed_on(losing, plain) == ["gradient of value is missing: it is 0"]


def test_nan_has_the_names_of_other_violations_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fits too much: what is said of it counts where another violation has the same name."""
    results, nan = Results(), replace(violated("ATT-10", asked(3)), example=replace(asked(3), special=True))
    name = "gradient of bias comes from the first batch element only"
    monkeypatch.setattr(naming, "diagnosis", lambda one, runner: (name, SWALLOWED)[: 2 if one.case.special else 1])
    results.violate(nan)
    naming.diagnosed(results, None)  # type: ignore[arg-type]
    assert results.violations["ATT-10", "a subject"].diagnosis == (SWALLOWED,)
    results.violate(violated("ATT-12", asked(3)))
    naming.diagnosed(results, None)  # type: ignore[arg-type]
    assert results.violations["ATT-10", "a subject"].diagnosis == (name,)


def test_a_sum_over_one_batch_element_is_recognised_by_its_nan() -> None:
    """The gradient of a bias that both batch elements share lacks the second, in which there is NaN."""
    generator = np.random.default_rng(0)
    inputs = {n: generator.normal(size=(2, 1, 2, 2)).astype("float32") for n in ("query", "key", "value")}
    inputs["query"][1] = np.nan
    inputs["bias"] = generator.normal(size=(2, 2)).astype("float32")
    bar = generator.normal(size=(2, 1, 2, 2)).astype("float32")
    case = Case("attention", "float32", inputs, {}, {"output": bar}, special=True)
    first = replace(
        case, inputs={n: a[:1] if n != "bias" else a for n, a in inputs.items()}, cotangents={"output": bar[:1]}
    )
    failing = answered(case, bias=exact(first)["gradient of bias"])
    assert failing.wrong == ["gradient of bias"]
    name = "gradient of bias comes from the first batch element only"
    assert name in list(known(failing, "gradient of bias", np.inf))


def test_a_mistake_with_many_violations_leaves_time_for_each_to_become_small() -> None:
    """Cutting a case of attention takes up to about a second, a fourth of the least time that an effort has."""

    def seconds(violations: int) -> float:
        judgement: Any = SimpleNamespace(shrinking=4.0, results=SimpleNamespace(violations=range(violations)))
        return Judgement.time_to_shrink(judgement)

    assert [seconds(count) for count in (0, 4, 6, 8, 12, 20)] == [4, 4, 2, 1, 1, 1]


def test_a_gradient_of_a_norm_violates_no_general_rule() -> None:
    """Else it would hide what else violates that rule, such as a missing refusal."""
    runner = Runner(Target(with_wrong_vjp, "rms_norm").make())
    case = rows("rms_norm", 5)
    failure = Failure("NORM-7", AGREEMENT, case, runner(AGREEMENT, case, AGREEMENT.prepare(case)))
    assert attributed(runner, failure).rule == "NORM-6"
    off = judge(case, exact(case) | {"output": exact(case)["output"] * 2}, oracle(case), bound(case), no_others)
    assert attributed(runner, failure._replace(findings=off)).rule == "NORM-7"


def test_what_an_empty_row_holds_has_a_place() -> None:
    """So its case can have the name of the mistake, as any other wrong number."""
    case = asked(5, 9, mask=Causal(-4))
    answers = {name: array.copy() for name, array in exact(case).items()}
    answers["gradient of query"][0, 0, 3] = 7
    *_, output, finding = check_empty_rows(lambda given: answers, case, (oracle(case), bound(case)))
    assert (finding.name, finding.index[:3], finding.got, finding.expected) == ("gradient of query", (0, 0, 3), 7, 0)
    assert (output.name, output.ratio, output.kind, finding.kind) == ("output", 0, "value", "value")

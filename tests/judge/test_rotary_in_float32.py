"""Rotary embeddings whose angles, sines or products are narrower on purpose: allowed as declared, and no further."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest

import conformance
import reference_numpy
from conformance.bounds.rotary import pair_columns
from conformance.cases.case import numpy_dtype
from conformance.diagnosis import causes
from conformance.diagnosis.evidence import Evidence, ask_fresh
from conformance.operations.probes import probes_of
from conformance.sampling import positions
from conformance.sampling.draws import draw_from_seed
from conformance.selftest import selftest
from specification.frequencies import CONTEXT, attention_factor, yarn_ramp
from specification.rotary import DynamicScaling, LinearScaling, Llama3Scaling, LongRopeScaling, YarnScaling
from tests.support.helpers import (
    EVERYTHING,
    Case,
    Declaration,
    Finding,
    Runner,
    Subject,
    bound,
    describe_finding,
    find_errors,
    judged,
    options_of,
    runner_of,
)

Array = Any
Function = Callable[..., Any]
Single = np.float32
WIDE = ("float32", "bfloat16", "float16")

ANGLES = {"angles": "float32"}
SIXTEEN_BITS = {"float32": ANGLES} | {kind: ANGLES | {"rotation": kind} for kind in ("rounded", "inputs")}

# --- honest functions, all in float32 ---------------------------------------------------------------------------------

POWERS: dict[str, Function] = {
    "1 / base^x": lambda base, x: Single(1) / base**x,
    "base^-x": lambda base, x: base**-x,
    "exp(-x ln(base))": lambda base, x: np.exp(-x * np.log(base)),
    "rounded once": lambda base, x: (float(base) ** -x.astype(float)).astype(Single),
}


def frequencies(power: Function, width: int, base: float, scaling: Any, length: int | None) -> Array:
    """Everything that is given is float32, and so is every step."""
    b, x = Single(base), np.arange(0, width, 2, dtype=Single) / Single(width)
    if isinstance(scaling, DynamicScaling):
        s, L, n = map(Single, (scaling.factor, scaling.original_length, max(length or 0, scaling.original_length)))
        b = b * (s * n / L - (s - Single(1))) ** (Single(width) / Single(width - 2))
    found = power(b, x)
    if isinstance(scaling, LinearScaling):
        return found / Single(scaling.factor)
    if isinstance(scaling, LongRopeScaling):
        long = (length or 0) > scaling.original_length
        return Single(1) / (np.array(scaling.long_factors if long else scaling.short_factors, Single) / found)
    if isinstance(scaling, Llama3Scaling):
        low, high = Single(scaling.low_frequency_factor), Single(scaling.high_frequency_factor)
        wave = Single(2 * np.pi) / found
        kept = np.clip((Single(scaling.original_length) / wave - low) / (high - low), 0, 1)
        return (Single(1) - kept) * found / Single(scaling.factor) + kept * found
    if isinstance(scaling, YarnScaling):
        with localcontext(CONTEXT):
            start, end = (Single(float(one)) for one in yarn_ramp(width, Decimal(base), scaling))
        ramp = np.clip((np.arange(width // 2, dtype=Single) - start) / (end - start), 0, 1)
        return (Single(1) - ramp) * found + ramp * (found / Single(scaling.factor))
    return found


def rotation(rounded: str, power: Function = POWERS["1 / base^x"]) -> Function:
    """`rotary_embedding` in float32. rounded: as the convention `rotation` has it."""

    @np.errstate(all="ignore")
    def turned(source: Array, positions: Array, sign: int, base: float, rotary_width: int | None, pairing: str,
               scaling: Any, length: int | None) -> Array:  # fmt: skip
        width = source.shape[-1] if rotary_width is None else rotary_width
        length = int(positions.max(initial=-1)) + 1 if length is None else length
        places = positions[:, None, :, None] if positions.ndim == 2 else positions[:, None]
        angles = places.astype(Single) * frequencies(power, width, base, scaling, length)
        size, wide = Single(attention_factor(scaling)), np.promote_types(source.dtype, Single)
        cosine, sine = np.cos(angles) * size, np.sin(angles) * size * Single(sign)
        if rounded != "float32":
            cosine, sine = cosine.astype(source.dtype), sine.astype(source.dtype)
        product = source.dtype if rounded == "inputs" else wide
        one, other = pair_columns(width, pairing)
        first, second, result = source[..., one], source[..., other], source.copy()

        def times(x: Array, factor: Array) -> Array:
            return (x.astype(wide) * factor.astype(wide)).astype(product).astype(wide)

        result[..., one] = (times(first, cosine) - times(second, sine)).astype(source.dtype)
        result[..., other] = (times(second, cosine) + times(first, sine)).astype(source.dtype)
        return result

    def vjp(x: Array, positions: Array, cotangent: Array, *, base: float = 10000.0, rotary_width: Any = None,
            pairing: str = "halves", scaling: Any = None, length: Any = None) -> Any:  # fmt: skip
        return {"x": turned(cotangent, positions, -1, base, rotary_width, pairing, scaling, length)}

    @conformance.declare(vjp=vjp)
    def rotary_embedding(x: Array, positions: Array, *, base: float = 10000.0, rotary_width: Any = None,
                         pairing: str = "halves", scaling: Any = None, length: Any = None) -> Any:  # fmt: skip
        return turned(x, positions, 1, base, rotary_width, pairing, scaling, length)

    return rotary_embedding


def cases(declaration: Declaration, seeds: range, **given: Any) -> Iterator[Case]:
    """Drawn as the probes draw them."""
    for seed in seeds:
        yield draw_from_seed(positions.rotary_cases(declaration=declaration, **given), seed, False)[-1]


def runner_declaring(function: Function, operation: str, **conventions: str) -> Runner:
    return runner_of(function, operation, conventions=conventions)


KINDS: dict[str, dict[str, Any]] = {
    "near": {"scalings": ("none",)},
    "far": {"scalings": ("none",), "far": positions.FAR},
    "farthest": {"scalings": ("none",), "far": positions.FARTHEST},
    **{kind: {"scalings": (kind,)} for kind in positions.SCALED},
    **{f"{kind}, far": {"scalings": (kind,), "far": positions.FAR} for kind in positions.SCALED},
}


@pytest.mark.rule("POS-3", "POS-4")
@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("rounded", SIXTEEN_BITS)
@pytest.mark.slow_where("base", unless="1 / base^x")
@pytest.mark.slow_where("once")
def test_every_order_conforms_as_declared(rounded: str, power: str) -> None:
    declared = SIXTEEN_BITS[rounded]
    runner = runner_declaring(rotation(rounded, POWERS[power]), "rotary_embedding", **declared)
    for kind in KINDS.values():
        for case in cases(EVERYTHING.add_conventions(**declared), range(3), dtypes=WIDE, **kind):
            assert not find_errors(runner, case), case


@pytest.mark.slow
@pytest.mark.rule("POS-3", "POS-4")
@pytest.mark.parametrize("rounded", SIXTEEN_BITS)
@pytest.mark.parametrize("seed", range(1, 6))
def test_the_judge_accepts_what_is_declared(rounded: str, seed: int) -> None:
    given: dict[str, Any] = {"seed": seed, "profile": "strict", "arrays": "numpy", "dtypes": None, "limits": None}
    given["conventions"] = SIXTEEN_BITS[rounded]
    report = judged(rotation(rounded), operation="rotary_embedding", **given)
    assert report.conforms, str(report)


def test_who_rounds_angles_to_float32_is_told_to_say_so() -> None:
    @np.errstate(all="ignore")
    def turned(x: Array, positions: Array, *, base: float = 10000.0) -> Array:
        angles = (positions[:, None] * base ** -(np.arange(0, x.shape[-1], 2) / x.shape[-1])).astype(Single)
        cosine, sine = np.cos(angles).astype(float), np.sin(angles).astype(float)
        first, second = np.split(x.astype(float), 2, axis=-1)
        both = first * cosine - second * sine, second * cosine + first * sine
        return np.concatenate(both, axis=-1).astype(x.dtype)

    given: dict[str, Any] = {"arrays": "numpy", "dtypes": ["float64"], "supports": "no-batch_positions"}
    report = judged(turned, "POS-3", operation="rotary_embedding", **given)
    assert options_of(report)[0] == "--conventions angles=float32"


def one_case(dtype: str, position: int, rows: int = 1, **conventions: str) -> Case:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2, 2, rows, 64)).astype(numpy_dtype(dtype))
    rounding = {"angles": conventions["angles"]} if "angles" in conventions else {}
    rounding |= {"sines": dtype} if "rotation" in conventions else {}
    rounding |= {"rotation": dtype} if conventions.get("rotation") == "inputs" else {}
    return Case("rotary_embedding", dtype, {"x": x, "positions": np.arange(rows) + position}, rounding=rounding)


def wrong(function: Function, case: Case) -> bool:
    return bool(find_errors(runner_declaring(function, case.operation), case))


@pytest.mark.rule("POS-3")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_undeclared_it_is_wrong(dtype: str) -> None:
    assert wrong(rotation("float32"), one_case(dtype, 9000))
    assert not wrong(rotation("float32"), one_case(dtype, 9000, **ANGLES))


@pytest.mark.rule("POS-3")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_more_than_is_declared_of_rotations(dtype: str) -> None:
    near = [rotation(rounded) for rounded in SIXTEEN_BITS]
    for number, declared in enumerate(SIXTEEN_BITS.values()):
        found = [wrong(function, one_case(dtype, 5, 60, **declared)) for function in near]
        assert found == [rounds > number for rounds in range(3)], declared


@pytest.mark.rule("POS-3")
def test_the_bound_grows_with_the_position_and_ends() -> None:
    def largest(position: int, **conventions: str) -> float:
        return float(bound(one_case("float32", position, **conventions))["output"].max())

    assert largest(0, **ANGLES) < 1.01 * largest(0)
    assert 50 < largest(100_000, **ANGLES) / largest(1000, **ANGLES) < 200
    x = np.abs(one_case("float32", 0).inputs["x"])
    assert largest(2**30, **ANGLES) < 2.01 * float((x[..., :32] + x[..., 32:]).max())


# --- causes name the convention ---------------------------------------------------------------------------------------


def evidence_of(subject: Subject, case: Case) -> Evidence:
    evidence = ask_fresh(Runner(subject), case)
    assert evidence is not None
    assert evidence.wrong
    return evidence


@pytest.mark.rule("POS-3")
@pytest.mark.parametrize("rounded", SIXTEEN_BITS)
def test_a_cause_names_the_convention_that_accepts_it(rounded: str) -> None:
    case = one_case("float32" if rounded == "float32" else "bfloat16", 300_000, 3)
    evidence = evidence_of(runner_declaring(rotation(rounded), "rotary_embedding").subject, case)
    found, declared = causes.find_excuses([evidence]), SIXTEEN_BITS[rounded]
    assert {*found[0]} == {*declared}  # of the values, the narrowest that accepts this case
    assert max(causes.largest_error(conventions, [evidence]) for conventions in (*found, declared)) <= 1


@pytest.mark.rule("POS-3")
def test_a_cause_names_three_conventions_that_are_needed_at_once() -> None:
    @conformance.declare("no-gradients,interleaved,no-halves")
    def return_halves(x: Array, positions: Array, *, base: float = 10000.0, pairing: str = "interleaved") -> Any:
        turned = rotation("inputs")(x, positions, base=base, pairing=pairing)
        return np.concatenate([turned[..., ::2], turned[..., 1::2]], -1)

    case = one_case("bfloat16", 300_000, 3)
    case = replace(case, options=case.options | {"pairing": "interleaved"}, cotangents={})
    evidence = evidence_of(runner_of(return_halves, "rotary_embedding").subject, case)
    assert causes.find_excuses([evidence]) == ({"columns": "halves", "angles": "float32", "rotation": "inputs"},)


@pytest.mark.rule("POS-3")
def test_no_convention_is_named_for_another_mistake() -> None:
    [shifted, *_] = selftest.choose_planted(["rotary.positions-shifted"])
    assert causes.find_excuses([evidence_of(shifted.make(), one_case("float32", 3000, 3))]) == ()


# --- planted mistakes, under the convention ---------------------------------------------------------------------------

DECLARED = ("quantity=angles, dtype=float32", "quantity=frequencies, dtype=float32")
"""What the convention allows."""


def planted_runner(planted: selftest.Planted) -> Runner:
    """It declares the convention, and does the rest exactly."""
    subject = planted.make()
    subject.declaration = replace(subject.declaration, dtypes=WIDE).add_conventions(**SIXTEEN_BITS["inputs"])
    return Runner(subject)


FEW = ("pairing (pairing=halves)", "positions-shifted", "partial-by-head-width", "base (", "scaling-ignored")
PLANTED = [
    pytest.param(one, id=one.name, marks=() if any(words in one.name for words in FEW) else pytest.mark.slow)
    for one in selftest.choose_planted(["rotary_embedding"])
    if one.rule in ("POS-3", "POS-4") and not any(words in one.name for words in DECLARED)
]


@pytest.mark.rule("POS-3", "POS-4")
@pytest.mark.parametrize("planted", PLANTED)
def test_planted_mistakes_are_still_seen(planted: selftest.Planted) -> None:
    """In one of the first cases of a probe of its rule, where positions are near as in most."""
    runner = planted_runner(planted)
    probes = [p for p in probes_of(planted.rule, planted.operation, runner.declaration) if p.check.name == "agreement"]
    drawn = (draw_from_seed(probe.cases, seed)[-1] for probe in probes for seed in range(12))
    cases = (case for case in drawn if case.dtype in WIDE)
    assert any(find_errors(runner, case) for case in cases)


@pytest.mark.rule("POS-4")
@pytest.mark.parametrize(
    ("dtype", "message"), [("float32", ""), ("float64", ""), ("float16", "dtype and shape float16")]
)
def test_dtypes_of_frequencies_beside_angles_in_float32(dtype: str, message: str) -> None:
    """Frequencies in float64 may become angles in float32."""

    def judge_frequencies(times: float, rounding: dict[str, str]) -> list[Finding]:
        def function(width: int, base: float) -> Any:
            frequencies, size = reference_numpy.rotary_frequencies(width, base)
            return (times * frequencies).astype(dtype), size

        case = Case("rotary_frequencies", "float64", {}, {"width": 64, "base": 10000.0}, rounding=rounding)
        return find_errors(runner_declaring(function, case.operation, **ANGLES), case)

    wrong = map(describe_finding, judge_frequencies(1.0, ANGLES))
    assert [message in one for one in wrong] == [True] * bool(message)
    assert bool(judge_frequencies(1.0, {})) == (dtype != "float64")
    assert judge_frequencies(0.5, ANGLES)

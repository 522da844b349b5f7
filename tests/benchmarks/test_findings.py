"""What a result says in sentences: made from its numbers, and noise is called noise."""

from __future__ import annotations

import re
from typing import Any

import pytest

from benchmarks.cases import Case
from benchmarks.measure.running import FAILED, LEFT_OUT, Entry
from benchmarks.results import findings, scaling
from benchmarks.results.compare import compare
from benchmarks.results.result import case_result
from benchmarks.work import Work
from tests.benchmarks.test_parts import SIZES, entry
from tests.support import made_results

WORK = Work(1, 10, 10, 10)


def of(name: str, seconds: list[float], **fields: Any) -> Entry:
    found = entry(seconds, **fields)
    object.__setattr__(found.subject, "name", name)
    return found


def case(*entries: Entry, name: str = "made", length: int = 40, series: str = "") -> dict[str, Any]:
    sizes = SIZES | {"Q": length, "K": length}
    return case_result(Case(name, kind="causal", series=series, **sizes), WORK, entries, [])


def ours(*seconds: float) -> Entry:
    return of("our engine", list(seconds), ours=True, base=True)


@pytest.mark.parametrize(
    ("library", "lines"),
    [
        ([2.0] * 6, ["Fastest is our engine, 1e+03 [1e+03, 1e+03] ms; library takes 2.00 [2.00, 2.00] times as long."]),
        ([0.5] * 6, ["Fastest is library, 500 [500, 500] ms; our engine takes 2.00 [2.00, 2.00] times as long."]),
        (
            [2.0, 0.9, 1, 2, 2, 2],
            ["Fastest, within noise of each other: our engine; library (1e+03 [1e+03, 1e+03] ms)."],
        ),
        ([2.0] * 3, ["Fastest, within noise of each other: our engine; library (1e+03 [1e+03, 1e+03] ms)."]),
    ],
    ids=["ahead", "behind", "noise", "too few rounds"],
)
def test_who_is_fastest(library: list[float], lines: list[str]) -> None:
    assert findings.of_case(case(ours(*[1.0] * 6), of("library", library))) == lines


def test_a_base_that_is_not_among_the_first_is_named() -> None:
    found = findings.of_case(case(of("first", [1.0] * 7), of("second", [2.0] * 7), ours(4, 3, 3, 3, 3, 3, 4)))
    assert found[1] == "our engine takes 3.00 [3.00, 4.00] times as long as first."


def test_two_libraries_are_compared_by_the_ends_of_their_intervals() -> None:
    made = case(of("first", [1.0, 1.2] * 4), of("second", [1.5, 1.8] * 4), ours(*[9.0] * 8))
    found = findings.ratio(made["subjects"][1], made["subjects"][0])
    assert (found.low, found.high, found.clear) == (1.5 / 1.2, 1.8, True)


def test_what_has_no_time_is_told() -> None:
    wrong, absent = of("wrong", [1.0] * 6), of("absent", [1.0] * 6)
    wrong.end(FAILED, "it is wrong")
    absent.end(LEFT_OUT, "it is absent")
    assert findings.of_case(case(wrong, absent)) == ["No subject has a time.", "Failed, and without a time: wrong."]
    assert findings.of_case(case(wrong, ours(*[1.0] * 6)))[0] == "Only our engine has a time, 1e+03 [1e+03, 1e+03] ms."
    assert findings.of_cases([case(wrong)]) == []
    right = case(ours(*[1.0] * 6))
    assert findings.failures([right] + [case(wrong)] * 3) == "FAILED: wrong in 3 cases."
    assert not findings.failures([right])


def test_the_users_own_subject_is_always_named() -> None:
    """However many are in front of it, and among those that failed or are fastest."""
    mine = of("mine", [4.0] * 6, yours=True)
    others = [of(f"other {number}", [1.0 + number / 4] * 6) for number in range(5)]
    assert findings.of_case(case(*others, mine))[1] == "mine takes 4.00 [4.00, 4.00] times as long as other 0."
    level = [of(f"other {number}", [1.0, 1.1] * 4) for number in range(5)]
    mine = of("mine", [1.1, 1.05] * 4, yours=True)
    assert findings.of_case(case(*level, mine))[0].startswith(
        "Fastest, within noise of each other: other 0; other 1; other 2; mine; and 2 more ("
    )
    alone = [case(one, of("slow", [9.0] * 6)) for one in others for _ in range(2)]
    assert "; mine in 1; others in 4" in findings.of_cases([*alone, case(of("mine", [1.0] * 6, yours=True))])[0]
    for one in (*others, mine):
        one.end(FAILED, "it is wrong")
    assert findings.of_case(case(*others, mine))[-1].endswith("other 2; mine; and 2 more.")


def test_all_cases_have_three_sentences() -> None:
    """Who is fastest where, the largest lead and lag, and growth; each with an interval, or called noise."""
    cases = [
        case(ours(*[0.01 * length] * 6), of("library", [factor * length] * 6), name=f"T={length}", length=length,
             series="causal")
        for length, factor in ((32, 0.02), (64, 0.01), (128, 0.001))
    ]  # fmt: skip
    assert findings.of_cases(cases) == [
        "Fastest in 3 cases: our engine in 1; library in 1; several within noise in 1.",
        "Largest lead of our engine: library takes 2.00 [2.00, 2.00] times as long (T=32); "
        "largest lag: our engine takes 10.00 [10.00, 10.00] times as long as library (T=128).",
        "Time of causal attention from T=32 to 128 grows as T^1.00 [1.00, 1.00] (our engine).",
    ]
    same = case(ours(*[1.0, 1.1] * 4), of("library", [1.1, 1.0] * 4))
    assert findings.of_cases([same]) == [
        "In 1 case the fastest differ by no more than noise.",
        "Between our engines and the fastest library every difference is within noise.",
    ]


def test_every_exponent_has_an_interval() -> None:
    cases = made_results.benchmark()["cases"]
    text = " ".join([*scaling.in_words(cases, None), *findings.of_cases(cases)])
    assert "T^" in text
    assert text.count("T^") == len(re.findall(r"T\^-?\d+\.\d\d \[-?\d+\.\d\d, -?\d+\.\d\d\]", text))


def test_a_file_without_intervals_of_memory_gets_no_exponent_of_it() -> None:
    made = made_results.benchmark()["cases"]
    for one in made:
        for subject in one["subjects"]:
            subject["memory"] = 2**22  # as files from before have it
            del subject["peaks"]
    assert {one["quantity"] for one in scaling.scaling(made)} == {"seconds"}


def test_where_memory_ends() -> None:
    """Scores in memory: 4 T^2 bytes; inputs of a few bytes for each token."""
    cases = []
    for length in (512, 1024, 2048):
        one = ours(*[1.0] * 6)
        one.peaks = [4 * length**2] * 7
        cases.append(case(one, length=length, series="causal"))
    (line,) = scaling.in_words(cases, 4 * 10**10)
    assert "memory grows as T^2.00 [2.00, 2.00]" in line
    assert line.endswith("Inputs and one call would fill 40 GB at T=99,000")


def test_two_results_begin_with_what_changed() -> None:
    before = {"cases": [case(ours(*[1.0] * 6), of("library", [1.0] * 6), of("other", [1.0, 1.1] * 4))]}
    after = {"cases": [case(ours(*[1.5] * 6), of("library", [0.5] * 6), of("other", [1.1, 1.0] * 4))]}
    common = {"finished": True, "environment": {"versions": {}}, "settings": {}}
    assert findings.of_comparison(compare(before | common, after | common)) == [
        "Of 3 times, 1 slower, 1 faster, and 1 the same within noise.",
        "Most slower: our engine at made takes 1.50 [1.50, 1.50] times as long as before.",
        "Most faster: library at made takes 0.50 [0.50, 0.50] times as long as before.",
    ]
    assert findings.of_comparison(compare({"cases": []} | common, after | common)) == [
        "No subject has a time in both results."
    ]

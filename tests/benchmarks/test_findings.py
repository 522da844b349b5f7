"""What a result says in sentences: made from its numbers, and noise is called noise."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from benchmarks.results import findings, scaling
from benchmarks.results.compare import compare
from conformance.timing.measure.running import FAILED, LEFT_OUT, Entry
from conformance.timing.results import ranking
from conformance.timing.results.result import case_result
from conformance.timing.timed_case import Case
from conformance.timing.work import Work
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
            ["Fastest, within noise of each other: our engine; library (1e+03 [1e+03, 1e+03] ms for the first)."],
        ),
        (
            [2.0] * 3,
            ["Fastest, within noise of each other: our engine; library (1e+03 [1e+03, 1e+03] ms for the first)."],
        ),
    ],
    ids=["ahead", "behind", "noise", "too few rounds"],
)
def test_who_is_fastest(library: list[float], lines: list[str]) -> None:
    assert ranking.describe_case(case(ours(*[1.0] * 6), of("library", library))) == lines


def test_a_base_that_is_not_among_the_first_is_named() -> None:
    found = ranking.describe_case(case(of("first", [1.0] * 7), of("second", [2.0] * 7), ours(4, 3, 3, 3, 3, 3, 4)))
    assert found[1] == "our engine takes 3.00 [3.00, 4.00] times as long as first."


def test_two_libraries_are_compared_by_rounds_or_else_by_the_ends_of_their_intervals() -> None:
    made = case(of("first", [1.0, 1.2] * 4), of("second", [1.5, 1.8] * 4), ours(*[9.0] * 8))
    first, second, _ = made["subjects"]
    assert ranking.time_ratio(second, first)[1:] == (pytest.approx(1.5), pytest.approx(1.5), True)
    found = ranking.time_ratio(second | {"trials": None}, first | {"trials": None})  # as a stored result has them
    assert found[1:] == (1.5 / 1.2, 1.8, True)


def test_the_wide_interval_of_the_fastest_makes_nothing_else_fast() -> None:
    """By rounds, where all drift together; by a third subject, where nothing but the fastest drifts."""
    times = [1.0, 2, 3, 4, 5, 6]
    together = case(of("first", times), of("second", [3.66 * time for time in times]), ours(*[9.0 * t for t in times]))
    start = "Fastest is first, 3.5e+03 [1e+03, 6e+03] ms; second takes 3.66 ["
    assert ranking.describe_case(together)[0].startswith(start)
    alone = case(of("wide", [0.2, 5, 0.2, 1, 5, 0.2, 5]), ours(*[1.1] * 7), of("slow", [4.0] * 7))
    assert not ranking.time_ratio(alone["subjects"][2], alone["subjects"][0]).clear
    assert [one["name"] for one in ranking.leaders(alone)] == ["wide", "our engine"]


def test_the_fastest_are_within_noise_of_each_other() -> None:
    """Each pair of them, whatever the times are; and if each of three is behind another, one is named."""
    random = np.random.default_rng(5)
    for _ in range(200):
        seconds = random.lognormal(0, random.uniform(0, 0.6), (4, 1)) * random.lognormal(0, 0.2, (4, 7))
        first = ranking.leaders(case(*(of(f"number {n}", list(row)) for n, row in enumerate(seconds))))
        assert first
        assert len(first) == 1 or not any(ranking.slower(one, other) for one in first for other in first)


def test_what_has_no_time_is_told() -> None:
    wrong, absent = of("wrong", [1.0] * 6), of("absent", [1.0] * 6)
    wrong.end(FAILED, "it is wrong")
    absent.end(LEFT_OUT, "it is absent")
    assert ranking.describe_case(case(wrong, absent)) == [
        "No subject has a time.",
        "Failed, and without a time: wrong.",
    ]
    one = ranking.describe_case(case(wrong, ours(*[1.0] * 6)))[0]
    assert one == "Only our engine has a time, 1e+03 [1e+03, 1e+03] ms."
    assert findings.describe_cases([case(wrong)]) == []
    right = case(ours(*[1.0] * 6))
    assert ranking.failures([right] + [case(wrong)] * 3) == "FAILED: wrong in 3 cases."
    assert not ranking.failures([right])


def test_a_subject_is_compared_with_the_fastest_that_is_farthest_ahead() -> None:
    """Beside the first, whose interval is wide, it would seem to be as fast."""
    first, second = of("first", [0.5, 9.0, 0.5, 9.0, 0.9, 0.9]), of("second", [1.0] * 6)
    mine = of("mine", [3.0] * 6, yours=True)
    assert [one["name"] for one in ranking.leaders(case(first, second, mine))] == ["first", "second"]
    assert (
        ranking.describe_case(case(first, second, mine))[1] == "mine takes 3.00 [3.00, 3.00] times as long as second."
    )


def test_the_users_own_subject_is_always_named() -> None:
    """However many are in front of it, and among those that failed or are fastest."""
    mine = of("mine", [4.0] * 6, yours=True)
    others = [of(f"other {number}", [1.0 + number / 4] * 6) for number in range(5)]
    assert ranking.describe_case(case(*others, mine))[1] == "mine takes 4.00 [4.00, 4.00] times as long as other 0."
    level = [of(f"other {number}", [1.0, 1.1] * 4) for number in range(5)]
    mine = of("mine", [1.1, 1.05] * 4, yours=True)
    assert ranking.describe_case(case(*level, mine))[0].startswith(
        "Fastest, within noise of each other: other 0; other 1; other 2; mine; and 2 more ("
    )
    line = ranking.describe_case(case(*level, mine))[1]
    assert line == "mine takes 1.03 [0.95, 1.10] times as long as other 0 (noise)."
    alone = [case(one, of("slow", [9.0] * 6)) for one in others for _ in range(2)]
    assert "; mine in 1; others in 4" in findings.describe_cases([*alone, case(of("mine", [1.0] * 6, yours=True))])[0]
    for one in (*others, mine):
        one.end(FAILED, "it is wrong")
    assert ranking.describe_case(case(*others, mine))[-1].endswith("other 2; mine; and 2 more.")


def test_two_subjects_of_yours_are_compared() -> None:
    """Also where another one is the fastest."""
    old, new = (of(name, [time] * 6, yours=True) for name, time in (("old", 4.0), ("new", 2.0)))
    assert ranking.describe_case(case(of("other", [1.0] * 6), old, new))[1] == (
        "old takes 4.00 [4.00, 4.00] times as long as other; old takes 2.00 [2.00, 2.00] times as long as new."
    )
    assert len(ranking.describe_case(case(old, new))) == 1  # which says it


def test_a_lead_is_over_every_library() -> None:
    """Of two libraries the one with the smaller median is behind; the other, of the same time as ours, is not."""
    noisy, steady = of("noisy", [0.5, 3.0] * 3), of("steady", [2.0] * 6)
    assert findings.describe_cases([case(ours(*[1.0] * 6), noisy, steady)])[1] == (
        "Our fastest engine is ahead of all libraries in no case, and behind one in none, by more than noise."
    )
    ahead = of("wide", [0.2, 0.9] * 3), of("narrow", [0.5] * 6)  # the medians 0.55 and 0.5
    assert findings.describe_cases([case(ours(*[1.0] * 6), *ahead)])[1].startswith(
        "Largest lag of our fastest engine: our engine takes 3.06 [1.11, "
    )
    (line,) = findings.describe_cases([case(ours(*[1.0] * 6), of("other", [3.0] * 6), steady)])[1:]
    assert line == "Largest lead of our engine over all libraries: steady takes 2.00 [2.00, 2.00] times as long (made)."


def test_all_cases_have_three_sentences() -> None:
    """Who is fastest where, the largest lead and lag, and growth; each with an interval, or called noise."""
    cases = [
        case(ours(*[0.01 * length] * 6), of("library", [factor * length] * 6), name=f"T={length}", length=length,
             series="causal")
        for length, factor in ((32, 0.02), (64, 0.01), (128, 0.001))
    ]  # fmt: skip
    assert findings.describe_cases(cases) == [
        "Fastest in 3 cases: our engine in 1; library in 1; several within noise in 1.",
        "Largest lead of our engine over all libraries: library takes 2.00 [2.00, 2.00] times as long (T=32); "
        "largest lag of our fastest engine: our engine takes 10.00 [10.00, 10.00] times as long as library (T=128).",
        "Time of causal attention from T=32 to 128 grows as T^1.00 [1.00, 1.00] (our engine).",
    ]
    same = case(ours(*[1.0, 1.1] * 4), of("library", [1.1, 1.0] * 4))
    assert findings.describe_cases([same]) == [
        "In 1 case the fastest differ by no more than noise.",
        "Our fastest engine is ahead of all libraries in no case, and behind one in none, by more than noise.",
    ]


def test_a_subject_of_the_users_is_no_library() -> None:
    mine = of("mine", [0.5] * 6, yours=True)
    assert findings.describe_cases([case(ours(*[1.0] * 6), mine)]) == [
        "Fastest in 1 case: mine in 1.", "mine is among the fastest in 1 of 1 case."
    ]  # fmt: skip


def test_all_cases_say_where_the_users_own_subject_stands() -> None:
    """Its growth, too, in place of our lead and lag."""
    cases = [
        case(ours(*[0.01 * length] * 6), of("mine", [factor * length] * 6, yours=True), name=f"T={length}",
             length=length, series="causal")
        for length, factor in ((32, 0.02), (64, 0.01), (128, 0.04))
    ]  # fmt: skip
    _, own, growth = findings.describe_cases(cases)
    assert own == (
        "mine is among the fastest in 1 of 3 cases; "
        "its largest lag: it takes 4.00 [4.00, 4.00] times as long as our engine (T=128)."
    )
    assert growth.endswith(" (mine).")


def test_every_exponent_has_an_interval() -> None:
    cases = made_results.benchmark()["cases"]
    text = " ".join([*scaling.in_words(cases, None), *findings.describe_cases(cases)])
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
    assert findings.describe_comparison(compare(before | common, after | common)) == [
        "Of 3 times, 1 slower, 1 faster, and 1 changed by no more than noise.",
        "Most slower: our engine at made takes 1.50 [1.50, 1.50] times as long as before.",
        "Most faster: library at made takes 0.50 [0.50, 0.50] times as long as before.",
    ]
    assert findings.describe_comparison(compare({"cases": []} | common, after | common)) == [
        "No subject has a time in both results."
    ]

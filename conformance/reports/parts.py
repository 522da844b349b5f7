"""Parts of a run, as `conformance run --shard` writes them: what a part adds to its report, and several read together.

A report has of each rule the violations that stand before others. Which these are, of several parts, depends on the
order of the plan. So a part has the results of every group of questions, from which `conformance merge` computes what
the whole run would have computed.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from conformance.checks.encoding import decode, encode
from conformance.checks.results import Results
from conformance.oracle.reference import balls_available
from conformance.reports.comparison import circumstances, read_content
from conformance.reports.content import Content

Found = Mapping[int, Results]
"""The results of one seed: of each group of questions, by the index of its first one in the plan."""
SETTINGS = ("parts", "only", "device", "oracle", "subjects")
"""What all parts of a run have in common, beside what `circumstances` compares."""


def part_content(
    number: int, parts: int, only: Collection[str], device: str, subjects: Sequence[str], runs: Sequence[Found]
) -> Content:
    """Return what the report of a part has more than that of a whole run.

    Args:
        number: of the part, from 1.
        parts: how many there are.
        only: the implementations and rules that the user chose; empty for all.
        device: of the implementations.
        subjects: their names.
        runs: what was found, for each seed.
    """
    found = [[[index, encode_results(results)] for index, results in run.items()] for run in runs]
    text = json.dumps(found, separators=(",", ":"), allow_nan=False)
    return {
        "number": number,
        "parts": parts,
        "only": sorted({*only}),
        "device": device,
        "oracle": balls_available(),
        "subjects": list(subjects),
        "found": base64.b64encode(zlib.compress(text.encode())).decode(),
    }


def read_runs(report: Content) -> list[Found]:
    """Return what a part has found, for each seed; ValueError where it cannot be read."""
    try:
        text = zlib.decompress(base64.b64decode(report["part"]["found"]))
        return [{index: decode_results(results) for index, results in run} for run in json.loads(text)]
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
        raise ValueError(f"the results of part {report['part']['number']} cannot be read: {error!r}") from error


def read_parts(paths: Sequence[Path]) -> list[Content]:
    """Read the reports of all parts of a run, and return them in order.

    Args:
        paths: of the files; at least one.

    Raises:
        ValueError: a file is no part; two are parts of different runs, or the same part; or a part is missing.
    """
    first, parts, read = None, 0, dict[int, tuple[Path, Content]]()
    for path in paths:
        report = read_content(path)
        part = report.get("part")
        if part is None:
            why = f", but a report that says: {report['error']}" if report["error"] else ""
            raise ValueError(f"{path} is no part of a run, as --shard writes them{why}")
        first = first or (path, report)
        pairs = {name: (first[1]["part"][name], part[name]) for name in SETTINGS}
        unlike = circumstances(first[1], report)
        unlike += [f"{name}: {old} -> {new}" for name, (old, new) in pairs.items() if old != new]
        if unlike:
            raise ValueError(f"{first[0]} and {path} are parts of different runs: {'; '.join(unlike)}")
        number, parts = part["number"], part["parts"]
        if number in read:
            raise ValueError(f"part {number} of {parts} is there twice: {read[number][0]} and {path}")
        read[number] = path, report
    missing = [str(number) for number in range(1, parts + 1) if number not in read]
    if missing:
        which = f"part {missing[0]}" if len(missing) == 1 else f"parts {', '.join(missing)}"
        raise ValueError(f"missing of {parts} parts: {which}")
    return [report for _, (_, report) in sorted(read.items())]


def encode_results(results: Results) -> Any:
    """Return results as JSON, without the cases that are kept for a diagnosis."""
    worst = [violation for of_dtypes in results.worst.values() for violation in of_dtypes.values()]
    return encode(
        {
            "rules": [*results.rules.items()],
            "by_dtype": [*results.by_dtype.items()],
            "generated": dict(results.generated),
            "violations": [replace(violation, before=()) for violation in results.violations.values()],
            "worst": [replace(violation, before=()) for violation in worst],
            "substance": results.substance,
        }
    )


def decode_results(content: Any) -> Results:
    """Return the results that `encode_results` has written."""
    parts, results = decode(content), Results()
    results.rules.update(parts["rules"])
    results.by_dtype.update(parts["by_dtype"])
    results.generated.update(parts["generated"])
    results.violations = {violation.key: violation for violation in parts["violations"]}
    for violation in parts["worst"]:
        results.remember(violation)
    results.substance = parts["substance"]
    return results

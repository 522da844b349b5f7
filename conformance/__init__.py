"""The judge: does an implementation compute what SPEC.md says?

report = conformance.check(my_attention, "attention", arrays="torch")
assert report.conforms, report

result = conformance.compare("attention", output, query=query, key=key, value=value)
assert result, result
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformance.cases.declaration import declare
    from conformance.judge.checking import check
    from conformance.judge.given_results import Comparison, compare
    from conformance.judge.replaying import replay
    from conformance.judge.report import Report
    from conformance.judge.watched import judge_calls
    from conformance.reports.blocks import describe
    from conformance.reports.replays import save_replay
    from specification import Causal, Dense, KeyLengths, KeyPadding, Segments, SlidingWindow

__all__ = [
    "Causal",
    "Comparison",
    "Dense",
    "KeyLengths",
    "KeyPadding",
    "Report",
    "Segments",
    "SlidingWindow",
    "__version__",
    "check",
    "compare",
    "declare",
    "describe",
    "judge_calls",
    "replay",
    "save_replay",
]

HOMES = {
    "conformance.judge.checking": ("check",),
    "conformance.judge.report": ("Report",),
    "conformance.judge.watched": ("judge_calls",),
    "conformance.judge.given_results": ("Comparison", "compare"),
    "conformance.judge.replaying": ("replay",),
    "conformance.cases.declaration": ("declare",),
    "conformance.reports.replays": ("save_replay",),
    "conformance.reports.blocks": ("describe",),
    "specification": ("Causal", "Dense", "KeyLengths", "KeyPadding", "Segments", "SlidingWindow"),
}


def __getattr__(name: str) -> Any:
    """Each is loaded when it is first asked for: a kernel that only declares something loads nothing else."""
    if name == "__version__":
        return version()
    home = next((module for module, names in HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'conformance' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def version() -> str:
    """Return the installed distribution's version, or "0+source" where only the source tree is there."""
    from importlib import metadata

    try:
        return metadata.version("transformer-conformance")
    except metadata.PackageNotFoundError:
        return "0+source"

"""The judge: does an implementation compute what SPEC.md says?

report = conformance.check(my_attention, "attention", arrays="torch")
assert report.conforms, report.violations
"""

from __future__ import annotations

from typing import Any

__all__ = ["Report", "__version__", "check", "declare", "replay"]

HOMES = {
    "check": "judge.checking", "Report": "judge.report", "declare": "cases.declaration", "replay": "judge.replaying",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Each is loaded when it is first asked for: a kernel that only declares something loads nothing else."""
    if name == "__version__":
        return version()
    if name not in HOMES:
        raise AttributeError(f"module 'conformance' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"conformance.{HOMES[name]}"), name)


def version() -> str:
    """Return the installed distribution's version, or "0+source" where only the source tree is there."""
    from importlib import metadata

    try:
        return metadata.version("transformer-conformance")
    except metadata.PackageNotFoundError:
        return "0+source"

"""All subjects by name, and how another one is found."""

from __future__ import annotations

import importlib
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from benchmarks.subjects import jax_subjects, numpy_subjects, other_subjects, torch_subjects
from benchmarks.subjects.subject import Subject
from conformance.subjects.callables import on_path


def subject_at(target: str) -> Subject:
    """Load what `package.module:NAME` or `path/to/file.py:NAME` names; ValueError says why it is no subject."""
    where, _, name = target.rpartition(":")
    try:
        module = module_of_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
        found = getattr(module, name)
    except (ImportError, AttributeError, ValueError) as error:
        what = "package.module:NAME or path/to/file.py:NAME"
        raise ValueError(f"{target!r} cannot be loaded, expected {what}: {error}") from error
    if not isinstance(found, Subject) and callable(found):
        raise ValueError(
            f"{target!r} is a {type(found).__name__}, expected a Subject. Write beside it\n"
            f"  def make(case, device): return torch_subjects.prepared(case, device, {name}, given)\n"
            f'  MINE = Subject("{name}", "attention", "torch", ("torch",), "{Path(where).stem}:make")\n'
            'and name MINE; docs/benchmarks.md, "A subject of your own", has whole files to copy'
        )
    if not isinstance(found, Subject):
        raise ValueError(f"{target!r} is a {type(found).__name__}, expected a benchmarks.subjects.subject.Subject")
    return replace(found, yours=True)


def module_of_file(path: Path) -> ModuleType:
    """Import a file under its own name, by which the subjects' processes find it too; its folder stays on the path."""
    if not path.is_file():
        raise ValueError(f"no file {path}")
    with on_path(path.resolve().parent):
        module = importlib.import_module(path.stem)
    there = PathFinder.find_spec(path.stem)
    for origin in (module.__file__, None if there is None else there.origin):
        if origin is None or not path.samefile(origin):
            raise ValueError(f"another module is called {path.stem}: {origin}")
    return module


def subjects() -> dict[str, Subject]:
    """All there are, by name, in reading order; whether they are installed or not."""
    every: tuple[Subject, ...] = (*torch_subjects.OURS, *jax_subjects.OURS, *numpy_subjects.SUBJECTS)
    every += (*torch_subjects.PEERS, *jax_subjects.PEERS, *other_subjects.SUBJECTS)
    return {subject.name: subject for subject in every}

"""All subjects by name, and how another one is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from traceback import walk_tb
from types import ModuleType

from benchmarks.cases import INPUTS
from benchmarks.subjects import jax_subjects, numpy_subjects, other_subjects, torch_subjects
from benchmarks.subjects.subject import Subject
from conformance.subjects.callables import extend_path
from conformance.subjects.wrong_answers import is_own, relative_path

BENCHMARKS = Path(__file__).parents[1]


def subject_at(target: str) -> Subject:
    """Load what `package.module:NAME` or `path/to/file.py:NAME` names; ValueError says why it is no subject."""
    where, _, name = target.rpartition(":") if ":" in target else (target, "", "")
    module = loaded(target, lambda: module_of_file(Path(where)) if where.endswith(".py") else import_module(where))
    there = [f"{where}:{one}" for one, value in vars(module).items() if isinstance(value, Subject)]
    listed = f"its subjects: {', '.join(there)}" if there else "it has no Subject"
    if not name:
        raise ValueError(f"{target!r}: name the subject after a colon; {listed}")
    if not hasattr(module, name):
        raise ValueError(f"{target!r} cannot be loaded: {where} has no {name}; {listed}")
    found = getattr(module, name)
    if not isinstance(found, Subject) and callable(found):
        raise ValueError(
            f"{target!r} is a {type(found).__name__}, expected a Subject. Write beside it\n"
            f"  def make(case, device): return torch_subjects.prepared(case, device, {name}, given)\n"
            f'  MINE = Subject("{name}", "attention", "torch", ("torch",), "{Path(where).stem}:make")\n'
            'and name MINE; docs/benchmarks.md, "A subject of your own", has whole files to copy'
        )
    if not isinstance(found, Subject):
        raise ValueError(f"{target!r} is a {type(found).__name__}, expected a benchmarks.subjects.subject.Subject")
    if found.operation not in INPUTS:
        raise ValueError(f"{target!r}: its operation must be one of {', '.join(INPUTS)}, got {found.operation!r}")
    if not isinstance(found.make, str) or found.make.count(":") != 1:
        raise ValueError(f"{target!r}: its make must be a text 'module:function', got {found.make!r}")
    in_module, function = found.make.split(":")
    if not callable(getattr(loaded(f"make={found.make}", lambda: import_module(in_module)), function, None)):
        raise ValueError(f"{target!r}: its make is {found.make!r}, and {in_module} has no function {function!r}")
    return replace(found, yours=True)


def made_elsewhere(subject: Subject, target: str) -> str:
    """Say that the file does not make the subject, as where a copy still names the first one; empty if it does."""
    where, module = Path(target.rpartition(":")[0]), subject.make.partition(":")[0]
    is_there = where.suffix != ".py" or where.stem == module
    return "" if is_there else f"{subject.name} is made by {subject.make}, and not in {where}"


def loaded(target: str, load: Callable[[], ModuleType]) -> ModuleType:
    """Return the module; ValueError says in a line what keeps it from being imported, and where."""
    try:
        return load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a file may raise anything, and ends nothing but its own import
        what = "package.module:NAME or path/to/file.py:NAME"
        place = place_of(error)
        start = f"cannot be loaded: {place}: {type(error).__name__}" if place else f"cannot be loaded, expected {what}"
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ValueError(f"{target!r} {start}: {' '.join(said.split())}") from error


def place_of(error: BaseException) -> str:
    """Return file and line of the user's own code; empty if none of it ran."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{relative_path(error.filename)}:{error.lineno}"
    own = [f"{relative_path(frame.f_code.co_filename)}:{line}" for frame, line in walk_tb(error.__traceback__)
           if is_own(frame, "") and not Path(frame.f_code.co_filename).is_relative_to(BENCHMARKS)]  # fmt: skip
    return own[-1] if own else ""


def module_of_file(path: Path) -> ModuleType:
    """Import a file under its own name, by which the subjects' processes find it too; its folder stays on the path."""
    if not path.is_file():
        raise ValueError(f"no file {path}")
    with extend_path(path.resolve().parent):
        module = import_module(path.stem)
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

"""Where a subject raised an error, in its own code."""

from __future__ import annotations

import inspect
import sysconfig
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

JUDGE = Path(__file__).parents[1]
INSTALLED = tuple({Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def find_raising_line(error: BaseException, code: Any) -> str:
    """Return the innermost line of the subject's own code, as "kernels.py:12 in attention"; empty if none ran.

    What the judge calls for itself, Python's library and installed packages are not the subject's, but for the package
    that the subject is from. code: its function or module.
    """
    package = package_of(getattr(inspect.getmodule(code), "__name__", ""))
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if is_own(frame, package)]
    if not frames:
        return ""
    frame, line = frames[-1]
    return f"{relative_path(frame.f_code.co_filename)}:{line} in {frame.f_code.co_name}"


def is_own(frame: FrameType, package: str) -> bool:
    file = Path(frame.f_code.co_filename)
    if file.is_relative_to(JUDGE) or frame.f_code.co_filename.startswith("<frozen"):
        return False
    of_package = bool(package) and package_of(frame.f_globals.get("__name__") or "") == package
    return of_package or not any(file.is_relative_to(folder) for folder in INSTALLED)


def package_of(module: str) -> str:
    return module.partition(".")[0]


def relative_path(file: str) -> str:
    """Return the path from the working directory, where the file is in it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file

"""Files that are whole or not there: written beside, synchronised with the disk, renamed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under its final name only once all of it is on the disk.

    write: writes to the path that it is given, in the same folder.
    """
    beside = path.with_name(f".{path.name}.part")
    try:
        write(beside)
        synchronise(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    synchronise(path.parent)


def write_folder(path: Path, write: Callable[[Path], object]) -> None:
    """Write a folder of files under its final name only once all of it is on the disk; one that is there is replaced.

    write: writes files into the folder that it is given.
    """
    beside, former = (path.with_name(f".{path.name}.{ending}") for ending in ("part", "former"))
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        write(beside)
        for file in beside.iterdir():
            synchronise(file)
        synchronise(beside)
        if path.exists():
            path.rename(former)
        beside.rename(path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        shutil.rmtree(former, ignore_errors=True)
    synchronise(path.parent)


def synchronise(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

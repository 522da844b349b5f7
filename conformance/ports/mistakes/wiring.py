"""Mistakes of what goes where in a block: a sublayer, a norm or a residual connection is given another result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from conformance.ports.computation import Computation, Step
from conformance.ports.mistakes.attention import MEMORY, attend_with
from conformance.ports.mistakes.mistake import ModelMistake
from reference_numpy.multi_head_attention import concatenate_heads

CONSUMERS = {
    "attention_norm": "the attention's norm",
    "attention": "the attention",
    "attention: add": "the attention's residual connection",
    "feed_forward_norm": "the feed-forward network's norm",
    "feed_forward": "the feed-forward network",
    "feed_forward: add": "the feed-forward network's residual connection",
    "cross_attention_norm": "the cross-attention's norm",
    "cross_attention: add": "the cross-attention's residual connection",
}
"""By name in a block: what may be given another array."""
SOURCES = {
    "embedding": "the first block's input",
    "block": "the block's input",
    "attention_norm": "the attention's norm",
    "heads": "the attention's heads, before their projection",
    "attention": "what the attention gives",
    "attention: add": "the sum after the attention",
    "feed_forward_norm": "the feed-forward network's norm",
    "feed_forward": "what the feed-forward network gives",
    "cross_attention": "what the cross-attention gives",
}
"""By name in a block: arrays of the residual stream's shape."""
NAMES = {
    ("feed_forward: add", "attention"): "residual.from-attention",
    ("attention: add", "attention_norm"): "residual.attention-from-norm",
    ("feed_forward: add", "feed_forward_norm"): "residual.network-from-norm",
    ("feed_forward: add", "block"): "residual.from-block",
}
INPUT = {"normalize": 1, "attend": 1, "transform": 1, "add": 0}
"""By kind of step, the position of the argument that is given another array."""


def rewire(*wires: tuple[str, str]) -> Callable[[Computation], Computation]:
    """Give consumers the latest result of a source in their block. wires: pairs of both."""

    def change(computation: Computation) -> Computation:
        block, first, results = "", np.zeros(0), dict[str, Any]()

        def note(name: str, result: np.ndarray) -> np.ndarray:
            results[name] = result
            return result

        def rewrite(step: Step) -> Step:
            nonlocal block, first
            path = step.name.partition(":")[0]
            if "blocks." not in path or step.kind not in INPUT:
                return step
            prefix, _, part = path.rpartition(".")
            if prefix != block:
                block, given = prefix, step.arguments[INPUT[step.kind]]
                first = given if prefix.endswith(".0") else first
                results.clear()
                results.update(block=given, embedding=first)
            # In parallel blocks the sublayers are added up first.
            if step.kind == "add" and configuration.norm_order == "parallel" and not step.name.endswith("2"):
                return step
            name = part.replace("self_attention", "attention") + ": add" * (step.kind == "add")
            for consumer, source in wires:
                if name == consumer and source in results:
                    step = replace_input(step, results[source])
            if step.kind == "attend" and any(source == "heads" for _, source in wires):
                step = attend_with(concatenate_heads=lambda heads: note("heads", concatenate_heads(heads)))(step)
            function = step.function
            return step._replace(function=lambda *a, **k: note(name, function(*a, **k)))

        configuration = computation.configuration
        return computation.rewrite(rewrite)

    return change


def replace_input(step: Step, array: np.ndarray) -> Step:
    """Return the step with another input, where that has the same shape."""
    index = INPUT[step.kind]
    due = step.arguments[index]
    if np.shape(array) != np.shape(due):
        return step
    changed = step.argument(index, array)
    return changed.argument(2, array) if step.kind == "attend" and step.arguments[2] is due else changed


def remember(source: str) -> Callable[[Computation], Computation]:
    """Let the decoder attend to what the encoder's first block ("embedding") or last norm ("blocks") is given."""

    def change(computation: Computation) -> Computation:
        results: dict[str, np.ndarray] = {}

        def rewrite(step: Step) -> Step:
            if step.name.startswith("encoder.blocks.") and step.kind in INPUT:
                results.setdefault("embedding", step.arguments[INPUT[step.kind]])
            if step.name == "encoder.norm":
                results["blocks"] = step.arguments[1]
            is_reader = step.kind == "attend" and "cross_attention" in step.name and source in results
            return step.argument(MEMORY, results[source]) if is_reader else step

        return computation.rewrite(rewrite)

    return change


def list_rewired(computation: Computation) -> Iterator[ModelMistake]:
    """Give every consumer every source that is no part of it."""
    says = "residual connections come from the normalised input"
    wires = [(f"{name}: add", f"{name}_norm") for name in ("attention", "cross_attention", "feed_forward")]
    yield ModelMistake("residual.from-norm", "BLK-1", says, rewire(*wires))
    for source, says in (("embedding", "the source's embedding"), ("blocks", "the encoder's last block, not its norm")):
        yield ModelMistake(f"wiring.memory-from-{source}", "BLK-1", f"the decoder attends to {says}", remember(source))
    for consumer, source in product(CONSUMERS, SOURCES):
        id = NAMES.get((consumer, source), f"wiring.{consumer}-from-{source}".replace(": add", "-sum"))
        verb = "comes from" if consumer.endswith(": add") else "is given"
        says = f"{CONSUMERS[consumer]} {verb} {SOURCES[source]}"
        yield ModelMistake(id.replace("_", "-"), "BLK-1", says, rewire((consumer, source)))

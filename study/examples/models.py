"""Blocks and the whole Transformer: every step by name, each judged from the definition's activations."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from conformance.models.agreement import Agreement, StepAgreement, agreement
from conformance.models.error_propagation import carried_bound
from conformance.models.inside import weights_within
from conformance.models.structures import widen_parameters
from conformance.side_by_side.sources import LABELS, PACKAGES
from specification.checkpoints import flatten
from specification.configuration import Configuration
from specification.parameters import Decoder, Encoder, mapped
from study.examples.parts import Part, Shown, Table, counted
from study.examples.running import eager, in_each, named, verdict
from study.examples.tiny import HEADS, WIDTH, Maker

if TYPE_CHECKING:
    from conformance.subjects.frameworks import Framework

DTYPE = "float32"


class Example(NamedTuple):
    """A model, what it is called with, and what is to be seen. inputs: by name, in the order of the call."""

    title: str
    says: str
    call: str
    parameters: Any
    configuration: Configuration
    inputs: dict[str, np.ndarray]
    prefix: str = ""  # of the steps' names, left out


def block_examples() -> list[Example]:
    x, memory = Maker(1).array(1, 3, WIDTH), Maker(2).array(1, 2, WIDTH)
    encoder = Encoder(None, [Maker(3).encoder_block()])
    decoder = Decoder(None, [Maker(4).decoder_block()])
    orders = {
        "post": "Each sublayer adds its input to its result and then normalises the sum: the paper's order. So the "
        "block's output is normalised.",
        "pre": "The same parameters and input, but the norm comes first, and the sum is not normalised. So the "
        "block's output is not normalised, and its numbers grow.",
    }
    blocks = [
        Example(
            f"An encoder block, {order}-norm", says, f'encoder_block(parameters, x), norm_order="{order}"',
            encoder, Configuration(HEADS, norm_order=order, positions="none"), {"x": x}, "blocks.0.",
        )
        for order, says in orders.items()
    ]  # fmt: skip
    return [
        *blocks,
        Example(
            "A decoder block, post-norm",
            "It has a third sublayer between the two of an encoder block: the queries come from x, keys and values "
            "from memory, the encoder's output. The first sublayer is causal.",
            "decoder_block(parameters, x, memory, mask=Causal())",
            decoder, Configuration(HEADS, positions="none"), {"x": x, "memory": memory}, "blocks.0.",
        ),
    ]  # fmt: skip


def transformer_example() -> Example:
    return Example(
        "",
        "One block each, source and target of a few tokens; in the source, 0 is padding. The steps run in this order: "
        "the encoder's, the decoder's, and the output layer, whose rows are the logits of the next token.",
        "transformer(parameters, source, target)",
        Maker(5).transformer(),
        Configuration(HEADS, source_padding=0, scaled_embedding=True),
        {"source": np.array([[3, 1, 4, 0]]), "target": np.array([[1, 2, 4]])},
    )


def blocks() -> list[Part]:
    return [named(f"the example {example.title}", part, example) for example in block_examples()]


def transformer() -> list[Part]:
    return [part(transformer_example(), attentions=True)]


# --- the steps --------------------------------------------------------------------------------------------------------


def traced(example: Example) -> Agreement:
    """Every step of the definition, and how far off each package is when it is given the definition's activations."""
    with eager("jax_impl"):
        return agreement(example.parameters, example.configuration, tuple(example.inputs.values()), {}, PACKAGES)


def part(example: Example, attentions: bool = False) -> Part:
    found, results = traced(example), whole(example)
    numbers = {name: number for number, name in enumerate(found.oracle.taken, start=1)}
    steps = [
        Shown(titled(example, numbers, name), np.asarray(taken.result)) for name, taken in found.oracle.taken.items()
    ]
    drawn = [drawing(found, name) for name, taken in found.oracle.taken.items() if taken.step == "attend"]
    given = tuple(Shown(name, array) for name, array in example.inputs.items())
    folded = tuple(Shown(name, array) for name, array in flatten(example.parameters).items())
    table = Table(TABLE, HEADS_OF_TABLE, tuple(row(example, found, numbers, step) for step in found.steps), NOTE)
    shown = (*steps, *(drawn if attentions else ()))
    return Part(example.title, example.says, example.call, given, shown, (table,), judged(example, results), folded)


TABLE = "Every step from the definition's numbers"
NOTE = (
    "Each step gets the definition's results of the steps before. So the table shows only its own error, in units of "
    "its bound. A sum rounds just once: its bound is that one rounding, and its error is near 1."
)
HEADS_OF_TABLE = ("step", "made from", *LABELS.values())


def titled(example: Example, numbers: Mapping[str, int], step: str) -> str:
    """The step's number, and its name."""
    return f"{numbers[step]} {step.removeprefix(example.prefix)}"


def row(example: Example, found: Agreement, numbers: Mapping[str, int], step: StepAgreement) -> tuple[str, ...]:
    """made from: inputs by name, steps by number."""
    names: dict[int | str, str] = dict(enumerate(example.inputs))
    names |= {name: str(number) for name, number in numbers.items()}
    sources = [names[source] for source in found.oracle.taken[step.name].sources if source is not None]
    ratios = (f"{step.ratios[package]:.2g}" for package in LABELS)
    made_from = ", ".join(dict.fromkeys(sources)) or "parameters"
    return (titled(example, numbers, step.name), made_from, *ratios)


def drawing(found: Agreement, name: str) -> Shown:
    """The weights of an attention, by head."""
    weights = np.asarray(weights_within(found.oracle.taken[name].arguments))
    _, _, Q, K = (1,) * (4 - weights.ndim) + weights.shape
    return Shown(f"{name}: weights", weights, counted("query", Q), counted("key", K))


# --- the whole --------------------------------------------------------------------------------------------------------


def whole(example: Example) -> dict[str, np.ndarray]:
    """What each package gives from end to end, on its own activations."""

    def run(package: ModuleType, framework: Framework) -> np.ndarray:
        given = [framework.array(array) for array in example.inputs.values()]
        own = mapped(framework.array, example.parameters)
        return np.array(framework.numpy(package.models.MODELS[type(own)](own, *given, **keywords)))

    keywords = {"configuration": example.configuration}
    return in_each(run)


def judged(example: Example, results: dict[str, np.ndarray]) -> str:
    """Of the whole, each on its own numbers, in units of the bounds of all steps, carried to the end."""
    wide = widen_parameters(example.parameters)
    inputs = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in example.inputs.values()]

    def run(functions: SimpleNamespace) -> Any:
        return functions.MODELS[type(wide)](wide, *inputs, configuration=example.configuration)

    exact, bound = carried_bound(run, wide, DTYPE)
    return verdict(results, exact, bound, "the final output")

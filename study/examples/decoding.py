"""Decoding: the cache after every step, and the logits next to those of the full forward pass."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from conformance.models.error_propagation import carried_bound
from conformance.models.structures import widen_parameters
from conformance.side_by_side.sources import LABELS, PACKAGES
from specification.checkpoints import flatten
from specification.configuration import Configuration
from specification.parameters import mapped
from study.examples.parts import Part, Shown, Table, counted
from study.examples.running import distance, errors_of, in_each, verdict
from study.examples.tiny import HEADS, Maker

if TYPE_CHECKING:
    from conformance.subjects.frameworks import Framework
    from specification.arrays import Array

TOKENS = np.array([[3, 1, 4, 2]])
PROMPT, CAPACITY = 2, 5
CONFIGURATION = Configuration(HEADS)


class Run(NamedTuple):
    """One package's keys and values [1, H, CAPACITY, D] after each call, and its logits [1, T, N], both ways."""

    keys: list[np.ndarray]
    values: list[np.ndarray]
    stepwise: np.ndarray
    full: np.ndarray


def run_of(package: ModuleType, framework: Framework) -> Run:
    def numpy(array: Array) -> np.ndarray:
        return np.array(framework.numpy(array))

    parameters = mapped(framework.array, Maker(6).language_model())
    pieces = [framework.array(piece) for piece in np.split(TOKENS, range(PROMPT, TOKENS.shape[1]), axis=1)]
    options: dict[str, Any] = {"configuration": CONFIGURATION}
    logits, cache = package.start(parameters, pieces[0], **options, capacity=CAPACITY)
    steps, caches = [numpy(logits)], [cache]
    for piece in pieces[1:]:
        logits, cache = package.decode_step(parameters, piece, cache, **options)
        steps.append(numpy(logits))
        caches.append(cache)
    full = package.language_model(parameters, framework.array(TOKENS), **options)
    keys, values = ([numpy(getattr(cache.blocks[0], name)) for cache in caches] for name in ("keys", "values"))
    return Run(keys, values, np.concatenate(steps, axis=1), numpy(full))


def bound_of_logits() -> tuple[np.ndarray, np.ndarray]:
    """The full forward pass in float64, and how far from it an honest implementation in float32 may be."""
    wide = widen_parameters(Maker(6).language_model())
    return carried_bound(
        lambda functions: functions.language_model(wide, TOKENS, configuration=CONFIGURATION), wide, "float32"
    )


def parts() -> list[Part]:
    runs = in_each(run_of)
    exact, bound = bound_of_logits()
    definition = runs[PACKAGES[0]]
    given = (Shown("tokens", TOKENS, columns=counted("position", TOKENS.shape[1])),)
    shown = [*kept("keys", definition.keys), *kept("values", definition.values)]
    after = tuple(f"after token {token}" for token in TOKENS[0])
    shown += [
        Shown("logits, step by step", definition.stepwise, after),
        Shown("logits, full forward pass", definition.full, after),
    ]
    return [
        Part(
            "",
            f"A language model of one block reads {PROMPT} tokens at once and then one at a time. Each step adds rows "
            "to the cached keys and values and changes no earlier row; the rest of the cache is 0. The logits of a "
            "step equal those of the full forward pass at the same position.",
            f"start(parameters, tokens[:, :{PROMPT}], capacity={CAPACITY}); "
            f"decode_step(parameters, tokens[:, {PROMPT}:{PROMPT + 1}], cache); ...",
            given,
            tuple(shown),
            (both_ways(runs, exact, bound),),
            verdict(logits_of(runs, "stepwise"), exact, bound, "the step-by-step logits"),
            tuple(Shown(name, array) for name, array in flatten(Maker(6).language_model()).items()),
        )
    ]


def kept(name: str, after_each: list[np.ndarray]) -> list[Shown]:
    """What is kept after each call; outlined, the rows that the call added."""
    found, before = [], 0
    for number, array in enumerate(after_each):
        length = PROMPT + number
        new = np.zeros(array.shape, bool)
        new[:, :, before:length] = True
        call = "start" if number == 0 else f"decode_step {number}"
        found.append(Shown(f"{name} after {call}", array, counted("position", CAPACITY), marked=new))
        before = length
    return found


def logits_of(runs: dict[str, Run], way: str) -> dict[str, np.ndarray]:
    """way: "stepwise" or "full"."""
    return {package: getattr(run, way) for package, run in runs.items()}


def both_ways(runs: dict[str, Run], exact: np.ndarray, bound: np.ndarray) -> Table:
    rows = [("the largest difference of the two ways", *(f"{distance(r.full, r.stepwise):.2g}" for r in runs.values()))]
    for name in ("stepwise", "full"):
        ratios = errors_of(logits_of(runs, name), exact, bound).values()
        what = "step by step" if name == "stepwise" else "full forward pass"
        rows.append((f"error {what}, in bounds", *(f"{ratio:.2g}" for ratio in ratios)))
    for name in ("keys", "values"):
        last = getattr(runs[PACKAGES[0]], name)[-1]
        apart = (f"{distance(last, getattr(run, name)[-1]):.2g}" for run in runs.values())
        rows.append((f"the largest difference of the kept {name} from NumPy's", *apart))
    return Table("The same logits, both ways", ("", *LABELS.values()), tuple(rows))

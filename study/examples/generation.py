"""Generation on a tiny model, greedy and with the caller's random numbers: every choice, by all three."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from conformance.models.error_propagation import carried_bound
from conformance.models.structures import widen_parameters
from conformance.side_by_side.sources import LABELS, PACKAGES
from specification.checkpoints import flatten
from specification.configuration import Configuration
from specification.parameters import mapped
from study.capturing import Call, returning
from study.examples.parts import Part, Shown, Table, counted
from study.examples.running import all_equal, in_each, verdict
from study.examples.tiny import HEADS, VOCABULARY, Maker

if TYPE_CHECKING:
    from conformance.subjects.frameworks import Framework
    from specification.parameters import LanguageModel

CONFIGURATION = Configuration(HEADS)
PROMPT = np.array([[1]])
STEPS, END = 4, 4
UNIFORMS = np.array([[0.35, 0.8, 0.1, 0.6]])
SAMPLING = {"temperature": 1.5, "top_p": 0.9}
TOKENS = counted("token", VOCABULARY)


def parameters() -> Any:
    """A model for which the first token that greedy search takes begins no best sequence."""
    return Maker(322).language_model()


class Run(NamedTuple):
    """What a method gives, as NumPy arrays, and the calls on the way that were watched."""

    answer: tuple[np.ndarray, ...]
    calls: list[dict[str, Any]]


def runs_of(method: str, watched: str, **options: Any) -> dict[str, Run]:
    """By package. watched: the function whose calls are kept; its result is called "result"."""

    def run(package: ModuleType, framework: Framework) -> Run:
        def numpy(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return [numpy(part) for part in value]
            return np.array(framework.numpy(value)) if isinstance(value, framework.kind) else value

        def told(call: Call) -> None:
            calls.append({name: numpy(value) for name, value in (call.names | {"result": call.result}).items()})

        calls: list[dict[str, Any]] = []
        own = mapped(framework.array, parameters())
        given = {n: framework.array(value) if isinstance(value, np.ndarray) else value for n, value in options.items()}
        with returning(package.__name__, {watched}, told):
            answer = getattr(package, method)(own, framework.array(PROMPT), configuration=CONFIGURATION, **given)
        return Run(tuple(numpy(answer)) if isinstance(answer, tuple) else (numpy(answer),), calls)

    return in_each(run)


def given(*more: Shown) -> tuple[Shown, ...]:
    return (Shown("prompt", PROMPT), *more)


def folded() -> tuple[Shown, ...]:
    return tuple(Shown(name, array) for name, array in flatten(parameters()).items())


def chosen(runs: Mapping[str, Run]) -> Table:
    """The tokens of every package, the prompt first."""
    answers = {package: run.answer[0] for package, run in runs.items()}
    rows = []
    for package, tokens in answers.items():
        lines = tokens.reshape(-1, tokens.shape[-1])
        rows.append((LABELS[package], "; ".join(" ".join(map(str, line)) for line in lines)))
    title = "The same tokens in all three" if all_equal(answers) else "The tokens are not the same"
    return Table(title, ("", "tokens"), tuple(rows))


def judged(what: str, got: Mapping[str, np.ndarray], run: Callable[[Any, Any], np.ndarray]) -> str:
    """The packages' numbers by the bound that is carried to them from every step of the model.

    run: from the instrumented functions and the parameters in float64 to the same numbers.
    """
    wide = widen_parameters(parameters())
    exact, bound = carried_bound(lambda functions: run(functions, wide), wide, "float32")
    return verdict(got, exact, bound, what)


def logits_of(tokens: np.ndarray) -> Callable[[Any, Any], np.ndarray]:
    """The full forward pass."""

    def run(functions: SimpleNamespace, wide: LanguageModel) -> np.ndarray:
        return functions.language_model(wide, tokens, configuration=CONFIGURATION)

    return run


# --- greedy -----------------------------------------------------------------------------------------------------------


def greedy() -> Part:
    runs = runs_of("greedy", "next_logits", steps=STEPS, end=END)
    tokens = runs[PACKAGES[0]].answer[0][0]
    logits = {package: np.stack([call["result"][0] for call in run.calls], axis=1) for package, run in runs.items()}
    so_far = tuple("after " + " ".join(map(str, tokens[:length])) for length in range(1, len(tokens)))
    taken = np.arange(VOCABULARY) == tokens[1:, None]
    return Part(
        "Greedy",
        f"Every step takes the token with the largest logit (outlined). Token {END} ends the sequence.",
        f"greedy(parameters, prompt, steps={STEPS}, end={END})",
        given(),
        (Shown("logits", logits[PACKAGES[0]], so_far, TOKENS, taken[None]),),
        (chosen(runs),),
        judged("the logits", logits, logits_of(tokens[None, :-1])),
        folded(),
    )


# --- with random numbers ----------------------------------------------------------------------------------------------


def sample() -> Part:
    runs = runs_of("sample", "draw", uniforms=UNIFORMS, end=END, **SAMPLING)
    tokens = runs[PACKAGES[0]].answer[0][0]
    logits = {package: np.stack([call["logits"] for call in run.calls], axis=1) for package, run in runs.items()}
    draws = runs[PACKAGES[0]].calls
    return Part(
        "With random numbers",
        f"The caller passes the random numbers u, so all three choose the same tokens. `sample` divides the logits by "
        f"the temperature, {SAMPLING['temperature']}, and keeps the most probable tokens that together reach "
        f"{SAMPLING['top_p']}. It takes the first token at which the cumulative probability exceeds u.",
        f"sample(parameters, prompt, uniforms, temperature={SAMPLING['temperature']}, top_p={SAMPLING['top_p']}, "
        f"end={END})",
        given(Shown("uniforms", UNIFORMS, columns=counted("step", STEPS))),
        tuple(ladder(number, call) for number, call in enumerate(draws)),
        (chosen(runs),),
        judged("the logits", logits, logits_of(tokens[None, :-1])),
        folded(),
    )


def ladder(number: int, call: dict[str, Any]) -> Shown:
    """Tokens from the most to the least probable, and how far the probabilities of those that are kept have come."""
    order, reached = call["order"][0], call["reached"][0] / call["reached"][0, -1]
    kept = np.where(call["kept"][0], call["weights"][0], 0)
    array = np.stack([kept / kept.sum(), reached])
    taken = order == call["result"][0]
    columns = tuple(f"token {token}" for token in order)
    title = f"step {number}: u = {UNIFORMS[0, number]} takes token {call['result'][0]}"
    return Shown(title, array, ("probability", "sum"), columns, np.stack([taken, taken]))

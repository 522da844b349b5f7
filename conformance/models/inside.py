"""What lies inside an attention and a feed-forward network, in several packages, piece by piece.

Pieces are judged as steps are: each is worked out by the package's own public function on the definition's own pieces,
rounded to the model's dtype, and held to the bound of that one piece. What a package takes in one call here may be
faster in its models; there the whole step is judged.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from conformance.bounds import bound
from conformance.bounds.arithmetic import Precision, exact, stored
from conformance.bounds.attention import scores_and_slope
from conformance.bounds.layers import activation as activation_bound
from conformance.checks.comparison import compare
from conformance.models.agreement import Agreement, StepAgreement, compared, extent
from conformance.models.local import case_of, cast
from conformance.models.local import linear as linear_bound
from conformance.models.stepwise import Oracle, framed, framework_of, substantial, without_nan
from conformance.oracle.reference import Exact
from conformance.subjects.frameworks import Framework
from reference_numpy.attention_steps import repeat_heads, resolve_scale
from reference_numpy.blocks import attention_options
from reference_numpy.multi_head_attention import join_heads, split_heads
from specification.parameters import mapped

INSIDE = ("attend", "transform")
"""Steps that are made of pieces."""


class Piece(NamedTuple):
    """takes: names of earlier pieces, or of the step's own activations.

    compute: from a package's functions, the step's settings and what it takes, in the package's arrays, to the result.
    bound: from the dtype, the settings and the same arrays in float64.
    """

    name: str
    takes: tuple[str, ...]
    compute: Callable[..., Any]
    bound: Callable[..., np.ndarray]


def projected(part: str, heads: str) -> tuple[Callable[..., Any], Callable[..., np.ndarray]]:
    """A projection of an attention, split into its heads."""

    def compute(functions: Any, settings: Any, x: Any) -> Any:
        projection = functions.join_heads(getattr(settings.parameters, part))
        return functions.split_heads(functions.linear(projection, x), getattr(settings, heads))

    def error(dtype: str, settings: Any, x: Any) -> np.ndarray:
        projection = join_heads(getattr(settings.parameters, part))
        return split_heads(linear_bound(dtype, projection, x), getattr(settings, heads))

    return compute, error


# --- attention --------------------------------------------------------------------------------------------------------


def scores(functions: Any, settings: Any, query: Any, key: Any) -> Any:
    """Of all pairs, before any mask."""
    every = settings.framework.array(np.ones((1, 1, query.shape[2], key.shape[2]), bool))
    repeated = functions.repeat_heads(functions.widen(key), settings.heads)
    given = {"bias": None, "scale": settings.scale, "softcap": None}
    return functions.attention_scores(functions.widen(query), repeated, every, **given)


def scores_bound(dtype: str, settings: Any, query: np.ndarray, key: np.ndarray) -> np.ndarray:
    repeated = repeat_heads(key, settings.heads)
    scale = resolve_scale(settings.scale, query.shape[-1])
    found, _ = scores_and_slope(exact(query), exact(repeated), None, scale, None, Precision.of(dtype))
    return found.error


def masked_scores(functions: Any, settings: Any, scores: Any) -> np.ndarray:
    """-inf where the package's own reading of the mask forbids a pair."""
    found = settings.framework.numpy(scores)
    if settings.mask is None:
        return found
    B, H, Q, K = found.shape
    allowed = settings.framework.numpy(functions.materialize(settings.mask, Q, K, batch=B, heads=H))
    return np.where(allowed, found, found.dtype.type(-np.inf))


def weights(functions: Any, settings: Any, query: Any, key: Any) -> Any:
    return functions.attention_weights(query, key, **settings.options)


def heads(functions: Any, settings: Any, query: Any, key: Any, value: Any) -> Any:
    return functions.attention(query, key, value, **settings.options)


def operation_bound(operation: str) -> Callable[..., np.ndarray]:
    def error(dtype: str, settings: Any, *arrays: np.ndarray) -> np.ndarray:
        inputs = dict(zip(("query", "key", "value"), arrays, strict=False))
        return np.asarray(bound(case_of(dtype, operation, inputs, **settings.options))["output"])

    return error


ATTENTION = (
    Piece("queries", ("x",), *projected("query", "heads")),
    Piece("keys", ("memory",), *projected("key", "key_heads")),
    Piece("values", ("memory",), *projected("value", "key_heads")),
    Piece("scores", ("queries", "keys"), scores, scores_bound),
    Piece("scores, masked", ("scores",), masked_scores, lambda dtype, settings, scores: np.zeros(scores.shape)),
    Piece("weights", ("queries", "keys"), weights, operation_bound("attention_weights")),
    Piece("weighted values", ("queries", "keys", "values"), heads, operation_bound("attention")),
    Piece(
        "heads merged",
        ("weighted values",),
        lambda functions, settings, heads: functions.concatenate_heads(heads),
        lambda dtype, settings, heads: np.zeros((heads.shape[0], heads.shape[2], heads.shape[1] * heads.shape[3])),
    ),
)


# --- feed-forward -----------------------------------------------------------------------------------------------------


def activated_bound(dtype: str, settings: Any, x: np.ndarray) -> np.ndarray:
    p = Precision.of(dtype)
    return stored(activation_bound(settings.configuration.activation, exact(x), p), p).error


FEED_FORWARD = (
    Piece(
        "pre-activation",
        ("x",),
        lambda functions, settings, x: functions.linear(settings.parameters.inner, x),
        lambda dtype, settings, x: linear_bound(dtype, settings.parameters.inner, x),
    ),
    Piece(
        "activation",
        ("pre-activation",),
        lambda functions, settings, x: functions.ACTIVATIONS[settings.configuration.activation](functions.widen(x)),
        activated_bound,
    ),
)
PIECES = {"attend": ATTENTION, "transform": FEED_FORWARD}


# --- judging ----------------------------------------------------------------------------------------------------------


def pieces_of(oracle: Oracle, step: str, packages: Sequence[str]) -> list[StepAgreement]:
    """The pieces of the step of that name, in order; every one on the definition's own."""
    taken, dtype = oracle.taken[step], oracle.dtype
    values = {"x": taken.arguments[1], "memory": taken.arguments[2]}
    own, found = settings_of(taken, framework_of("reference_numpy"), "float64"), []
    there = {package: framework_of(package) for package in compared(packages, dtype)}
    settings = {package: settings_of(taken, framework, dtype) for package, framework in there.items()}
    for piece in PIECES[taken.step]:
        with np.errstate(all="ignore"):
            values[piece.name] = piece.compute(functions_of("reference_numpy"), own, *map(values.get, piece.takes))
            given = [cast(values[name], dtype) for name in piece.takes]
            wide = [array.astype(np.float64) for array in given]
            truth = np.asarray(piece.compute(functions_of("reference_numpy"), own, *wide))
            limit = without_nan(piece.bound(dtype, own, *wide) * (2 if dtype == "float64" else 1))
        ratios = {}
        for package, framework in there.items():
            with framework.context(), np.errstate(all="ignore"):
                arrays = map(framework.array, given)
                got = piece.compute(functions_of(package), settings[package], *arrays)
                answer = got if isinstance(got, np.ndarray) else framework.numpy(got)
            ratios[package] = compare(piece.name, answer, Exact(truth, np.zeros_like(truth)), limit, dtype).ratio
        result = np.asarray(values[piece.name])
        name = f"{step}: {piece.name}"
        judged = bool(np.all(truth == -np.inf)) or substantial(truth, limit)  # where all is hidden, -inf is right
        found.append(StepAgreement(name, result.shape, *extent(result), ratios, judged))
    return found


def functions_of(package: str) -> SimpleNamespace:
    """The package's public functions, and those of its files on attention and the feed-forward network."""
    files = ("feed_forward", "attention_steps", "multi_head_attention")
    modules = [importlib.import_module(name) for name in (*(f"{package}.{file}" for file in files), package)]
    return SimpleNamespace(**{name: value for module in modules for name, value in vars(module).items()})


def settings_of(taken: Any, framework: Framework, dtype: str) -> SimpleNamespace:
    """All that a step is given beside its activations, in the framework's arrays."""
    configuration = taken.arguments[-1]
    with framework.context():
        parameters = mapped(lambda array: framework.array(cast(array, dtype)), taken.arguments[0])
        found = SimpleNamespace(parameters=parameters, configuration=configuration, framework=framework)
        if taken.step == "transform":
            return found
        options = attention_options(taken.arguments[1].shape[-1], taken.arguments[3], None, configuration)
        mask = framed(options["mask"], framework)
    found.mask, found.scale, found.heads = mask, options["scale"], options["num_heads"]
    key, query = join_heads(taken.arguments[0].key), join_heads(taken.arguments[0].query)
    found.key_heads = key.weight.shape[1] // (query.weight.shape[1] // found.heads)
    found.options = {"mask": mask, "scale": found.scale, "empty_rows": options["empty_rows"]}
    return found


def with_pieces(found: Agreement, steps: Sequence[str], packages: Sequence[str]) -> Agreement:
    """The same with the pieces of these steps before each of them."""
    listed: list[StepAgreement] = []
    for step in found.steps:
        listed += pieces_of(found.oracle, step.name, packages) if step.name in steps else []
        listed.append(step)
    return found._replace(steps=listed)

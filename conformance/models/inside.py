"""What lies inside an attention and a feed-forward network, in several packages, piece by piece.

Pieces are judged as steps are: each is worked out by the package's own public function on the definition's own pieces,
rounded to the model's dtype, and held to the bound of that one piece. What a package takes in one call here may be
faster in its models; there the whole step is judged.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from conformance.bounds import bound
from conformance.bounds.arithmetic import Precision, exact, multiply, round_output
from conformance.bounds.attention import scores_and_slope
from conformance.bounds.layers import activation as activation_bound
from conformance.bounds.operations import pairs
from conformance.checks.comparison import compare
from conformance.models.agreement import Agreement, StepAgreement, comparable_packages, describe_step
from conformance.models.attention_bounds import norm_of, rotate_approx
from conformance.models.error_propagation import Run, Walk, walk_steps
from conformance.models.instrumentation import Visit
from conformance.models.local import case_of, cast
from conformance.models.local import linear as linear_bound
from conformance.models.stepwise import Oracle, Taken, convert_arrays, framework_of, is_bounded, replace_nan
from conformance.oracle.reference import Exact
from conformance.subjects.frameworks import Framework
from reference_numpy.attention_steps import repeat_heads, resolve_scale
from reference_numpy.blocks import attention_options, key_heads, windowed
from reference_numpy.multi_head_attention import concatenate_heads, join_heads, split_heads
from specification.configuration import AttentionLayer
from specification.parameters import GatedFeedForward, mapped

INSIDE = ("attend", "transform")
"""Steps that are made of pieces."""
MASKED = "scores, masked"
"""The piece that is -inf where the mask forbids a pair."""


class Piece(NamedTuple):
    """takes: names of earlier pieces, or of the step's own activations.

    compute: from a package's functions, the step's settings and what it takes, in the package's arrays, to the result.
    bound: from the dtype, the settings and the same arrays in float64.
    """

    name: str
    takes: tuple[str, ...]
    compute: Callable[..., Any]
    bound: Callable[..., np.ndarray]


def projection_functions(part: str, heads: str) -> tuple[Callable[..., Any], Callable[..., np.ndarray]]:
    """A projection of an attention, split into its heads."""

    def compute(functions: Any, settings: Any, x: Any) -> Any:
        projection = functions.join_heads(getattr(settings.parameters, part))
        return functions.split_heads(functions.linear(projection, x), getattr(settings, heads))

    def error(dtype: str, settings: Any, x: Any) -> np.ndarray:
        projection = join_heads(getattr(settings.parameters, part))
        return split_heads(linear_bound(dtype, projection, x), getattr(settings, heads))

    return compute, error


def norm_functions(part: str, heads: str) -> tuple[Callable[..., Any], Callable[..., np.ndarray]]:
    """The norm of queries or keys, of each head or of all together."""

    def compute(functions: Any, settings: Any, x: Any) -> Any:
        norm, columns = getattr(settings.parameters, f"{part}_norm"), functions.concatenate_heads(x)
        return functions.normalized_heads(norm, columns, getattr(settings, heads), settings.configuration)

    def error(dtype: str, settings: Any, x: Any) -> np.ndarray:
        norm, count, p = getattr(settings.parameters, f"{part}_norm"), getattr(settings, heads), Precision.make(dtype)
        whole = norm.weight.shape == (x.shape[1] * x.shape[3],)
        found = round_output(
            norm_of(norm, exact(concatenate_heads(x) if whole else x), settings.configuration, p), p
        ).error
        return split_heads(found, count) if whole else found

    return compute, error


def rotate_heads(functions: Any, settings: Any, x: Any) -> Any:
    rotary, positions = settings.layer.rotary, settings.framework.array(np.arange(x.shape[2]))
    return functions.rotary_embedding(
        x, positions,
        base=rotary.base, rotary_width=rotary.width, pairing=rotary.pairing, scaling=rotary.scaling,
    )  # fmt: skip


def rotated_bound(dtype: str, settings: Any, x: np.ndarray) -> np.ndarray:
    return rotate_approx(exact(x), settings.layer.rotary, 1, Precision.make(dtype)).error


# --- attention --------------------------------------------------------------------------------------------------------


def scores(functions: Any, settings: Any, query: Any, key: Any) -> Any:
    """Of all pairs, before any mask."""
    every = settings.framework.array(np.ones((1, 1, query.shape[2], key.shape[2]), bool))
    repeated = functions.repeat_heads(functions.widen(key), settings.heads)
    bias = settings.options.get("bias")
    given = {"bias": bias if bias is None else functions.widen(bias)}
    given |= {"scale": settings.scale, "softcap": settings.options.get("softcap")}
    return functions.attention_scores(functions.widen(query), repeated, every, **given)


def scores_bound(dtype: str, settings: Any, query: np.ndarray, key: np.ndarray) -> np.ndarray:
    repeated = repeat_heads(key, settings.heads)
    scale, options = resolve_scale(settings.scale, query.shape[-1]), settings.options
    bias, p = pairs(options.get("bias")), Precision.make(dtype)
    found, _ = scores_and_slope(exact(query), exact(repeated), bias, scale, options.get("softcap"), p)
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
        options = dict(settings.options)
        inputs |= {name: options.pop(name) for name in ("bias", "sinks") if name in options}
        return np.asarray(bound(case_of(dtype, operation, inputs, **options))["output"])

    return error


def head_pieces(name: str, part: str, heads: str, source: str, norm: Any, layer: AttentionLayer) -> list[Piece]:
    """From a step's activation to queries or keys: projected, and then normalised and rotated where they are."""
    found = [Piece(name, (source,), *projection_functions(part, heads))]
    if norm is not None:
        found.append(Piece(f"{name}, normalised", (name,), *norm_functions(part, heads)))
    if layer.rotary is not None:
        found.append(Piece(f"{name}, rotated", (found[-1].name,), rotate_heads, rotated_bound))
    return found


def attention_pieces(taken: Any) -> list[Piece]:
    """Those of a block's attention, in order."""
    parameters, layer = taken.arguments[0], AttentionArguments(*taken.arguments).layer
    queries = head_pieces("queries", "query", "heads", "x", parameters.query_norm, layer)
    keys = head_pieces("keys", "key", "key_heads", "memory", parameters.key_norm, layer)
    query, key = queries[-1].name, keys[-1].name
    return [
        *queries,
        *keys,
        Piece("values", ("memory",), *projection_functions("value", "key_heads")),
        Piece("scores", (query, key), scores, scores_bound),
        Piece(MASKED, ("scores",), masked_scores, lambda dtype, settings, scores: np.zeros(scores.shape)),
        Piece("weights", (query, key), weights, operation_bound("attention_weights")),
        Piece("weighted values", (query, key, "values"), heads, operation_bound("attention")),
        Piece(
            "heads merged",
            ("weighted values",),
            lambda functions, settings, heads: functions.concatenate_heads(heads),
            lambda dtype, settings, heads: np.zeros((heads.shape[0], heads.shape[2], heads.shape[1] * heads.shape[3])),
        ),
    ]


# --- feed-forward -----------------------------------------------------------------------------------------------------


def activated_bound(dtype: str, settings: Any, x: np.ndarray) -> np.ndarray:
    p = Precision.make(dtype)
    return round_output(activation_bound(settings.configuration.activation, exact(x), p), p).error


def layer_piece(name: str, part: str) -> Piece:
    """A projection of the network's input."""
    return Piece(
        name,
        ("x",),
        lambda functions, settings, x: functions.linear(getattr(settings.parameters, part), x),
        lambda dtype, settings, x: linear_bound(dtype, getattr(settings.parameters, part), x),
    )


ACTIVATION = Piece(
    "activation",
    ("pre-activation",),
    lambda functions, settings, x: functions.ACTIVATIONS[settings.configuration.activation](functions.widen(x)),
    activated_bound,
)


def gate_activation(functions: Any, settings: Any, before: Any, x: Any) -> Any:
    """The activation of one projection times the other, before it is rounded."""
    return functions.ACTIVATIONS[settings.configuration.activation](functions.widen(before)) * functions.widen(x)


def gated_bound(dtype: str, settings: Any, before: np.ndarray, x: np.ndarray) -> np.ndarray:
    p = Precision.make(dtype)
    activated = activation_bound(settings.configuration.activation, exact(before), p)
    return round_output(multiply(activated, exact(x), p), p).error


def feed_forward_pieces(taken: Any) -> list[Piece]:
    """Those of the feed-forward network, in order."""
    if not isinstance(taken.arguments[0], GatedFeedForward):
        return [layer_piece("pre-activation", "inner"), ACTIVATION]
    product = Piece("gated", ("pre-activation", "inner"), gate_activation, gated_bound)
    return [layer_piece("pre-activation", "gate"), ACTIVATION, layer_piece("inner", "inner"), product]


PIECES = {"attend": attention_pieces, "transform": feed_forward_pieces}


# --- the definition's own ---------------------------------------------------------------------------------------------


def piece_names(oracle: Oracle) -> dict[str, list[str]]:
    """Full names of the pieces, in order, by the step that they are inside of."""
    made = {step: PIECES[taken.step](taken) for step, taken in oracle.taken.items() if taken.step in INSIDE}
    return {step: [f"{step}: {piece.name}" for piece in pieces] for step, pieces in made.items()}


def own_pieces(oracle: Oracle) -> dict[str, np.ndarray]:
    """The definition's pieces of all steps in float64, by their full names."""
    found: dict[str, np.ndarray] = {}
    for step, taken in oracle.taken.items():
        if taken.step in INSIDE:
            found |= visit_pieces(step, taken, take_step)
    return found


def weights_within(arguments: tuple[Any, ...]) -> np.ndarray:
    """The weights [B, H, Q, K] of an attention, by the definition in float64; dropout is left out.

    arguments: those of the step `attend`.
    """
    return visit_pieces("", Taken("attend", take_step, arguments, {}, None, ()), take_step)[": weights"]


def take_step(name: str, step: str, function: Any, arguments: Any, keywords: Any) -> Any:
    """Visit a step without a change."""
    return function(*arguments, **keywords)


def visit_pieces(step: str, taken: Taken, visit: Visit) -> dict[str, np.ndarray]:
    """The definition's pieces of one step in float64, by their full names; each goes through `visit`."""
    functions = functions_of("reference_numpy")
    settings = settings_of(taken, framework_of("reference_numpy"), "float64")
    values, found = {"x": taken.arguments[1], "memory": taken.arguments[2]}, {}
    for piece in PIECES[taken.step](taken):
        arguments = (piece, functions, settings, *(values[name] for name in piece.takes))
        with np.errstate(all="ignore"):
            made = np.asarray(visit(f"{step}: {piece.name}", "piece", compute_piece, arguments, {}))
        values[piece.name] = found[f"{step}: {piece.name}"] = made
    return found


def compute_piece(piece: Piece, functions: Any, settings: Any, *arrays: Any) -> Any:
    return piece.compute(functions, settings, *arrays)


def walk_inside(steps: Collection[str]) -> Walk:
    """A walk that gives the result of every step, and before it the pieces of those steps."""

    def walk(run: Run, parameters: Any, visit: Visit) -> list[Any]:
        results: dict[str, Any] = {}

        def keeping(name: str, step: str, function: Any, arguments: Any, keywords: Any) -> Any:
            result = visit(name, step, function, arguments, keywords)
            if name in steps:
                results.update(visit_pieces(name, Taken(step, function, arguments, keywords, result, ()), visit))
            results[name] = result
            return result

        walk_steps(run, parameters, keeping)
        return list(results.values())

    return walk


# --- judging ----------------------------------------------------------------------------------------------------------


def pieces_of(oracle: Oracle, step: str, packages: Sequence[str]) -> list[StepAgreement]:
    """The pieces of the step of that name, in order; every one on the definition's own."""
    taken, dtype, found = oracle.taken[step], oracle.dtype, []
    there = {package: framework_of(package) for package in comparable_packages(packages, dtype)}
    settings = {package: settings_of(taken, framework, dtype) for package, framework in there.items()}

    def judge(name: str, step: str, function: Any, arguments: Any, keywords: Any) -> Any:
        piece, functions, own, *arrays = arguments
        given = [cast(array, dtype) for array in arrays]
        wide = [array.astype(np.float64) for array in given]
        result, truth = function(*arguments), np.asarray(function(piece, functions, own, *wide))
        limit = replace_nan(piece.bound(dtype, own, *wide) * (2 if dtype == "float64" else 1))
        ratios = {}
        for package, framework in there.items():
            with framework.context():
                arrays = map(framework.array, given)
                got = piece.compute(functions_of(package), settings[package], *arrays)
                answer = got if isinstance(got, np.ndarray) else framework.numpy(got)
            ratios[package] = compare(piece.name, answer, Exact(truth, np.zeros_like(truth)), limit, dtype).ratio
        judged = bool(np.all(truth == -np.inf)) or is_bounded(truth, limit)  # where all is hidden, -inf is right
        found.append(describe_step(name, result, ratios, judged))
        return result

    visit_pieces(step, taken, judge)
    return found


def functions_of(package: str) -> SimpleNamespace:
    """The package's public functions, and those of its files on blocks and what is in them."""
    files = ("blocks", "feed_forward", "attention_steps", "multi_head_attention")
    modules = [importlib.import_module(name) for name in (*(f"{package}.{file}" for file in files), package)]
    return SimpleNamespace(**{name: value for module in modules for name, value in vars(module).items()})


class AttentionArguments(NamedTuple):
    """What `attend` is called with."""

    parameters: Any
    x: Any
    memory: Any
    mask: Any
    dropout: Any
    configuration: Any
    layer: AttentionLayer = AttentionLayer()
    bias: Any = None
    rotation: Any = None


def settings_of(taken: Any, framework: Framework, dtype: str) -> SimpleNamespace:
    """All that a step is given beside its activations, in the framework's arrays."""

    def own(array: Any) -> Any:
        return framework.array(cast(array, dtype))

    with framework.context():
        parameters = mapped(own, taken.arguments[0])
        if taken.step == "transform":
            return SimpleNamespace(parameters=parameters, configuration=taken.arguments[-1], framework=framework)
        given = AttentionArguments(*taken.arguments)
        mask = windowed(given.mask, given.layer)
        options = attention_options(given.x.shape[-1], mask, None, given.configuration)
        found = SimpleNamespace(parameters=parameters, configuration=given.configuration, framework=framework)
        found.mask, bias = convert_arrays(options["mask"], framework), None if given.bias is None else own(given.bias)
    found.layer, found.scale, found.heads = given.layer, options["scale"], given.configuration.num_heads
    found.key_heads = key_heads(given.parameters, found.heads)
    found.options = {"mask": found.mask, "scale": found.scale, "empty_rows": options["empty_rows"]}
    beside = {"softcap": options["softcap"], "bias": bias, "sinks": parameters.sinks}
    found.options |= {name: value for name, value in beside.items() if value is not None}
    return found


def insert_pieces(found: Agreement, steps: Sequence[str], packages: Sequence[str]) -> Agreement:
    """The same with the pieces of these steps before each of them."""
    listed: list[StepAgreement] = []
    for step in found.steps:
        listed += pieces_of(found.oracle, step.name, packages) if step.name in steps else []
        listed.append(step)
    return found._replace(steps=listed)

"""What lies inside an attention and a feed-forward network, in several packages, piece by piece.

Pieces are judged as steps are: each is worked out by the package's own public function on the definition's own pieces,
rounded to the model's dtype, and held to the bound of that one piece. What a package takes in one call here may be
faster in its models; there the whole step is judged.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

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
from reference_numpy import attention_weights
from reference_numpy.attention_steps import repeat_heads, resolve_scale
from reference_numpy.blocks import attend, key_heads, project_keys, project_queries, rotation_of
from reference_numpy.latent_attention import append_columns
from reference_numpy.multi_head_attention import concatenate_heads, join_heads, linear, split_heads
from specification.blocks import attention_options, windowed
from specification.parameters import GatedFeedForward, LatentAttention, MixtureOfExperts, mapped
from specification.rotary import Rotary

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from specification.arrays import Array

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


def projection(name: str, source: str, part: str, heads: str) -> Piece:
    def compute(functions: SimpleNamespace, settings: SimpleNamespace, x: Array) -> Any:
        projection = functions.join_heads(getattr(settings.parameters, part))
        return functions.split_heads(functions.linear(projection, x), getattr(settings, heads))

    def error(dtype: str, settings: SimpleNamespace, x: np.ndarray) -> np.ndarray:
        projection = join_heads(getattr(settings.parameters, part))
        return split_heads(linear_bound(dtype, projection, x), getattr(settings, heads))

    return Piece(name, (source,), compute, error)


def normalization_piece(name: str, part: str, heads: str) -> Piece:
    """The norm of queries or keys, of each head or of all together."""

    def compute(functions: SimpleNamespace, settings: SimpleNamespace, x: Array) -> Any:
        norm, columns = getattr(settings.parameters, f"{part}_norm"), functions.concatenate_heads(x)
        return functions.normalized_heads(norm, columns, getattr(settings, heads), settings.configuration)

    def error(dtype: str, settings: SimpleNamespace, x: np.ndarray) -> np.ndarray:
        norm, count, p = getattr(settings.parameters, f"{part}_norm"), getattr(settings, heads), Precision.make(dtype)
        whole = norm.weight.shape == (x.shape[1] * x.shape[3],)
        given = exact(concatenate_heads(x) if whole else x)
        found = round_output(norm_of(norm, given, settings.configuration, p), p).error
        return split_heads(found, count) if whole else found

    return Piece(f"{name}, normalised", (name,), compute, error)


def rotated(name: str, source: str, rotary: Rotary) -> Piece:
    def compute(functions: SimpleNamespace, settings: SimpleNamespace, x: Array) -> Any:
        positions = settings.framework.array(np.arange(x.shape[2]))
        return functions.rotary_embedding(
            x, positions,
            base=rotary.base, rotary_width=rotary.width, pairing=rotary.pairing, scaling=rotary.scaling,
        )  # fmt: skip

    def error(dtype: str, settings: SimpleNamespace, x: np.ndarray) -> np.ndarray:
        return rotate_approx(exact(x), rotary, 1, Precision.make(dtype)).error

    return Piece(f"{name}, rotated", (source,), compute, error)


# --- attention --------------------------------------------------------------------------------------------------------


def scores(functions: SimpleNamespace, settings: SimpleNamespace, query: Array, key: Array) -> Any:
    """Of all pairs, before any mask."""
    every = settings.framework.array(np.ones((1, 1, query.shape[2], key.shape[2]), bool))
    repeated = functions.repeat_heads(functions.widen(key), settings.heads)
    bias = settings.options.get("bias")
    given = {"bias": bias if bias is None else functions.widen(bias)}
    given |= {"scale": resolve_scale(settings.scale, query.shape[-1]), "softcap": settings.options.get("softcap")}
    return functions.attention_scores(functions.widen(query), repeated, every, **given)


def scores_bound(dtype: str, settings: SimpleNamespace, query: np.ndarray, key: np.ndarray) -> np.ndarray:
    repeated = repeat_heads(key, settings.heads)
    scale, options = resolve_scale(settings.scale, query.shape[-1]), settings.options
    bias, p = pairs(options.get("bias")), Precision.make(dtype)
    found, _ = scores_and_slope(exact(query), exact(repeated), bias, scale, options.get("softcap"), p)
    return found.error


def masked_scores(functions: SimpleNamespace, settings: SimpleNamespace, scores: Array) -> np.ndarray:
    """-inf where the package's own reading of the mask forbids a pair."""
    found = settings.framework.numpy(scores)
    if settings.mask is None:
        return found
    B, H, Q, K = found.shape
    allowed = settings.framework.numpy(functions.materialize(settings.mask, Q, K, batch=B, heads=H))
    return np.where(allowed, found, found.dtype.type(-np.inf))


def operation_piece(name: str, operation: str, *takes: str) -> Piece:
    def compute(functions: SimpleNamespace, settings: SimpleNamespace, *arrays: Array) -> Any:
        return getattr(functions, operation)(*arrays, **settings.options)

    def error(dtype: str, settings: SimpleNamespace, *arrays: np.ndarray) -> np.ndarray:
        inputs = dict(zip(("query", "key", "value"), arrays, strict=False))
        options = dict(settings.options)
        inputs |= {name: options.pop(name) for name in ("bias", "sinks") if name in options}
        return np.asarray(bound(case_of(dtype, operation, inputs, **options))["output"])

    return Piece(name, takes, compute, error)


def attention_pieces(taken: Taken) -> list[Piece]:
    """Those of a block's attention, in order: queries and keys are normalised and rotated where they are."""
    parameters, rotary = taken.arguments[0], attention_arguments(taken).layer.rotary
    found, last = [], {}
    for name, part, heads, source in (("queries", "query", "heads", "x"), ("keys", "key", "key_heads", "memory")):
        found.append(projection(name, source, part, heads))
        if getattr(parameters, f"{part}_norm") is not None:
            found.append(normalization_piece(name, part, heads))
        if rotary is not None:
            found.append(rotated(name, found[-1].name, rotary))
        last[part] = found[-1].name
    query, key = last.values()
    return [
        *found,
        projection("values", "memory", "value", "key_heads"),
        Piece("scores", (query, key), scores, scores_bound),
        Piece(MASKED, ("scores",), masked_scores, lambda dtype, settings, scores: np.zeros(scores.shape)),
        operation_piece("weights", "attention_weights", query, key),
        operation_piece("weighted values", "attention", query, key, "values"),
        Piece(
            "heads merged",
            ("weighted values",),
            lambda functions, settings, heads: functions.concatenate_heads(heads),
            lambda dtype, settings, heads: np.zeros((heads.shape[0], heads.shape[2], heads.shape[1] * heads.shape[3])),
        ),
    ]


# --- feed-forward -----------------------------------------------------------------------------------------------------


def layer_piece(name: str, part: str) -> Piece:
    """A projection of the network's input."""
    return Piece(
        name,
        ("x",),
        lambda functions, settings, x: functions.linear(getattr(settings.parameters, part), x),
        lambda dtype, settings, x: linear_bound(dtype, getattr(settings.parameters, part), x),
    )


def activate(functions: SimpleNamespace, settings: SimpleNamespace, before: Array, *gated: Array) -> Any:
    """The activation of one projection, and times the other where that is given, before it is rounded."""
    activated = functions.ACTIVATIONS[settings.configuration.activation](functions.widen(before))
    return activated * functions.widen(gated[0]) if gated else activated


def activated_bound(dtype: str, settings: SimpleNamespace, before: np.ndarray, *gated: np.ndarray) -> np.ndarray:
    p = Precision.make(dtype)
    activated = activation_bound(settings.configuration.activation, exact(before), p)
    return round_output(multiply(activated, exact(gated[0]), p) if gated else activated, p).error


def feed_forward_pieces(taken: Taken) -> list[Piece]:
    activation = Piece("activation", ("pre-activation",), activate, activated_bound)
    if not isinstance(taken.arguments[0], GatedFeedForward):
        return [layer_piece("pre-activation", "inner"), activation]
    product = Piece("gated", ("pre-activation", "inner"), activate, activated_bound)
    return [layer_piece("pre-activation", "gate"), activation, layer_piece("inner", "inner"), product]


def list_pieces(taken: Taken) -> list[Piece]:
    """The pieces of a step, in order; none of other steps, of latent attention and of mixtures, which are one each."""
    if taken.step not in INSIDE or isinstance(taken.arguments[0], LatentAttention | MixtureOfExperts):
        return []
    return attention_pieces(taken) if taken.step == "attend" else feed_forward_pieces(taken)


# --- the definition's own ---------------------------------------------------------------------------------------------


def piece_names(oracle: Oracle) -> dict[str, list[str]]:
    """Full names of the pieces, in order, by the step that they are inside of."""
    made = {step: list_pieces(taken) for step, taken in oracle.taken.items()}
    return {step: [f"{step}: {piece.name}" for piece in pieces] for step, pieces in made.items() if pieces}


def own_pieces(oracle: Oracle) -> dict[str, np.ndarray]:
    """The definition's pieces of all steps in float64, by their full names."""
    found: dict[str, np.ndarray] = {}
    for step, taken in oracle.taken.items():
        found |= visit_pieces(step, taken, take_step)
    return found


def weights_within(arguments: tuple[Any, ...]) -> np.ndarray:
    """The weights [B, H, Q, K] of an attention, by the definition in float64; dropout is left out.

    arguments: those of the step `attend`.
    """
    if isinstance(arguments[0], LatentAttention):
        return latent_weights(attention_arguments(Taken("attend", take_step, arguments, {}, None, ())))
    return visit_pieces("", Taken("attend", take_step, arguments, {}, None, ()), take_step)[": weights"]


def latent_weights(given: SimpleNamespace) -> np.ndarray:
    """The weights of a latent attention, whose keys are expanded (MLA-1)."""
    p, heads = given.parameters, given.configuration.num_heads
    width = p.key_value_down.weight.shape[1] - p.key_value_norm.weight.shape[0]
    rotation = rotation_of(given.layer.rotary, width, given.x) if given.rotation is None else given.rotation
    queries = project_queries(p, given.x, given.configuration, given.layer, rotation)
    latents, rotated_key = project_keys(p, given.x, given.configuration, given.layer, rotation)
    expanded = split_heads(linear(p.key_value_up, concatenate_heads(latents)), heads)
    keys = append_columns(expanded[..., : queries.shape[-1] - width], rotated_key)
    options = attention_options(given.x.shape[-1], windowed(given.mask, given.layer), None, given.configuration)
    return attention_weights(queries, keys, mask=options["mask"], scale=options["scale"])


def take_step(
    name: str, step: str, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> Any:
    """Visit a step without a change."""
    return function(*arguments, **keywords)


def visit_pieces(step: str, taken: Taken, visit: Visit) -> dict[str, np.ndarray]:
    """The definition's pieces of one step in float64, by their full names; each goes through `visit`."""
    pieces = list_pieces(taken)
    if not pieces:
        return {}
    functions = functions_of("reference_numpy")
    settings = settings_of(taken, framework_of("reference_numpy"), "float64")
    values, found = {"x": taken.arguments[1], "memory": taken.arguments[2]}, {}

    def compute(piece: Piece, functions: SimpleNamespace, settings: SimpleNamespace, *arrays: Array) -> Any:
        return piece.compute(functions, settings, *arrays)

    for piece in pieces:
        arguments = (piece, functions, settings, *(values[name] for name in piece.takes))
        with np.errstate(all="ignore"):
            made = np.asarray(visit(f"{step}: {piece.name}", "piece", compute, arguments, {}))
        values[piece.name] = found[f"{step}: {piece.name}"] = made
    return found


def walk_inside(steps: Collection[str]) -> Walk:
    """A walk that gives the result of every step, and before it the pieces of those steps."""

    def walk(run: Run, parameters: Any, visit: Visit) -> list[Any]:
        results: dict[str, Any] = {}

        def keeping(
            name: str, step: str, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
        ) -> Any:
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
    if not list_pieces(taken):
        return []
    there = {package: framework_of(package) for package in comparable_packages(packages, dtype)}
    settings = {package: settings_of(taken, framework, dtype) for package, framework in there.items()}

    def judge(
        name: str, step: str, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        piece, functions, own, *arrays = arguments
        given = [cast(array, dtype) for array in arrays]
        wide = [array.astype(np.float64) for array in given]
        result, truth = function(*arguments), np.asarray(function(piece, functions, own, *wide))
        limit = replace_nan(piece.bound(dtype, own, *wide) * (2 if dtype == "float64" else 1))
        ratios = {}
        for package, framework in there.items():
            with framework.context():
                arrays = [framework.array(array) for array in given]
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


def attention_arguments(taken: Taken) -> SimpleNamespace:
    """What `attend` is called with, by name."""
    given = inspect.signature(attend).bind(*taken.arguments)
    given.apply_defaults()
    return SimpleNamespace(**given.arguments)


def settings_of(taken: Taken, framework: Framework, dtype: str) -> SimpleNamespace:
    """All that a step is given beside its activations, in the framework's arrays."""

    def own(array: ArrayLike) -> Any:
        return framework.array(cast(array, dtype))

    with framework.context():
        parameters = mapped(own, taken.arguments[0])
        if taken.step == "transform":
            return SimpleNamespace(parameters=parameters, configuration=taken.arguments[-1], framework=framework)
        given = attention_arguments(taken)
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

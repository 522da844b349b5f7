"""JAX: the engines of jax_impl, and jax.nn's attention. Everything is called under jax.jit."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from conformance.subjects.frameworks import JaxArrays
from conformance.subjects.subject import first_line
from conformance.timing.subjects.timed_subject import (
    BTHD,
    EVICTED,
    ROUNDED,
    Layout,
    Prepared,
    Results,
    Subject,
    Unfit,
    heads_of,
    ours,
    usual_layout,
    without,
)
from conformance.timing.timed_case import Arrays, Case, dense_mask, mixture_parameters
from specification.masks import map_arrays


def prepared(
    case: Case, device: str, function: Any, given: Any = None, *, gradients: Any = None, layout: Layout | None = None
) -> Prepared:
    """function(*inputs, given(mask)) under jax.jit, with jax.vjp where there is a backward pass.

    given: without it, function(*inputs). What holds arrays is an argument of the compiled function. gradients:
    gradients(*inputs, cotangent, given(mask)) of the inputs, in place of jax.vjp.
    """
    import jax

    framework, layout = JaxArrays(device), layout or usual_layout(case)

    @jax.jit
    def forward(inputs: Any, extra: Any) -> Results:
        return (function(*inputs, *extra),)

    @jax.jit
    def both(inputs: Any, extra: Any, cotangent: Any) -> Results:
        if gradients is not None:
            return function(*inputs, *extra), *gradients(*inputs, cotangent, *extra)
        output, pullback = jax.vjp(lambda *inputs: function(*inputs, *extra), *inputs)
        return output, *pullback(cotangent)

    def load(arrays: Arrays, mask: Any) -> Any:
        inputs = [framework.array(layout.lay(arrays[name])) for name in case.inputs]
        extra = (given(mask),) if given else ()
        cotangents = [framework.array(layout.lay(arrays["cotangent"]))] if case.backward else []
        return jax.block_until_ready((inputs, extra, *cotangents))

    def call(loaded: Any) -> Results:
        results: Results = both(*loaded) if case.backward else forward(*loaded)
        # On a CPU one call after the other, as for everybody else; on a GPU calls may queue.
        return jax.block_until_ready(results) if device == "cpu" else results

    def view(result: Any, name: str) -> Any:
        return layout.view(np.asarray(result), heads_of(case, name))

    def evict() -> None:
        jax.block_until_ready(jax.numpy.zeros(EVICTED, jax.numpy.uint8, device=framework.device))

    ready = Prepared(load, call, view, wait=jax.block_until_ready)
    return replace(ready, evict=evict) if device == "cuda" else ready


def engine(case: Case, device: str, name: str) -> Prepared:
    """jax_impl.attention by an engine; arrays in the description are arguments, as they are in a model."""
    import jax

    import jax_impl
    from conformance.timing.timed_case import mask

    framework, holds_arrays = JaxArrays(device), case.kind in ("lengths", "segments")
    fixed = None if holds_arrays else mask(case, 0)
    choices: list[Any] = []

    def convert_mask(mask: Any) -> Any:
        return map_arrays(mask, lambda array: framework.array(np.asarray(array, np.int32)))

    given = convert_mask if holds_arrays else None

    def explained(*inputs: Any) -> None:
        choices.append(jax_impl.explain_engine(*inputs[:3], mask=fixed or inputs[3], engine=name))

    try:
        like = [jax.ShapeDtypeStruct(case.shapes[part], case.dtype) for part in case.inputs]
        jax.eval_shape(explained, *like, given(mask(case, 0)) if given else None)
    except ValueError as error:
        raise Unfit(str(error)) from error

    def apply(query: Any, key: Any, value: Any, mask: Any = fixed) -> Any:
        return jax_impl.attention(query, key, value, mask=mask, engine=name)

    chosen = f"{choices[0].engine}: {choices[0].why}" if name == "auto" else ""
    return replace(prepared(case, device, apply, given), form="description", chosen=chosen)


# --- jax.nn -----------------------------------------------------------------------------------------------------------


def dot_product(case: Case, device: str, implementation: str) -> Prepared:
    """`jax.nn.dot_product_attention`, with the parameter that says most about the mask."""
    import jax

    array, window = JaxArrays(device).array, (case.window - 1, 0)
    every: dict[str, Any] = {"causal": {"is_causal": True}, "window": {"local_window_size": window}}
    name = {"lengths": "key_value_seq_lengths", "segments": "mask"}.get(case.kind, "")
    forms = {"causal": "is_causal", "window": f"local_window_size={window}", "segments": "boolean array"}
    givens = {
        "lengths": lambda mask: array(np.asarray(mask.lengths, np.int32)),
        "segments": lambda mask: array(dense_mask(case, mask)),
    }
    given = givens.get(case.kind)

    def apply(query: Any, key: Any, value: Any, mask: Any = None) -> Any:
        options: Any = {"implementation": implementation} | every.get(case.kind, {}) | ({name: mask} if name else {})
        return jax.nn.dot_product_attention(query, key, value, **options)

    if implementation == "cudnn":
        refuse_what_cudnn_does_not_take(case, apply, given)
    return replace(prepared(case, device, apply, given, layout=BTHD), form=forms.get(case.kind, name))


def refuse_what_cudnn_does_not_take(case: Case, apply: Any, given: Any) -> None:
    """Raise Unfit for what JAX refuses when it traces the call."""
    import jax

    from conformance.timing.timed_case import mask

    shapes = [(B, T, heads, width) for B, heads, T, width in (case.shapes[part] for part in case.inputs)]
    like = [jax.ShapeDtypeStruct(shape, case.dtype) for shape in shapes]
    try:
        jax.eval_shape(apply, *like, *([given(mask(case, 0))] if given else []))
    except (NotImplementedError, RuntimeError, ValueError) as error:
        raise Unfit(first_line(error)) from error


def layer_norm(case: Case, device: str, module: str, name: str = "layer_norm") -> Prepared:
    function = getattr(import_module(module), name)
    return prepared(case, device, lambda x, weight, bias: function(x, weight, bias, eps=1e-5))


def mixture(case: Case, device: str) -> Prepared:
    """The parameters are an argument of the compiled function, as they are in a model."""
    import jax_impl

    parameters = mixture_parameters(case, JaxArrays(device).array)

    def apply(x: Any, parameters: Any) -> Any:
        return jax_impl.mixture_of_experts(parameters, x, chosen=case.chosen)

    return prepared(case, device, apply, lambda mask: parameters)


# --- the list ---------------------------------------------------------------------------------------------------------


def peer(name: str, implementation: str, **fields: Any) -> Subject:
    fields = {"arrays": "jax", "packages": ("jax",), "conventions": ROUNDED} | fields
    return Subject(name, "attention", make=dot_product, arguments=(implementation,), **fields)


OURS = ours("jax_impl", engine, layer_norm, mixture, scores=(4, 8))
PEERS = (
    peer("jax.nn.dot_product_attention", "xla", scores=(3, 7), usual=True),
    peer("jax.nn.dot_product_attention, cuDNN", "cudnn", device="cuda", takes=without(dtypes=("float16", "bfloat16"))),
)

"""Errors of ports against the definition, over the configs of their dialect and padding on either side.

    python -m conformance.selftest.ports.measure [--faults] [WORD ...]

prints the largest error on each config, of the right ports or the faults, with one of these words in their names.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.ports.checkpoints import Checkpoint, draw_checkpoint
from conformance.ports.configs import list_configs
from conformance.selftest.ports.faults import FAULTS, SUBTLE
from conformance.selftest.ports.registry import PORTS, VARIANTS

Inputs = tuple[np.ndarray, ...]
LENGTH, BATCH = 11, 3
REAL = np.array([[True] * LENGTH, [True] * 7 + [False] * 4, [False] * 3 + [True] * 8])
"""A row without padding, one padded on the right, one padded on the left."""


def convert_array(framework: str, array: np.ndarray | None) -> Any:
    if array is None or framework == "numpy":
        return array
    if framework == "torch":
        import torch

        return torch.from_numpy(array)
    import jax.numpy as jnp

    return jnp.asarray(array)


def read_array(array: Any) -> Any:
    if hasattr(array, "detach"):
        array = array.detach().float().numpy()
    return np.asarray(array, np.float64)


def draw_calls(checkpoint: Checkpoint) -> Iterator[tuple[Inputs, dict[str, Any], np.ndarray]]:
    """Yield inputs, options by keyword, and which positions of the result are no padding."""
    generator = np.random.default_rng(1)
    if checkpoint.dialect == "vit":
        patches = checkpoint.shapes["embeddings.position_embeddings"][1] - 1
        size, channels = checkpoint.config["patch_size"], checkpoint.config["num_channels"]
        shapes = ((2 * size, patches // 2 * size), (size, patches * size))
        for shape in shapes:
            images = generator.normal(size=(2, channels, *shape)).astype(np.float32)
            yield (images,), {}, np.ones((2, patches + 1), bool)
        return
    vocabulary = checkpoint.config["vocab_size"]
    tokens = generator.integers(0, vocabulary, (BATCH, LENGTH)).astype(np.int32)
    tokens[0, 2] = 0  # often the id of padding, and here a token like all others
    everything = np.ones(REAL.shape, bool)
    if checkpoint.dialect == "t5":
        source = generator.integers(0, vocabulary, (BATCH, LENGTH)).astype(np.int32)
        yield (source, tokens), {}, everything
        target = REAL[:, ::-1].copy()[:, :9]
        yield (source, tokens[:, :9]), {"source_key_padding": REAL, "target_key_padding": target}, target
        return
    yield (tokens,), {}, everything
    yield (tokens,), {"key_padding": REAL}, REAL
    if checkpoint.dialect == "bert":
        types = generator.integers(0, checkpoint.config["type_vocab_size"], tokens.shape).astype(np.int32)
        yield (tokens,), {"key_padding": REAL, "token_types": types}, REAL


def define(checkpoint: Checkpoint, inputs: Inputs, options: dict[str, Any]) -> Any:
    """Return the definition's result in float64."""
    from reference_numpy.models import MODELS

    p = checkpoint.parameters
    with np.errstate(all="ignore"):
        if checkpoint.dialect == "vit":
            inputs = (inputs[0].astype(np.float64),)
        return MODELS[type(p)](p, *inputs, configuration=checkpoint.configuration, **options)


def largest_error(result: Any, exact: np.ndarray) -> float:
    """Return the largest error in units of the root mean square of the exact result; infinite for NaN."""
    if result.shape != exact.shape:
        return float("inf")
    error = np.max(np.abs(result - exact)) / np.sqrt(np.mean(exact**2))
    return float("inf") if np.isnan(error) else float(error)


def measure_calls(build: Callable[..., Any], framework: str, checkpoint: Checkpoint, config: dict[str, Any]) -> float:
    """Return the largest error of a port's function on a checkpoint."""
    function = build(config, checkpoint.state_dict())
    errors = []
    for inputs, options, real in draw_calls(checkpoint):
        arguments = [convert_array(framework, array) for array in inputs]
        keywords = {name: convert_array(framework, array) for name, array in options.items()}
        result = read_array(function(*arguments, **keywords))
        exact = define(checkpoint, inputs, options)
        errors.append(largest_error(result[real], exact[real]) if result.shape == exact.shape else float("inf"))
    return max(errors)


def measure_steps(build: Callable[..., Any], framework: str, checkpoint: Checkpoint, config: dict[str, Any]) -> float:
    """Return the largest error of decoding with a cache: a few tokens at first, then one at a time, then two."""
    step = build(config, checkpoint.state_dict()).step
    inputs = next(draw_calls(checkpoint))[0]
    exact, cache, parts = define(checkpoint, inputs, {}), None, []
    for part in np.split(inputs[0], [4, 5, 6, 8, 9, 10], axis=1):
        logits, cache = step(convert_array(framework, part), cache)
        parts.append(read_array(logits))
    return largest_error(np.concatenate(parts, axis=1), exact)


def measure_gradients(
    build: Callable[..., Any], framework: str, checkpoint: Checkpoint, config: dict[str, Any]
) -> float:
    """Return the largest error of the derivative along random directions, one for each entry.

    The derivative is a difference quotient of the definition in float64.
    """
    vjp = build(config, checkpoint.state_dict()).vjp
    generator = np.random.default_rng(2)
    errors: list[tuple[float, Any]] = []
    inputs, options, real = [*draw_calls(checkpoint)][1]
    exact = define(checkpoint, inputs, options)
    cotangent = generator.normal(size=exact.shape) * real[..., None]
    given = convert_array(framework, cotangent.astype(np.float32))
    arguments = [convert_array(framework, array) for array in inputs]
    gradients = vjp(given, *arguments, **{name: convert_array(framework, array) for name, array in options.items()})
    if {*gradients} != {*checkpoint.shapes}:
        return float("inf")
    cotangent = cotangent.astype(np.float32).astype(np.float64)
    start = 0
    for name, shape in checkpoint.shapes.items():
        size = int(np.prod(shape))
        direction = np.zeros(checkpoint.values.shape)
        direction[start : start + size] = generator.normal(size=size)
        values = []
        for sign in (1, -1):
            moved = replace(checkpoint, values=checkpoint.values + sign * 1e-6 * direction)
            values.append(np.sum(define(moved, inputs, options)[real] * cotangent[real]))
        expected = (values[0] - values[1]) / 2e-6
        gradient = read_array(gradients[name])
        if gradient.shape != shape:
            return float("inf")
        found = np.sum(gradient.ravel() * direction[start : start + size])
        errors.append((abs(found - expected), np.linalg.norm(gradient) * np.linalg.norm(direction)))
        start += size
    # Some gradients are 0, as those of biases of keys, and what is computed for them is rounding.
    smallest = 1e-2 * max(length for _, length in errors)
    return max(error / max(length, smallest) for error, length in errors)


MEASURES = {"call": measure_calls, "step": measure_steps, "vjp": measure_gradients}


def measure(
    build: Callable[..., Any],
    framework: str,
    dialect: str,
    index: int,
    by: str = "call",
    dtype: str = "float32",
    settings: dict[str, Any] | None = None,
) -> float:
    """Return the largest error of a port on one config of its dialect, with other settings if there are any."""
    config = list_configs(dialect)[index] | (settings or {})
    checkpoint = draw_checkpoint(dialect, config, np.random.default_rng(index))
    if dtype != "float32":
        checkpoint = checkpoint.round(dtype)
        config = config | {"dtype": dtype}
    return MEASURES[by](build, framework, checkpoint, config)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*", help="print names with one of these words only")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--framework")
    parser.add_argument("--faults", action="store_true", help="measure faults, not right ports")
    options = parser.parse_args()
    subjects: list[tuple[str, Any, str, str, tuple[str, ...], dict[str, Any]]]
    if options.faults:
        subjects = [
            (f.name, f, f.framework, f.dialect, (f.shown_by,), settings)
            for f in (*FAULTS, *SUBTLE)
            for settings in ([{}, f.settings] if f.settings else [{}])
        ]
    else:
        subjects = [(p.module, p.build, p.framework, p.dialect, tuple(MEASURES), {}) for p in (*PORTS, *VARIANTS)]
    for name, build, framework, dialect, measures, settings in subjects:
        if options.words and not any(word in name for word in options.words):
            continue
        if options.framework not in (None, framework):
            continue
        for by in measures:
            start, count = time.perf_counter(), len(list_configs(dialect))
            if by != "call" and not hasattr(build_first(build, dialect), by):
                continue
            errors = []
            for index in range(count):
                try:
                    errors.append(measure(build, framework, dialect, index, by, options.dtype, settings))
                except Exception as error:  # what a port raises is a part of the table
                    print(f"{name} raises {error!r}"[:200])
                    errors.append(float("inf"))
            seconds = time.perf_counter() - start
            told = f" with {settings}" if settings else ""
            print(f"{name} {by}{told}: {' '.join(f'{error:.1e}' for error in errors)} ({seconds:.1f} s)", flush=True)


def build_first(build: Callable[..., Any], dialect: str) -> Any:
    config = list_configs(dialect)[0]
    return build(config, draw_checkpoint(dialect, config, np.random.default_rng(0)).state_dict())


if __name__ == "__main__":
    main()

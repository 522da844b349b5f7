"""What goes wrong when several devices compute attention together in JAX (DIST-1 to DIST-3).

`gathered` keeps every rule: each device has all keys and values, in the order of the whole. JAX must have the devices
before anything else runs in its process. So these are judged one by one, by `check`, and not in the self-test.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from conformance.cases.declaration import declare
from jax_impl import attention
from jax_impl.engines.varying import axes_of, vary
from specification.distributed import shard_positions

RANKS = 2
HERE = "conformance.selftest.behaviours.jax_ranks:FAULTS"
FAULTS = SimpleNamespace()
"""The functions, by names under which other processes find them."""


class Fault(NamedTuple):
    """rule: that must notice. target: the function's name. shard: what its ranks have a part of."""

    rule: str
    target: str
    shard: str


ROWS: dict[str, Fault] = {}


class Call(NamedTuple):
    """What each device gives to `attention`: its own queries, and keys and values of all, [B, G, K, width]."""

    query: Any
    key: Any
    value: Any
    options: dict[str, Any]
    own: tuple[Any, Any]  # its part of the keys and values
    ranks: int
    order: np.ndarray  # the positions of the keys as devices hold them

    def undo(self, array: Any) -> Any:
        """Put keys that stand device by device into the order of the whole."""
        return array[:, :, np.argsort(self.order)]


def gather(query: Any, key: Any, value: Any, axis_name: str, layout: str, options: dict[str, Any]) -> Call:
    ranks = lax.axis_size(axis_name)
    places = [shard_positions(key.shape[2] * ranks, ranks, rank, layout) for rank in range(ranks)]
    keys, values = (lax.all_gather(array, axis_name, axis=2, tiled=True) for array in (key, value))
    options = vary(options, axes_of(query))  # whose gradients JAX then adds up
    call = Call(query, keys, values, options, (key, value), ranks, np.concatenate(places))
    return call._replace(key=call.undo(keys), value=call.undo(values))


def attend(call: Call) -> Any:
    return attention(call.query, call.key, call.value, **call.options)


@declare(["no-empty"])  # JAX's products of empty arrays are no longer the device's own, which `jax.shard_map` refuses
def gathered(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: jax.Array | None = None,
    axis_name: str,
    layout: str = "contiguous",
) -> jax.Array:
    """This device's rows, from the keys and values of all devices."""
    options = {"mask": mask, "bias": bias, "scale": scale, "softcap": softcap, "sinks": sinks}
    return attend(gather(query, key, value, axis_name, layout, options))


FAULTS.gathered = gathered


def plant(rule: str, name: str, answer: Callable[[Call], Any], shard: str = "sequence") -> None:
    """Add a fault, whose output is `answer(call)`."""

    @wraps(gathered)
    def function(query: Any, key: Any, value: Any, **options: Any) -> Any:
        axis_name, layout = options.pop("axis_name"), options.pop("layout")
        return answer(gather(query, key, value, axis_name, layout, {"sinks": None} | options))

    word = name.replace(" ", "_")
    setattr(FAULTS, word, function)
    ROWS[name] = Fault(rule, f"{HERE}.{word}", shard)


def roll_options(call: Call) -> Any:
    """Mask and bias have the columns of the block before."""
    step = call.key.shape[2] // call.ranks
    options = dict(call.options)
    for name in ("mask", "bias"):
        if options.get(name) is not None:
            options[name] = jnp.roll(options[name], step, axis=-1)
    return attend(call._replace(options=options))


def keep_columns(call: Call, count: int) -> Any:
    """The first keys alone."""
    options = {n: v[..., :count] if n in ("mask", "bias") and v is not None else v for n, v in call.options.items()}
    return attend(call._replace(key=call.key[:, :, :count], value=call.value[:, :, :count], options=options))


def average_blocks(call: Call) -> Any:
    """The mean of what each device's keys give alone."""
    step, outputs = call.key.shape[2] // call.ranks, []
    for first in range(0, call.key.shape[2], max(step, 1)):
        keys = slice(first, first + step)
        options = {n: v[..., keys] if n in ("mask", "bias") and v is not None else v for n, v in call.options.items()}
        block = call._replace(key=call.key[:, :, keys], value=call.value[:, :, keys], options=options)
        outputs.append(attend(block).astype(jnp.float32))
    return (sum(outputs) / max(len(outputs), 1)).astype(call.query.dtype) if outputs else attend(call)


def use_gradient_of(right: Any, other: Any) -> Any:
    """The values of one array, with the gradients of another."""
    return lax.stop_gradient(right) + (other - lax.stop_gradient(other))


def repeat_own_keys(call: Call) -> Any:
    own = jnp.tile(call.own[0], (1, 1, call.ranks, 1))
    return attend(call._replace(key=use_gradient_of(call.key, own)))


def share_gradients(call: Call) -> Any:
    """Gradients of keys and values are averaged over devices, not summed."""
    arrays = {name: use_gradient_of(one := getattr(call, name), one / call.ranks) for name in ("key", "value")}
    return attend(call._replace(**arrays))


def count_sinks(call: Call) -> Any:
    sinks = call.options["sinks"]
    more = None if sinks is None else sinks + float(np.log(call.ranks))
    return attend(call._replace(options=call.options | {"sinks": more}))


plant("MASK-3", "mask of the device before", roll_options)
plant("ATT-8", "keys of the last device dropped", lambda call: keep_columns(call, call.key.shape[2] // 2))
plant("ATT-8", "blocks averaged", average_blocks)
plant("ATT-8", "values one device behind",
      lambda call: attend(call._replace(value=jnp.roll(call.value, call.own[1].shape[2], axis=2))))  # fmt: skip
plant("ATT-12", "stale keys in the backward pass", repeat_own_keys)
plant("ATT-12", "gradients averaged over devices", share_gradients)
plant("ATT-5", "sinks counted on every device", count_sinks)
plant("MASK-3", "zigzag not undone",
      lambda call: attend(call._replace(key=call.key[:, :, call.order], value=call.value[:, :, call.order])),
      "zigzag")  # fmt: skip

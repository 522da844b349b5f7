"""Functions to be judged by their names, as somebody's file has them; tests copy it to a folder as targets.py."""

# mypy: allow-untyped-defs

import contextlib
import ctypes
import os
import signal
import sys
import time

import numpy as np

import conformance
import reference_numpy

buffers: dict[object, np.ndarray] = {}
calls: list[int] = []
number = 3

if os.path.exists("dead"):  # which `only_once` leaves behind
    raise RuntimeError("cannot be loaded again")


def good(query, key, value, *, mask=None, scale=None):
    return reference_numpy.attention(query, key, value, mask=mask, scale=scale)


# --- wrong results ----------------------------------------------------------------------------------------------------


def unscaled(query, key, value, *, mask=None):
    return reference_numpy.attention(query, key, value, mask=mask, scale=1.0)


def inverted(query, key, value, *, mask=None):
    return good(query, key, value, mask=None if mask is None else ~mask)


def mean_of_empty_rows(query, key, value, *, mask=None):
    if mask is not None:
        mask = mask | ~mask.any(-1, keepdims=True)
    return reference_numpy.attention(query, key, value, mask=mask)


def rounded_weights(query, key, value, *, mask=None, empty_rows="zero"):
    """Weights are rounded to the dtype of the inputs before they meet the values."""
    weights = reference_numpy.attention_weights(query, key, mask=mask, empty_rows=empty_rows).astype(np.float32)
    every = np.repeat(value.astype(np.float32), query.shape[1] // max(value.shape[1], 1), axis=1)
    return (weights @ every).astype(query.dtype)


def neighbours(x, positions, *, base=10000.0):
    return reference_numpy.rotary_embedding(x, positions, base=base, pairing="interleaved")


def up_to_8_keys(query, key, value):
    return good(query, key[..., :8, :], value[..., :8, :])


def wrong_shape(query, key, value):
    return good(query, key, value)[:, :1]


def wrong_dtype(query, key, value):
    return good(query, key, value).astype("complex64")


def wrong_framework(query, key, value):
    return good(query, key, value).tolist()


def returns_nothing(query, key, value):
    return None


def gradients(query, key, value, cotangent, *, mask=None, scale=None):
    return reference_numpy.attention_vjp(query, key, value, cotangent, mask=mask, scale=scale)


def doubled(*arguments, **options):
    return {name: 2 * array for name, array in gradients(*arguments, **options)._asdict().items() if array is not None}


differentiated = conformance.declare(vjp=doubled)(lambda query, key, value: good(query, key, value))


@np.errstate(all="ignore")
def plain_norm(x, weight, bias=None, *, eps=1e-5):
    """In two passes, and no more exact for constant rows than for others."""
    axes = tuple(range(-weight.ndim, 0))
    wide = x.astype(np.float64 if x.dtype == np.float64 else np.float32)
    d = wide - wide.mean(axes, keepdims=True, dtype=wide.dtype)
    y = d / np.sqrt((d * d).mean(axes, keepdims=True) + np.asarray(eps, wide.dtype)) * weight
    return (y if bias is None else y + bias).astype(x.dtype)


# --- errors -----------------------------------------------------------------------------------------------------------


def takes_one(x):
    return x


def takes_no_masks(query, key, value, *, mask=None):
    if mask is not None:
        raise NotImplementedError("masks")
    return good(query, key, value)


def raises(query, key, value):
    raise RuntimeError("no [red]kernel[/red] for \x1b[31m\x00 this <b>device</b>")


def leaves(query, key, value):
    raise SystemExit(0)


def interrupted(query, key, value, *, mask=None):
    calls.append(1)
    if len(calls) > 22:
        raise KeyboardInterrupt
    return unscaled(query, key, value, mask=mask)


def spoilt():
    raise RuntimeError("spoilt")


def spoils_the_judge(query, key, value, *, mask=None):
    if mask is not None:
        from conformance.runner import in_subprocess

        in_subprocess.judge_scope = spoilt
    return good(query, key, value, mask=mask)


# --- time -------------------------------------------------------------------------------------------------------------


def slow_with_masks(query, key, value, *, mask=None):
    if mask is not None:
        time.sleep(0.6)
    return good(query, key, value, mask=mask)


def hangs(query, key, value):
    while True:
        time.sleep(0.01)


def hangs_on_masks(query, key, value, *, mask=None):
    return good(query, key, value) if mask is None else hangs(query, key, value)


def hangs_deaf(query, key, value):
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    hangs(query, key, value)


def swallows(query, key, value):
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(0.1)


def holds_the_interpreter(query, key, value):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    ctypes.PyDLL(None).sleep(600)


# --- processes --------------------------------------------------------------------------------------------------------


def dies_on_masks(query, key, value, *, mask=None):
    return good(query, key, value) if mask is None else os.abort()


def only_once(query, key, value, *, mask=None):
    if mask is not None:
        os.mkdir("dead")
        os._exit(4)
    return good(query, key, value)


def deaf(query, key, value, *, mask=None):
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    os.closerange(3, 256)
    time.sleep(600)


def survived(query, key, value, *, mask=None):
    if os.fork() == 0:
        time.sleep(30)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def forks(query, key, value, *, mask=None):
    parent = os.fork()
    if parent:
        time.sleep(0.05)
    return good(query, key, value, mask=mask) * (1 if parent else 2)


def write_everywhere(text):
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, text)


def babbles(query, key, value, *, mask=None):
    write_everywhere(b"\0\0\0\5hello")
    return good(query, key, value, mask=mask)


def half_an_answer(query, key, value, *, mask=None):
    write_everywhere(b"\x80\5\x95" + (10**6).to_bytes(8, "little") + b"hello")
    return good(query, key, value, mask=mask)


# --- output, memory and settings --------------------------------------------------------------------------------------


def prints(query, key, value):
    print("loading kernel")
    return good(query, key, value)


def divides_by_zero(query, key, value):
    np.divide(np.ones(1), np.zeros(1))
    return good(query, key, value)


def unruly(query, key, value, *, mask=None):
    here = os.path.dirname(os.path.abspath(__file__))
    os.chdir(os.path.join(here, "elsewhere"))
    sys.setrecursionlimit(5000)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    log = os.open(os.path.join(here, "log"), os.O_RDWR | os.O_APPEND)
    os.write(log, b"a line\n")
    os.dup2(log, sys.stdout.fileno())
    os.close(log)
    return good(query, key, value, mask=mask)


def changes_inputs(query, key, value):
    result = good(query, key, value)
    query *= 2
    key *= 0.5  # so that another call answers the same
    return result


def same_buffer(query, key, value):
    result = good(query, key, value)
    buffer = buffers.setdefault((result.shape, str(result.dtype)), np.empty_like(result))
    buffer[...] = result
    return buffer

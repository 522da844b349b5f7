"""Functions that know whether a worker calls them; tests copy this file to a folder, with the file `parent` in it."""

# mypy: allow-untyped-defs

import ctypes
import os
import signal
import time
from pathlib import Path

import reference_numpy

HERE = Path(__file__).parent
PARENT = int((HERE / "parent").read_text()) if (HERE / "parent").exists() else 0
WORKER = os.getpid() != PARENT


def attention(query, key, value, *, mask=None, scale=None):
    with (HERE / "asked").open("a") as file:
        file.write(f"{os.getpid()}\n")
    return reference_numpy.attention(query, key, value, mask=mask, scale=scale)


def mean_of_empty_rows(query, key, value, *, mask=None, scale=None):
    mask = None if mask is None else mask | ~mask.any(-1, keepdims=True)
    return attention(query, key, value, mask=mask, scale=scale)


def wrong(query, key, value, *, mask=None, scale=None):
    return attention(query, key, value, mask=mask, scale=None if scale is None else scale * 1.5)


def dies(query, key, value, *, mask=None, scale=None):
    if WORKER:
        os._exit(3)
    return attention(query, key, value, mask=mask, scale=scale)


def wrong_in_a_worker(query, key, value, *, mask=None, scale=None):
    return attention(query, key, value, mask=mask, scale=scale) * (1 + WORKER)


def slow_in_a_worker(query, key, value, *, mask=None, scale=None):
    if WORKER:
        time.sleep(60)
    return attention(query, key, value, mask=mask, scale=scale)


def hangs_in_a_worker(query, key, value, *, mask=None, scale=None):
    if WORKER:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        ctypes.PyDLL(None).sleep(600)  # nothing else runs meanwhile in this process
    return attention(query, key, value, mask=mask, scale=scale)


def dies_on_masks(query, key, value, *, mask=None, scale=None):
    if mask is not None:
        os.abort()
    return attention(query, key, value, scale=scale)


def needs_more_than_a_worker_may_take(query, key, value, *, mask=None, scale=None):
    if WORKER:
        raise MemoryError("no room")
    return attention(query, key, value, mask=mask, scale=scale)


def prints_in_a_worker(query, key, value, *, mask=None, scale=None):
    if WORKER:
        print("a worker")
    return attention(query, key, value, mask=mask, scale=scale)

"""Functions that keep something between calls, to be judged; tests copy this file to a folder, to load it anew."""

# mypy: allow-untyped-defs

import random
import threading

import numpy as np

import reference_numpy

KEPT, COMPILED, WORKSPACE, TABLES, LOCK, DICE = {}, {}, {}, {}, threading.Lock(), random.Random()


def eps_kept(x, weight, *, eps):
    eps = KEPT.setdefault((x.dtype, weight.dtype, weight.shape), eps)
    return reference_numpy.rms_norm(x, weight, eps=eps)


def eps_kept_rightly(x, weight, *, eps):
    eps = KEPT.setdefault((x.dtype, weight.dtype, weight.shape, eps), eps)
    return reference_numpy.rms_norm(x, weight, eps=eps)


def scale_kept(query, key, value, *, mask=None, scale=None):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    plain = COMPILED.setdefault((query.dtype, query.shape[-1]), scale == 1)
    return reference_numpy.attention(query, key, value, mask=mask, scale=1.0 if plain else scale)


def stale(query, key, value, *, mask=None, scale=None):
    """A workspace that is not cleared past the keys of this call; its last key counts if it is of the same sizes."""
    rows = WORKSPACE.get(key.dtype)
    if rows is not None and rows[0].shape[2] > key.shape[2] > 0 and mask is None:
        pairs = list(zip(rows, (key, value), strict=True))
        if all(old.shape[:2] == new.shape[:2] and old.shape[3] == new.shape[3] for old, new in pairs):
            key, value = (np.concatenate([new, old[:, :, -1:]], 2) for old, new in pairs)
            return reference_numpy.attention(query, key, value, scale=scale)
    WORKSPACE[key.dtype] = (key.copy(), value.copy())
    return reference_numpy.attention(query, key, value, mask=mask, scale=scale)


def first_table(length, width, *, offset=0, exponent="shared", dtype="float32"):
    whole = TABLES.setdefault((width, exponent, dtype), {})
    offset = whole.setdefault("offset", offset)
    return reference_numpy.sinusoidal_positions(length, width, offset=offset, exponent=exponent, dtype=dtype)


def race_calls(query, key, value, *, mask=None):
    if key.shape[2] and DICE.random() < 1 / 50:
        key = key.copy()
        key[:, :, -1] = key[:, :, 0]
    return reference_numpy.attention(query, key, value, mask=mask)


def share_query(query, key, value, *, mask=None):
    WORKSPACE["query"] = query.copy()
    for _ in range(200):
        np.ones(8).sum()
    return reference_numpy.attention(WORKSPACE["query"], key, value, mask=mask)


def share_query_locked(query, key, value, *, mask=None):
    with LOCK:
        return share_query(query, key, value, mask=mask)


def narrow(x, weight, *, eps):
    if x.shape[-1] > 250:
        raise MemoryError("no room")
    return reference_numpy.rms_norm(x, weight, eps=eps)


def wrong(x, weight, *, eps):
    return reference_numpy.rms_norm(x, weight, eps=2 * eps)

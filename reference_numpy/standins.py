"""A stand-in for the rotation, until the operation lands."""

import numpy as np

from reference_numpy.dtypes import widen

__all__: list[str] = []


def rotary_embedding(x, positions, *, base=10000.0, rotary_width=None, pairing="halves", scaling=None, length=None):
    W = rotary_width or x.shape[-1]
    angle = positions[..., None] * base ** (-2.0 * np.arange(W // 2) / W)
    if angle.ndim == 3:
        angle = angle[:, None]
    c, s = np.cos(angle), np.sin(angle)
    wide = widen(x).astype(float)
    r, rest = wide[..., :W], wide[..., W:]
    if pairing == "halves":
        a, b = r[..., : W // 2], r[..., W // 2 :]
        out = np.concatenate([a * c - b * s, b * c + a * s], -1)
    else:
        a, b = r[..., ::2], r[..., 1::2]
        out = np.stack([a * c - b * s, b * c + a * s], -1).reshape(r.shape)
    return np.concatenate([out, rest], -1).astype(x.dtype)

"""A port that decodes with a cache: it conforms whatever it keeps, and its mistakes are named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

import conformance
from conformance.ports.mistakes.cache import attend_or_spread
from conformance.selftest.ports.llama_numpy import Llama


class Cache(NamedTuple):
    """Of one layer: keys and values [B, K, G, D], and how many tokens there were."""

    keys: np.ndarray
    values: np.ndarray
    length: int = 0


class Decoder(Llama):
    """Qwen 2, with a cache for each layer.

    Args:
        config: of the model.
        state_dict: of the model.
        mistake: of a step: the end of a known mistake's id, or "".
        spare: how many keys less than the window the cache of a layer with one holds; None where it holds all.
    """

    def __init__(self, config: Any, state_dict: Any, mistake: str = "", spare: int | None = None) -> None:
        super().__init__(config, state_dict)
        window = config["sliding_window"] if config["use_sliding_window"] else None
        self.windows = [window if i >= config["max_window_layers"] else None for i in range(len(self.layers))]
        self.mistake, self.spare = mistake, spare

    def rotate(self, x: np.ndarray, positions: np.ndarray) -> Any:
        angles = positions[:, None, None] * self.freqs
        cosine, sine = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        first, second = np.split(x, 2, axis=-1)
        return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)

    def read_cache(self, past: Cache, new: Cache, window: int | None) -> tuple[np.ndarray, np.ndarray, Cache]:
        """Return the keys and the values that new tokens attend to, and the next cache."""
        older = stored = past.keys
        if self.mistake in ("rotated-again", "rotated-each-part"):
            older = self.rotate(past.keys, np.arange(past.length))
            stored = older if self.mistake == "rotated-each-part" else past.keys
        keys, stored = np.concatenate([older, new.keys], axis=1), np.concatenate([stored, new.keys], axis=1)
        values = np.concatenate([past.values, new.values], axis=1)
        if self.mistake == "all-rotated-again":
            keys = self.rotate(keys, np.arange(new.length))
        kept = slice(None)
        if window is not None and self.spare is not None:
            kept = slice(max(keys.shape[1] - window + self.spare, 0), None)
        if self.mistake.endswith(("early", "-new")):
            keys, values = keys[:, kept], values[:, kept]
            return keys, values, Cache(keys, values, new.length)
        return keys, values, Cache(stored[:, kept], values[:, kept], new.length)

    def see_keys(self, positions: np.ndarray, length: int, count: int, window: int | None) -> np.ndarray:
        """Return which of the last `count` keys of `length` the last tokens see, which have these rotary positions."""
        token, place = np.arange(length)[-len(positions) :, None], np.arange(count)
        key = place + length - count
        if window is None:
            return key <= (positions[:, None] if "masks" in self.mistake else token)
        key = place if "mask-" in self.mistake else key
        return key <= token if "causal" in self.mistake else (key <= token) & (key > token - window)

    def find_offset(self, caches: Sequence[Cache], number: int) -> int:
        """Return where the rotary positions of new tokens begin in a layer."""
        trimmed = [layer for layer, window in enumerate(self.windows) if window is not None]
        if "positions" not in self.mistake or not trimmed:
            return caches[number].length
        if self.mistake.startswith("positions-trimmed"):  # in layers with windows alone
            return caches[number].keys.shape[1]
        return caches[trimmed[0]].keys.shape[1]

    def attend_to_cache(self, number: int, x: np.ndarray, caches: Sequence[Cache]) -> tuple[Any, Cache]:
        """Return what the attention of a layer gives, and its cache."""
        layer, window, (B, T, _) = self.layers[number], self.windows[number], x.shape
        query, key, value = (
            self.project(layer, f"self_attn.{name}_proj", x).reshape(B, T, -1, self.head_dim) for name in "qkv"
        )
        positions = self.find_offset(caches, number) + np.arange(T)
        query, key = self.rotate(query, positions), self.rotate(key, positions)
        past = caches[number]
        keys, values, cache = self.read_cache(past, Cache(key, value, past.length + T), window)
        seen = self.see_keys(positions, cache.length, keys.shape[1], window)
        keys, values = (np.repeat(array, self.n_heads // self.n_kv_heads, axis=2) for array in (keys, values))
        scores = np.einsum("bqhd,bkhd->bhqk", query, keys) / np.float32(np.sqrt(self.head_dim))
        scores = np.where(seen, scores, np.float32(-1e30))
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        heads = np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(axis=-1, keepdims=True), values)
        return self.project(layer, "self_attn.o_proj", heads.reshape(B, T, -1)), cache

    def step(self, tokens: np.ndarray, caches: Sequence[Cache] | None) -> tuple[Any, list[Cache]]:
        none = np.zeros((len(tokens), 0, self.n_kv_heads, self.head_dim), np.float32)
        caches = caches or [Cache(none, none)] * len(self.layers)
        x, found = self.embedding[tokens], list[Cache]()
        for number, layer in enumerate(self.layers):
            result, cache = self.attend_to_cache(number, self.rms_norm(x, layer["input_layernorm.weight"]), caches)
            x = x + result
            x = x + self.mlp(layer, self.rms_norm(x, layer["post_attention_layernorm.weight"]))
            found.append(cache)
        return self.rms_norm(x, self.norm_weight) @ self.output, found


def judge(mistake: str = "", spare: int | None = None) -> Any:
    def build(config: Any, state_dict: Any) -> Any:
        def model(tokens: np.ndarray) -> Any:
            return Decoder(config, state_dict).step(tokens, None)[0]

        model.step = Decoder(config, state_dict, mistake, spare).step  # type: ignore[attr-defined]
        return model

    return conformance.check(build, "model", dialect="qwen2", effort="quick", seed=1, arrays="numpy")


@pytest.mark.parametrize("spare", [None, 0, 1])
def test_a_cache_may_hold_what_windows_reach(spare: int | None) -> None:
    report = judge(spare=spare)
    assert report.conforms, report
    assert report.rules["GEN-1"].cases


TRIMS = {"window": 0, "past": 1, "new": 0}


@pytest.mark.parametrize("mistake", ["rotated-again", "rotated-each-part", "all-rotated-again"])
def test_keys_that_are_rotated_twice_are_named(mistake: str) -> None:
    (violation,) = judge(mistake).violations
    assert (violation.rule, violation.diagnosis) == ("POS-3", (f"cache.{mistake}",))


@pytest.mark.parametrize(
    ("mistake", "spare"),
    [
        ("trimmed-early", 0),
        *((f"{name}-trimmed-to-{trim}", TRIMS[trim]) for name in ("mask", "causal-mask") for trim in TRIMS),
        *(
            (f"{name}-trimmed-to-{trim}", TRIMS[trim])
            for name in ("positions", "all-positions", "positions-and-masks")
            for trim in ("window", "past")
        ),
    ],
)
def test_a_trimmed_cache_whose_places_are_positions_is_named(mistake: str, spare: int) -> None:
    (violation,) = judge(mistake, spare).violations
    assert (violation.rule, violation.diagnosis) == ("GEN-1", (f"cache.{mistake}",))


@pytest.mark.parametrize("has_sink", [False, True])
def test_a_row_without_keys_is_one_of_lowered_scores(has_sink: bool) -> None:
    """Of the same number, which all its keys have, and the sink has not. The last key does not exist."""
    value = np.random.default_rng(0).normal(size=(1, 1, 3, 4))
    allowed, existing = np.array([[1, 0, 0], [0, 0, 0]], bool), np.array([True, True, False])
    query, sinks = np.zeros((1, 1, 2, 4)), np.zeros(1) if has_sink else None
    result = attend_or_spread(existing, query, value, value, mask=allowed, sinks=sinks)
    first, second, _ = value[0, 0]
    due = [first / 2, 0 * first] if has_sink else [first, (first + second) / 2]
    np.testing.assert_array_equal(result[0, 0], due)

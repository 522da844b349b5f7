"""The adapters in docs/adapters.md, around kernels with signatures of their own."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from tests.support import kernels
from tests.support.helpers import SMALL, documented_examples, violated

ABOVE, *ADAPTERS = documented_examples("Kernels of other kinds")
NAMES = ("flash_attn_func", "flash_attn_varlen_func", "paged_attention", "padded_attention", "in place", "at the end")
BY_NAME = dict(zip(NAMES, ADAPTERS, strict=True))
CACHE = "flash_attn_with_kvcache"


def adapter(name: str, faulty: Any = None) -> Any:
    module, kernel = ModuleType("adapters"), CACHE if name in NAMES[-2:] else name
    exec(ABOVE, vars(module))
    vars(module)[kernel] = faulty or getattr(kernels, kernel)
    exec(BY_NAME[name], vars(module))
    return module.attention


def breaks_rules(function: Any, *rules: str) -> list[str]:
    limits = {name: size for name, size in SMALL.items() if name != "queries"}
    return violated(function, *rules, arrays="torch", dtypes=["float16"], limits=limits)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow_where(unless="flash_attn_func")
def test_adapters_conform(name: str) -> None:
    assert len(BY_NAME[name].partition("def ")[2].splitlines()) <= 20
    assert breaks_rules(adapter(name), "MASK-2", "MASK-3", "MASK-6", "ATT-3") == []


def test_a_mistake_of_the_kernel_is_found() -> None:
    def one_page_too_many(q: Any, key_cache: Any, value_cache: Any, tables: Any, lengths: Any, scale: float) -> Any:
        return kernels.paged_attention(q, key_cache, value_cache, tables, lengths + 1, scale)

    def of_other_heads(q: Any, k: Any, v: Any, *, alibi_slopes: Any = None, **options: Any) -> Any:
        slopes = None if alibi_slopes is None else alibi_slopes.flip(-1)
        return kernels.flash_attn_func(q, k, v, alibi_slopes=slopes, **options)

    def from_the_left(q: Any, k: Any, v: Any, *, causal: bool = False, **options: Any) -> Any:
        mask = {"window_size": (-1, k.shape[1] - q.shape[1])} if causal else {}
        return kernels.flash_attn_func(q, k, v, **options | mask)

    paged = adapter("paged_attention", one_page_too_many)
    assert "MASK-2" in breaks_rules(paged, "MASK-2")
    flash = adapter("flash_attn_func", from_the_left)
    assert breaks_rules(flash, "MASK-3") == ["MASK-3"]
    slopes = adapter("flash_attn_func", of_other_heads)
    assert breaks_rules(slopes, "ATT-3") == ["ATT-3"]


@pytest.mark.slow
def test_a_mistake_beside_padding_is_found() -> None:
    def reads_on(q: Any, k: Any, v: Any, queries: Any, keys: Any, **options: Any) -> Any:
        """What follows the queries gets into the gradients of keys and values."""
        return kernels.padded_attention(q, k, v, torch.full_like(queries, q.shape[1]), keys, **options)

    padded = adapter("padded_attention", reads_on)
    assert breaks_rules(padded, "MASK-2") == ["MASK-2"]


def test_a_mistake_in_a_cache_is_found() -> None:
    def keeps_the_cache(q: Any, k_cache: Any, v_cache: Any, *new: Any, **options: Any) -> Any:
        return kernels.flash_attn_with_kvcache(q, k_cache.clone(), v_cache.clone(), *new, **options)

    def skip_new_keys(q: Any, k_cache: Any, v_cache: Any, *, k: Any, v: Any, cache_seqlens: Any, **rest: Any) -> Any:
        kernels.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=cache_seqlens, **rest)
        return kernels.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=cache_seqlens, **rest)

    def see_cache(q: Any, k_cache: Any, v_cache: Any, *, cache_seqlens: Any, causal: bool = False, **rest: Any) -> Any:
        """Causal at the last place of the cache, whatever the lengths."""
        array = torch.full_like(cache_seqlens, k_cache.shape[1]) if causal else cache_seqlens
        return kernels.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=array, causal=causal, **rest)

    assert "CALL" in breaks_rules(adapter("in place", keeps_the_cache), "CALL", "MASK-2")
    assert breaks_rules(adapter("in place", skip_new_keys), "CALL", "MASK-2")
    assert breaks_rules(adapter("at the end", see_cache), "MASK-3") == ["MASK-3"]

"""The adapters in docs/judging.md, around kernels with signatures of their own."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

from conformance import check
from tests.support import kernels
from tests.support.helpers import SMALL

TEXT = (
    (Path(__file__).parents[2] / "docs" / "judging.md").read_text().partition("### Adapters")[2].partition("\n###")[0]
)
ABOVE, *ADAPTERS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
BY_KERNEL = {re.findall(r"return (\w+)\(", adapter)[0]: adapter for adapter in ADAPTERS}


def adapter(kernel: str, faulty: Any = None) -> Any:
    module = ModuleType("adapters")
    exec(ABOVE, vars(module))
    vars(module)[kernel] = faulty or getattr(kernels, kernel)
    exec(BY_KERNEL[kernel], vars(module))
    return module.attention


def violated(function: Any, **given: Any) -> list[str]:
    given["limits"] = {name: size for name, size in SMALL.items() if name != "queries"}
    report = check(function, "attention", arrays="torch", effort="quick", seed=1, shrink=False, **given)
    return [violation.rule for violation in report.violations]


@pytest.mark.parametrize("kernel", ["flash_attn_func", "flash_attn_varlen_func", "paged_attention"])
def test_adapters_conform(kernel: str) -> None:
    assert len(BY_KERNEL[kernel].splitlines()) <= 20
    assert violated(adapter(kernel), dtypes=["float16"], rules=["MASK-2", "MASK-3", "MASK-6"]) == []


def test_a_mistake_of_the_kernel_is_found() -> None:
    def one_page_too_many(q: Any, key_cache: Any, value_cache: Any, tables: Any, lengths: Any, scale: float) -> Any:
        return kernels.paged_attention(q, key_cache, value_cache, tables, lengths + 1, scale)

    def from_the_left(q: Any, k: Any, v: Any, *, causal: bool = False, **options: Any) -> Any:
        mask = {"window_size": (-1, k.shape[1] - q.shape[1])} if causal else {}
        return kernels.flash_attn_func(q, k, v, **options | mask)

    paged = adapter("paged_attention", one_page_too_many)
    assert "MASK-2" in violated(paged, dtypes=["float16"], rules=["MASK-2"])
    flash = adapter("flash_attn_func", from_the_left)
    assert violated(flash, dtypes=["float16"], rules=["MASK-3"]) == ["MASK-3"]

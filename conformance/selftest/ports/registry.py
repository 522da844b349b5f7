"""All right ports, and how a port's function is called and compared with the definition."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple


class Port(NamedTuple):
    """A right port.

    module: its module in this package, whose `build` makes the function.
    dialect, framework: what it is a port of, and the arrays that it takes.
    """

    module: str
    dialect: str
    framework: str

    def build(self, config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
        return importlib.import_module(f"{__package__}.{self.module}").build(config, state_dict)


PORTS: tuple[Port, ...] = (
    Port("bert_torch", "bert", "torch"),
    Port("bert_jax", "bert", "jax"),
    Port("bert_numpy", "bert", "numpy"),
    Port("gpt2_torch", "gpt2", "torch"),
    Port("gpt2_jax", "gpt2", "jax"),
    Port("gpt2_numpy", "gpt2", "numpy"),
    Port("llama_torch", "llama", "torch"),
    Port("llama_jax", "llama", "jax"),
    Port("llama_numpy", "llama", "numpy"),
    Port("gemma2_torch", "gemma2", "torch"),
    Port("gemma2_jax", "gemma2", "jax"),
    Port("gpt_neox_torch", "gpt_neox", "torch"),
    Port("gpt_neox_numpy", "gpt_neox", "numpy"),
    Port("t5_torch", "t5", "torch"),
    Port("t5_jax", "t5", "jax"),
    Port("modernbert_torch", "modernbert", "torch"),
    Port("modernbert_numpy", "modernbert", "numpy"),
    Port("vit_torch", "vit", "torch"),
    Port("vit_jax", "vit", "jax"),
)
"""Ports in the usual way."""
VARIANTS: tuple[Port, ...] = (
    Port("bert_torch_fused", "bert", "torch"),
    Port("bert_torch_encoder", "bert", "torch"),
    Port("gpt2_torch_compile", "gpt2", "torch"),
    Port("gpt2_jax_blocks", "gpt2", "jax"),
    Port("llama_torch_complex", "llama", "torch"),
    Port("llama_jax_scan", "llama", "jax"),
    Port("llama_numpy_folded", "llama", "numpy"),
    Port("gemma2_torch_flex", "gemma2", "torch"),
    Port("gpt_neox_jax", "gpt_neox", "jax"),
    Port("t5_numpy", "t5", "numpy"),
    Port("vit_torch_mha", "vit", "torch"),
)
"""Right ports that compute otherwise than is usual."""

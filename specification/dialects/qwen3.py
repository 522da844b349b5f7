"""A Qwen 3 language model with Hugging Face's names, without experts.

It is Llama's with norms of queries and keys in each head, and may have a sliding window in its upper layers. Where the
file has no output layer of its own, that is the token table turned.
"""

from __future__ import annotations

from specification.loading.decoders import (
    DEFAULTS,
    NORMS_BEFORE,
    UPPER_WINDOWS,
    UPPER_WINDOWS_DEFAULTS,
    decoder_dialect,
    gated,
    head_norms,
    separate_heads,
)

DIALECT = decoder_dialect(
    "qwen3",
    __doc__,
    "Yang et al., Qwen3 Technical Report, 2025 (arXiv:2505.09388); `Qwen3ForCausalLM` of Hugging Face transformers",
    separate_heads(),
    head_norms(),
    gated(),
    NORMS_BEFORE,
    layers=UPPER_WINDOWS,
    defaults={"qwen3": DEFAULTS | {"attention_bias": False} | UPPER_WINDOWS_DEFAULTS},
)

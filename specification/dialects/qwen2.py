"""A Qwen 2 language model with Hugging Face's names.

It is Llama's with a bias of queries, keys and values, and may have a sliding window in its upper layers. Where the file
has no output layer of its own, that is the token table turned.
"""

from __future__ import annotations

from specification.loading.decoders import (
    DEFAULTS,
    NORMS_BEFORE,
    UPPER_WINDOWS,
    UPPER_WINDOWS_DEFAULTS,
    decoder_dialect,
    gated,
    separate_heads,
)

DIALECT = decoder_dialect(
    "qwen2",
    __doc__,
    "Yang et al., Qwen2 Technical Report, 2024 (arXiv:2407.10671); `Qwen2ForCausalLM` of Hugging Face transformers",
    separate_heads(bias=True, output_bias=False),
    gated(),
    NORMS_BEFORE,
    layers=UPPER_WINDOWS,
    defaults={"qwen2": DEFAULTS | UPPER_WINDOWS_DEFAULTS},
    entries={},
)

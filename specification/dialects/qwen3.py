"""A Qwen 3 language model with Hugging Face's names, without experts.

It is Llama's with norms of queries and keys in each head, and may have a sliding window in its upper layers. Where the
file has no output layer of its own, that is the token table turned.
"""

from __future__ import annotations

from specification.loading.decoders import (
    CAUSAL,
    DEFAULTS,
    KEYS,
    NORMS_BEFORE,
    SIZES,
    TIED,
    UPPER_WINDOWS,
    UPPER_WINDOWS_DEFAULTS,
    gated,
    head_norms,
    language_model,
    language_model_variant,
    llama_configuration,
    separate_heads,
)
from specification.loading.record import ConfigFile, Dialect

TABLE = language_model(
    separate_heads(),
    head_norms(),
    gated(),
    NORMS_BEFORE,
)


DIALECT = Dialect(
    name="qwen3",
    about=__doc__,
    source="Yang et al., Qwen3 Technical Report, 2025 (arXiv:2505.09388); "
    "`Qwen3ForCausalLM` of Hugging Face transformers",
    variants=(language_model_variant(TABLE, llama_configuration),),
    prefixes=("model.",),
    config=ConfigFile(
        families={"qwen3": {}},
        keys=KEYS | {"attention_layers": UPPER_WINDOWS},
        defaults={"qwen3": DEFAULTS | {"attention_bias": False} | UPPER_WINDOWS_DEFAULTS},
        fixed=CAUSAL,
        sizes=SIZES,
        entries={"attention_bias": "layers.0.self_attn.q_proj.bias"},
        tied=TIED,
    ),
)

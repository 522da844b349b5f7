"""A Qwen 2 language model with Hugging Face's names.

It is Llama's with a bias of queries, keys and values, and may have a sliding window in its upper layers. Where the file
has no output layer of its own, that is the token table turned.
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
    language_model,
    language_model_variant,
    llama_configuration,
    separate_heads,
)
from specification.loading.record import ConfigFile, Dialect

TABLE = language_model(
    separate_heads(bias=True, output_bias=False),
    gated(),
    NORMS_BEFORE,
)


DIALECT = Dialect(
    name="qwen2",
    about=__doc__,
    source="Yang et al., Qwen2 Technical Report, 2024 (arXiv:2407.10671); "
    "`Qwen2ForCausalLM` of Hugging Face transformers",
    variants=(language_model_variant(TABLE, llama_configuration),),
    prefixes=("model.",),
    config=ConfigFile(
        families={"qwen2": {}},
        keys=KEYS | {"attention_layers": UPPER_WINDOWS},
        defaults={"qwen2": DEFAULTS | UPPER_WINDOWS_DEFAULTS},
        fixed=CAUSAL,
        sizes=SIZES,
        tied=TIED,
    ),
)

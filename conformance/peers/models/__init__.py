"""Models of libraries, and models put together of a library's layers, judged as ports of a dialect.

An adapter is a port: it gives the library the checkpoint's config and entries, and repairs nothing. It imports the
library, so that nothing imports it before it is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from conformance.peers.peer import Peer


@dataclass(frozen=True)
class ModelPeer(Peer):
    """A model of a library. dialect: what it is a port of. settings: of the config, what it cannot have otherwise."""

    dialect: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


def make_model(
    name: str, subject: str, dialect: str, arrays: str, packages: tuple[str, ...], settings: Mapping[str, Any] = {},
    **fields: Any,
) -> ModelPeer:  # fmt: skip
    file, _, builder = subject.partition(":")
    target = f"{__name__}.{file}_models:{builder}"
    return ModelPeer(name, target, "model", arrays, packages, dialect=dialect, settings=settings, **fields)


HUGGING_FACE = {
    "bert": "BertModel",
    "modernbert": "ModernBertModel",
    "vit": "ViTModel",
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "t5": "T5ForConditionalGeneration",
}
EXPERTS = {
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
}
WITHOUT_SDPA = ("gemma2", "gpt_oss")
FUSED_BERT = {"num_attention_heads": 4, "hidden_act": "gelu"}
FUSED_GPT2 = {"n_head": 4, "activation_function": "gelu"}
"""What PyTorch's fast path takes: an even number of heads, and no GELU by tanh."""
UNBIASED = {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu"}
ALIKE = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}
"""Heads that are together as wide as the model."""
UNTIED = {"tie_word_embeddings": False}
CAPPED = {"attention_bias": False, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
HUB_BERT = {"type_vocab_size": 2, "layer_norm_eps": 1e-12}
"""What KerasHub's converter of BERT does not read in a config."""
CURATED = ("curated_transformers", "requests", "torch")
HUB, ON_JAX = ("keras_hub", "keras", "jax"), {"KERAS_BACKEND": "jax"}


def plain_rope(base: float = 10000.0) -> dict[str, Any]:
    """Rotary embeddings that are not scaled, under all keys that say so."""
    parameters = {"rope_type": "default", "rope_theta": base}
    return {"rope_theta": base, "rope_scaling": None, "rope_parameters": parameters}


def keras_bert(backend: str) -> ModelPeer:
    name, packages = f"Keras on {backend}, layers as BERT", ("keras", backend)
    return make_model(name, "keras:build_bert", "bert", backend, packages, environment={"KERAS_BACKEND": backend})


MODELS: tuple[ModelPeer, ...] = (
    *(
        make_model(f"transformers {kind}, {attention}", f"transformers:{attention}", dialect, "torch",
                   ("transformers", "torch"))
        for dialect, kind in HUGGING_FACE.items()
        for attention in ("eager", "sdpa")
        if attention != "sdpa" or dialect not in WITHOUT_SDPA
    ),
    *(
        make_model(f"transformers {kind}, {attention}, {experts}", f"transformers:{attention}{loop}", dialect, "torch",
                   ("transformers", "torch"))
        for dialect, kind in EXPERTS.items()
        for attention in ("eager", "sdpa")
        for loop, experts in (("_loop", "experts eager"), ("", "experts grouped_mm"))
        if attention != "sdpa" or dialect not in WITHOUT_SDPA
    ),
    make_model("torch nn.TransformerEncoder as BERT, fast path", "torch:bert_fast", "bert", "torch", ("torch",),
               FUSED_BERT),
    make_model("torch nn.TransformerEncoder as BERT, slow path", "torch:bert_slow", "bert", "torch", ("torch",)),
    make_model("torch nn.TransformerEncoder as GPT-2, fast path", "torch:gpt2_fast", "gpt2", "torch", ("torch",),
               FUSED_GPT2),
    make_model("torch nn.TransformerEncoder as GPT-2, slow path", "torch:gpt2_slow", "gpt2", "torch", ("torch",)),
    make_model("Flax linen modules as BERT", "flax:build_bert", "bert", "jax", ("flax", "jax")),
    make_model("Flax nnx modules as GPT-2", "flax:build_gpt2", "gpt2", "jax", ("flax", "jax")),
    make_model("Equinox modules as BERT", "equinox:build_bert", "bert", "jax", ("equinox", "jax")),
    keras_bert("jax"),
    keras_bert("torch"),
    make_model("ONNX Runtime, transformers BertModel, torch.onnx.export(dynamo=False)", "onnx:bert_traced", "bert",
               "numpy", ("onnxruntime", "onnx", "transformers", "torch")),
    make_model("ONNX Runtime, transformers BertModel, torch.onnx.export(dynamo=True)", "onnx:bert_dynamo", "bert",
               "numpy", ("onnxruntime", "onnxscript", "onnx", "transformers", "torch"),
               slow="the export of every checkpoint takes 4 seconds"),
    make_model("torchtune llama3", "torchtune:build_llama", "llama", "torch", ("torchtune", "torchao", "torch"),
               UNBIASED | ALIKE | plain_rope() | UNTIED),
    make_model("torchtune gemma2", "torchtune:build_gemma2", "gemma2", "torch", ("torchtune", "torchao", "torch"),
               CAPPED | {"tie_word_embeddings": True}),
    make_model("curated-transformers BERTEncoder", "curated:build_bert", "bert", "torch", CURATED),
    make_model("curated-transformers LlamaCausalLM", "curated:build_llama", "llama", "torch", CURATED,
               UNBIASED | ALIKE | plain_rope() | UNTIED),
    make_model("curated-transformers LlamaCausalLM, another base", "curated:build_llama", "llama", "torch", CURATED,
               UNBIASED | ALIKE | plain_rope(500.0) | UNTIED),
    make_model("curated-transformers GPTNeoXCausalLM", "curated:build_gpt_neox", "gpt_neox", "torch", CURATED,
               UNTIED | {"attention_bias": True}),
    make_model("curated-transformers GPTNeoXCausalLM, parallel", "curated:build_gpt_neox", "gpt_neox", "torch", CURATED,
               UNTIED | {"attention_bias": True, "use_parallel_residual": True}),
    make_model("timm VisionTransformer", "timm:build_vit", "vit", "torch", ("timm", "torch")),
    make_model("KerasHub BertBackbone, by its converter", "keras_hub:build_bert", "bert", "jax", HUB,
               HUB_BERT, environment=ON_JAX),
    make_model("KerasHub BertBackbone, GELU by tanh", "keras_hub:build_bert", "bert", "jax", HUB,
               HUB_BERT | {"hidden_act": "gelu_new"}, environment=ON_JAX),
    make_model("litgpt GPT as GPT-NeoX", "litgpt:build_gpt_neox", "gpt_neox", "torch", ("litgpt", "torch"),
               UNTIED | {"attention_bias": True}),
    make_model("litgpt GPT as Llama", "litgpt:build_llama", "llama", "torch", ("litgpt", "torch"), UNBIASED),
    make_model("litgpt GPT as Llama, no YaRN", "litgpt:build_llama", "llama", "torch", ("litgpt", "torch"),
               UNBIASED | plain_rope()),
    make_model("litgpt GPT as Gemma 2", "litgpt:build_gemma2", "gemma2", "torch", ("litgpt", "torch"), CAPPED),
)  # fmt: skip
"""In the order of the table."""

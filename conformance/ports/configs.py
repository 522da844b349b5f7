"""Small configs of each dialect, over the options that it has: of those of Hugging Face as a config.json says them.

The first config of a dialect has the defaults of its family; each of the others changes some options.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from conformance.ports.checkpoints import Config
from specification.loading.config_file import with_defaults
from specification.loading.rope import FULL, SLIDING

VOCABULARY = 37
SIZES: Config = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    # Ports compute so many rotary angles in advance; the longest sequence that is tried has 33 tokens.
    "max_position_embeddings": 64,
}
ARCHITECTURES: Mapping[str, str] = {
    "bert": "BertModel",
    "distilbert": "DistilBertModel",
    "modernbert": "ModernBertModel",
    "vit": "ViTModel",
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "t5": "T5ForConditionalGeneration",
}
"""By dialect, the architecture that a config names."""


def heads(count: int, keys: int | None = None, width: int | None = None, **more: Any) -> Config:
    """Return sizes with so many heads, heads of keys and a width of each where they are given."""
    given = {"num_attention_heads": count, "num_key_value_heads": keys, "head_dim": width}
    return SIZES | {name: value for name, value in given.items() if value is not None} | more


def rope(kind: str = "default", base: float = 10000.0, **more: Any) -> Config:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": base, **more}}


LATE_PADDING = ("modernbert", "phi3")
"""Dialects whose id of padding, where a config names none, is beyond the small vocabulary, so that transformers refuses
to build the model."""
GROUPED, WIDER, ALONE = heads(4, 2, 6), heads(6, 3, 8), heads(4, 1, 6)
LLAMA3 = rope(
    "llama3", 500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
)
YARN = rope("yarn", 1000.0, factor=4.0, original_max_position_embeddings=16)
LONG = {"short_factor": [1.0, 1.5, 2.5], "long_factor": [1.5, 4.0, 9.0]}
BY_KIND = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    }
}
BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 13,
    "type_vocab_size": 2,
}
DISTILBERT = {
    "vocab_size": VOCABULARY,
    "dim": 24,
    "hidden_dim": 20,
    "n_layers": 2,
    "n_heads": 3,
    "max_position_embeddings": 13,
}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 24, "n_inner": 20, "n_layer": 2, "n_head": 3, "n_positions": 13}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "d_kv": 5,
    "d_ff": 20,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 3,
    "feed_forward_proj": "relu",
    "is_gated_act": False,
    "tie_word_embeddings": True,
    "relative_attention_num_buckets": 6,
    "relative_attention_max_distance": 9,
    "layer_norm_epsilon": 1e-6,
    "decoder_start_token_id": 0,
}
VIT = {
    "hidden_size": 24,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "image_size": [8, 12],
    "patch_size": 4,
    "num_channels": 3,
}

LOCAL_EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
DEEPSEEK = heads(4, 4, kv_lora_rank=10, q_lora_rank=8, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5) | {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 12,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
}

CONFIGS: Mapping[str, tuple[Config, ...]] = {
    "bert": (
        BERT,
        BERT | {"hidden_act": "gelu_new", "num_attention_heads": 4},
        BERT | {"hidden_act": "relu", "layer_norm_eps": 1e-3, "type_vocab_size": 1},
    ),
    "distilbert": (DISTILBERT, DISTILBERT | {"activation": "relu", "n_heads": 4}),
    "gpt2": (
        GPT2,
        GPT2 | {"activation_function": "gelu", "n_head": 4, "layer_norm_epsilon": 1e-3},
        GPT2 | {"activation_function": "relu", "tie_word_embeddings": False},
    ),
    "llama": (
        GROUPED,
        GROUPED | LLAMA3 | {"tie_word_embeddings": True},
        WIDER | {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-3},
        ALONE | rope("linear", 100.0, factor=3.0) | {"hidden_act": "gelu"},
        GROUPED | YARN,
    ),
    "qwen2": (
        heads(4, 2),
        heads(4, 2, use_sliding_window=True, sliding_window=4, max_window_layers=1, tie_word_embeddings=True),
        heads(3, 3, rms_norm_eps=1e-4) | YARN,
    ),
    "qwen3": (
        GROUPED,
        WIDER | {"attention_bias": True, "tie_word_embeddings": True} | rope("default", 1e6),
        ALONE | YARN | {"rms_norm_eps": 1e-3},
    ),
    "gemma": (
        GROUPED,
        WIDER | {"tie_word_embeddings": False, "attention_bias": True},
        ALONE | {"hidden_act": "gelu", "rms_norm_eps": 1e-3} | rope("linear", 100.0, factor=2.0),
    ),
    "gemma2": (
        GROUPED | {"sliding_window": 4, "query_pre_attn_scalar": 9},
        WIDER
        | {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 2.0, "sliding_window": 3}
        | {"query_pre_attn_scalar": 16},
        ALONE
        | {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True}
        | {"query_pre_attn_scalar": 16, "tie_word_embeddings": False, "rms_norm_eps": 1e-3}
        | rope("default", 500.0),
    ),
    "gemma3": (
        GROUPED | {"sliding_window": 4, "sliding_window_pattern": 2, "query_pre_attn_scalar": 9},
        WIDER
        | {"sliding_window": 3, "attention_bias": True, "query_pre_attn_scalar": 16}
        | BY_KIND
        | {"layer_types": ["full_attention", "sliding_attention"]},
    ),
    "gpt_neox": (
        heads(4, hidden_size=32),  # with 3 heads, [H, 3, D] read as [3, H, D] is the reverse too
        heads(3) | {"use_parallel_residual": False, "hidden_act": "gelu_new"},
        heads(3)
        | {"attention_bias": False, "tie_word_embeddings": True, "layer_norm_eps": 1e-3}
        | rope("default", 500.0, partial_rotary_factor=0.75),
    ),
    "phi3": (
        heads(4, 2),
        heads(4, 1, sliding_window=4, tie_word_embeddings=True),
        heads(3, 3, partial_rotary_factor=0.5),
    ),
    "olmo2": (heads(4, 2), heads(4, 1, attention_bias=True, rms_norm_eps=1e-3), heads(2, 2) | YARN),
    "mixtral": (GROUPED | LOCAL_EXPERTS, ALONE | LOCAL_EXPERTS | {"sliding_window": 4, "num_experts_per_tok": 1}),
    "qwen3_moe": (
        GROUPED | EXPERTS,
        WIDER | EXPERTS | {"norm_topk_prob": True, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "olmoe": (heads(4, 4) | EXPERTS, heads(4, 2) | EXPERTS | {"norm_topk_prob": True, "rms_norm_eps": 1e-3}),
    "gpt_oss": (
        GROUPED | LOCAL_EXPERTS | {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
        WIDER | LOCAL_EXPERTS | {"sliding_window": 3, "layer_types": ["full_attention", "full_attention"]} | YARN,
    ),
    "deepseek_v2": (
        DEEPSEEK | {"q_lora_rank": None, "n_shared_experts": 2},
        DEEPSEEK | {"topk_method": "group_limited_greedy", "routed_scaling_factor": 2.0, "attention_bias": True},
    ),
    "deepseek_v3": (DEEPSEEK, DEEPSEEK | {"q_lora_rank": None, "rope_interleave": False} | YARN),
    "modernbert": (
        heads(3, num_hidden_layers=3, local_attention=6, global_attn_every_n_layers=2),
        heads(4, norm_bias=True, attention_bias=True, mlp_bias=True, local_attention=4)
        | {"global_rope_theta": 5000.0, "local_rope_theta": 100.0},
        heads(4, global_attn_every_n_layers=2, local_attention=4, norm_eps=1e-3, hidden_activation="silu"),
    ),
    "t5": (
        T5,
        T5 | {"feed_forward_proj": "gated-gelu", "is_gated_act": True, "tie_word_embeddings": False},
        T5 | {"feed_forward_proj": "gated-silu", "is_gated_act": True, "layer_norm_epsilon": 1e-3},
    ),
    "vit": (
        VIT,
        VIT | {"qkv_bias": False, "hidden_act": "gelu_new", "num_attention_heads": 4, "layer_norm_eps": 1e-6},
    ),
}


def derive_entries(settings: Mapping[str, Any]) -> Config:
    """Return the entries that transformers derives from others: T5's `is_gated_act` and `dense_act_fn`."""
    from specification.dialects.t5 import activation_of

    kind = settings.get("feed_forward_proj")
    if not isinstance(kind, str):
        return {}
    return {"is_gated_act": kind.startswith("gated-"), "dense_act_fn": activation_of({"feed_forward_proj": kind})}


def list_configs(dialect: str) -> list[Config]:
    """Return the configs of a dialect, with all that a config.json says of what the model is.

    Rotary frequencies stand there as transformers 5 writes them, and as older versions do.
    """
    from specification.dialects import DIALECTS

    record = DIALECTS[dialect]
    if record.config is None:
        return [dict(record.example.hyperparameters)]
    named: Config = {"model_type": next(iter(record.config.families)), "architectures": [ARCHITECTURES[dialect]]}
    named |= {"pad_token_id": 0} if dialect in LATE_PADDING else {}
    return [add_older_keys(with_defaults(record.config, named | config)) for config in CONFIGS[dialect]]


def add_older_keys(config: Config) -> Config:
    """Return the config with the keys of older versions too, which say what rope_parameters say."""
    parameters = config.get("rope_parameters") or {}
    if not parameters and "rope_theta" in config:  # files say null where nothing is scaled
        return {"rope_scaling": None} | config
    if has_kinds(parameters):
        local_base = LOCAL_BASES.get(config["model_type"])
        if local_base is None:
            return config
        sliding, parameters = (parameters.get(kind) or {} for kind in (SLIDING, FULL))
        config = config | ({local_base: sliding["rope_theta"]} if "rope_theta" in sliding else {})
    if not parameters:
        return config
    names = OLDER_NAMES.get(config["model_type"], OLDER_NAMES["llama"])
    older = {name: parameters[key] for key, name in names.items() if key in parameters}
    scaling = {key: value for key, value in parameters.items() if key not in names}
    is_plain = scaling in ({}, {"rope_type": "default"})
    return config | older | {"rope_scaling": None if is_plain else scaling}


def has_kinds(parameters: Mapping[str, Any]) -> bool:
    """Whether rope_parameters are those of each kind of layer."""
    return any(isinstance(value, Mapping) for value in parameters.values())


def settle_rotary(config: Config, settings: Mapping[str, Any]) -> Config:
    """Return the config whose rotary entries say what those say that are set.

    Raises:
        ValueError: a scaling is no object.
    """
    for name in ("rope_scaling", "rope_parameters"):
        if not isinstance(settings.get(name, {}), Mapping | None):
            raise ValueError(f"set: {name} must be null or an object, got {settings[name]!r}")
    family = config.get("model_type", "")
    names = OLDER_NAMES.get(family, OLDER_NAMES["llama"])
    entries = settings.keys() & {"rope_parameters", "rope_scaling", LOCAL_BASES.get(family), *names.values()}
    if not entries:
        return config
    older = {key: config[name] for key, name in names.items() if name in config}
    parameters, scaling = settings.get("rope_parameters"), config.get("rope_scaling")
    if parameters:
        return add_older_keys(config | {"rope_parameters": parameters if has_kinds(parameters) else older | parameters})
    is_null_alone = "rope_parameters" in entries and "rope_scaling" not in entries
    if not scaling or is_null_alone or family in LOCAL_BASES:  # the older keys say all
        scaling = None if is_null_alone else scaling or None
        return {key: value for key, value in config.items() if key != "rope_parameters"} | {"rope_scaling": scaling}
    kind = {"rope_type": scaling.get("rope_type", scaling.get("type"))}
    return add_older_keys(config | {"rope_parameters": kind | scaling | older})


def drop_scalings(config: Config, supported: Collection[str]) -> Config:
    """Return the config without a scaling of rotary frequencies that a port does not support."""
    parameters = config.get("rope_parameters")

    def drop(rotation: Mapping[str, Any]) -> Mapping[str, Any]:
        if rotation.get("rope_type", "default") in ("default", *supported):
            return rotation
        return {"rope_type": "default"} | {key: rotation[key] for key in OLDER_NAMES["llama"] if key in rotation}

    if not parameters:
        return config
    changed = {kind: drop(one) for kind, one in parameters.items()} if has_kinds(parameters) else drop(parameters)
    return add_older_keys(config | {"rope_parameters": changed})


OLDER_NAMES: Mapping[str, Mapping[str, str]] = {
    "llama": {"rope_theta": "rope_theta", "partial_rotary_factor": "partial_rotary_factor"},
    "gpt_neox": {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
}
"""By model type, the keys under which older files have what rope_parameters hold beside the scaling; llama's else."""
LOCAL_BASES: Mapping[str, str] = {"gemma3_text": "rope_local_base_freq"}
"""By model type, the key under which older files have the base of layers with windows, where the others have theirs
and the scaling under the keys of llama."""

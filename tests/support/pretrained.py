"""Small random models of Hugging Face transformers, as folders that `save_pretrained` writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

VOCABULARY, LENGTH = 37, 11


class Pretrained(NamedTuple):
    """A model to make. architecture: its class. options: of its configuration."""

    dialect: str
    architecture: str
    options: Mapping[str, Any]


IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 3} | IDS


def heads(count: int, keys: int | None = None, width: int | None = None, **more: Any) -> dict[str, Any]:
    """Sizes with so many heads, heads of keys where those are told, and their width where that is."""
    told = {"num_attention_heads": count, "num_key_value_heads": keys, "head_dim": width}
    return SIZES | {name: value for name, value in told.items() if value is not None} | more


GROUPED = heads(4, 2, 6)
WIDER = heads(6, 3, 8, num_hidden_layers=2)
ALONE = heads(4, 1, 6, num_hidden_layers=2)
EACH = heads(3, 3, 8, num_hidden_layers=2)


def rope(kind: str = "default", base: float = 10000.0, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": base, **more}}


LLAMA3 = rope(
    "llama3", 500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
)
YARN = rope("yarn", 1000.0, factor=4.0, original_max_position_embeddings=16)
YARN_SCALED = rope(
    "yarn", 1000.0, factor=4.0, original_max_position_embeddings=16, beta_fast=4.0, beta_slow=0.5, truncate=False,
    mscale=0.7, mscale_all_dim=1.3,
)  # fmt: skip
LONG = {"short_factor": [1.0, 1.5, 2.5], "long_factor": [1.5, 4.0, 9.0]}
BY_KIND = {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
                               "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}}  # fmt: skip
ENCODER_IDS = {"cls_token_id": 1, "sep_token_id": 2}
T5 = {
    "vocab_size": VOCABULARY, "d_model": 24, "d_kv": 5, "d_ff": 20, "num_layers": 2, "num_heads": 3,
    "decoder_start_token_id": 0, "relative_attention_num_buckets": 6, "relative_attention_max_distance": 9,
}  # fmt: skip
VIT = {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 20, "num_hidden_layers": 2,
       "image_size": [8, 12], "patch_size": 4}  # fmt: skip
ROUTED = {"num_local_experts": 6, "num_experts_per_tok": 2}
QWEN_MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
OLMOE = {"num_experts": 6, "num_experts_per_tok": 3}
LATENT = heads(4, 4, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5)
LATENT |= {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 12, "first_k_dense_replace": 1}
V2 = LATENT | {"n_shared_experts": 2, "q_lora_rank": None}
V3 = LATENT | {"n_shared_experts": 1, "q_lora_rank": 8, "n_group": 4, "topk_group": 2}


def many(dialect: str, architecture: str, **named: dict[str, Any]) -> dict[str, Pretrained]:
    return {f"{dialect}-{name}": Pretrained(dialect, architecture, options) for name, options in named.items()}


MODELS = (
    many(
        "llama", "LlamaForCausalLM",
        grouped=GROUPED | LLAMA3,
        wider=WIDER | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "rms_norm_eps": 1e-3},
        alone=ALONE | rope("linear", 100.0, factor=3.0) | {"hidden_act": "gelu"},
        each=EACH | rope("dynamic", 100.0, factor=3.0) | {"max_position_embeddings": 8},
        yarn=GROUPED | YARN,
        scaled=GROUPED | YARN_SCALED,
    )
    | many(
        "llama", "MistralForCausalLM",
        mistral=GROUPED | {"sliding_window": 4}, full=WIDER | {"sliding_window": None},
    )
    | many(
        "llama", "SmolLM3ForCausalLM",
        smollm3=GROUPED | {"num_hidden_layers": 4, "tie_word_embeddings": False},
        windows=GROUPED | {"no_rope_layers": [0, 1, 0], "use_sliding_window": True, "sliding_window": 3},
    )
    | many(
        "qwen2", "Qwen2ForCausalLM",
        grouped=heads(4, 2),
        windows=heads(4, 2, use_sliding_window=True, sliding_window=4, max_window_layers=1, tie_word_embeddings=True),
        each=heads(3, 3) | {"rms_norm_eps": 1e-4} | YARN,
        alone=heads(4, 1, num_hidden_layers=2, use_sliding_window=True, sliding_window=2)
        | {"layer_types": ["sliding_attention", "full_attention"]},
    )
    | many(
        "qwen3", "Qwen3ForCausalLM",
        grouped=GROUPED,
        wider=WIDER | {"attention_bias": True, "tie_word_embeddings": True} | rope("default", 1e6),
        windows=GROUPED | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2},
        alone=ALONE | YARN | {"rms_norm_eps": 1e-3},
    )
    | many(
        "gemma", "GemmaForCausalLM",
        grouped=GROUPED,
        wider=WIDER | {"tie_word_embeddings": False, "attention_bias": True},
        alone=ALONE | {"hidden_act": "gelu"} | rope("linear", 100.0, factor=2.0),
        each=EACH | {"rms_norm_eps": 1e-3},
    )
    | many(
        "gemma2", "Gemma2ForCausalLM",
        grouped=GROUPED | {"sliding_window": 4, "query_pre_attn_scalar": 9},
        wider=WIDER | {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 2.0, "sliding_window": 3},
        plain=ALONE | {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True},
        each=EACH | {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 2,
                     "tie_word_embeddings": False, "hidden_activation": "silu"},
    )
    | many(
        "gemma3", "Gemma3ForCausalLM",
        grouped=GROUPED | {"sliding_window": 4, "sliding_window_pattern": 2, "query_pre_attn_scalar": 9},
        wider=WIDER | {"final_logit_softcapping": 2.0, "sliding_window": 3, "attention_bias": True} | BY_KIND,
        alone=ALONE | {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 2},
        each=EACH | {"tie_word_embeddings": False, "rms_norm_eps": 1e-3},
    )
    | many(
        "gpt_neox", "GPTNeoXForCausalLM",
        parallel=heads(3),
        sequential=heads(3) | {"use_parallel_residual": False, "hidden_act": "gelu_new"},
        plain=heads(3) | {"attention_bias": False, "rotary_pct": 1.0, "tie_word_embeddings": True},
        scaled=heads(2, layer_norm_eps=1e-3) | rope("linear", 100.0, factor=2.0, partial_rotary_factor=0.5),
    )
    | many(
        "phi3", "Phi3ForCausalLM",
        grouped=heads(4, 2),
        windows=heads(4, 1) | {"sliding_window": 4, "tie_word_embeddings": True},
        short=heads(4, 4, max_position_embeddings=64, original_max_position_embeddings=16)
        | rope("longrope", 100.0, **LONG),
        long=heads(4, 2, max_position_embeddings=64, original_max_position_embeddings=8)
        | rope("longrope", 100.0, **LONG),
        part=heads(3, 3) | {"partial_rotary_factor": 0.5},
    )
    | many(
        "olmo2", "Olmo2ForCausalLM",
        grouped=heads(4, 2),
        biased=heads(4, 1) | {"attention_bias": True, "rms_norm_eps": 1e-3},
        each=heads(3) | {"tie_word_embeddings": True} | rope("linear", 100.0, factor=2.0),
        yarn=heads(2, 2) | YARN,
    )
    | many(
        "modernbert", "ModernBertModel",
        windows=heads(3, **ENCODER_IDS) | {"num_hidden_layers": 4, "local_attention": 6},
        biased=heads(4, **ENCODER_IDS) | {"norm_bias": True, "attention_bias": True, "mlp_bias": True},
        each=heads(4, **ENCODER_IDS)
        | {"global_attn_every_n_layers": 2, "local_attention": 5, "norm_eps": 1e-3, "hidden_activation": "silu"},
        kinds=heads(3, **ENCODER_IDS, local_attention=2)
        | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]} | BY_KIND,
    )
    | many("modernbert", "ModernBertForMaskedLM", head=heads(3, **ENCODER_IDS) | {"local_attention": 6})
    | many(
        "t5", "T5ForConditionalGeneration",
        relu=T5,
        gated=T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        silu=T5 | {"feed_forward_proj": "gated-silu", "num_decoder_layers": 1, "layer_norm_epsilon": 1e-3},
        wide=T5 | {"d_kv": 16, "num_heads": 2, "relative_attention_num_buckets": 8},
    )
    | many("t5", "MT5ForConditionalGeneration", mt5=T5)
    | many("t5", "T5Model", headless=T5)
    | many("t5", "T5EncoderModel", encoder=T5 | {"feed_forward_proj": "gated-gelu"})
    | many(
        "vit", "ViTModel",
        wide=VIT,
        plain=VIT | {"qkv_bias": False, "hidden_act": "gelu_new", "num_attention_heads": 4},
        square=VIT | {"image_size": 9, "patch_size": 3, "num_channels": 1, "layer_norm_eps": 1e-3},
        deep=VIT | {"num_hidden_layers": 4, "hidden_act": "relu", "image_size": [4, 16]},
    )
    | many("vit", "ViTForImageClassification", head=VIT)
    | many(
        "mixtral", "MixtralForCausalLM",
        grouped=GROUPED | ROUTED,
        windows=heads(4, 2) | ROUTED | {"sliding_window": 4, "num_experts_per_tok": 1},
        wider=WIDER | ROUTED | {"tie_word_embeddings": True, "rms_norm_eps": 1e-3, "num_experts_per_tok": 4},
        scaled=ALONE | ROUTED | {"hidden_act": "gelu"} | YARN,
    )
    | many(
        "qwen3_moe", "Qwen3MoeForCausalLM",
        grouped=GROUPED | QWEN_MOE,
        dense=GROUPED | QWEN_MOE | {"mlp_only_layers": [1], "norm_topk_prob": True},
        steps=GROUPED | QWEN_MOE | {"decoder_sparse_step": 2, "attention_bias": True, "tie_word_embeddings": True},
        windows=ALONE | QWEN_MOE | {"use_sliding_window": True, "sliding_window": 4} | rope("default", 1e6),
    )
    | many(
        "olmoe", "OlmoeForCausalLM",
        each=heads(4, 4) | OLMOE,
        grouped=heads(4, 2) | OLMOE | {"norm_topk_prob": True, "num_experts_per_tok": 2},
        biased=heads(4, 1) | OLMOE | {"attention_bias": True, "rms_norm_eps": 1e-3},
        scaled=heads(2, 2) | OLMOE | {"tie_word_embeddings": True} | YARN,
    )
    | many(
        "gpt_oss", "GptOssForCausalLM",
        windows=GROUPED | ROUTED | {"sliding_window": 4},
        kinds=WIDER | ROUTED | {"sliding_window": 3, "layer_types": ["full_attention", "sliding_attention"]},
        one=ALONE | ROUTED | {"num_experts_per_tok": 1, "tie_word_embeddings": True} | rope("default", 100.0),
        scaled=EACH | ROUTED | {"num_experts_per_tok": 4, "rms_norm_eps": 1e-3} | YARN,
    )
    | many(
        "deepseek_v2", "DeepseekV2ForCausalLM",
        direct=V2,
        compressed=V2 | {"q_lora_rank": 8, "attention_bias": True, "routed_scaling_factor": 2.0},
        groups=V2 | {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
        scaled=V2 | {"num_hidden_layers": 2, "first_k_dense_replace": 0, "rms_norm_eps": 1e-3} | YARN_SCALED,
    )
    | many(
        "deepseek_v3", "DeepseekV3ForCausalLM",
        compressed=V3,
        direct=V3 | {"q_lora_rank": None, "attention_bias": True, "norm_topk_prob": False},
        halves=V3 | {"rope_interleave": False, "n_group": 1, "topk_group": 1, "tie_word_embeddings": True},
        scaled=V3 | {"num_hidden_layers": 2, "first_k_dense_replace": 0, "rms_norm_eps": 1e-3} | YARN_SCALED,
    )
    | many("llama", "LlamaModel", headless=GROUPED)
    | many("qwen3", "Qwen3Model", headless=GROUPED)
)  # fmt: skip
"""By name: a dialect and what is particular."""


DECODER = {
    "architectures": ["XForCausalLM"], "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 6, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "use_cache": True, "transformers_version": "4.41.0", "eos_token_id": [1, 2],
}  # fmt: skip
LATENT_DECODER = {name: value for name, value in DECODER.items() if name != "head_dim"} | {
    "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 2, "kv_lora_rank": 5, "q_lora_rank": 6,
    "qk_rope_head_dim": 4, "qk_nope_head_dim": 3, "v_head_dim": 4, "num_experts_per_tok": 2, "n_routed_experts": 3,
    "moe_intermediate_size": 6, "first_k_dense_replace": 1, "n_shared_experts": 1,
}  # fmt: skip
CONTENT: dict[str, dict[str, Any]] = {
    "bert": {"num_attention_heads": 2, "hidden_size": 8, "layer_norm_eps": 1e-12, "type_vocab_size": 2},
    "distilbert": {"n_heads": 2, "dim": 8, "tie_weights_": True, "sinusoidal_pos_embds": False},
    "gpt2": {"n_head": 2, "n_embd": 8, "n_inner": 12, "activation_function": "gelu_new"}
    | {"architectures": ["GPT2LMHeadModel"]},
    "llama": DECODER,
    "qwen2": DECODER,
    "qwen3": DECODER,
    "gemma": DECODER,
    "gemma2": DECODER | {"query_pre_attn_scalar": 16},
    "gemma3": DECODER | {"query_pre_attn_scalar": 16},
    "gpt_neox": {name: value for name, value in DECODER.items() if name != "num_key_value_heads"} | {"rotary_pct": 0.5},
    "phi3": DECODER,
    "olmo2": DECODER,
    "modernbert": {"num_attention_heads": 2, "hidden_size": 8, "num_hidden_layers": 2, "norm_bias": False},
    "mixtral": DECODER | {"num_local_experts": 3},
    "qwen3_moe": DECODER | {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 6},
    "olmoe": DECODER | {"num_experts": 3, "num_experts_per_tok": 2},
    "gpt_oss": DECODER | {"num_local_experts": 3, "num_experts_per_tok": 2},
    "deepseek_v2": LATENT_DECODER,
    "deepseek_v3": LATENT_DECODER | {"n_group": 1, "topk_group": 1},
    "t5": {"num_heads": 4, "d_model": 8, "d_kv": 3, "relative_attention_num_buckets": 6, "num_layers": 1,
           "architectures": ["T5ForConditionalGeneration"]},
    "vit": {"num_attention_heads": 2, "hidden_size": 8, "patch_size": 3, "image_size": 6, "num_channels": 1},
}  # fmt: skip
"""By dialect, what a config.json says of the example of its record."""


class Wide(TorchFunctionMode):
    """Every float32 of a module's own choosing is float64.

    transformers computes angles, statistics of norms and softmax in float32 whatever the model's dtype. In this mode a
    float64 model is one throughout, so that it can be held to bounds of float64.
    """

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        keywords = {name: wide(value) for name, value in (keywords or {}).items()}
        arguments = tuple(map(wide, arguments))
        if function is torch.Tensor.float:
            return torch.Tensor.double(*arguments, **keywords)
        return function(*arguments, **keywords)


def wide(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


@contextmanager
def arithmetic(dtype: str) -> Iterator[None]:
    """Modules that are made and called here compute in that dtype, float64 in all steps."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with Wide() if dtype == "float64" else nullcontext():
            yield
    finally:
        torch.set_default_dtype(before)


def randomized(module: torch.nn.Module) -> torch.nn.Module:
    """Random parameters far from the 0 and 1 with which they begin, which hide mistakes; sums stay of moderate size."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in module.named_parameters():
        around_one = parameter.ndim == 1 and name.endswith("weight") and "Gemma" not in type(module).__name__
        spread = 0.5 if parameter.ndim == 1 else min(0.3, parameter.shape[-1] ** -0.5)
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data.copy_(spread * noise + around_one)
    for name, buffer in module.named_buffers():
        if name.endswith("e_score_correction_bias"):  # 0, too, where training begins
            buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator, dtype=torch.float64))
    return module.eval()


def module_of(made: Pretrained, dtype: str, attention: str | None = "eager") -> torch.nn.Module:
    """The model with random numbers, to be called within `arithmetic(dtype)`."""
    import transformers

    kind = getattr(transformers, made.architecture)
    configuration = kind.config_class(**made.options)
    if attention is not None:
        configuration._attn_implementation = attention
    configuration._experts_implementation = "eager"  # the grouped product that is the default takes no float64
    with arithmetic(dtype):
        return randomized(kind(configuration)).to(getattr(torch, dtype))


def saved(made: Pretrained, dtype: str, folder: Path, **options: Any) -> tuple[torch.nn.Module, Path]:
    """The model, and a folder with it."""
    module = module_of(made, dtype)
    module.save_pretrained(folder, **options)
    return module, folder


def tokens(batch: int = 3, length: int = LENGTH, seed: int = 0) -> np.ndarray:
    """Token ids [B, T] without 0, which fills up the ends of all but the first sequence."""
    found = np.random.default_rng(seed).integers(3, VOCABULARY, (batch, length))
    for row in range(1, batch):
        found[row, length - 2 * row - 1 :] = 0
    return found


class Call(NamedTuple):
    """What both models are called with: the module by keyword, ours by inputs and options.

    real: the positions of the result that are compared; what padding gives is of no use.
    """

    theirs: dict[str, np.ndarray]
    inputs: tuple[np.ndarray, ...]
    options: dict[str, Any]
    real: np.ndarray


def call_of(made: Pretrained, dtype: str) -> Call:
    if made.dialect == "vit":
        size, channels = made.options["image_size"], made.options.get("num_channels", 3)
        height, width = (size, size) if isinstance(size, int) else size
        images = np.random.default_rng(0).normal(size=(2, channels, height, width)).astype(dtype)
        patch = made.options["patch_size"]
        rows = np.ones((2, height // patch * (width // patch) + 1), bool)
        return Call({"pixel_values": images}, (images,), {}, rows)
    ids = tokens()
    keep = ids != 0
    mask = {"attention_mask": keep.astype(int)}
    if made.architecture in ("T5ForConditionalGeneration", "T5Model", "MT5ForConditionalGeneration"):
        target = tokens(length=7, seed=1)
        target[:, 0] = 0
        rows = (target != 0) | (np.arange(7) == 0)
        theirs = {"input_ids": ids, "decoder_input_ids": target, "decoder_attention_mask": rows.astype(int)}
        options = {"source_key_padding": keep, "target_key_padding": rows}
        return Call(theirs | mask, (ids, target), options, rows)
    return Call({"input_ids": ids} | mask, (ids,), {"key_padding": keep}, keep)


def module_result(module: torch.nn.Module, made: Pretrained, call: Call, dtype: str) -> torch.Tensor:
    """Logits, or hidden states where the model has no language model's head; of heads of other kinds what is below."""
    below = {"ModernBertForMaskedLM": "model", "ViTForImageClassification": "vit"}.get(made.architecture)
    called = getattr(module, below) if below else module
    with arithmetic(dtype):
        found = called(**{name: torch.from_numpy(array) for name, array in call.theirs.items()})
        return found.logits if hasattr(found, "logits") else found.last_hidden_state


def bert_entries(positions: int = 20) -> dict[str, np.ndarray]:
    """Of a small BERT of one layer and four heads, with so many rows of positions."""
    generator, layer = np.random.default_rng(0), "encoder.layer.0"
    square = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
    shapes: dict[str, tuple[int, ...]] = {f"{layer}.{name}": (16, 16) for name in square}
    shapes |= {f"{layer}.intermediate.dense": (24, 16), f"{layer}.output.dense": (16, 24)}
    norms = (f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm", "embeddings.LayerNorm")
    shapes |= dict.fromkeys(norms, (16,))
    tables = {"word": (11, 16), "position": (positions, 16), "token_type": (2, 16)}
    shapes = {f"{name}.weight": shape for name, shape in shapes.items()} | {
        f"{name}.bias": shape[:1] for name, shape in shapes.items()
    }
    shapes |= {f"embeddings.{name}_embeddings.weight": shape for name, shape in tables.items()}
    return {name: generator.normal(size=shape).astype("float32") for name, shape in shapes.items()}

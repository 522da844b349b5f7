# ruff: noqa: E501 (a table of replaced lines of code)
"""Mistakes that people make when they port a model, as changes of the source of right ports.

A fault is called as a port's `build` is, and is an attribute of this module:
`conformance.selftest.ports.faults:bert_torch_scale_missing`. It is pickled as that name.

`where` is the first sublayer, in the order of computation, whose result is wrong if its inputs are right. Its name is
the definition's, without "decoder." where there is no encoder. A norm belongs to the sublayer whose norm it is.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.selftest.ports.registry import PORTS, Port

Change = tuple[str, str]
FOLDER = Path(__file__).parent


@dataclass(frozen=True, eq=False)
class Fault:
    """One mistake, or several, in a right port.

    port: what it is a mistake in.
    where, what: the first wrong sublayer (of gradients, which flow backwards, the last), empty where the call is wrong
        as a whole, and a sentence.
    changes: of the port's source, each text that it has once and the text in its place.
    configs: indices of `list_configs(dialect)` whose checkpoints show it; none where all do.
    shown_by: "call", "step" or "vjp", of which only this is wrong.
    settings: entries of a config that show the fault, where those of `list_configs` do not.
    """

    name: str
    port: Port
    where: str
    what: str
    changes: tuple[Change, ...]
    configs: tuple[int, ...] = ()
    shown_by: str = "call"
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def dialect(self) -> str:
        return self.port.dialect

    @property
    def framework(self) -> str:
        return self.port.framework

    def source(self) -> str:
        """Return the changed source; ValueError where a text is not there once."""
        text = (FOLDER / f"{self.port.module}.py").read_text(encoding="utf-8")
        for old, new in self.changes:
            if text.count(old) != 1:
                raise ValueError(f"{self.name}: {self.port.module} has {text.count(old)} times {old!r}")
            text = text.replace(old, new)
        return text

    def __call__(self, config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
        text, path = self.source(), f"<{self.name}>"
        # Tracebacks and torch.compile read lines from here.
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
        names: dict[str, Any] = {"__name__": f"{__package__}.{self.port.module}", "__file__": path}
        exec(compile(text, path, "exec"), names)
        return names["build"](config, state_dict)

    def __reduce__(self) -> str:
        return self.name


RIGHT = {port.module: port for port in PORTS}
FAULTS: list[Fault] = []
SUBTLE: list[Fault] = []
"""Mistakes that checkpoints drawn from `list_configs` show by no more than ten times the rounding of a right port."""


def add(
    module: str,
    name: str,
    where: str,
    what: str,
    *changes: Change,
    configs: tuple[int, ...] = (),
    shown_by: str = "call",
    settings: dict[str, Any] | None = None,
) -> None:
    """Add a fault to FAULTS, or with settings to SUBTLE."""
    fault = Fault(f"{module}_{name}", RIGHT[module], where, what, changes, configs, shown_by, settings or {})
    (SUBTLE if settings else FAULTS).append(fault)


def add_pair(module: str, first: str, second: str, configs: tuple[int, ...] = ()) -> None:
    """Add a fault that is two others, of which the first is met first."""
    one, other = (next(f for f in FAULTS if f.name == f"{module}_{name}") for name in (first, second))
    changes = (*one.changes, *other.changes)
    add(module, f"{first}_and_{second}", one.where, f"{one.what} {other.what}", *changes, configs=configs)


# fmt: off
# --- BERT -------------------------------------------------------------------------------------------------------------

ATTENTION, FEED_FORWARD = "blocks.0.attention", "blocks.0.feed_forward"

add("bert_torch", "embedding_eps", "embedding", "The embedding's norm has PyTorch's default eps of 1e-5.",
    ('self.LayerNorm = nn.LayerNorm(width, eps=config.get("layer_norm_eps", 1e-12))',
     "self.LayerNorm = nn.LayerNorm(width)"), configs=(2,))
add("bert_torch", "eps_default", ATTENTION, "The norms of layers ignore layer_norm_eps.",
    ('config["intermediate_size"], config.get("layer_norm_eps", 1e-12)', 'config["intermediate_size"], 1e-12'),
    configs=(2,))
add("bert_torch", "gelu_tanh", FEED_FORWARD, "GELU is its tanh approximation where it should be exact.",
    ('"gelu": nn.GELU()', '"gelu": nn.GELU(approximate="tanh")'), configs=(0,))
add("bert_torch", "activation_ignored", FEED_FORWARD, "The activation is always GELU, whatever hidden_act says.",
    ('ACTIVATIONS[config.get("hidden_act", "gelu")]', "nn.GELU()"), configs=(1, 2))
add("bert_torch", "token_types_missing", "embedding", "Token types are not added to the embedding.",
    ("        x = x + self.token_type_embeddings(token_types)\n", ""))
add("bert_torch", "token_types_zero", "embedding", "All token types are 0, whatever is passed.",
    ("if token_types is None:\n            token_types = torch", "if True:\n            token_types = torch"),
    configs=(0, 1))
add("bert_torch", "mask_inverted", ATTENTION, "Padding is attended to, and real tokens are masked.",
    ("masked_fill(~key_padding", "masked_fill(key_padding"))
add("bert_torch", "padding_ignored", ATTENTION, "Padding is not masked.",
    ("mask = None\n        if key_padding is not None:", "mask = None\n        if False:"))
add("bert_torch", "padding_first_layer", "blocks.1.attention", "Padding is masked in the first layer only.",
    ("            x = layer(x, mask)\n", "            x = layer(x, mask)\n            mask = None\n"))
add("bert_torch", "mask_finite", ATTENTION, "Scores of padding are lowered by 3 only.",
    ("torch.finfo(x.dtype).min", "-3.0"))
add("bert_torch", "scale_missing", ATTENTION, "Scores are not divided by sqrt(D).",
    (" / math.sqrt(self.head_width)", ""))
add("bert_torch", "scale_model_width", ATTENTION, "Scores are divided by sqrt(E).",
    ("math.sqrt(self.head_width)", "math.sqrt(x.shape[-1])"))
add("bert_torch", "residual_missing", ATTENTION, "Sublayers have no residual connection.",
    ("self.dense(hidden) + residual", "self.dense(hidden)"))
add("bert_torch", "norm_before_sum", ATTENTION, "The norm is applied to the sublayer's output before the sum.",
    ("self.LayerNorm(self.dense(hidden) + residual)", "self.LayerNorm(self.dense(hidden)) + residual"))
add("bert_torch", "residual_attended", FEED_FORWARD,
    "The feed-forward network's residual connection comes from the attended values.",
    ("return self.output(hidden, x)", "return self.output(hidden, attended)"))
add("bert_torch", "positions_from_2", "embedding", "Positions begin at 2, as RoBERTa's do.",
    ("torch.arange(tokens.shape[1])", "torch.arange(2, tokens.shape[1] + 2)"))
add("bert_torch", "layers_reversed", ATTENTION, "Layers are applied from the last to the first.",
    ("for layer in layers:", "for layer in reversed(layers):"))
add("bert_torch", "layer_twice", "blocks.1.attention", "The first layer is used in the place of all.",
    ("for layer in layers:", "for layer in [layers[0]] * len(layers):"))
add("bert_torch", "dropout_on", ATTENTION, "Dropout of the attention's weights is left on.",
    ("weights = scores.softmax(dim=-1)", "weights = nn.functional.dropout(scores.softmax(dim=-1), 0.1)"))
add("bert_torch", "key_value_swapped", ATTENTION, "Keys and values are swapped.", ("q, k, v = self", "q, v, k = self"))
add("bert_torch", "heads_interleaved", ATTENTION, "Columns of heads are interleaved.",
    ("x.view(x.shape[0], x.shape[1], self.heads, self.head_width).transpose(1, 2)",
     "x.view(x.shape[0], x.shape[1], self.head_width, self.heads).permute(0, 3, 1, 2)"))
add("bert_torch", "float16_hidden", FEED_FORWARD, "The hidden activations are rounded to float16.",
    ("(self.intermediate[\"dense\"](x))", "(self.intermediate[\"dense\"](x)).half().to(x.dtype)"))
add("bert_torch", "embedding_norm_missing", "embedding", "The embedding is not normalised.",
    ("return self.LayerNorm(x)\n", "return x\n"))
add("bert_torch", "padding_row_frozen", "embedding", "Token 0 gets no gradient, as padding_idx of nn.Embedding has it.",
    ('nn.Embedding(config["vocab_size"], width)', 'nn.Embedding(config["vocab_size"], width, padding_idx=0)'),
    configs=(0, 1), shown_by="vjp")

add("bert_numpy", "unbiased_variance", "embedding", "Norms divide the variance by n - 1.",
    ("x.var(-1, keepdims=True)", "x.var(-1, keepdims=True, ddof=1)"))
add("bert_numpy", "eps_outside", "embedding", "Norms add eps to the standard deviation, outside the root.",
    ("np.sqrt(variance + np.float32(self.eps))", "(np.sqrt(variance) + np.float32(self.eps))"), configs=(2,))
add("bert_numpy", "mask_queries", ATTENTION, "Padding masks queries in the place of keys.",
    ("keep[:, None, :]", "keep[:, :, None]"))
add("bert_numpy", "erf_unscaled", FEED_FORWARD, "GELU takes erf(x) in the place of erf(x / sqrt(2)).",
    ("erf(x / math.sqrt(2))", "erf(x)"), configs=(0,))
add("bert_numpy", "quick_gelu", FEED_FORWARD, "GELU is x sigmoid(1.702 x).",
    ("return x * 0.5 * (1 + erf(x / math.sqrt(2)))", "return x / (1 + np.exp(-1.702 * x))"), configs=(0,))
add("bert_numpy", "output_bias_missing", ATTENTION, "The attention's output projection has no bias.",
    ('return self.linear(name + ".output.dense", np.concatenate(output, axis=-1))',
     'return np.concatenate(output, axis=-1) @ self.weights[name + ".output.dense.weight"].T'))
add("bert_numpy", "softmax_over_queries", ATTENTION, "The softmax is over queries.",
    ("output.append(softmax(scores) @ v_head)", "output.append(softmax(scores.swapaxes(1, 2)).swapaxes(1, 2) @ v_head)"))
add("bert_numpy", "positions_reversed", "embedding", "Positions are counted from the end.",
    ("np.arange(tokens.shape[1])", "np.arange(tokens.shape[1])[::-1]"))

add("bert_jax", "positions_without_padding", "embedding", "Positions count real tokens only.",
    ('x += entries["embeddings.position_embeddings.weight"][: tokens.shape[1]]',
     "real = jnp.ones(tokens.shape, bool) if key_padding is None else key_padding\n"
     '    x += entries["embeddings.position_embeddings.weight"][jnp.maximum(jnp.cumsum(real, axis=1) - 1, 0)]'))
add("bert_jax", "one_bias_missing", "blocks.1.feed_forward", "The second layer's inner projection has no bias.",
    ('dense(entries, f"{name}.intermediate.dense", x))',
     'dense(entries, f"{name}.intermediate.dense", x) - (entries[f"{name}.intermediate.dense.bias"] if i == 1 else 0))'))
add("bert_jax", "norm_order_one_layer", "blocks.1.attention", "The second layer's attention is normalised before the sum.",
    ("x = layer_norm(entries, f\"{name}.attention.output.LayerNorm\", x + attended, eps)",
     "kind = f\"{name}.attention.output.LayerNorm\"\n"
     "        x = x + layer_norm(entries, kind, attended, eps) if i == 1 else layer_norm(entries, kind, x + attended, eps)"))
add("bert_jax", "token_types_one", "embedding", "Tokens are of type 1 where no types are passed.",
    ("jnp.zeros_like(tokens)", "jnp.ones_like(tokens)"), configs=(0, 1))
add("bert_jax", "output_weight_turned", ATTENTION, "The attention's output weight is transposed.",
    ('return dense(entries, f"{name}.output.dense", heads_together)',
     'return heads_together @ entries[f"{name}.output.dense.weight"] + entries[f"{name}.output.dense.bias"]'))
add("bert_jax", "weights_detached", "blocks.1.attention", "No gradient goes through the attention's weights.",
    ('weights = jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(x.dtype)',
     "weights = jax.lax.stop_gradient(jax.nn.softmax(scores, axis=-1))"), shown_by="vjp")
add("bert_jax", "approximate_gelu", FEED_FORWARD, "GELU is JAX's default, the tanh approximation.",
    ("jax.nn.gelu(x, approximate=False)", "jax.nn.gelu(x)"), configs=(0,))

# --- GPT-2 ------------------------------------------------------------------------------------------------------------

SELF_ATTENTION = "blocks.0.self_attention"

add("gpt2_torch", "query_key_swapped", SELF_ATTENTION, "The fused projection is taken for keys, queries, values.",
    ("q, k, v = self.c_attn", "k, q, v = self.c_attn"))
add("gpt2_torch", "output_weight_turned", SELF_ATTENTION, "The attention's output weight is transposed.",
    ('"attn.c_proj.weight", ', ""))
add("gpt2_torch", "mask_sees_next", SELF_ATTENTION, "The causal mask lets a token see the next one.",
    (".tril(K - T)", ".tril(K - T + 1)"))
add("gpt2_torch", "mask_hides_self", SELF_ATTENTION, "The causal mask hides the token itself.",
    (".tril(K - T)", ".tril(K - T - 1)"))
add("gpt2_torch", "mask_missing", SELF_ATTENTION, "There is no causal mask.", (".tril(K - T)", ""))
add("gpt2_torch", "cached_mask", SELF_ATTENTION, "With a cache, the mask is that of the first positions.",
    (".tril(K - T)", ".tril()"), shown_by="step")
add("gpt2_torch", "cached_positions", "embedding", "With a cache, positions begin at 0 again.",
    ("offset = 0 if cache is None else cache[0][0].shape[2]", "offset = 0"), shown_by="step")
add("gpt2_torch", "cached_positions_late", "embedding", "With a cache, positions are one too small.",
    ("else cache[0][0].shape[2]", "else cache[0][0].shape[2] - 1"), shown_by="step")
add("gpt2_torch", "cache_of_last_layer", SELF_ATTENTION, "All layers read the last layer's cache.",
    ("else cache[i])", "else cache[-1])"), shown_by="step")
add("gpt2_torch", "last_norm_missing", "norm", "The last norm is left out.", ('        x = parts["ln_f"](x)\n', ""))
add("gpt2_torch", "last_norm_twice", "norm", "The last norm is applied twice.",
    ('x = parts["ln_f"](x)', 'x = parts["ln_f"](parts["ln_f"](x))'))
add("gpt2_torch", "always_tied", "output", "The output layer is the token table where the checkpoint has its own.",
    ('find_head(state_dict, "transformer.wte.weight")', 'state_dict["transformer.wte.weight"]'),
    configs=(2,))
add("gpt2_torch", "gelu_exact", FEED_FORWARD, "GELU is exact where gelu_new is asked for.",
    ('"tanh" if self.activation == "gelu_new" else "none"', '"none"'), configs=(0,))
add("gpt2_torch", "positions_missing", "embedding", "Positions are not added.", (' + parts["wpe"](positions)', ""))
add("gpt2_torch", "scale_model_width", SELF_ATTENTION, "Scores are divided by sqrt(E).",
    ("math.sqrt(k.size(-1))", "math.sqrt(E)"))
add("gpt2_torch", "residual_normed", SELF_ATTENTION, "The attention's residual connection comes from its norm.",
    ("x = x + attended", "x = self.ln_1(x) + attended"))
add("gpt2_torch", "parallel", FEED_FORWARD, "The feed-forward network takes the block's input, as in GPT-J.",
    ("x = x + attended\n        x = x + self.mlp(self.ln_2(x))", "x = x + attended + self.mlp(self.ln_2(x))"))
add("gpt2_torch", "first_norm_twice", FEED_FORWARD, "The feed-forward network has the attention's norm.",
    ("self.ln_2(x)", "self.ln_1(x)"))
add("gpt2_torch", "padding_ignored", SELF_ATTENTION, "Padding is not masked.", ("if keep is not None", "if False"))
add("gpt2_torch", "eps_default", SELF_ATTENTION, "The norms of blocks ignore layer_norm_epsilon.",
    ('width, eps = config["n_embd"], config.get("layer_norm_epsilon", 1e-5)', 'width, eps = config["n_embd"], 1e-5'),
    configs=(1,))
add("gpt2_torch", "outer_bias_missing", FEED_FORWARD, "The feed-forward network's second projection has no bias.",
    ("return self.c_proj(x)\n", "return F.linear(x, self.c_proj.weight)\n"))
add("gpt2_torch", "float16_logits", "output", "Logits are rounded to float16.",
    ("return self.lm_head(x), presents", "return self.lm_head(x).half().to(x.dtype), presents"))

add("gpt2_jax", "qkv_by_head", SELF_ATTENTION, "The fused projection is split head by head, as GPT-NeoX's is.",
    ("jnp.moveaxis(qkv.reshape(B, T, 3, heads, E // heads), 2, 0)",
     "jnp.moveaxis(qkv.reshape(B, T, heads, 3, E // heads), 3, 0)"))
add("gpt2_jax", "mask_inverted", SELF_ATTENTION, "The mask forbids what it should allow.",
    ("jnp.where(mask, scores", "jnp.where(~mask, scores"))
add("gpt2_jax", "positions_from_1", "embedding", "Positions begin at 1.",
    ("jnp.arange(T)]", "jnp.arange(1, T + 1)]"))
add("gpt2_jax", "unbiased_variance", SELF_ATTENTION, "Norms divide the variance by n - 1.",
    ("wide.var(-1, keepdims=True)", "wide.var(-1, ddof=1, keepdims=True)"))
add("gpt2_jax", "norm_bias_missing", FEED_FORWARD, "The feed-forward network's norm has no bias.",
    ('layer["ln_2.bias"]', "0.0"))
add("gpt2_jax", "gelu_default", FEED_FORWARD, "The exact GELU is JAX's default, the tanh approximation.",
    ('"gelu": lambda x: jax.nn.gelu(x, approximate=False)', '"gelu": jax.nn.gelu'), configs=(1,))
add("gpt2_jax", "scale_by_heads", SELF_ATTENTION, "Scores are divided by the root of the number of heads.",
    ("jnp.sqrt(E // heads)", "jnp.sqrt(heads)"))
add("gpt2_jax", "last_layer_missing", "blocks.1.self_attention", "The last block is left out.",
    ("for layer in layers:", "for layer in layers[:-1]:"))

add("gpt2_numpy", "positions_without_padding", "embedding", "Positions count real tokens only.",
    ('[range(len(tokens))]', "[np.maximum(np.cumsum(keep) - 1, 0)]"))
add("gpt2_numpy", "mask_after_softmax", SELF_ATTENTION, "The mask is applied after the softmax.",
    ("softmax(q @ k.T / np.float32(sqrt(q.shape[-1])) + mask) @ v",
     "(softmax(q @ k.T / np.float32(sqrt(q.shape[-1]))) * (mask == 0)) @ v"))
add("gpt2_numpy", "eps_outside", SELF_ATTENTION, "Norms add eps outside the root.",
    ("np.sqrt(variance + eps)", "(np.sqrt(variance) + eps)"), configs=(1,))
add("gpt2_numpy", "gelu_constant", FEED_FORWARD, "The tanh approximation of GELU has 0.04715 for 0.044715.",
    ("0.044715", "0.04715"), configs=(0,))
add("gpt2_numpy", "padding_first_block", "blocks.1.self_attention", "Padding is masked in the first block only.",
    ('        hidden = act(linear(ln(f"{block}.ln_2", x)',
     "        mask = np.where(np.tril(np.ones((len(tokens), len(tokens)), bool)), 0, -1e10).astype(np.float32)\n"
     '        hidden = act(linear(ln(f"{block}.ln_2", x)'))

# --- Llama ------------------------------------------------------------------------------------------------------------

add("llama_torch", "rotary_interleaved", SELF_ATTENTION, "Rotary positions turn neighbouring columns.",
    ("first, second = x.chunk(2, dim=-1)\n    return torch.cat([-second, first], dim=-1)",
     "first, second = x[..., ::2], x[..., 1::2]\n    return torch.stack([-second, first], dim=-1).flatten(-2)"),
    ("angles = torch.cat([angles, angles], dim=-1)", "angles = angles.repeat_interleave(2, dim=-1)"))
add("llama_torch", "rotary_mixed", SELF_ATTENTION, "Sines are of halves and the turned columns neighbours.",
    ("first, second = x.chunk(2, dim=-1)\n    return torch.cat([-second, first], dim=-1)",
     "first, second = x[..., ::2], x[..., 1::2]\n    return torch.stack([-second, first], dim=-1).flatten(-2)"))
add("llama_torch", "rotary_base", SELF_ATTENTION, "The rotary base is 10000, whatever rope_theta says.",
    ('rope.get("rope_theta", 10000.0)', "10000.0"), configs=(1, 3, 4))
add("llama_torch", "rotary_scaling", SELF_ATTENTION, "The scaling of rotary frequencies is ignored.",
    ("scale_frequencies(inv_freq, rope, self.head_width)", "(inv_freq, 1.0)"), configs=(1, 3, 4))
add("llama_torch", "yarn_factor", SELF_ATTENTION, "YaRN's factor of sine and cosine is left out.",
    ("0.1 * math.log(factor) + 1.0", "1.0"), configs=(4,))
add("llama_torch", "rotary_backwards", SELF_ATTENTION, "Queries and keys turn the other way.",
    ("[-second, first]", "[second, -first]"))
add("llama_torch", "keys_tiled", SELF_ATTENTION, "Key heads are tiled in the place of repeated.",
    ("x[:, :, None].expand(B, G, times, T, D).reshape(B, G * times, T, D)", "x.repeat(1, times, 1, 1)"),
    configs=(0, 1, 2, 4))
add("llama_torch", "eps_default", SELF_ATTENTION, "Norms have an eps of 1e-5, whatever rms_norm_eps says.",
    ('config.get("rms_norm_eps", 1e-6)', "1e-5"), configs=(2,))
add("llama_torch", "eps_outside", SELF_ATTENTION, "Norms add eps outside the root.",
    ("wide * torch.rsqrt(variance + eps)", "wide / (variance.sqrt() + eps)"), configs=(2,))
add("llama_torch", "layer_norm", SELF_ATTENTION, "Norms subtract the mean, as layer norm does.",
    ("wide = x.float()\n", "wide = x.float() - x.float().mean(-1, keepdim=True)\n"))
add("llama_torch", "gate_up_swapped", FEED_FORWARD, "The activation is applied to up_proj.",
    ('self.activation(self.linear(f"{name}.gate_proj", x)) * self.linear(f"{name}.up_proj", x)',
     'self.activation(self.linear(f"{name}.up_proj", x)) * self.linear(f"{name}.gate_proj", x)'))
add("llama_torch", "activation_ignored", FEED_FORWARD, "The activation is always SiLU.",
    ('ACTIVATIONS[config.get("hidden_act", "silu")]', "F.silu"), configs=(3,))
add("llama_torch", "mask_sees_next", SELF_ATTENTION, "The causal mask lets a token see the next one.",
    (".triu(1)", ".triu(2)"))
add("llama_torch", "last_norm_missing", "norm", "The last norm is left out.",
    ('        x = rms_norm(x, self.entries["model.norm.weight"], self.eps)\n', ""))
add("llama_torch", "always_tied", "output", "The output layer is the token table where the checkpoint has its own.",
    ('find_head(entries, "model.embed_tokens.weight")', 'entries["model.embed_tokens.weight"]'),
    configs=(0, 2, 3, 4))
add("llama_torch", "residual_of_block", FEED_FORWARD,
    "The feed-forward network's residual connection comes from the block's input.",
    ('            residual = x\n            x = rms_norm(x, self.entries[f"{name}.post_attention',
     '            x = rms_norm(x, self.entries[f"{name}.post_attention'))
add("llama_torch", "scale_ignores_head_dim", SELF_ATTENTION, "Scores are scaled by E / heads, where head_dim differs.",
    ("math.sqrt(self.head_width)", "math.sqrt(x.shape[-1] // self.heads)"), configs=(2,))
add("llama_torch", "values_rotated", SELF_ATTENTION, "Values are rotated too.",
    ("        times = self.heads", "        v = apply_rotary(v, cos, sin)\n        times = self.heads"))
add("llama_torch", "keys_unrotated", SELF_ATTENTION, "Keys are not rotated.",
    ("q, k = apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)", "q = apply_rotary(q, cos, sin)"))
add("llama_torch", "mlp_bias_missing", FEED_FORWARD, "The bias of down_proj is left out.",
    ('return self.linear(f"{name}.down_proj", gated)', 'return F.linear(gated, self.entries[f"{name}.down_proj.weight"])'),
    configs=(2,))
add("llama_torch", "query_bias_missing", SELF_ATTENTION, "The bias of q_proj is left out.",
    ('self.linear(f"{name}.q_proj", x)', 'F.linear(x, self.entries[f"{name}.q_proj.weight"])'), configs=(2,))
add("llama_torch", "mask_inverted", SELF_ATTENTION, "Padding is attended to, and real tokens are masked.",
    ("masked_fill(~key_padding", "masked_fill(key_padding"))
add("llama_torch", "float16_rotary", SELF_ATTENTION, "Sines and cosines are rounded to float16.",
    ("(angles.cos() * self.attention_factor).to(dtype)", "(angles.cos() * self.attention_factor).half().to(dtype)"),
    ("(angles.sin() * self.attention_factor).to(dtype)", "(angles.sin() * self.attention_factor).half().to(dtype)"))

add("llama_jax", "cache_not_advanced", SELF_ATTENTION, "The length of the cache stays 0.",
    ("length=cache.length + T", "length=cache.length"), shown_by="step")
add("llama_jax", "cached_positions", SELF_ATTENTION, "With a cache, rotary positions begin at 0 again.",
    ("positions = offset + jnp.arange(T)", "positions = jnp.arange(T)"), shown_by="step")
add("llama_jax", "cached_mask", SELF_ATTENTION, "With a cache, a token does not see itself.",
    ("jnp.arange(CAPACITY) <= last", "jnp.arange(CAPACITY) < last"), shown_by="step")
add("llama_jax", "cached_empty_keys", SELF_ATTENTION, "With a cache, the empty places after the sequence are seen too.",
    ("jnp.arange(CAPACITY) <= last", "jnp.arange(CAPACITY) <= 1 + last"), shown_by="step")
add("llama_jax", "keys_tiled", SELF_ATTENTION, "Queries are grouped as if key heads were tiled.",
    ("q.reshape(B, T, G, H // G, D)", "q.reshape(B, T, H // G, G, D).swapaxes(2, 3)"), configs=(0, 1, 2, 4))
add("llama_jax", "yarn_factor", SELF_ATTENTION, "YaRN's factor of sine and cosine is left out.",
    ("spec.rotary_factor * f(angles)", "f(angles)"), configs=(4,))
add("llama_jax", "head_detached", "output", "The output layer gets no gradient.",
    ('find_head(entries, "model.embed_tokens.weight").T', 'jax.lax.stop_gradient(find_head(entries, "model.embed_tokens.weight")).T'),
    shown_by="vjp")
add("llama_jax", "first_norm_twice", FEED_FORWARD, "The feed-forward network has the attention's norm.",
    ("post_attention_layernorm", "input_layernorm"))
add("llama_jax", "padding_ignored", SELF_ATTENTION, "Padding is not masked.",
    ("        if key_padding is not None:", "        if False:"))

add("llama_numpy", "sigmoid_wide", FEED_FORWARD, "SiLU is x sigmoid(1.702 x).",
    ("x / (1 + np.exp(-x))", "x / (1 + np.exp(-1.702 * x))"), configs=(0, 1, 2, 4))
add("llama_numpy", "keys_tiled", SELF_ATTENTION, "Key heads are tiled in the place of repeated.",
    ("k[:, :, h // group], v[:, :, h // group]", "k[:, :, h % self.n_kv_heads], v[:, :, h % self.n_kv_heads]"),
    configs=(0, 1, 2, 4))
add("llama_numpy", "norm_plus_one", SELF_ATTENTION, "Norms multiply by 1 + weight, as Gemma's do.",
    ("return x / rms * weight", "return x / rms * (1 + weight)"))
add("llama_numpy", "rotary_sign", SELF_ATTENTION, "The second half of a rotation has the wrong sign.",
    ("b * cos + a * sin", "b * cos - a * sin"))
add("llama_numpy", "layers_reversed", SELF_ATTENTION, "Blocks are applied from the last to the first.",
    ("for layer in self.layers:\n            x = x", "for layer in self.layers[::-1]:\n            x = x"))
add("llama_numpy", "values_are_keys", SELF_ATTENTION, "Values are the keys.",
    ("v[:, :, h // group]", "k[:, :, h // group]"))
add("llama_numpy", "embedding_normed", "embedding", "The embedding is divided by its root mean square.",
    ("x = self.embedding[tokens]\n", "x = self.rms_norm(self.embedding[tokens], np.float32(1))\n"))

# --- Gemma 2 ----------------------------------------------------------------------------------------------------------

add("gemma2_torch", "norm_without_one", SELF_ATTENTION, "Norms multiply by weight in the place of 1 + weight.",
    ("(1.0 + self.weight.float())", "self.weight.float()"))
add("gemma2_torch", "embedding_unscaled", "embedding", "The embedding is not multiplied by sqrt(E).",
    ("        x = x * torch.tensor(x.shape[-1] ** 0.5, dtype=x.dtype)\n", ""))
add("gemma2_torch", "window_one_more", SELF_ATTENTION, "The window has one key too many.",
    ("i - j < self.window", "i - j <= self.window"), configs=(0, 1))
add("gemma2_torch", "window_odd_layers", SELF_ATTENTION, "The window is in the odd layers.",
    ("index % 2 == 0", "index % 2 == 1"), configs=(0, 1))
add("gemma2_torch", "softcap_missing", SELF_ATTENTION, "Scores have no soft cap.",
    ("scores = self.softcap * torch.tanh(scores / self.softcap)", "pass"), configs=(0, 1))
add("gemma2_torch", "softcap_after_mask", SELF_ATTENTION, "Scores are capped after the mask, which lets the future in.",
    ("        if self.softcap is not None:\n            scores = self.softcap * torch.tanh(scores / self.softcap)\n", ""),
    ("        weights = torch.softmax", "        if self.softcap is not None:\n"
     "            scores = self.softcap * torch.tanh(scores / self.softcap)\n        weights = torch.softmax"),
    configs=(1,))
add("gemma2_torch", "output_softcap_missing", "output", "Logits have no soft cap.",
    ("logits = torch.tanh(logits / self.softcap) * self.softcap", "pass"), configs=(0, 1))
add("gemma2_torch", "output_softcap_early", "output", "The output layer's input is capped, and logits are not.",
    ("logits = self.lm_head(self.norm(x))", "logits = self.norm(x)"),
    ("logits = torch.tanh(logits / self.softcap) * self.softcap\n",
     "logits = torch.tanh(logits / self.softcap) * self.softcap\n        logits = self.lm_head(logits)\n"),
    configs=(0, 1))
add("gemma2_torch", "scale_head_width", SELF_ATTENTION, "Scores are scaled by head_dim, not query_pre_attn_scalar.",
    ('config.get("query_pre_attn_scalar", 256) ** -0.5', "self.D**-0.5"))
add("gemma2_torch", "post_norms_missing", SELF_ATTENTION, "The norm after the attention is left out.",
    ("x = x + self.post_attention_layernorm(attended)", "x = x + attended"))
add("gemma2_torch", "norms_of_llama", SELF_ATTENTION,
    "post_attention_layernorm is the feed-forward network's norm, and the norms around it are not used.",
    ("x = x + self.post_attention_layernorm(attended)\n        hidden = self.mlp(self.pre_feedforward_layernorm(x))\n"
     "        return x + self.post_feedforward_layernorm(hidden)",
     "x = x + attended\n        return x + self.mlp(self.post_attention_layernorm(x))"))
add("gemma2_torch", "norm_after_sum", FEED_FORWARD, "The norm after the feed-forward network takes the sum.",
    ("return x + self.post_feedforward_layernorm(hidden)", "return self.post_feedforward_layernorm(x + hidden)"))
add("gemma2_torch", "gelu_exact", FEED_FORWARD, "GELU is exact where its tanh approximation is asked for.",
    ('F.gelu(x, approximate="tanh")', "F.gelu(x)"))

add("gemma2_jax", "window_everywhere", "blocks.1.self_attention", "All layers have the window.",
    ("mask = local if i % 2 == 0 else causal", "mask = local"), configs=(0, 1))
add("gemma2_jax", "window_nowhere", SELF_ATTENTION, "No layer has the window.",
    ("mask = local if i % 2 == 0 else causal", "mask = causal"), configs=(0, 1))
add("gemma2_jax", "padding_full_layers", SELF_ATTENTION, "Padding is masked only in layers without a window.",
    ("local = causal & (ago < window)", "local = ((ago >= 0) & (ago < window))[None]"))
add("gemma2_jax", "scale_after_cap", SELF_ATTENTION, "Scores are scaled after the soft cap.",
    (' * config.get("query_pre_attn_scalar", 256) ** -0.5', ""),
    ('logits = soft_cap(logits, config.get("attn_logit_softcapping", 50.0))',
     'logits = soft_cap(logits, config.get("attn_logit_softcapping", 50.0)) * config["query_pre_attn_scalar"] ** -0.5'),
    configs=(0, 1))
add("gemma2_jax", "rotary_exponent", SELF_ATTENTION, "Rotary frequencies have half the exponent.",
    ("2 * jnp.arange(D // 2) / D", "jnp.arange(D // 2) / D"))
add("gemma2_jax", "output_bias_missing", SELF_ATTENTION, "The bias of o_proj is left out.",
    ('out + layer["self_attn.o_proj.bias"]', "out"), configs=(2,))
add("gemma2_jax", "last_norm_without_one", "norm", "The last norm multiplies by weight in the place of 1 + weight.",
    ('params["model.norm.weight"], eps', 'params["model.norm.weight"] - 1, eps'))
add("gemma2_jax", "layer_norms_swapped", FEED_FORWARD, "The two norms of the feed-forward network are swapped.",
    ("pre_feedforward_layernorm", "temporary"), ("post_feedforward_layernorm", "pre_feedforward_layernorm"),
    ("temporary", "post_feedforward_layernorm"))

# --- GPT-NeoX ---------------------------------------------------------------------------------------------------------

add("gpt_neox_torch", "sequential", FEED_FORWARD, "The parallel residual connection is made sequential.",
    ("if self.parallel:", "if False:"), configs=(0, 2))
add("gpt_neox_torch", "always_parallel", FEED_FORWARD, "Residual connections are parallel, whatever the config says.",
    ("if self.parallel:", "if True:"), configs=(1,))
add("gpt_neox_torch", "one_norm", FEED_FORWARD, "Both parallel branches have the attention's norm, as in GPT-J.",
    ("return x + attended + self.feed_forward(self.post_attention_layernorm(x))",
     "return x + attended + self.feed_forward(self.input_layernorm(x))"), configs=(0, 2))
add("gpt_neox_torch", "qkv_in_thirds", SELF_ATTENTION, "The fused projection is split in thirds, as GPT-2's is.",
    ("qkv = self.query_key_value(x).view(B, T, self.heads, 3 * self.head_width).transpose(1, 2)\n"
     "        q, k, v = qkv.chunk(3, dim=-1)",
     "q, k, v = self.query_key_value(x).view(B, T, 3, self.heads, self.head_width).permute(2, 0, 3, 1, 4)"))
add("gpt_neox_torch", "rotary_pct_ignored", SELF_ATTENTION, "All columns of a head are rotated.",
    ('int(self.head_width * config.get("rotary_pct", 0.25))', "self.head_width"), configs=(0, 1))
add("gpt_neox_torch", "rotary_base", SELF_ATTENTION, "The rotary base is 1000.",
    ('config.get("rotary_emb_base", 10000.0)', "1000.0"), configs=(2,))
add("gpt_neox_torch", "rotary_last_columns", SELF_ATTENTION, "The last columns of a head are rotated.",
    ("turned, rest = x[..., :width], x[..., width:]", "rest, turned = x.split((x.shape[-1] - width, width), dim=-1)"),
    ("return torch.cat((turned * cos + half * sin, rest), dim=-1)",
     "return torch.cat((rest, turned * cos + half * sin), dim=-1)"), configs=(0, 1))
add("gpt_neox_torch", "output_bias_missing", SELF_ATTENTION, "The attention's output projection has no bias.",
    ('return self.dense(torch.einsum("bhqk,bhkd->bqhd", weights, v).reshape(B, T, E))',
     'return F.linear(torch.einsum("bhqk,bhkd->bqhd", weights, v).reshape(B, T, E), self.dense.weight)'),
    configs=(0, 1))
add("gpt_neox_torch", "gelu_tanh", FEED_FORWARD, "GELU is always its tanh approximation.",
    ('"tanh" if config.get("hidden_act", "gelu") == "gelu_new" else "none"', '"tanh"'), configs=(0, 2))
add("gpt_neox_torch", "always_tied", "output", "The output layer is the token table where the checkpoint has its own.",
    ('find_head(entries, "gpt_neox.embed_in.weight")', 'entries["gpt_neox.embed_in.weight"]'), configs=(0, 1))

add("gpt_neox_numpy", "last_norm_missing", "norm", "The last norm is left out.",
    ('        x = norm(x, state_dict["gpt_neox.final_layer_norm.weight"], state_dict["gpt_neox.final_layer_norm.bias"])\n',
     ""))
add("gpt_neox_numpy", "mask_inverted", SELF_ATTENTION, "Padding is attended to, and real tokens are masked.",
    ("mask & key_padding[", "mask & ~key_padding["))
add("gpt_neox_numpy", "value_key_query", SELF_ATTENTION, "The fused projection is taken for values, keys, queries.",
    ("q, k, v = fused", "v, k, q = fused"))
add("gpt_neox_numpy", "rotary_backwards", SELF_ATTENTION, "Queries and keys turn the other way.",
    ("np.exp(1j * angle)", "np.exp(-1j * angle)"))
add("gpt_neox_numpy", "layer_twice", "blocks.1.self_attention", "The first block is used in the place of all.",
    ("for layer in layers:", "for layer in layers[:1] * len(layers):"))
add("gpt_neox_numpy", "attention_from_embedding", "blocks.1.self_attention",
    "Every block's attention reads the embedding in the place of the block's input.",
    ('        x = state_dict["gpt_neox.embed_in.weight"][tokens]\n',
     '        x = state_dict["gpt_neox.embed_in.weight"][tokens]\n        first = x\n'),
    ('h = norm(x, layer["input_layernorm.weight"]', 'h = norm(first, layer["input_layernorm.weight"]'))

# --- T5 ---------------------------------------------------------------------------------------------------------------

ENCODER, DECODER = "encoder.blocks.0.attention", "decoder.blocks.0.self_attention"
CROSS = "decoder.blocks.0.cross_attention"

add("t5_torch", "scores_scaled", ENCODER, "Scores are divided by sqrt(D).",
    ("torch.matmul(q, k.transpose(3, 2)) + bias", "torch.matmul(q, k.transpose(3, 2)) / self.head_width**0.5 + bias"))
add("t5_torch", "encoder_one_way", ENCODER, "The encoder's relative positions are those of one direction.",
    ('stack == "encoder", table', "False, table"))
add("t5_torch", "decoder_both_ways", DECODER, "The decoder's relative positions are those of both directions.",
    ('stack == "encoder", table', "True, table"))
add("t5_torch", "furthest_ignored", ENCODER, "The furthest distance is 128, whatever the config says.",
    ('self.config.get("relative_attention_max_distance", 128)', "128"))
add("t5_torch", "relative_sign", ENCODER, "Relative positions have the wrong sign.",
    ("torch.arange(length)[None, :] - torch.arange(length)[:, None]",
     "torch.arange(length)[:, None] - torch.arange(length)[None, :]"))
add("t5_torch", "bias_first_block", "encoder.blocks.1.attention", "Only the first block has relative positions.",
    ('x = x + self.attend(f"{layer}.0.SelfAttention", h, h, bias)\n',
     'x = x + self.attend(f"{layer}.0.SelfAttention", h, h, bias)\n'
     "            bias = torch.zeros_like(bias).masked_fill(~mask, lowest)\n"))
add("t5_torch", "output_unscaled", "output", "The output layer's input is not scaled by 1 / sqrt(E).",
    ('if self.config.get("tie_word_embeddings", True):', "if False:"), configs=(0, 2))
add("t5_torch", "output_scaled", "output", "The output layer's input is scaled where the table is not tied.",
    ('if self.config.get("tie_word_embeddings", True):', "if True:"), configs=(1,))
add("t5_torch", "cross_unmasked", CROSS, "The attention to the source does not mask its padding.",
    ("if memory_keep is not None:", "if False:"))
add("t5_torch", "not_causal", DECODER, "The decoder's attention is not causal.", ("mask = mask.tril()", "pass"))
add("t5_torch", "encoder_norm_missing", "encoder.norm", "The encoder's last norm is left out.",
    ('return self.norm(f"{name}.final_layer_norm", x)',
     'return self.norm(f"{name}.final_layer_norm", x) if decoding else x'))
add("t5_torch", "layer_norm", ENCODER, "Norms subtract the mean, as layer norm does.",
    ("        variance = x.float()", "        x = x - x.mean(-1, keepdim=True)\n        variance = x.float()"))
add("t5_torch", "gelu_exact", "encoder.blocks.0.feed_forward", "The gate's GELU is exact, where T5's is the tanh form.",
    ('F.gelu(gate, approximate="tanh")', "F.gelu(gate)"), configs=(1,))
add("t5_torch", "gate_swapped", "encoder.blocks.0.feed_forward", "The activation is applied to wi_1.",
    ('gate = self.linear(f"{name}.wi_0", x)', 'gate = self.linear(f"{name}.wi_1", x)'),
    ('gate * self.linear(f"{name}.wi_1", x)', 'gate * self.linear(f"{name}.wi_0", x)'), configs=(1, 2))
add("t5_torch", "embedding_scaled", "encoder.embedding", "The embedding is multiplied by sqrt(E).",
    ('self.entries["shared.weight"][tokens]', 'self.entries["shared.weight"][tokens] * self.config["d_model"] ** 0.5'))
add("t5_torch", "memory_is_embedding", CROSS, "The decoder reads the source's embedding in the place of its encoding.",
    ('"decoder", target, target_key_padding, memory, source',
     '"decoder", target, target_key_padding, self.entries["shared.weight"][source], source'))

add("t5_jax", "cross_norm", CROSS, "The attention to the source has the self-attention's norm.",
    ('h = norm(x, layer["layer.1.layer_norm.weight"])', 'h = norm(x, layer["layer.0.layer_norm.weight"])'))
add("t5_jax", "target_padding_ignored", DECODER, "Padding of the target is not masked.",
    ("jnp.tril(jnp.ones((T, T), bool)) & keep", "jnp.tril(jnp.ones((T, T), bool))"))
add("t5_jax", "encoder_table", DECODER, "The decoder has the encoder's table of relative positions.",
    ("table = decoder_layers[0]", "table = encoder_layers[0]"))
add("t5_jax", "bucket_edge", ENCODER, "A distance that begins a bucket of the encoder is put into the one before it.",
    ('np.abs(ahead), side="right")', 'np.abs(ahead), side="left")'))
add("t5_jax", "source_padding_cross_only", ENCODER, "Padding of the source is masked only in the decoder.",
    ("encode(source, real)", "encode(source, jnp.ones_like(real))"))
add("t5_jax", "eps_default", ENCODER, "Norms ignore layer_norm_epsilon.",
    ('config.get("layer_norm_epsilon", 1e-6)', "1e-6"), configs=(2,))

# --- ModernBERT -------------------------------------------------------------------------------------------------------

add("modernbert_torch", "first_norm", ATTENTION, "The first attention is given a norm, which it does not have.",
    ("h = x if i == 0 else", "h = F.layer_norm(x, (E,), None, None, eps) if i == 0 else"))
add("modernbert_torch", "window_one_less", "blocks.1.attention", "The window has one key too few on each side.",
    ("distance <= side", "distance < side"), configs=(0, 2))
add("modernbert_torch", "window_twice", "blocks.1.attention", "The window has local_attention keys on each side.",
    ('config.get("local_attention", 128) // 2', 'config.get("local_attention", 128)'), configs=(0, 2))
add("modernbert_torch", "bases_swapped", ATTENTION, "The rotary bases of global and local layers are swapped.",
    ("global_theta if is_global else local_theta", "local_theta if is_global else global_theta"))
add("modernbert_torch", "one_base", "blocks.1.attention", "Local layers have the rotary base of global ones.",
    ("theta = global_theta if is_global else local_theta", "theta = global_theta"))
add("modernbert_torch", "global_layers_shifted", ATTENTION, "The last of every few layers is global, not the first.",
    ("i % every == 0", "(i + 1) % every == 0"))
add("modernbert_torch", "gate_swapped", FEED_FORWARD, "The activation is applied to the second half of Wi.",
    ("act(inner) * gate", "inner * act(gate)"))
add("modernbert_torch", "gelu_tanh", FEED_FORWARD, "GELU is its tanh approximation.",
    ('"gelu": F.gelu', '"gelu": lambda x: F.gelu(x, approximate="tanh")'), configs=(0, 1))
add("modernbert_torch", "qkv_by_head", ATTENTION, "The fused projection is split head by head.",
    (".view(B, T, 3, H, E // H)", ".view(B, T, H, 3, E // H).transpose(2, 3)"))
add("modernbert_torch", "norm_bias_missing", "embedding", "Norms have no bias.",
    ('w[f"{name}.weight"], w.get(f"{name}.bias"), eps)', 'w[f"{name}.weight"], None, eps)'), configs=(1,))
add("modernbert_torch", "last_norm_missing", "norm", "The last norm is left out.",
    ('return norm("final_norm", x)', "return x"))
add("modernbert_torch", "causal", ATTENTION, "Attention is causal.",
    ("dtype=torch.bool)\n        if key_padding", "dtype=torch.bool).tril()\n        if key_padding"))
add("modernbert_torch", "outer_bias_missing", FEED_FORWARD, "The second projection has no bias.",
    ('return linear(f"layers.{i}.mlp.Wo", act(inner) * gate)',
     'return F.linear(act(inner) * gate, w[f"layers.{i}.mlp.Wo.weight"])'), configs=(1,))
add("modernbert_torch", "padding_global_only", "blocks.1.attention", "Padding is not masked in layers with a window.",
    ("local = full & (distance <= side)", "local = distance <= side"))

add("modernbert_numpy", "window_missing", "blocks.1.attention", "No layer has the window.",
    ("if not is_global:", "if False:"))
add("modernbert_numpy", "eps_default", "embedding", "Norms ignore norm_eps.",
    ('config.get("norm_eps", 1e-5)', "1e-5"), configs=(2,))
add("modernbert_numpy", "second_norm_missing", "blocks.1.attention", "The second attention has no norm either.",
    ("if i > 0 else x", "if i > 1 else x"))
add("modernbert_numpy", "residual_normed", "blocks.1.attention", "The attention's residual connection is its norm.",
    ("x = x + self.attention(", "x = normed + self.attention("))
add("modernbert_numpy", "rows_joined", ATTENTION, "Real tokens of all rows are one sequence, for want of boundaries.",
    ("        for row, (ids, real) in enumerate(zip(tokens, keep, strict=True)):\n            if real.any():\n"
     "                output[row, real] = self.run(ids[real], np.flatnonzero(real))\n",
     "        output[keep] = self.run(tokens[keep], np.nonzero(keep)[1])\n"))
add("modernbert_numpy", "scale_model_width", ATTENTION, "Scores are divided by sqrt(E).",
    ("(E // self.heads) ** -0.5", "E**-0.5"))

# --- ViT --------------------------------------------------------------------------------------------------------------

add("vit_torch", "class_token_last", "embedding", "The class token comes last.",
    ("(self.cls_token.expand(x.shape[0], -1, -1), x)", "(x, self.cls_token.expand(x.shape[0], -1, -1))"))
add("vit_torch", "class_position_missing", "embedding", "The class token has no position.",
    ("x = x + self.pos_embed\n", "x = torch.cat((x[:, :1], x[:, 1:] + self.pos_embed[:, 1:]), dim=1)\n"))
add("vit_torch", "positions_shifted", "embedding", "The positions of patches are one too small.",
    ("x = x + self.pos_embed\n", "x = torch.cat((x[:, :1] + self.pos_embed[:, :1], x[:, 1:] + self.pos_embed[:, :-1]), 1)\n"))
add("vit_torch", "patches_by_column", "embedding", "Patches go column by column.",
    (".flatten(2).transpose(1, 2)\n        x = torch", ".transpose(2, 3).flatten(2).transpose(1, 2)\n        x = torch"))
add("vit_torch", "scale_missing", ATTENTION, "Scores are not divided by sqrt(D).", ("        q = q * self.scale\n", ""))
add("vit_torch", "value_key_swapped", ATTENTION, "Keys and values are swapped.",
    ('("query", "key", "value")', '("query", "value", "key")'))
add("vit_torch", "last_norm_missing", "norm", "The last norm is left out.", ("return self.norm(x)", "return x"))
add("vit_torch", "class_token_only", "", "Only the class token's states are returned.",
    ("return self.norm(x)", "return self.norm(x)[:, 0]"))
add("vit_torch", "patch_bias_missing", "embedding", "The projection of patches has no bias.",
    ("self.patch_embed(images)", "F.conv2d(images, self.patch_embed.weight, stride=self.patch_embed.stride)"))
add("vit_torch", "gelu_tanh", FEED_FORWARD, "GELU is always its tanh approximation.",
    ('"tanh" if config.get("hidden_act", "gelu") == "gelu_new" else "none"', '"tanh"'), configs=(0,))
add("vit_torch", "post_norm_one_block", "blocks.1.feed_forward", "The last block's feed-forward network is post-norm.",
    ("        for block in self.blocks:\n            x = block(x)\n",
     "        for block in self.blocks[:-1]:\n            x = block(x)\n        block = self.blocks[-1]\n"
     "        x = x + block.attn(block.norm1(x))\n"
     "        x = block.norm2(x + block.fc2(F.gelu(block.fc1(x), approximate=block.approximate)))\n"))

add("vit_jax", "channels_last", "embedding", "Columns of a patch go by row, column, channel.",
    ("patches.transpose(0, 2, 4, 1, 3, 5)", "patches.transpose(0, 2, 4, 3, 5, 1)"))
add("vit_jax", "scale_missing", ATTENTION, "Scores are not divided by sqrt(D).",
    ("dot_product_attention(q, k, v)", "dot_product_attention(q, k, v, scale=1.0)"))
add("vit_jax", "layers_reversed", ATTENTION, "Layers are applied from the last to the first.",
    ("x, stacked)", "x, stacked, reverse=True)"))
add("vit_jax", "first_norm_twice", FEED_FORWARD, "The feed-forward network has the attention's norm.",
    ('p["layernorm_after.weight"], p["layernorm_after.bias"]', 'p["layernorm_before.weight"], p["layernorm_before.bias"]'))
add("vit_jax", "positions_missing", "embedding", "Positions are not added.",
    ('        x = x + p["embeddings.position_embeddings"]\n', ""))
add("vit_jax", "last_norm_twice", "norm", "The last norm is applied twice.",
    ('return normalize(x, p["layernorm.weight"], p["layernorm.bias"], eps)',
     'x = normalize(x, p["layernorm.weight"], p["layernorm.bias"], eps)\n'
     '        return normalize(x, p["layernorm.weight"], p["layernorm.bias"], eps)'))

# --- of several kinds -------------------------------------------------------------------------------------------------

add("llama_torch", "frequencies_bfloat16", SELF_ATTENTION, "Rotary frequencies are a buffer of a module in bfloat16.",
    ("double(), self.inv_freq)", "double(), self.inv_freq.bfloat16().double())"))
add("llama_torch", "angles_float16", SELF_ATTENTION, "Rotary angles are computed in float16.",
    ("torch.outer(torch.arange(length).double(), self.inv_freq)",
     "torch.outer(torch.arange(length).half(), self.inv_freq.half()).double()"))
add("llama_torch", "last_norm_of_block", "norm", "The last norm has the weight of the first one.",
    ('self.entries["model.norm.weight"]', 'self.entries["model.layers.0.input_layernorm.weight"]'))

add("llama_numpy", "weights_reshaped", SELF_ATTENTION, "Weights are reshaped where they should be transposed.",
    ("np.ascontiguousarray(layer[name].T)", "layer[name].reshape(layer[name].shape[::-1])"))
add("gpt2_numpy", "last_norm_of_block", "norm", "The last norm has the parameters of the last block's second norm.",
    ('x = ln("transformer.ln_f", x)', 'x = ln(f"{block}.ln_2", x)'))

# --- two at once ------------------------------------------------------------------------------------------------------

add_pair("bert_torch", "scale_missing", "gelu_tanh")
add_pair("bert_torch", "padding_first_layer", "activation_ignored")
add_pair("bert_numpy", "unbiased_variance", "mask_queries")
add_pair("gpt2_torch", "mask_sees_next", "last_norm_missing")
add_pair("gpt2_numpy", "positions_without_padding", "gelu_constant")
add_pair("llama_torch", "keys_tiled", "gate_up_swapped")
add_pair("llama_torch", "rotary_scaling", "always_tied")
add_pair("llama_numpy", "norm_plus_one", "sigmoid_wide")
add_pair("gemma2_torch", "embedding_unscaled", "window_one_more")
add_pair("gemma2_jax", "scale_after_cap", "last_norm_without_one")
add_pair("gpt_neox_torch", "rotary_pct_ignored", "sequential")
add_pair("t5_torch", "encoder_one_way", "output_unscaled")
add_pair("modernbert_torch", "gate_swapped", "one_base")
add_pair("vit_torch", "patch_bias_missing", "gelu_tanh")

# --- hidden in checkpoints as they are drawn --------------------------------------------------------------------------

add("vit_torch", "eps_of_timm", ATTENTION, "Norms of blocks have timm's eps of 1e-6.",
    ('dim, eps = config["hidden_size"], config.get("layer_norm_eps", 1e-12)', 'dim, eps = config["hidden_size"], 1e-6'),
    settings={"layer_norm_eps": 1e-3})
add("gemma2_jax", "eps_outside", SELF_ATTENTION, "Norms add eps outside the root.",
    ("jnp.sqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + eps)",
     "(jnp.sqrt(jnp.mean(wide**2, axis=-1, keepdims=True)) + eps)"), settings={"rms_norm_eps": 1e-3})
add("gemma2_torch", "eps_ignored", SELF_ATTENTION, "Norms ignore rms_norm_eps.",
    ('E, eps = config["hidden_size"], config.get("rms_norm_eps", 1e-6)', 'E, eps = config["hidden_size"], 1e-6'),
    settings={"rms_norm_eps": 1e-3})
add("gpt_neox_torch", "eps_ignored", SELF_ATTENTION, "The norms of blocks ignore layer_norm_eps.",
    ('config["intermediate_size"], config.get("layer_norm_eps", 1e-5)', 'config["intermediate_size"], 1e-5'),
    settings={"layer_norm_eps": 1e-3})
add("gpt_neox_torch", "rotary_denominator", SELF_ATTENTION, "Rotary exponents are divided by the head's whole width.",
    ("dtype=torch.float64) / width)", "dtype=torch.float64) / self.head_width)"), settings={"rotary_pct": 0.5})
add("gpt_neox_torch", "base_ignored", SELF_ATTENTION, "The rotary base ignores rotary_emb_base.",
    ('config.get("rotary_emb_base", 10000.0)', "10000.0"), settings={"rotary_emb_base": 100.0, "rotary_pct": 0.5})
add("modernbert_torch", "thetas_ignored", ATTENTION, "Rotary bases ignore global_rope_theta and local_rope_theta.",
    ('config.get("global_rope_theta", 160000.0), config.get("local_rope_theta", 10000.0)', "160000.0, 10000.0"),
    settings={"global_rope_theta": 50.0, "local_rope_theta": 20.0})
add("gemma2_torch", "theta_ignored", SELF_ATTENTION, "The rotary base ignores rope_theta.",
    ('(config.get("rope_parameters") or {}).get("rope_theta", 10000.0)', "10000.0"),
    settings={"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}})

# fmt: on

globals().update({fault.name: fault for fault in (*FAULTS, *SUBTLE)})


def make_build(dialect: str, framework: str, name: str | None = None) -> Callable[..., Any]:
    """Return `build` of a port with the fault of that name, of the dialect's port in the framework; right for None."""
    port = next(port for port in PORTS if (port.dialect, port.framework) == (dialect, framework))
    if name is None:
        return port.build
    full = f"{port.module}_{name}"
    return next(fault for fault in (*FAULTS, *SUBTLE) if full == fault.name)

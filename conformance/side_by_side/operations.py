"""The operations in the order of study: formula, rules, and functions of each."""

from __future__ import annotations

import difflib
from typing import NamedTuple

from conformance.side_by_side.rules import rule_texts
from specification import masks as descriptions

Place = tuple[str, str]  # file, function


class Operation(NamedTuple):
    """One page. formulas: LaTeX. functions, gradients: as places; only the definition has hand-written gradients.

    optional: whether a reader may skip it at first. also: other names under which people look for it.
    """

    name: str
    title: str
    summary: str
    formulas: tuple[str, ...]
    rules: tuple[str, ...]
    functions: tuple[Place, ...]
    gradients: tuple[Place, ...] = ()
    optional: bool = False
    also: tuple[str, ...] = ()


def places(file: str, *names: str) -> tuple[Place, ...]:
    return tuple((f"{file}.py", name) for name in names)


def rule_names(chapter: str, *numbers: int) -> tuple[str, ...]:
    return tuple(f"{chapter}-{number}" for number in numbers)


OPERATIONS = (
    Operation(
        "masks", "Masks",
        "Which query may attend to which key: a boolean array, or a description, a small object like Causal(offset).",
        (r"\text{causal}:\quad j \le i + \text{offset}",
         r"\text{window}:\quad -\text{left} \le j - (i + \text{offset}) \le \text{right}"),
        rule_names("MASK", 1, 2, 3, 4, 5, 6),
        places("masks", "materialize", "checked_mask", "allowed_pairs", "per_batch"),
        also=("padding", "packed sequences", "local attention"),
    ),
    Operation(
        "scores", "Scores", "How well a query matches a key, for the pairs that the mask allows.",
        (r"s_{ij} = c \tanh\left(\frac{\text{scale}}{c}\, q_i \cdot k_j\right) + b_{ij}",
         r"\text{scale} = \frac{1}{\sqrt{D}}"),
        ("MASK-7", *rule_names("ATT", 1, 2, 3, 4)),
        (*places("dtypes", "widen"),
         *places("attention_steps", "resolve_scale", "pair_products", "visible_pairs", "attention_scores")),
        places("attention_steps_vjp", "attention_scores_vjp", "sum_broadcast"),
    ),
    Operation(
        "softmax", "Softmax", "Scores become weights that add up to 1 over the keys that a query may attend to.",
        (r"w_{ij} = \frac{e^{s_{ij} - m_i}}{\sum_{k \text{ allowed}} e^{s_{ik} - m_i} + e^{\text{sink} - m_i}}",
         r"\text{logsumexp}_i = m_i + \log\left(\sum_{k \text{ allowed}} e^{s_{ik} - m_i}"
         r" + e^{\text{sink} - m_i}\right)"),
        rule_names("ATT", 5, 6), places("attention_steps", "softmax", "fill_empty_rows"),
        places("attention_steps_vjp", "softmax_vjp", "sinks_vjp"),
    ),
    Operation(
        "attention", "Attention", "The mean of the values for each query, weighted by how well their keys match.",
        (r"\text{output}_i = \sum_{j \text{ allowed}} w_{ij}\, v_j",
         r"w = \text{softmax}\left(\text{softcap}\left(\frac{q k^{\mathsf T}}{\sqrt{D}}\right) + b\right)"),
        rule_names("ATT", 7, 8, 9, 10, 11, 12, 13),
        (*places("attention", "attention"),
         *places("attention_steps", "reference_attention", "allowed_sum", "repeat_heads", "dropout_factor")),
        (*places("attention_vjp", "attention_vjp", "pullback"), *places("attention_steps_vjp", "sum_groups")),
        also=("SDPA", "scaled dot-product attention", "GQA", "MQA", "grouped-query", "multi-query", "flash attention"),
    ),
    Operation(
        "companions", "Weights, log-sum-exp, merging", "Other results of attention, and attention in parts.",
        (r"\ell = \log \sum_p e^{\ell_p}", r"\text{output} = \sum_p e^{\ell_p - \ell}\, \text{output}_p"),
        ("ATT-14", *rule_names("DIST", 1, 2, 3, 4, 5)),
        places("attention", "attention_weights", "attention_logsumexp", "merge_attention"),
        places("attention_vjp", "attention_weights_vjp", "attention_logsumexp_vjp", "merge_attention_vjp"),
        optional=True,
    ),
    Operation(
        "multi_head_attention", "Multi-head attention",
        "Projections, attention in every head, and one more projection.",
        (r"\text{head}_h = \text{attention}(x W^Q_h, y W^K_h, z W^V_h)",
         r"\text{output} = [\text{head}_1, \dots, \text{head}_H]\, W^O + b^O"),
        rule_names("MHA", 1, 2),
        places("multi_head_attention", "linear", "join_heads", "fused", "split_heads", "concatenate_heads",
               "multi_head_attention"),
        places("multi_head_attention_vjp", "linear_vjp", "multi_head_attention_vjp", "join_heads_vjp",
               "split_heads_vjp", "concatenate_heads_vjp"),
        also=("MHA", "self-attention", "cross-attention"),
    ),
    Operation(
        "layer_norm", "Layer norm", "Every row gets mean 0 and variance 1, then a weight and a bias.",
        (r"y = \frac{x - \mu}{\sqrt{\sigma^2 + \varepsilon}} \odot g + b",
         r"\mu = \frac{1}{n} \sum_i x_i, \qquad \sigma^2 = \frac{1}{n} \sum_i (x_i - \mu)^2"),
        rule_names("NORM", 1, 2, 3, 4, 5, 6),
        (*places("layer_norm", "layer_norm"),
         *places("layer_norm_steps", "reference_layer_norm", "deviations", "affine")),
        places("layer_norm_vjp", "layer_norm_vjp", "rounded"),
    ),
    Operation(
        "norm_variants", "Variants of layer norm", "RMS norm, without the mean, and a norm with another deviation.",
        (r"\text{rms}: \quad y = \frac{x}{\sqrt{\frac{1}{n} \sum_i x_i^2 + \varepsilon}} \odot g",
         r"\text{standard deviation}: \quad y = \frac{x - \mu}{\sqrt{\frac{1}{n - 1} \sum_i (x_i - \mu)^2}"
         r" + \varepsilon} \odot g + b"),
        rule_names("NORM", 7, 8),
        (*places("layer_norm", "rms_norm", "standard_deviation_norm"), *places("layer_norm_steps", "multiplier")),
        places("layer_norm_vjp", "rms_norm_vjp", "standard_deviation_norm_vjp"),
        optional=True,
    ),
    Operation(
        "embedding", "Embedding", "A row of a table for every token.",
        (r"x_t = \text{table}[\text{id}_t] \; (\cdot \sqrt{E})",),
        ("EMB-1",), places("embedding", "embedding", "check_rows"), places("embedding_vjp", "embedding_vjp"),
    ),
    Operation(
        "positions", "Positions", "Vectors for the position of a token, or numbers for the distance of two.",
        (r"P_{p,2i} = \sin\left(p / 10000^{2i/E}\right), \qquad P_{p,2i+1} = \cos\left(p / 10000^{2i/E}\right)",
         r"\text{ALiBi}: \quad b_{hij} = m_h (j - i), \qquad m_h = 2^{-8h/H}",
         r"\text{relative}: \quad b_{hij} = \text{table}[\text{bucket}(j - i), h]"),
        rule_names("POS", 1, 2, 5, 6),
        places("positions", "sinusoidal_positions", "learned_positions", "alibi_bias", "relative_position_bias",
               "buckets_of"),
        places("positions_vjp", "learned_positions_vjp", "relative_position_bias_vjp"),
        also=("positional encoding", "relative position bias", "T5"),
    ),
    Operation(
        "rotary", "Rotary embeddings", "Queries and keys turned by angles that grow with their position.",
        (r"y_1 = m\, (x_1 \cos(t f_p) - x_2 \sin(t f_p))", r"y_2 = m\, (x_2 \cos(t f_p) + x_1 \sin(t f_p))",
         r"f_p = \theta^{-2p / W}"),
        rule_names("POS", 3, 4),
        places("rotary", "rotary_embedding", "rotary_table", "constants", "sine_and_cosine", "turned", "rotate",
               "rotary_frequencies", "rounded_frequencies"),
        places("rotary_vjp", "rotary_embedding_vjp", "rotate_vjp"),
        also=("RoPE", "rotary position embedding"),
    ),
    Operation(
        "latent_attention", "Latent attention",
        "Keys and values of all heads out of one short vector for each token, and one rotated key.",
        (r"c = \text{rms}(x W^D), \qquad r = \text{rotate}(x W^R)",
         r"k_h = [c\, U^K_h, r], \qquad v_h = c\, U^V_h",
         r"\text{head}_h = \text{attention}(q_h, k_h, v_h)",
         r"\text{absorbed}: \quad \text{head}_h = \text{attention}([q^C_h\, {U^K_h}^{\mathsf T}, q^R_h], [c, r], c)"
         r"\, U^V_h"),
        rule_names("MLA", 1, 2),
        places("latent_attention", "latent_attention", "project_latent_queries", "project_latents",
               "attend_to_latents", "take_columns", "append_columns", "key_weights", "value_weights", "project_heads"),
        places("latent_attention_vjp", "latent_attention_vjp", "take_columns_vjp", "append_columns_vjp",
               "key_weights_vjp", "value_weights_vjp", "project_heads_vjp"),
        optional=True,
        also=("MLA", "multi-head latent attention", "DeepSeek"),
    ),
    Operation(
        "feed_forward", "Feed-forward network", "Two projections with an activation between them, at every position.",
        (r"y = \text{activation}(x W_1 + b_1)\, W_2 + b_2",
         r"\text{gelu}(x) = x\, \Phi(x) = \frac{x}{2}\, \text{erfc}\left(-\frac{x}{\sqrt{2}}\right)",
         r"\text{silu}(x) = \frac{x}{1 + e^{-x}}",
         r"\text{gated}: \quad y = (\text{activation}(x W + b) \odot (x W_1 + b_1))\, W_2 + b_2"),
        ("FFN-1", "FFN-2", "ACT-1"),
        places("feed_forward", "feed_forward", "gated_feed_forward", "relu", "gelu", "normal_distribution",
               "gelu_tanh", "silu", "silu_steps", "finite_size"),
        places("feed_forward_vjp", "feed_forward_vjp", "gated_feed_forward_vjp", "activation_vjp", "relu_slope",
               "gelu_slope", "gelu_tanh_slope", "silu_vjp", "silu_slope"),
        also=("FFN", "MLP", "swish", "SwiGLU", "GEGLU", "GLU"),
    ),
    Operation(
        "experts", "Mixture of experts", "A router sends each token through a few of many feed-forward networks.",
        (r"s = \text{softmax}(x R + r), \qquad \text{chosen} = \text{the largest of}\; s + b",
         r"w_e = \frac{s_e}{\sum_{c \text{ chosen}} s_c}",
         r"y = \sum_{e \text{ chosen}} w_e\, \text{expert}_e(x) + \text{shared}(x)"),
        (*rule_names("MOE", 1, 2, 3, 4, 5), "DIST-6"),
        places("experts", "mixture_of_experts", "route", "route_by_logits", "router_logits", "softmax",
               "expert_scores", "largest", "choose_experts", "expert_weights", "spread", "taken_places",
               "expert_network", "clamped_gate", "clamped_value"),
        places("experts_vjp", "mixture_of_experts_vjp", "route_vjp", "logits_gradient", "router_gradients",
               "softmax_gradient", "expert_network_vjp", "clamped_gate_vjp", "clamped_value_vjp"),
        also=("MoE", "router", "sparse", "GPT-OSS", "DeepSeek"),
    ),
    Operation(
        "blocks", "Blocks", "Attention and feed-forward network, each with a norm and a residual connection.",
        (r"\text{post}: \quad x \leftarrow \text{norm}(x + \text{sublayer}(x))",
         r"\text{pre}: \quad x \leftarrow x + \text{sublayer}(\text{norm}(x))",
         r"\text{around}: \quad x \leftarrow x + \text{norm}(\text{sublayer}(\text{norm}(x)))",
         r"\text{after}: \quad x \leftarrow x + \text{norm}(\text{sublayer}(x))",
         r"\text{parallel}: \quad x \leftarrow x + \text{attention}(\text{norm}(x))"
         r" + \text{feed-forward}(\text{norm}(x))"),
        rule_names("BLK", 1, 2, 3),
        places("blocks", "residual", "parallel", "through", "encoder_block", "decoder_block", "attend", "attend_to",
               "project_queries", "project_keys", "latent_options", "normalized_heads", "rotations_of", "rotation_of",
               "rotated", "key_heads", "check_attention", "transform", "normalize", "normalize_if",
               "add", "drop"),
        (*places("tape", "vjp", "pull_back", "operation", "call_with", "gradient_of", "accumulate", "separate_places",
                 "collect"),
         *places("blocks_vjp", "encoder_block_vjp", "decoder_block_vjp", "add_vjp", "drop_vjp")),
    ),
    Operation(
        "transformer", "Transformer", "Encoder, decoder, and the layers around them.",
        (r"\text{output}(\text{decoder}(\text{target}, \text{encoder}(\text{source})))",),
        ("TRF-1", "DIST-7"),
        places("transformer", "transformer", "encoder", "decoder", "classifier", "language_model", "embed",
               "embed_image", "patches", "prepend", "position_bias", "real_tokens", "positions_after_padding",
               "padding_mask", "real_queries", "target_mask", "pool", "first_largest", "log_softmax", "output_layer",
               "shrink", "squeeze"),
        places("transformer_vjp", "transformer_vjp", "encoder_vjp", "decoder_vjp", "classifier_vjp",
               "language_model_vjp", "embed_vjp", "embed_image_vjp", "patches_vjp", "prepend_vjp", "pool_vjp",
               "log_softmax_vjp", "shrink_vjp", "squeeze_vjp"),
    ),
    Operation(
        "decoding", "Decoding", "One token after the other, with a cache of earlier keys and values.",
        (r"\text{step}(x_t \mid K_{<t}, V_{<t}) = \text{decoder}(x_{\le t})_t",),
        ("GEN-1",),
        places("decoding", "decode_step", "decoder_block_step", "step_mask", "start", "empty_cache",
               "write", "select_rows"),
        also=("KV cache", "incremental decoding"),
    ),
    Operation(
        "generation", "Generation", "Text: the most probable token, a random one, or beam search.",
        (r"\text{greedy}: \quad x_{t+1} = \text{argmax}_n\; p(n \mid x_{\le t})",
         r"\text{beams}: \quad \text{score} = \frac{\sum_t \log p(x_{t+1} \mid x_{\le t})}"
         r"{\text{length}^{\text{penalty}}}"),
        ("GEN-1",),
        places("generation", "greedy", "sample", "beam_search", "generate", "choose", "draw", "extend", "penalized",
               "next_logits", "all_logits", "wide_log_softmax"),
    ),
    Operation(
        "losses", "Losses", "How far a model's logits are from the classes that it should have given.",
        (r"\ell_r = \log \sum_{j} e^{x_{rj} - m_r} - (x_{r t_r} - m_r)",
         r"\text{smoothed}: \quad (1 - s)\, \ell_r + \frac{s}{V} \sum_{k} \left(\log \sum_{j} e^{x_{rj} - m_r}"
         r" - (x_{rk} - m_r)\right)",
         r"\text{loss} = \frac{1}{n} \sum_{r \text{ counts}} \ell_r"),
        (*rule_names("LOSS", 1, 2), "MOE-6"),
        places("losses", "cross_entropy", "nll_loss", "counted_targets", "row_losses", "at_targets", "reduced",
               "load_balancing_loss", "router_z_loss", "real_tokens", "expert_shares", "row_logsumexps"),
        places("losses_vjp", "cross_entropy_vjp", "nll_loss_vjp", "row_cotangents", "add_at_targets",
               "load_balancing_loss_vjp", "router_z_loss_vjp"),
        also=("cross-entropy", "NLL", "negative log-likelihood", "label smoothing"),
    ),
    Operation(
        "optimizers", "Optimizers", "A step of the parameters against their gradients, and gradients of limited size.",
        (r"\text{Adam}: \quad m = \beta_1 m + (1 - \beta_1) g, \qquad v = \beta_2 v + (1 - \beta_2) g^2",
         r"\theta = (1 - \eta \lambda)\, \theta - \eta \frac{m / (1 - \beta_1^t)}"
         r"{\sqrt{v / (1 - \beta_2^t)} + \varepsilon}",
         r"\text{descent}: \quad u = \mu u + g, \qquad \theta = \theta - \eta u",
         r"\text{clipping}: \quad g = g\, \frac{c}{n}\ \text{where}\ n = \sqrt{\sum g^2} > c"),
        rule_names("OPT", 1, 2, 3),
        places("optimizers", "adam_step", "adam_start", "bias_correction", "decayed", "sgd_step", "sgd_start",
               "clip_by_global_norm", "promote_leaves", "each", "zeros", "rounded"),
        also=("Adam", "AdamW", "SGD", "momentum", "gradient clipping", "weight decay"),
    ),
    Operation(
        "schedules", "Schedules", "The learning rate as a function of the step.",
        (r"\text{warm-up}: \quad \min\left(1, \frac{n}{\text{steps}}\right)",
         r"\text{paper}: \quad \frac{1}{\sqrt{E}} \min\left(\frac{1}{\sqrt{n}},"
         r" \frac{n}{\text{warmup}^{3/2}}\right)",
         r"\text{cosine}: \quad \frac{1}{2} + \frac{1}{2}"
         r" \cos\left(\pi \frac{\min(n - 1, \text{steps})}{\text{steps}}\right)"),
        ("OPT-4",), places("schedules", "inverse_square_root", "linear_warmup", "cosine_decay"),
        also=("learning rate", "warm-up"),
    ),
    Operation(
        "initializers", "Initial weights", "Random numbers that the caller draws become the weights before training.",
        (r"\text{linear}: \quad w = \frac{2 r - 1}{\sqrt{I}}",
         r"\text{Xavier}: \quad w = (2 r - 1) \sqrt{\frac{6}{I + O}}"),
        ("INIT-1",), places("initializers", "linear_default", "xavier_uniform", "embedding_default", "spread"),
        also=("initialisation", "Glorot"),
    ),
)  # fmt: skip

MASK_RULES = {
    "Causal": "MASK-3", "SlidingWindow": "MASK-4", "KeyLengths": "MASK-2", "KeyPadding": "MASK-2",
    "Segments": "MASK-2", "Dense": "MASK-5", "And": "MASK-6", "Or": "MASK-6",
}  # fmt: skip
"""The rule of each mask description."""


class Found(NamedTuple):
    """The meaning of a name: rules, and functions that the pages show side by side."""

    title: str
    rules: tuple[str, ...]
    functions: tuple[Place, ...]


def page_of(place: Place) -> Operation | None:
    """Return the operation of a function."""
    return next((one for one in OPERATIONS if place in one.functions or place in one.gradients), None)


def known() -> dict[str, Found]:
    """Return everything that has a name: operations, functions, gradients, masks and rules."""
    found = {one.name: Found(one.title, one.rules, one.functions) for one in OPERATIONS}
    for one in OPERATIONS:
        found |= dict.fromkeys(one.also, found[one.name])
    # All functions first: a helper of a gradient may have the name of a function.
    pages = [(one, place) for one in OPERATIONS for place in one.functions]
    pages += [(one, place) for one in OPERATIONS for place in one.gradients]
    for one, (file, name) in pages:
        stating = [rule for rule, text in rule_texts().items() if (file, name) in text.defined_by]
        found.setdefault(name, Found(name, tuple(stating) or one.rules, ((file, name),)))
    for name, rule in MASK_RULES.items():
        if hasattr(descriptions, name):
            found[name] = Found(f"{name}: {rule_texts()[rule].title}", (rule,), places("masks", "allowed_pairs"))
    for name, text in rule_texts().items():
        shared = [place for place in text.defined_by if page_of(place) is not None]
        functions = tuple(dict.fromkeys(shared)) or functions_of_pages(name)
        found[name] = Found(f"{name} {text.title}", (name,), functions)
    return found


def functions_of_pages(rule: str) -> tuple[Place, ...]:
    """Return all functions of the pages that show a rule, without gradients."""
    return tuple(place for one in OPERATIONS if rule in one.rules for place in one.functions)


def find(name: str) -> Found | None:
    """Return the meaning of a name; case, spaces, hyphens and underscores do not matter. None if there is none."""
    names = known()
    plain: dict[str, Found] = {}
    for key, value in names.items():
        plain.setdefault(fold_name(key), value)
    return names.get(name) or plain.get(fold_name(name))


def fold_name(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "").replace(" ", "")


def nearest(name: str, count: int = 3) -> list[str]:
    """Return the names that are most like this one."""
    names = {fold_name(key): key for key in known()}
    return [names[key] for key in difflib.get_close_matches(fold_name(name), names, count, 0.4)]

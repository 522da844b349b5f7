"""timm: self-attention, norms, rotary embeddings, networks, a loss and optimizers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from conformance.cases.case import Case
from conformance.cases.declaration import declare
from conformance.peers.adapters import adapt_layer_norm, adapt_rms_norm, make_peer
from conformance.peers.extra.torch_modules import (
    FLOAT32_ANGLES,
    IN_FLOAT32,
    call_module,
    import_module,
    name_projections,
)
from conformance.peers.heads import join_heads, make_self_attention
from conformance.peers.optimizers import WIDE, decaying, decays
from specification.optimizers import AdamState, SgdState

if TYPE_CHECKING:
    import torch

    from specification.parameters import FeedForward, GatedFeedForward, MultiHeadAttention


LACKS = ("no-gqa", "no-value_width", "no-cross", "no-empty", "no-gradients")


def attend(
    fused: bool, parameters: MultiHeadAttention, tokens: torch.Tensor, heads: int, mask: torch.Tensor | None
) -> Any:
    """`Attention`, by SDPA or by products of its own; its one mask for all heads is broadcast as [B, 1, N, N]."""
    import torch

    parts = [join_heads(part, torch.cat) for part in parameters[:3]]
    biases = [part.bias for part in parts]
    qkv = type(parts[0])(
        torch.cat([part.weight for part in parts], -1), None if biases[0] is None else torch.cat(biases)
    )
    module = import_module("timm.layers.attention")
    named = name_projections(("qkv", "proj"), (qkv, parameters.output))
    options = {"dim": tokens.shape[-1], "num_heads": heads, "attn_head_dim": parts[0].weight.shape[1] // heads}
    options |= {"dim_out": parameters.output.weight.shape[1], "qkv_bias": qkv.bias is not None}

    def kind(**given: Any) -> Any:
        made = module.Attention(**given, proj_bias=parameters.output.bias is not None)
        made.fused_attn = fused
        return made

    return call_module(kind, named, tokens, mask, **options)


def read_tokens(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    if not query.shape == key.shape == value.shape:
        raise NotImplementedError("tokens attend to themselves")
    return query


@declare(LACKS)
def heads_fused(
    parameters: MultiHeadAttention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, num_heads: int,
    mask: torch.Tensor | None = None,
) -> Any:  # fmt: skip
    return attend(True, parameters, read_tokens(query, key, value), num_heads, mask)


@declare(LACKS)
def heads_unfused(
    parameters: MultiHeadAttention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, num_heads: int,
    mask: torch.Tensor | None = None,
) -> Any:  # fmt: skip
    return attend(False, parameters, read_tokens(query, key, value), num_heads, mask)


def attends_to_itself(case: Case) -> bool:
    """Calls of tokens that attend to themselves: they are one argument, whose gradient is that of all three."""
    inputs = case.inputs
    alike = all(inputs[name].shape == inputs["query"].shape for name in ("key", "value"))
    return alike and not case.special


def normalize(
    kind: str, root: bool, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, **eps: float
) -> Any:
    """`root`: a norm by the root of the mean square, which has no bias."""
    named = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    options: dict[str, Any] = eps | ({} if root else {"bias": bias is not None})
    made = getattr(import_module("timm.layers.norm"), kind)
    return call_module(lambda **given: made(tuple(weight.shape), **given), named, x, **options)


layer_norm = adapt_layer_norm(partial(normalize, "LayerNorm", False), "eps")
layer_norm_float32 = adapt_layer_norm(partial(normalize, "LayerNormFp32", False), "eps")
rms_norm = adapt_rms_norm(partial(normalize, "RmsNorm", True), "eps")
rms_norm_float32 = adapt_rms_norm(partial(normalize, "RmsNormFp32", True), "eps")


@declare()
def silu(x: torch.Tensor) -> Any:
    return import_module("timm.layers.activations").swish(x)


def apply_network(kind: str, names: tuple[str, ...], parameters: Any, x: torch.Tensor, activation: str) -> Any:
    from torch import nn

    activations: dict[str, Any] = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}
    activations |= {"gelu_tanh": import_module("timm.layers.activations").GELUTanh}
    made = getattr(import_module("timm.layers.mlp"), kind)
    options: dict[str, Any] = {"in_features": x.shape[-1], "hidden_features": len(parameters[-1].weight)}
    options |= {"bias": (parameters[0].bias is not None, parameters[-1].bias is not None)}
    options |= {"out_features": parameters[-1].weight.shape[1], "act_layer": activations[activation]}
    return call_module(made, name_projections(names, parameters), x, **options)


@declare()
def network(parameters: FeedForward, x: torch.Tensor, *, activation: str = "relu") -> Any:
    """`Mlp`."""
    return apply_network("Mlp", ("fc1", "fc2"), parameters, x, activation)


@declare()
def gated_network(parameters: GatedFeedForward, x: torch.Tensor, *, activation: str = "silu") -> Any:
    """`SwiGLU`, with any activation."""
    return apply_network("SwiGLU", ("fc1_g", "fc1_x", "fc2"), parameters, x, activation)


@declare(["no-batch_positions"], conventions=FLOAT32_ANGLES)
def rotary(x: torch.Tensor, positions: torch.Tensor, *, base: float = 10000.0, pairing: str = "halves") -> Any:
    """`build_fourier_pos_embed` of bands by `freq_bands`, and `apply_rot_embed`."""
    import torch

    module = import_module("timm.layers.pos_embed_sincos")
    angles = positions[:, None] * module.freq_bands(x.shape[-1] // 2, base, step=1)
    half = pairing == "halves"
    wide = torch.cat([angles, angles], -1) if half else angles.repeat_interleave(2, -1)
    return module.apply_rot_embed(x, wide.sin(), wide.cos(), half=half)


@declare()
def cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, *, label_smoothing: float = 0.0, reduction: str = "mean"
) -> Any:
    """`LabelSmoothingCrossEntropy` of rows in one axis."""
    loss = import_module("timm.loss.cross_entropy").LabelSmoothingCrossEntropy(label_smoothing)
    return loss(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1).long())


@declare(dtypes=WIDE, conventions={"moments": "lerp"})
def adamw(
    parameters: torch.Tensor, gradients: torch.Tensor, state: AdamState, *, learning_rate: float, beta_1: float = 0.9,
    beta_2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0, decoupled: bool = True,
) -> Any:  # fmt: skip
    """`AdamWLegacy`."""
    import torch

    kind = import_module("timm.optim.adamw").AdamWLegacy
    moving = parameters.clone().requires_grad_()
    moving.grad = gradients
    optimizer = kind([moving], learning_rate, (beta_1, beta_2), eps, weight_decay)
    before = {"step": torch.tensor(float(state.step)), "exp_avg": state.mean.clone()}
    optimizer.state[moving] = before | {"exp_avg_sq": state.square.clone()}
    optimizer.step()
    after = optimizer.state[moving]
    return moving.detach(), AdamState(int(after["step"]), after["exp_avg"], after["exp_avg_sq"])


@declare(dtypes=WIDE, conventions={"velocity": "momentum"})
def sgdw(
    parameters: torch.Tensor, gradients: torch.Tensor, state: SgdState, *, learning_rate: float, momentum: float = 0.0,
    nesterov: bool = False,
) -> Any:  # fmt: skip
    """`SGDW` without its decay, which is decoupled."""
    kind = import_module("timm.optim.sgdw").SGDW
    moving = parameters.clone().requires_grad_()
    moving.grad = gradients
    optimizer = kind([moving], learning_rate, momentum, nesterov=nesterov, weight_decay=0.0)
    optimizer.state[moving] = {"momentum_buffer": state.velocity.clone()}
    optimizer.step()
    return moving.detach(), SgdState(optimizer.state[moving]["momentum_buffer"])


peer = partial(make_peer, "timm ", __name__, "torch", ("timm", "torch"), isolated=True)
SELF: dict[str, Any] = {"fitted": make_self_attention, "takes": attends_to_itself}
PEERS = (
    peer("Attention, fused", "heads_fused", "multi_head_attention", **SELF),
    peer("Attention, not fused", "heads_unfused", "multi_head_attention", **SELF),
    peer("LayerNorm", "layer_norm", "layer_norm"),
    peer("LayerNormFp32", "layer_norm_float32", "layer_norm", given=IN_FLOAT32),
    peer("RmsNorm", "rms_norm", "rms_norm"),
    peer("RmsNormFp32", "rms_norm_float32", "rms_norm", given=IN_FLOAT32),
    peer("swish", "silu", "silu"),
    peer("Mlp", "network", "feed_forward"),
    peer("SwiGLU", "gated_network", "gated_feed_forward"),
    peer("freq_bands and apply_rot_embed", "rotary", "rotary_embedding"),
    peer("LabelSmoothingCrossEntropy", "cross_entropy", "cross_entropy",
         takes=lambda case: case.options.get("reduction", "mean") == "mean"),
    peer("AdamWLegacy", "adamw", "adam_step", takes=partial(decays, decoupled=True),
         fitted=partial(decaying, decoupled=True)),
    peer("SGDW", "sgdw", "sgd_step"),
)  # fmt: skip

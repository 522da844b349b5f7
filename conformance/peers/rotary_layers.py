"""Rotary embeddings of Hugging Face transformers, by family, and ONNX's RotaryEmbedding in ONNX Runtime.

A family of transformers computes sines and cosines by its own module, and rotates by its own function. ONNX's operator
is given both; they are computed here in float64 and rounded to the dtype of x, so that only the rotation is its own.
"""

from __future__ import annotations

import functools
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.cases.case import Case
from conformance.cases.declaration import declare
from conformance.peers.adapters import make_peer
from conformance.peers.onnx_nodes import run
from specification.rotary import DynamicScaling, LinearScaling, Llama3Scaling, LongRopeScaling, Scaling, YarnScaling

if TYPE_CHECKING:
    import torch

RAMP = {"factor": "factor", "original_length": "original_max_position_embeddings"}
KINDS: dict[type, tuple[str, dict[str, str]]] = {
    LinearScaling: ("linear", {"factor": "factor"}),
    DynamicScaling: ("dynamic", {"factor": "factor"}),
    YarnScaling: ("yarn", RAMP | {name: name for name in ("beta_fast", "beta_slow", "attention_factor", "truncate")}),
    Llama3Scaling: (
        "llama3", RAMP | {f"{end}_frequency_factor": f"{end}_freq_factor" for end in ("low", "high")},
    ),
    LongRopeScaling: (
        "longrope", RAMP | {"attention_factor": "attention_factor", "short_factors": "short_factor",
                            "long_factors": "long_factor"},
    ),
}  # fmt: skip
"""By the kind of scaling: its name in transformers, and the names of its fields."""


def parameters(base: float, scaling: Scaling | None) -> dict[str, Any]:
    """`rope_parameters` of a configuration."""
    if scaling is None:
        return {"rope_type": "default", "rope_theta": base}
    kind, names = KINDS[type(scaling)]
    fields = {theirs: getattr(scaling, ours) for ours, theirs in names.items()}
    lists = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
    return {"rope_type": kind, "rope_theta": base} | lists


def longest_of(scaling: Scaling | None) -> int:
    """`max_position_embeddings` of a configuration, from which one scaling begins."""
    return scaling.original_length if isinstance(scaling, DynamicScaling) else 2**20


@functools.cache
def embedding(family: str, name: str, width: int, base: float, scaling: Scaling | None, part: int | None) -> Any:
    """The family's module of sines and cosines. part: the columns that turn, of `width` in all."""
    import transformers

    rope = parameters(base, scaling)
    if part is not None:  # of which int(width * factor) is taken
        rope["partial_rotary_factor"] = (part + 0.01) / width
    sizes = {"hidden_size": width, "num_attention_heads": 1, "max_position_embeddings": longest_of(scaling)}
    config = getattr(transformers, f"{name}Config")(**sizes, rope_parameters=rope)
    config.head_dim = width
    modeling = getattr(getattr(transformers.models, family), f"modeling_{family}")
    return getattr(modeling, f"{name}RotaryEmbedding")(config), modeling.apply_rotary_pos_emb


def rotate(
    family: str,
    name: str,
    x: torch.Tensor,
    positions: torch.Tensor,
    base: float,
    scaling: Scaling | None,
    part: int | None = None,
) -> Any:
    rows = positions if positions.ndim == 2 else positions[None]
    module, apply = embedding(family, name, x.shape[-1], base, scaling, part)
    cosine, sine = module(x, rows)
    return apply(x, x, cosine, sine)[0]


@declare()
def llama(
    x: torch.Tensor,
    positions: torch.Tensor,
    *,
    base: float = 10000.0,
    scaling: Scaling | None = None,
    length: int | None = None,
) -> Any:
    """Pairs of halves. The module finds the length of the sequence by itself."""
    return rotate("llama", "Llama", x, positions, base, scaling)


@declare()
def gpt_neox(
    x: torch.Tensor, positions: torch.Tensor, *, base: float = 10000.0, rotary_width: int | None = None
) -> Any:
    """Pairs of halves, of the first columns."""
    return rotate("gpt_neox", "GPTNeoX", x, positions, base, None, rotary_width or x.shape[-1])


@declare("no-halves")
def cohere(x: torch.Tensor, positions: torch.Tensor, *, base: float = 10000.0) -> Any:
    """Pairs of neighbours."""
    return rotate("cohere", "Cohere", x, positions, base, None)


@declare(["no-gradients"], dtypes=("float32", "float16"))
def onnx_runtime(
    x: np.ndarray,
    positions: np.ndarray,
    *,
    base: float = 10000.0,
    rotary_width: int | None = None,
    pairing: str = "halves",
    scaling: Scaling | None = None,
    length: int | None = None,
) -> Any:
    """With `cos_cache` and `sin_cache` [B, T, W / 2]."""
    from conformance.bounds.rotary import angles

    options = {"base": base, "rotary_width": rotary_width, "scaling": scaling, "length": length}
    found, size = angles(Case("rotary_embedding", "float64", {"x": x, "positions": positions}, options))
    rows = np.broadcast_to(found if found.ndim == 2 else found[:, 0], (len(x), *found.shape[-2:]))
    tables = {"cos_cache": np.cos(rows) * size, "sin_cache": np.sin(rows) * size}
    inputs = {"X": x} | {name: table.astype(x.dtype) for name, table in tables.items()}
    return run(
        "runtime", "RotaryEmbedding", 23, inputs, interleaved=int(pairing == "interleaved"),
        rotary_embedding_dim=rotary_width or 0,
    )  # fmt: skip


transformers = partial(
    make_peer, "transformers ", __name__, "torch", ("transformers", "torch"), operation="rotary_embedding"
)
PEERS = (
    transformers("LlamaRotaryEmbedding", "llama"),
    transformers("GPTNeoXRotaryEmbedding", "gpt_neox"),
    transformers("CohereRotaryEmbedding", "cohere"),
    make_peer("ONNX Runtime, ", __name__, "numpy", ("onnxruntime", "onnx"), "RotaryEmbedding-23", "onnx_runtime",
              "rotary_embedding"),
)  # fmt: skip

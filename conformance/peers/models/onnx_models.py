"""ONNX Runtime: transformers' BertModel, exported by `torch.onnx` with batch and length left open."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnxruntime
import torch

from conformance.peers.models import transformers_models

NAMES = ["tokens", "key_padding", "token_types"]


class Encoder(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, key_padding: torch.Tensor, token_types: torch.Tensor) -> Any:
        return self.model(tokens, attention_mask=key_padding, token_type_ids=token_types).last_hidden_state


def export(model: torch.nn.Module, dynamo: bool) -> bytes:
    # Three tensors: what is one tensor here would be one input of the exported model.
    tokens, token_types = (torch.zeros(2, 3, dtype=torch.int64) for _ in range(2))
    arguments = (tokens, torch.ones(2, 3, dtype=torch.bool), token_types)
    file: Any = io.BytesIO()
    if dynamo:
        open_sizes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
        options: dict[str, Any] = {"dynamic_shapes": (open_sizes,) * 3}
    else:
        options = {"dynamic_axes": {name: {0: "B", 1: "T"} for name in [*NAMES, "hidden"]}}
    torch.onnx.export(
        Encoder(model).eval(), arguments, file, input_names=NAMES, output_names=["hidden"], dynamo=dynamo, **options
    )
    return bytes(file.getvalue())


def build_bert(dynamo: bool, config: dict[str, Any], state_dict: dict[str, Any]) -> Callable[..., Any]:
    model = transformers_models.load({"attn_implementation": "eager"}, config, state_dict)
    session = onnxruntime.InferenceSession(export(model, dynamo), providers=["CPUExecutionProvider"])

    def encode(tokens: np.ndarray, key_padding: np.ndarray | None = None, token_types: np.ndarray | None = None) -> Any:
        keep = np.ones(tokens.shape, bool) if key_padding is None else key_padding
        kinds = np.zeros_like(tokens) if token_types is None else token_types
        return session.run(None, dict(zip(NAMES, (tokens, keep, kinds), strict=True)))[0]

    return encode


bert_dynamo, bert_traced = partial(build_bert, True), partial(build_bert, False)

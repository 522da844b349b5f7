"""The attention of DeepSeek-V2 and V3 in transformers computes the definition, in either form.

It takes angles in float32, which is declared. Cases are those of its configurations: pairs of neighbours, or halves in
V3; YaRN's factor squared in the scale; queries compressed or not.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3

from conformance.cases.case import Case
from specification import Causal, YarnScaling
from tests.support.helpers import bound, oracle

B, T, E, H = 2, 9, 18, 3
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "yarn": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "original_max_position_embeddings": 64,
             "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
    "other-factors": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0,
                      "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707,
                      "mscale_all_dim": 0.5},
}  # fmt: skip


def factor_of(rope: dict[str, Any], name: str) -> float:
    return 0.1 * rope[name] * math.log(rope["factor"]) + 1


def arrays_of(module: Any) -> dict[str, np.ndarray]:
    """The module's weights under the names of a case."""
    fields = {"q_proj": "query", "q_b_proj": "query", "q_a_proj": "query_down", "q_a_layernorm": "query_norm"}
    fields |= {"kv_a_proj_with_mqa": "key_value_down", "kv_a_layernorm": "key_value_norm"}
    fields |= {"kv_b_proj": "key_value_up", "o_proj": "output"}
    found = {}
    for name, array in module.state_dict().items():
        part, _, kind = name.partition(".")
        found[f"{fields[part]}.{kind}"] = np.ascontiguousarray(array.numpy().T)
    return found


def example(file: Any, compressed: bool, rope: dict[str, Any], interleaved: bool) -> tuple[np.ndarray, Case]:
    """What the module computes of random numbers, and the same call as a case."""
    torch.manual_seed(0)
    version = "V2" if file is v2 else "V3"
    more = {} if file is v2 else {"rope_interleave": interleaved}
    config = getattr(file, f"Deepseek{version}Config")(
        hidden_size=E, num_attention_heads=H, num_key_value_heads=H, q_lora_rank=6 if compressed else None,
        kv_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=6, v_head_dim=5, attention_bias=True, rope_parameters=rope,
        max_position_embeddings=2560, attn_implementation="eager", **more,
    )  # fmt: skip
    module = getattr(file, f"Deepseek{version}Attention")(config, 0).eval()
    for name, parameter in module.named_parameters():
        torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.3)
    x, positions = torch.randn(B, T, E), torch.arange(T)[None]
    rotation = getattr(file, f"Deepseek{version}RotaryEmbedding")(config)(x, positions)
    hidden = torch.full((T, T), -torch.inf).triu(1)[None, None]
    with torch.no_grad():
        found = module(hidden_states=x, position_embeddings=rotation, attention_mask=hidden)[0].numpy()
    options: dict[str, Any] = {"num_heads": H, "rotary_width": 8, "mask": Causal(0), "scale": 14**-0.5, "eps": 1e-6}
    options["pairing"] = "interleaved" if interleaved else "halves"
    if rope["rope_type"] == "yarn":
        own = factor_of(rope, "mscale") / factor_of(rope, "mscale_all_dim")
        options["scaling"] = YarnScaling(factor=40.0, original_length=64, attention_factor=own)
        options["scale"] *= factor_of(rope, "mscale_all_dim") ** 2
    inputs = {"x": x.numpy()} | arrays_of(module)
    return found, Case("latent_attention", "float32", inputs, options, rounding={"angles": "float32"})


def ratio(found: np.ndarray, case: Case) -> float:
    return float(np.max(np.abs(found - oracle(case)["output"].high) / bound(case)["output"]))


@pytest.mark.slow
@pytest.mark.rule("MLA-1", "MLA-2")
@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "compressed"])
@pytest.mark.parametrize(("file", "interleaved"), [(v2, True), (v3, True), (v3, False)], ids=["v2", "v3", "v3-halves"])
def test_deepseek_computes_the_definition(file: Any, interleaved: bool, compressed: bool, rope: str) -> None:
    found, case = example(file, compressed, ROPES[rope], interleaved)
    for absorbed in (False, True):
        assert ratio(found, replace(case, options=case.options | {"absorbed": absorbed})) <= 1
    given = case.options["scale"] * 14**0.5
    others: list[dict[str, Any]] = [{"pairing": "halves" if interleaved else "interleaved"}, {"eps": 1e-3}]
    if rope == "default":
        others.append({"scale": 6**-0.5})
    else:  # the factor once, and a rotation without its scaling
        others += [{"scale": (given / 14) ** 0.5}, {"scaling": None}]
    for changed in others:
        assert ratio(found, replace(case, options=case.options | changed)) > 1, changed

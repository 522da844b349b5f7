"""`torch_impl.huggingface`: what a call of transformers' attention interface means, and whole models on it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specification import Causal, SlidingWindow
from torch_impl import attention, materialize
from torch_impl.huggingface import attention_forward, call_mask, register

B, H, G, Q, K, D = 2, 4, 2, 3, 5, 8
MODULE = SimpleNamespace(is_causal=False)
LOWEST = torch.finfo(torch.float32).min


def tensors(queries: int = Q, keys: int = K) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = ((B, H, queries, D), (B, G, keys, D), (B, G, keys, D))
    query, key, value = (torch.randn(size, generator=generator) for size in sizes)
    return query, key, value


def same(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(got, expected.transpose(1, 2))


def allowed() -> torch.Tensor:
    """[B, 1, Q, K]; the last row of the second batch element allows nothing."""
    mask = torch.rand((B, 1, Q, K), generator=torch.Generator().manual_seed(1)) < 0.6
    mask[1, 0, 2] = False
    return mask


FORMS = {
    "booleans": lambda mask: mask,
    "lowest numbers": lambda mask: torch.where(mask, 0.0, LOWEST),
    "two masks added": lambda mask: torch.where(mask, 0.0, LOWEST) * 2,
    "half the lowest number": lambda mask: torch.where(mask, 0.0, LOWEST / 2),
    "in float16": lambda mask: torch.where(mask, 0.0, -65504.0).half(),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_a_mask_mean_the_same(form: str) -> None:
    """Also where a row may attend to nothing (ATT-6)."""
    given = tensors()
    output, weights = attention_forward(MODULE, *given, FORMS[form](allowed()))
    same(output, attention(*given, mask=allowed(), engine="reference"))
    assert weights is None


def test_numbers_of_a_mask_are_a_bias() -> None:
    """As far as they forbid nothing; -10000, as some models write it, does not."""
    given = tensors()
    bias = torch.randn((B, H, Q, K), generator=torch.Generator().manual_seed(2))
    bias[..., 1] = -1e4
    hidden = ~allowed().expand(B, H, Q, K)
    output, _ = attention_forward(MODULE, *given, torch.where(hidden, LOWEST, bias))
    same(output, attention(*given, mask=~hidden, bias=torch.where(hidden, 0, bias), engine="reference"))
    output, _ = attention_forward(MODULE, *given, allowed(), position_bias=bias)
    same(output, attention(*given, mask=allowed(), bias=bias, engine="reference"))
    numbers = torch.where(allowed(), 0.5, LOWEST)
    output, _ = attention_forward(MODULE, *given, numbers, position_bias=bias)
    same(output, attention(*given, mask=allowed(), bias=bias + torch.where(allowed(), 0.5, 0), engine="reference"))


def test_a_mask_of_nan_hides_nothing() -> None:
    given, mask = tensors(), torch.zeros(1, 1, Q, K)
    mask[0, 0, 1, 0] = torch.nan
    output, _ = attention_forward(MODULE, *given, mask)
    assert torch.isnan(output).all(dim=(0, 2, 3)).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("queries", "keys", "module", "more", "expected"),
    [
        (3, 5, False, {}, None),
        (3, 5, True, {}, Causal(0)),
        (3, 5, None, {}, Causal(0)),
        (3, 5, True, {"is_causal": False}, None),
        (3, 5, False, {"is_causal": True}, Causal(0)),
        (1, 5, True, {}, None),
        (5, 5, True, {"sliding_window": 2}, SlidingWindow(1, 0, 0)),
        (5, 5, True, {"sliding_window": 5}, Causal(0)),
        (5, 5, False, {"sliding_window": 2}, SlidingWindow(1, 1, 0)),
        (1, 5, True, {"sliding_window": 2}, SlidingWindow(1, 0, 4)),
    ],
)
def test_what_no_mask_means(queries: int, keys: int, module: bool | None, more: dict[str, Any], expected: Any) -> None:
    """The call says it, or else the module, as for sdpa; a window as for flash attention."""
    layer = SimpleNamespace() if module is None else SimpleNamespace(is_causal=module)
    query, key, _ = tensors(queries, keys)
    mask, bias = call_mask(layer, query, key, None, **more)
    assert bias is None
    assert torch.equal(materialize(mask, queries, keys), materialize(expected, queries, keys))


def test_a_window_beside_a_mask_is_in_the_mask() -> None:
    query, key, _ = tensors()
    mask, _ = call_mask(MODULE, query, key, allowed(), sliding_window=1)
    assert torch.equal(mask, allowed())


def test_scale_softcap_and_sinks() -> None:
    given, sinks = tensors(), torch.arange(4.0)
    output, _ = attention_forward(MODULE, *given, None, 0.0, 0.3, softcap=2.0, s_aux=sinks[None, :, None, None])
    same(output, attention(*given, scale=0.3, softcap=2.0, sinks=sinks, engine="reference"))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"dropout": 0.1}, ValueError, "dropout must be 0, got 0.1"),
        ({"cache": object()}, ValueError, "takes no cache"),
        ({"indices": torch.zeros(1)}, ValueError, "takes no indices"),
        ({"attention_mask": torch.ones(B, K, dtype=torch.bool)}, ValueError, "a mask must be"),
        ({"attention_mask": torch.ones(1, 1, Q, K + 1, dtype=torch.bool)}, ValueError, "a mask must be"),
        ({"attention_mask": torch.ones(1, 1, Q, K, dtype=torch.int64)}, TypeError, "booleans or floating"),
        ({"attention_mask": "causal"}, TypeError, "a tensor or a BlockMask"),
    ],
)
def test_what_it_does_not_compute_is_refused(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        attention_forward(MODULE, *tensors(), **given)


@pytest.mark.slow
def test_a_mask_of_blocks_is_read() -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    given = tensors()
    blocks = create_block_mask(lambda b, h, i, j: j <= i + 1, B, None, Q, K, device="cpu")
    output, _ = attention_forward(MODULE, *given, blocks)
    same(output, attention(*given, mask=Causal(1), engine="reference"))


def test_without_transformers_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers.masking_utils", None)
    with pytest.raises(ImportError, match="pip install 'transformers>=5'"):
        register()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["reference", "auto"])
def test_whole_models_run_on_it(engine: str) -> None:
    """Forwards, backwards and decoding with a cache, beside sdpa; that each call conforms is shown in test_watch.py."""
    from tests.support import hugging_face as hf

    for family in ("llama", "bert", "t5"):
        logits, gradients, texts = {}, {}, {}
        for name in ("reference", "sdpa"):
            model = hf.small_model(family, "sdpa", "float64")
            register(engine=engine)
            model.set_attn_implementation(name)
            given = hf.inputs() | ({"decoder_input_ids": hf.inputs()["input_ids"]} if family == "t5" else {})
            logits[name] = model(**given).logits
            logits[name].square().sum().backward()
            gradients[name] = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            if family != "bert":
                texts[name] = model.generate(**hf.inputs(), max_new_tokens=6, do_sample=False).tolist()
        for found in (logits, gradients):
            torch.testing.assert_close(found["reference"], found["sdpa"])
        assert texts.get("reference") == texts.get("sdpa")
    register()

"""What docs/divergences.md says of other libraries, seen once more in plain calls of theirs, without the judge.

Every claim is about one version. With another one installed there is nothing to be said here.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import signal
import subprocess
import sys
import textwrap
import types
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.filterwarnings("ignore")  # what other libraries warn of is their own

VERSIONS = {
    "torch": "2.13.0",
    "transformers": "5.23.0",
    "jax": "0.10.2",
    "flax": "0.12.8",
    "equinox": "0.13.8",
    "keras": "3.15.1",
    "optax": "0.2.8",
    "onnx": "1.23.2",
    "onnxruntime": "1.31.1",
}
NAN, INF = float("nan"), float("inf")


def require(package: str) -> None:
    """It has to be installed, in the version that the claims are about."""
    try:
        found = importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    if found != VERSIONS[package]:
        pytest.skip(f"the claims are about {package} {VERSIONS[package]}, not {found}")


def installed(package: str) -> Any:
    """The module, as required."""
    require(package)
    return importlib.import_module(package)


@pytest.fixture
def torch() -> Any:
    return installed("torch")


@pytest.fixture
def jax() -> Any:
    return installed("jax")


@pytest.fixture
def optax() -> Any:
    return installed("optax")


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own, which may choose what it computes with, or die."""
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=300)


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def softmax_logarithm(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


# --- torch ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def sdpa(torch: Any) -> Any:
    """scaled_dot_product_attention of one head, by one kernel."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def attend(kernel: str, query: Any, key: Any, value: Any, **options: Any) -> Any:
        with sdpa_kernel(getattr(SDPBackend, kernel)):
            heads = (a[None, None] for a in (query, key, value))
            return torch.nn.functional.scaled_dot_product_attention(*heads, **options)[0, 0]

    return attend


KERNELS = ("MATH", "FLASH_ATTENTION")


@pytest.mark.parametrize("kernel", KERNELS)
def test_sdpa_lets_nan_through_a_mask(torch: Any, sdpa: Any, kernel: str) -> None:
    ones, value = torch.ones(2, 3), torch.tensor([[1.0] * 3, [NAN] * 3])
    assert sdpa(kernel, ones, ones, value, is_causal=True)[0].isnan().all()
    assert sdpa(kernel, ones, ones, value, attn_mask=torch.tensor([[True, False]] * 2)).isnan().all()


@pytest.mark.parametrize("scale", [-0.7, 0.0])
def test_flash_on_a_cpu_gives_nan_for_a_causal_mask_and_no_positive_scale(torch: Any, sdpa: Any, scale: float) -> None:
    ones, value = torch.ones(2, 3), torch.tensor([[1.0] * 3, [2.0] * 3])
    assert sdpa("FLASH_ATTENTION", ones, ones, value, is_causal=True, scale=scale)[0].isnan().all()
    assert sdpa("MATH", ones, ones, value, is_causal=True, scale=scale)[0].eq(1).all()


def test_flash_on_a_cpu_turns_a_nan_query_into_zeros(torch: Any, sdpa: Any) -> None:
    ones = torch.ones(2, 3)
    assert sdpa("FLASH_ATTENTION", ones * NAN, ones, ones).eq(0).all()
    assert sdpa("MATH", ones * NAN, ones, ones).isnan().all()


def test_flash_on_a_cpu_takes_fewer_values_than_keys(torch: Any, sdpa: Any) -> None:
    assert sdpa("FLASH_ATTENTION", torch.ones(1, 3), torch.ones(2, 3), torch.ones(1, 3)).shape == (1, 3)


def test_flash_on_a_cpu_rounds_the_weights_of_16_bit_inputs(torch: Any, sdpa: Any) -> None:
    """The result is nearer to that of rounded weights than the one rounding at the end allows it to be to the true."""
    query, key, value = torch.randn(3, 1, 64, 8, generator=torch.Generator().manual_seed(0)).bfloat16().unbind(0)
    query, key, value = query[0][:1], key[0], value[0]
    q, k, v = (a.double().numpy() for a in (query, key, value))
    exact = softmax(q @ k.T / 8**0.5) @ v

    def error(kernel: str) -> Any:
        return np.abs(sdpa(kernel, query, key, value).double().numpy() - exact)

    half_a_step = np.exp2(np.floor(np.log2(np.abs(exact))) - 8)
    assert (error("MATH") <= 1.01 * half_a_step).all()
    assert (error("FLASH_ATTENTION") > 1.5 * half_a_step).any()


def test_sdpa_takes_a_causal_mask_from_the_top_left(torch: Any, sdpa: Any) -> None:
    value = torch.tensor([[1.0] * 3, [2.0] * 3])
    assert sdpa("MATH", torch.ones(1, 3), torch.ones(2, 3), value, is_causal=True).eq(1).all()


def test_multi_head_attention_of_torch_depends_on_the_path_in_empty_rows(torch: Any) -> None:
    module = torch.nn.MultiheadAttention(4, 2, batch_first=True).eval()
    x, nothing = torch.ones(1, 3, 4), torch.ones(3, 3, dtype=torch.bool)
    with torch.inference_mode():
        assert module(x, x, x, attn_mask=nothing, need_weights=False)[0].isnan().all()
    assert module(x, x, x, attn_mask=nothing, need_weights=True)[0].isnan().all()
    slow = module(x, x, x, attn_mask=nothing, need_weights=False)[0]
    torch.testing.assert_close(slow, module.out_proj.bias.expand_as(slow))


def test_layer_norm_of_torch_leaves_rounding_errors_in_constant_rows_of_16_bits(torch: Any) -> None:
    constants = torch.linspace(1, 400, 400).bfloat16()[:, None].expand(-1, 7)
    assert torch.nn.functional.layer_norm(constants, (7,)).ne(0).any()


def test_layer_norm_of_torch_differentiates_16_bit_inputs_with_saved_16_bit_statistics(torch: Any) -> None:
    x = torch.randn(64, 7, generator=torch.Generator().manual_seed(0)).bfloat16()
    upstream = torch.randn(64, 7, generator=torch.Generator().manual_seed(1)).bfloat16()

    def gradient(dtype: Any) -> Any:
        leaf = x.to(dtype).requires_grad_()
        torch.nn.functional.layer_norm(leaf, (7,)).backward(upstream.to(dtype))
        return leaf.grad.double()

    exact = gradient(torch.float64)
    step = torch.exp2(torch.floor(torch.log2(exact.abs())) - 7)
    assert ((gradient(torch.float32).bfloat16().double() - exact).abs() <= 0.51 * step).all()
    assert ((gradient(torch.bfloat16) - exact).abs() > 4 * step).any()


def test_losses_of_torch_are_nan_where_no_target_counts(torch: Any) -> None:
    rows, nothing = torch.zeros(1, 2), torch.tensor([-100])
    assert torch.nn.functional.cross_entropy(rows, nothing).isnan()
    assert torch.nn.functional.nll_loss(rows, nothing).isnan()


def test_cross_entropy_of_torch_rounds_log_probabilities_to_16_bits(torch: Any) -> None:
    """The loss is not the nearest number of the dtype, which is as near as a third of a step."""
    logits = torch.tensor([[0.636719, -1.1875, 0.125, -0.333984, -0.324219, -0.412109, -0.976562]]).bfloat16()
    exact = -softmax_logarithm(logits.double().numpy())[0, 2]
    assert torch.nn.functional.cross_entropy(logits, torch.tensor([2])) == 1.640625
    assert abs(exact - 1.6328125) < abs(exact - 1.640625) / 3


def test_cross_entropy_of_torch_takes_a_smoothing_below_0_for_none(torch: Any) -> None:
    logits, target = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([0])
    plain, negative = (torch.nn.functional.cross_entropy(logits, target, label_smoothing=s) for s in (0.0, -0.5))
    assert plain == negative


# --- transformers -----------------------------------------------------------------------------------------------------


@pytest.fixture
def of_transformers() -> Any:
    """Attention of one head by name, called as a model calls it; `eager` is Llama's."""
    installed("torch")
    require("transformers")
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.models.bert.modeling_bert import eager_attention_forward as without_float32
    from transformers.models.llama.modeling_llama import eager_attention_forward

    functions = {"eager": eager_attention_forward, "sdpa": sdpa_attention_forward, "eager of BERT": without_float32}

    def attend(name: str, query: Any, key: Any, value: Any, mask: Any = None, **layer: Any) -> Any:
        module = types.SimpleNamespace(num_key_value_groups=1, training=False, **layer)
        heads = (array[None, None] for array in (query, key, value))
        mask = None if mask is None else mask[None, None]
        return functions[name](module, *heads, mask, scaling=query.shape[-1] ** -0.5)[0][0, :, 0]

    return attend


def lowest(mask: Any, dtype: Any) -> Any:
    """The mask as eager models have it."""
    torch = installed("torch")
    return torch.where(mask, torch.zeros((), dtype=dtype), torch.finfo(dtype).min)


@pytest.mark.slow
def test_eager_models_give_the_mean_of_the_values_to_padding(torch: Any, of_transformers: Any) -> None:
    """And its gradient goes to hidden keys; sdpa gives zeros, and no gradient."""
    query, value = torch.ones(1, 3), torch.tensor([[1.0] * 3, [3.0] * 3])
    key = torch.tensor([[1.0] * 3, [2.0] * 3], requires_grad=True)
    nothing = torch.zeros(1, 2, dtype=torch.bool)
    eager = of_transformers("eager", query, key, value, lowest(nothing, torch.float32))
    assert eager.eq(2).all()
    assert torch.autograd.grad(eager.sum(), key)[0].ne(0).all()
    sdpa = of_transformers("sdpa", query, key, value, nothing)
    assert sdpa.eq(0).all()
    assert torch.autograd.grad(sdpa.sum(), key)[0].eq(0).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eager", "sdpa"])
def test_models_let_nan_through_a_mask(torch: Any, of_transformers: Any, name: str) -> None:
    ones, value = torch.ones(1, 3), torch.tensor([[1.0] * 3, [NAN] * 3])
    mask = torch.tensor([[True, False]])
    given = mask if name == "sdpa" else lowest(mask, torch.float32)
    assert of_transformers(name, ones, torch.ones(2, 3), value, given).isnan().all()


@pytest.mark.slow
def test_eager_models_round_scores_and_weights_to_16_bits(torch: Any, of_transformers: Any) -> None:
    query, key, value = torch.randn(3, 64, 8, generator=torch.Generator().manual_seed(0)).bfloat16().unbind(0)
    q, k, v = (array.double().numpy() for array in (query, key, value))
    scores = (query @ key.T * 8**-0.5).double().numpy()
    exact, rounded = softmax(q @ k.T / 8**0.5) @ v, softmax(scores) @ v
    got = of_transformers("eager", query, key, value).double().numpy()
    assert np.abs(got - exact).max() > 2 * np.abs(got - rounded).max()


@pytest.mark.slow
def test_eager_models_take_the_softmax_of_float64_scores_in_float32(torch: Any, of_transformers: Any) -> None:
    """Those with `dtype=torch.float32` in it, and not BERT."""
    query, key, value = torch.randn(3, 9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).unbind(0)
    exact = softmax(query.numpy() @ key.numpy().T / 8**0.5) @ value.numpy()
    names = ("eager", "eager of BERT", "sdpa")
    got = {name: of_transformers(name, query, key, value, is_causal=False).numpy() for name in names}
    errors = {name: np.abs(array - exact).max() for name, array in got.items()}
    assert errors["eager"] > 1e-9 > 1e-14 > max(errors["sdpa"], errors["eager of BERT"])


@pytest.mark.slow
def test_sdpa_without_a_mask_is_causal_unless_the_layer_says_otherwise(torch: Any, of_transformers: Any) -> None:
    """From the first key on, and not for one query alone."""
    value = torch.tensor([[1.0] * 3, [3.0] * 3])
    for queries, layer, expected in ((2, {}, [1, 2]), (2, {"is_causal": False}, [2, 2]), (1, {}, [2])):
        got = of_transformers("sdpa", torch.ones(queries, 3), torch.ones(2, 3), value, **layer)
        assert got[:, 0].tolist() == expected
        eager = of_transformers("eager", torch.ones(queries, 3), torch.ones(2, 3), value, **layer)
        assert eager[:, 0].tolist() == [2] * queries


# --- jax --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def dot_product_attention(jax: Any) -> Any:
    """jax.nn.dot_product_attention of one head."""

    def attend(query: Any, key: Any, value: Any, **options: Any) -> Any:
        heads = (a[None, :, None] for a in (query, key, value))
        return jax.nn.dot_product_attention(*heads, **options)[0, :, 0]

    return attend


def test_jax_takes_the_softmax_of_float64_scores_in_float32(jax: Any, dot_product_attention: Any) -> None:
    with jax.enable_x64(True):
        query, key, value = np.random.default_rng(0).normal(size=(3, 8, 4))
        exact = softmax(query @ key.T / 2) @ value
        error = np.abs(np.asarray(dot_product_attention(*map(jax.numpy.asarray, (query, key, value)))) - exact).max()
    assert 1e-9 < error < 1e-6


def test_jax_gives_the_mean_of_the_values_to_empty_rows(jax: Any, dot_product_attention: Any) -> None:
    ones, value = jax.numpy.ones((2, 3)), jax.numpy.asarray([[1.0] * 3, [2.0] * 3])
    nothing = jax.numpy.zeros((1, 1, 2, 2), bool)
    assert (dot_product_attention(ones, ones, value, mask=nothing) == 1.5).all()
    none = jax.numpy.zeros(1, "int32")
    assert (dot_product_attention(ones, ones, value, key_value_seq_lengths=none) == 1.5).all()


def test_jax_lets_nan_through_a_mask(jax: Any, dot_product_attention: Any) -> None:
    ones, value = jax.numpy.ones((2, 3)), jax.numpy.asarray([[1.0] * 3, [NAN] * 3])
    assert jax.numpy.isnan(dot_product_attention(ones, ones, value, is_causal=True)[0]).all()


def test_a_masked_key_of_jax_beats_scores_below_its_fill(jax: Any, dot_product_attention: Any) -> None:
    ones, value = jax.numpy.ones((1, 3)), jax.numpy.asarray([[1.0] * 3, [2.0] * 3])
    key, bias = jax.numpy.ones((2, 3)), jax.numpy.full((1, 1, 1, 2), -3.4e38)
    mask = jax.numpy.asarray([[[[True, False]]]])
    assert (dot_product_attention(ones, key, value, bias=bias, mask=mask) == 2).all()


def test_standardize_of_jax(jax: Any) -> None:
    x = (1e3 + np.random.default_rng(0).normal(size=(16, 7))).astype(np.float32)
    wide = x.astype(np.float64)
    exact = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    assert np.abs(np.asarray(jax.nn.standardize(x)) - exact).max() > 0.01
    assert np.abs(np.asarray(jax.nn.standardize(x, algorithm="stable")) - exact).max() < 1e-3
    constant = np.full((1, 7), 312.57303, np.float32)
    assert (np.asarray(jax.nn.standardize(constant, algorithm="stable")) != 0).all()


# --- on jax -----------------------------------------------------------------------------------------------------------


def test_flax_gives_the_mean_of_the_values_to_empty_rows() -> None:
    installed("flax")
    from flax import linen, nnx
    from jax import numpy

    ones, value = numpy.ones((1, 2, 1, 3)), numpy.asarray([1.0, 2.0])[None, :, None, None]
    nothing = numpy.zeros((1, 1, 2, 2), bool)
    assert (linen.dot_product_attention(ones, ones, value, mask=nothing) == 1.5).all()
    assert (nnx.dot_product_attention(ones, ones, value, mask=nothing, module=nnx.Module()) == 1.5).all()


def test_default_eps() -> None:
    """1e-5 in the definition and in torch."""
    installed("flax")
    from flax import linen, nnx

    assert linen.LayerNorm().epsilon == 1e-6
    assert nnx.LayerNorm(3, rngs=nnx.Rngs(0)).epsilon == 1e-6


def test_equinox_gives_the_mean_of_the_values_to_empty_rows() -> None:
    equinox = installed("equinox")
    import jax

    module = equinox.nn.MultiheadAttention(1, 3, key=jax.random.key(0))
    x = jax.numpy.asarray(np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32))
    nothing = module(x, x, x, mask=jax.numpy.zeros((2, 2), bool))
    expected = (x @ module.value_proj.weight.T).mean(0) @ module.output_proj.weight.T
    np.testing.assert_allclose(nothing, np.broadcast_to(expected, (2, 3)), rtol=1e-5)


def test_optax_keeps_the_logsumexp_as_one_number(optax: Any) -> None:
    """So that a constant costs digits; here all numbers are exact in float32."""
    logits, labels = np.array([[0.0, 1.0, 3.0]], np.float32), np.array([2])
    near, far = (optax.softmax_cross_entropy_with_integer_labels(logits + c, labels) for c in (0, np.float32(2**16)))
    assert abs(float(near[0]) + softmax_logarithm(logits)[0, 2]) < 1e-6
    assert abs(float(far[0]) - float(near[0])) > 1e-3


def test_negative_labels_of_optax_count_from_the_end(optax: Any) -> None:
    logits = np.array([[0.0, 1.0, 3.0]], np.float32)
    last, negative = (optax.softmax_cross_entropy_with_integer_labels(logits, np.array([n])) for n in (2, -1))
    assert last == negative


# --- Keras ------------------------------------------------------------------------------------------------------------

KERAS = """
    import keras, numpy as np
    def attend(query, key, value, dtype, **options):
        heads = (keras.ops.convert_to_tensor(np.float64(a)[None, :, None], dtype) for a in (query, key, value))
        options = {n: keras.ops.convert_to_tensor(o) if n == "mask" else o for n, o in options.items()}
        found = keras.ops.dot_product_attention(*heads, flash_attention=False, **options)
        return keras.ops.convert_to_numpy(keras.ops.cast(found, "float32"))[0, :, 0]
    def loss(logits, target, dtype="float32"):
        found = keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype=dtype)
        logits = keras.ops.convert_to_tensor(logits, dtype)
        return float(keras.ops.convert_to_numpy(keras.ops.cast(found(np.array([target]), logits), "float32")))
    ones, value = np.ones((2, 1)), np.array([[1.0], [2.0]])
"""


def by_keras(backend: str, lines: str) -> None:
    installed(backend)
    require("keras")
    code = textwrap.dedent(KERAS) + textwrap.dedent(lines)
    finished = run(code, KERAS_BACKEND=backend, TF_CPP_MIN_LOG_LEVEL="3")
    assert finished.returncode == 0, finished.stderr


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_keras(backend: str) -> None:
    """NaN through masks, the mean in empty rows, float64 norms in float32, and an eps of 1e-3."""
    by_keras(
        backend,
        """
        hidden = attend(ones, ones, [[1.0], [np.nan]], "float32", mask=np.array([[True, False]] * 2))
        assert np.isnan(hidden).all()
        assert (attend(ones, ones, value, "float32", mask=np.zeros((2, 2), bool)) == 1.5).all()
        assert keras.layers.LayerNormalization().epsilon == 1e-3
        x = np.random.default_rng(0).normal(size=(8, 7))
        norm = keras.layers.LayerNormalization(epsilon=1e-5, dtype="float64")
        found = keras.ops.convert_to_numpy(norm(keras.ops.convert_to_tensor(x, "float64")))
        exact = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        assert 1e-9 < np.abs(found - exact).max() < 1e-5
        """,
    )


@pytest.mark.slow
def test_keras_on_torch() -> None:
    """A masked key beats float16 scores below its fill, and the flash kernel is taken, with its NaN."""
    by_keras(
        "torch",
        """
        mask = np.array([[True, False]])
        assert attend([[1.0]], [[-2.9], [1.0]], value, "float16", mask=mask, scale=2e4) == 2
        assert np.isnan(attend(ones, ones, value, "float32", is_causal=True, scale=-0.7)[0])
        assert (attend(ones * np.nan, ones, value, "float32") == 0).all()
        """,
    )


@pytest.mark.slow
def test_losses_of_keras_on_jax() -> None:
    """A class at -inf that is not the target gives NaN. In bfloat16 class 259 is 260, which is none: the loss is 0."""
    by_keras(
        "jax",
        """
        assert np.isnan(loss([[-np.inf, 0.0]], 1))
        assert loss(np.zeros((1, 260)), 259, "bfloat16") == 0
        """,
    )


@pytest.mark.slow
def test_losses_of_keras_on_torch() -> None:
    """In bfloat16 class 257 is 256, and class 259 is 260, which PyTorch refuses."""
    by_keras(
        "torch",
        """
        import pytest
        assert loss([[-np.inf, 0.0]], 1) == 0
        assert loss([[0.0] * 256 + [8.0, -8.0]], 257, "bfloat16") < 1
        with pytest.raises(IndexError, match="Target 260 is out of bounds"):
            loss(np.zeros((1, 260)), 259, "bfloat16")
        """,
    )


# --- ONNX -------------------------------------------------------------------------------------------------------------

ONNX = """
    import sys
    import numpy as np, onnx
    from onnx import helper
    from onnx.reference import ReferenceEvaluator
    def attend(runner, *arrays, mask=None, **attributes):
        feeds = dict(zip("QKV", (a if a.ndim == 4 else a[None, None] for a in arrays)))
        feeds |= {} if mask is None else {"M": mask}
        types = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in feeds.items()}
        given = [helper.make_tensor_value_info(n, types[n], a.shape) for n, a in feeds.items()]
        result = helper.make_tensor_value_info("Y", types["Q"], None)
        node = helper.make_node("Attention", list(feeds), ["Y"], **attributes)
        graph = helper.make_graph([node], "g", given, [result])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
        if runner == "reference":
            return ReferenceEvaluator(model).run(None, feeds)[0][0, 0]
        import onnxruntime
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session.run(None, feeds)[0][0, 0]
    ones, value = np.ones((2, 1), np.float32), np.array([[1.0], [2.0]], np.float32)
    hides, hidden = np.array([[True, False]] * 2), np.array([[1.0], [np.nan]], np.float32)
"""


def by_onnx(lines: str) -> int:
    """The exit code: ONNX Runtime may end the process."""
    require("onnx")
    finished = run(textwrap.dedent(ONNX) + textwrap.dedent(lines))
    assert "Error" not in finished.stderr, finished.stderr
    return finished.returncode


@pytest.mark.slow
@pytest.mark.rule("POS-3")
def test_rotary_embedding_of_transformers() -> None:
    """Angles in float32: at position 131,071 the first pair of Llama's is turned wrongly by a thousandth of a radian.

    bfloat16 sines and cosines are rounded to bfloat16 before they multiply.
    """
    require("transformers")
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    import reference_numpy

    rope = {"rope_type": "default", "rope_theta": 5e5}
    config = LlamaConfig(hidden_size=128, num_attention_heads=1, rope_parameters=rope)
    module, position = LlamaRotaryEmbedding(config), np.array([131_071])
    cosine = module(torch.ones(1, 1, 128), torch.from_numpy(position)[None])[0][0, 0, :64].numpy()
    x = np.zeros((1, 1, 1, 128))
    x[..., :64] = 1
    right = reference_numpy.rotary_embedding(x, position, base=5e5)[0, 0, 0, :64]
    assert np.abs(cosine - right).max() > 1e-3
    narrow = module(torch.ones(1, 1, 128, dtype=torch.bfloat16), torch.tensor([[3]]))[0]
    assert narrow.dtype == torch.bfloat16


def test_onnx_reference() -> None:
    """NaN through masks, and for a negative scale, whose root is multiplied to queries and to keys."""
    masked = 'np.isnan(attend("reference", ones, ones, hidden, mask=hides)).all()'
    scaled = 'np.isnan(attend("reference", ones, ones, value, scale=-0.7)).all()'
    assert by_onnx(f"assert {masked} and {scaled}") == 0


def test_onnx_runtime() -> None:
    """NaN through masks, no scale of 0 or below, and float64 with weights in float32."""
    require("onnxruntime")
    code = by_onnx("""
        assert np.isnan(attend("runtime", ones, ones, hidden, mask=hides)).all()
        query, key, wide = np.random.default_rng(0).normal(size=(3, 8, 4))
        weights = np.exp(query @ key.T / 2)
        exact = weights / weights.sum(-1, keepdims=True) @ wide
        assert 1e-10 < np.abs(attend("runtime", query, key, wide) - exact).max() < 1e-6
        try:
            attend("runtime", ones, ones, value, scale=-0.7)
        except Exception as refused:
            assert "scale must be greater than 0" in str(refused)
            sys.exit(3)
    """)
    assert code == 3


def test_onnx_runtime_dies_of_no_heads() -> None:
    """Of a division by 0; a batch or a length of 0 it refuses."""
    require("onnxruntime")
    assert by_onnx('attend("runtime", *[np.ones((1, 0, 2, 1), np.float32)] * 3)') == -signal.SIGFPE

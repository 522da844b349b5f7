"""Every dialect reproduces the module that its checkpoint comes from, within the carried bound, three times."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import torch

import jax_impl
import reference_numpy
from conformance.bounds import bound as operation_bound
from conformance.cases.case import Case
from conformance.models.error_propagation import carried_bound
from conformance.models.structures import as_float64
from specification import Causal, KeyPadding, dialects
from tests import tutorials
from tests.helpers import IMPLEMENTATIONS, Implementation
from tests.small_models import plant

Arrays = tuple[np.ndarray, ...]


class Sizes(NamedTuple):
    width: int
    heads: int
    inner: int
    depth: int
    batch: int
    source: int
    target: int


SIZES = [Sizes(16, 4, 24, 2, 3, 9, 7), Sizes(48, 3, 40, 1, 2, 5, 11)]
VOCABULARY = (11, 13)


def tokens(sizes: Sizes, length: int, vocabulary: int) -> np.ndarray:
    """Ids in which 0 is padding: of differing amounts, none in the first sequence, and nothing else in the last."""
    generator = np.random.default_rng(length)
    ids = generator.integers(1, vocabulary, (sizes.batch, length))
    for row, count in enumerate(np.linspace(0, length, sizes.batch).astype(int)):
        ids[row, length - count :] = 0
    return ids


def both(sizes: Sizes) -> Arrays:
    return tokens(sizes, sizes.source, VOCABULARY[0]), tokens(sizes, sizes.target, VOCABULARY[1])


def one(sizes: Sizes) -> Arrays:
    return (tokens(sizes, sizes.target, VOCABULARY[1]),)


def embedded(*lengths: str) -> Callable[[Sizes], Arrays]:
    def inputs(sizes: Sizes) -> Arrays:
        generator = np.random.default_rng(0)
        return tuple(generator.normal(1, 2, (sizes.batch, getattr(sizes, name), sizes.width)) for name in lengths)

    return inputs


class Source(NamedTuple):
    """Where a checkpoint comes from. narrow: steps that the module takes in float32 in every dtype."""

    dialect: str
    module: Callable[[Sizes], torch.nn.Module]
    inputs: Callable[[Sizes], Arrays]
    hyperparameters: Callable[[Sizes], dict[str, Any]] = lambda s: {"num_heads": s.heads}
    narrow: frozenset[str] = frozenset()


FLOAT32_TABLE = frozenset({"sinusoidal_positions"})
SOURCES = {
    "notebook-scratch": Source(
        "notebook-scratch",
        lambda s: tutorials.NotebookScratch(*VOCABULARY, s.width, s.heads, 3, s.depth, 0),
        both,
        lambda s: {"num_heads": s.heads, "source_pad": 0, "target_pad": 0},
    ),
    "imdb-classifier, max": Source(
        "imdb-classifier",
        lambda s: tutorials.ImdbClassifier(VOCABULARY[1], s.width, s.heads, s.depth, 5, "max"),
        one,
        lambda s: {"num_heads": s.heads, "pool": "max"},
    ),
    "imdb-classifier, mean, wide": Source(
        "imdb-classifier",
        lambda s: tutorials.ImdbClassifier(VOCABULARY[1], s.width, s.heads, s.depth, 5, "mean", wide=True),
        one,
        lambda s: {"num_heads": s.heads, "pool": "mean"},
    ),
    "transformer101": Source(
        "transformer101",
        lambda s: tutorials.SeparateHeads(s.width, s.heads, s.width // s.heads, s.width // s.heads, "output_linear"),
        embedded("target"),
        lambda s: {},
    ),
    "prenorm-blog": Source(
        "prenorm-blog",
        lambda s: tutorials.PrenormBlog(*VOCABULARY, s.width, s.heads, s.inner, s.depth, 0),
        both,
        lambda s: {"num_heads": s.heads, "source_pad": 0, "target_pad": 0},
        FLOAT32_TABLE,
    ),
    "prenorm-blog, heads": Source(
        "prenorm-blog",
        lambda s: tutorials.SeparateHeads(s.width, s.heads, 4, 6, "linear"),
        embedded("source", "target", "target"),
        lambda s: {},
    ),
    "dawn": Source(
        "dawn",
        lambda s: tutorials.Dawn(*VOCABULARY, s.width, s.heads, s.inner, s.depth),
        both,
        narrow=FLOAT32_TABLE,
    ),
}


def filled(module: torch.nn.Module) -> torch.nn.Module:
    """Vectors (biases, norms' weights) far from the 0 and 1 with which they begin, which hide mistakes."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, *((0.5, 0.5) if parameter.ndim == 1 else (0, 0.3)))
    return module.eval()


def state(module: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: tensor.detach().numpy() for name, tensor in module.state_dict().items()}


def in_dtype(inputs: Arrays, dtype: str) -> Arrays:
    return tuple(a.astype(dtype) if a.dtype.kind == "f" else a for a in inputs)


def expected(
    dialect: str, checkpoint: Any, inputs: Arrays, dtype: str, narrow: frozenset[str] = frozenset(), **given: Any
) -> tuple[np.ndarray, np.ndarray]:
    """What the definition gives in float64, and the bound for an implementation in that dtype."""
    options = given.pop("options", {})
    model = reference_numpy.load(dialect, checkpoint, **given)
    wide = replace(model, parameters=as_float64(model.parameters))
    exact = tuple(a.astype(np.float64) if a.dtype.kind == "f" else a for a in inputs)

    def run(functions: Any) -> Any:
        called = functions.MODELS[type(wide.parameters)]
        return called(wide.parameters, *exact, configuration=wide.configuration, **options)

    return carried_bound(run, wide.parameters, dtype, narrow=narrow)


def assert_within(got: np.ndarray, exact: np.ndarray, bound: np.ndarray, dtype: str) -> None:
    assert str(got.dtype) == dtype
    assert got.shape == exact.shape
    ratio = np.abs(got - exact) / bound
    assert ratio.max() <= 1


def answer(implementation: Implementation, dialect: str, checkpoint: Any, inputs: Arrays, **given: Any) -> np.ndarray:
    options = given.pop("options", {})
    framework = implementation.subject.framework
    with framework.context():
        model = implementation.load(dialect, checkpoint, **given)
        return framework.numpy(model(*implementation.convert(inputs), **implementation.convert(options)))


CASES = [(name, sizes, dtype) for name in SOURCES for sizes in SIZES for dtype in ("float32", "float64")]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{SIZES.index(case[1])}-{case[2]}", scope="module")
def tutorial(request: pytest.FixtureRequest) -> tuple[Source, Sizes, str, dict[str, np.ndarray], Arrays]:
    name, sizes, dtype = request.param
    source = SOURCES[name]
    module = filled(source.module(sizes)).to(getattr(torch, dtype))
    return source, sizes, dtype, state(module), in_dtype(source.inputs(sizes), dtype)


@pytest.mark.rule("TRF-1", "BLK-1")
def test_implementations_agree(tutorial: Any, implementation: Implementation) -> None:
    source, sizes, dtype, checkpoint, inputs = tutorial
    given = source.hyperparameters(sizes)
    exact, bound = expected(source.dialect, checkpoint, inputs, dtype, **given)
    assert_within(answer(implementation, source.dialect, checkpoint, inputs, **given), exact, bound, dtype)


@pytest.mark.rule("TRF-1", "BLK-1")
def test_the_tutorial_agrees(tutorial: Any) -> None:
    """With positions in float32 where the tutorial makes a table of them, whatever the model's dtype."""
    source, sizes, dtype, checkpoint, inputs = tutorial
    module = source.module(sizes).to(getattr(torch, dtype)).eval()
    module.load_state_dict({name: torch.from_numpy(array) for name, array in checkpoint.items()})
    with torch.no_grad():
        got = module(*map(torch.from_numpy, inputs)).numpy()
    hyperparameters = source.hyperparameters(sizes)
    exact, bound = expected(source.dialect, checkpoint, inputs, dtype, source.narrow, **hyperparameters)
    assert_within(got, exact, bound, dtype)


# --- torch.nn ---------------------------------------------------------------------------------------------------------

OPTIONS = [(first, bias, act) for first in (False, True) for bias in (False, True) for act in ("relu", "gelu")]


@pytest.mark.rule("TRF-1")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("norm_first", "bias", "activation"), OPTIONS)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:The PyTorch API of nested tensors")
def test_torch_transformer(dtype: str, norm_first: bool, bias: bool, activation: str) -> None:
    sizes = SIZES[0]
    options = {"norm_first": norm_first, "activation": activation}
    module = torch.nn.Transformer(
        16, 4, 2, 1, 24, bias=bias, batch_first=True, dtype=getattr(torch, dtype), **options
    )  # fmt: skip
    module = filled(module)
    source, target = in_dtype(embedded("source", "target")(sizes), dtype)
    keep = np.arange(sizes.source) < np.array([9, 4, 1])[:, None]
    later = torch.ones(sizes.target, sizes.target).triu(diagonal=1).bool()
    padding = torch.from_numpy(~keep)
    with torch.no_grad():
        got = module(
            torch.from_numpy(source), torch.from_numpy(target),
            tgt_mask=later, src_key_padding_mask=padding, memory_key_padding_mask=padding,
        ).numpy()  # fmt: skip
    masks = {"source_mask": KeyPadding(keep), "target_mask": Causal(), "memory_mask": KeyPadding(keep)}
    given = options | {"num_heads": 4, "options": masks}
    exact, bound = expected("pytorch", state(module), (source, target), dtype, **given)
    assert_within(got, exact, bound, dtype)
    for implementation in IMPLEMENTATIONS if dtype == "float32" else ():
        own = answer(implementation, "pytorch", state(module), (source, target), **given)
        assert_within(own, exact, bound, dtype)


LENGTHS = ("target", "source", "source")
PARTS: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[Sizes], Arrays]]] = {
    "encoder": (
        lambda: torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 4, 24, batch_first=True), 2),
        embedded("source"),
    ),
    "encoder layer": (lambda: torch.nn.TransformerEncoderLayer(16, 4, 24, batch_first=True), embedded("source")),
    "decoder": (
        lambda: torch.nn.TransformerDecoder(
            torch.nn.TransformerDecoderLayer(16, 4, 24, batch_first=True), 2, torch.nn.LayerNorm(16)
        ),
        embedded("target", "source"),
    ),
    "attention": (
        lambda: torch.nn.MultiheadAttention(16, 4, batch_first=True),
        embedded(*LENGTHS),
    ),
    "attention without bias": (
        lambda: torch.nn.MultiheadAttention(16, 4, bias=False, batch_first=True),
        embedded(*LENGTHS),
    ),
    "attention, other widths": (
        lambda: torch.nn.MultiheadAttention(16, 4, kdim=10, vdim=12, batch_first=True),
        lambda sizes: tuple(a[..., :w] for a, w in zip(embedded(*LENGTHS)(sizes), (16, 10, 12), strict=True)),
    ),
}  # fmt: skip


@pytest.mark.rule("TRF-1")
@pytest.mark.parametrize("name", PARTS)
def test_parts_of_torch(name: str, implementation: Implementation) -> None:
    make, inputs_of = PARTS[name]
    module, inputs = filled(make()), in_dtype(inputs_of(SIZES[0]), "float32")
    with torch.no_grad():
        got = module(*map(torch.from_numpy, inputs))
    got = (got[0] if isinstance(got, tuple) else got).numpy()
    exact, bound = expected("pytorch", state(module), inputs, "float32", num_heads=4)
    assert_within(got, exact, bound, "float32")
    assert_within(answer(implementation, "pytorch", state(module), inputs, num_heads=4), exact, bound, "float32")


# --- Hugging Face -----------------------------------------------------------------------------------------------------


class Pretrained(NamedTuple):
    """Sizes and options of a random checkpoint. attention: whose implementation Hugging Face takes."""

    sizes: Sizes
    activation: str
    eps: float
    attention: str
    tied: bool

    @property
    def hyperparameters(self) -> dict[str, Any]:
        known = {"gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu"}
        return {"num_heads": self.sizes.heads, "eps": self.eps, "activation": known[self.activation]}


PRETRAINED = {
    "small": Pretrained(SIZES[0]._replace(batch=4), "gelu", 1e-12, "sdpa", True),
    "three heads": Pretrained(Sizes(24, 3, 20, 1, 3, 0, 12), "gelu_new", 1e-5, "sdpa", False),
    "deep": Pretrained(Sizes(16, 2, 40, 4, 4, 0, 9), "gelu_new", 1e-3, "eager", True),
    "wide": Pretrained(Sizes(64, 8, 96, 2, 2, 0, 16), "relu", 1e-6, "eager", False),
}
TYPE_COUNT, LONGEST = 3, 20


def bert_of(made: Pretrained, dtype: str) -> torch.nn.Module:
    transformers = pytest.importorskip("transformers")
    width, heads, inner, depth, *_ = made.sizes
    configuration = transformers.BertConfig(
        vocab_size=VOCABULARY[1], hidden_size=width, num_attention_heads=heads, intermediate_size=inner,
        num_hidden_layers=depth, max_position_embeddings=LONGEST, type_vocab_size=TYPE_COUNT,
        hidden_act=made.activation, layer_norm_eps=made.eps, attn_implementation=made.attention,
    )  # fmt: skip
    return filled(transformers.BertModel(configuration)).to(getattr(torch, dtype))


def gpt2_of(made: Pretrained, dtype: str) -> torch.nn.Module:
    transformers = pytest.importorskip("transformers")
    width, heads, inner, depth, *_ = made.sizes
    configuration = transformers.GPT2Config(
        vocab_size=VOCABULARY[1], n_embd=width, n_head=heads, n_inner=inner, n_layer=depth, n_positions=LONGEST,
        activation_function=made.activation, layer_norm_epsilon=made.eps, attn_implementation=made.attention,
        tie_word_embeddings=made.tied, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return filled(transformers.GPT2LMHeadModel(configuration)).to(getattr(torch, dtype))


def bert_case(made: Pretrained, dtype: str) -> tuple[np.ndarray, Any, Arrays, dict[str, Any]]:
    """Token types, and padding of differing lengths, in the last sequence everything.

    Returns hidden states, the checkpoint, the inputs, and what the model is loaded and called with.
    """
    module, (ids,) = bert_of(made, dtype), one(made.sizes)
    types = np.random.default_rng(0).integers(0, TYPE_COUNT, ids.shape)
    with torch.no_grad():
        got = module(*map(torch.from_numpy, (ids, (ids != 0).astype(int), types))).last_hidden_state.numpy()
    given = made.hyperparameters | {"empty_rows": "zero" if made.attention == "sdpa" else "mean"}
    return got, state(module), (ids,), given | {"options": {"key_padding": ids != 0, "token_types": types}}


def gpt2_case(made: Pretrained, dtype: str) -> tuple[np.ndarray, Any, Arrays, dict[str, Any]]:
    """Padding of differing lengths, masked. Returns logits, and as above.

    It comes first, so that there are positions that may attend to nothing.
    """
    module, (ids,) = gpt2_of(made, dtype), one(made.sizes)
    ids = ids[:, ::-1].copy()
    with torch.no_grad():
        got = module(torch.from_numpy(ids), attention_mask=torch.from_numpy((ids != 0).astype(int))).logits.numpy()
    checkpoint = state(module)
    if made.tied:
        del checkpoint["lm_head.weight"]
    given = made.hyperparameters | {"empty_rows": "zero" if made.attention == "sdpa" else "mean"}
    return got, checkpoint, (ids,), given | {"options": {"mask": KeyPadding(ids != 0)}}


PRETRAINED_CASES = {"bert": bert_case, "gpt2": gpt2_case}


def assert_all_agree(dialect: str, name: str, dtype: str) -> None:
    """Hugging Face's module, and the checkpoint that it gives in each of the three packages."""
    got, checkpoint, inputs, given = PRETRAINED_CASES[dialect](PRETRAINED[name], dtype)
    exact, bound = expected(dialect, checkpoint, inputs, dtype, **given)
    assert_within(got, exact, bound, dtype)
    for implementation in IMPLEMENTATIONS:
        assert_within(answer(implementation, dialect, checkpoint, inputs, **given), exact, bound, dtype)


@pytest.mark.rule("TRF-1")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", PRETRAINED)
def test_bert(name: str, dtype: str) -> None:
    assert_all_agree("bert", name, dtype)


@pytest.mark.rule("TRF-1")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", PRETRAINED)
def test_gpt2(name: str, dtype: str) -> None:
    assert_all_agree("gpt2", name, dtype)


def test_tied_weights_are_two_arrays(implementation: Implementation) -> None:
    """Changing one leaves the other, in all packages alike."""
    made = PRETRAINED["small"]
    entries = state(gpt2_of(made, "float32"))
    entries.pop("lm_head.weight", None)
    model = implementation.load("gpt2", entries, **made.hyperparameters)
    parameters = model.structure() if implementation.package == "torch_impl" else model.parameters
    tokens, output = parameters.decoder.embedding.tokens, parameters.output.weight
    if implementation.package == "reference_numpy":
        assert not np.shares_memory(tokens, output)
    if implementation.package == "torch_impl":
        assert tokens.data_ptr() != output.data_ptr()


OTHERWISE: dict[str, dict[str, Any]] = {
    "num_heads": {"num_heads": 4},
    "eps": {"eps": 1.1e-3},
    "activation": {"activation": "gelu"},
    "empty_rows": {"empty_rows": "zero"},
    "padding": {"options": {}},
}


@pytest.mark.parametrize("dialect", PRETRAINED_CASES)
@pytest.mark.parametrize("what", OTHERWISE)
def test_what_is_not_in_a_checkpoint_shows(dialect: str, what: str) -> None:
    """With one hyperparameter or the mask otherwise, Hugging Face's module is beyond the bound."""
    got, checkpoint, inputs, given = PRETRAINED_CASES[dialect](PRETRAINED["deep"], "float64")
    exact, bound = expected(dialect, checkpoint, inputs, "float64", **given | OTHERWISE[what])
    assert np.max(np.abs(got - exact) / bound) > 1


# --- RoBERTa ----------------------------------------------------------------------------------------------------------

PAD = 1
LIKE_ROBERTA = ("Roberta", "XLMRoberta", "Camembert", "Data2VecText")


def roberta_of(kind: str, dtype: str, head: str = "Model") -> torch.nn.Module:
    """With padding tokens whose rows are not 0, as a checkpoint may have them."""
    transformers = pytest.importorskip("transformers")
    configuration = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCABULARY[1], hidden_size=24, num_attention_heads=3, intermediate_size=20, num_hidden_layers=2,
        max_position_embeddings=LONGEST, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=PAD, bos_token_id=0,
        eos_token_id=2,
    )  # fmt: skip
    return filled(getattr(transformers, f"{kind}{head}")(configuration)).to(getattr(torch, dtype))


def padded_anywhere() -> np.ndarray:
    """Padding at the end, before the first token, in the middle; and in the last sequence nothing else."""
    ids = np.random.default_rng(0).integers(2, VOCABULARY[1], (5, 9))
    ids[1, 5:] = ids[2, :4] = ids[3, 2:4] = ids[4] = PAD
    return ids


ROBERTA: dict[str, Any] = {"num_heads": 3, "eps": 1e-5, "positions": "after_padding", "padding": PAD}


@pytest.mark.rule("TRF-1")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", LIKE_ROBERTA)
def test_roberta(kind: str, dtype: str) -> None:
    """With padding masked, and with padding that is attended to: positions skip it in either case."""
    module, ids = roberta_of(kind, dtype), padded_anywhere()
    checkpoint = state(module)
    for keep in (ids != PAD, np.ones_like(ids, bool)):
        with torch.no_grad():
            got = module(torch.from_numpy(ids), torch.from_numpy(keep.astype(int))).last_hidden_state.numpy()
        given = ROBERTA | {"options": {"key_padding": keep}}
        exact, bound = expected("bert", checkpoint, (ids,), dtype, **given)
        assert_within(got, exact, bound, dtype)
        for implementation in IMPLEMENTATIONS if dtype == "float32" or kind == "Roberta" else ():
            assert_within(answer(implementation, "bert", checkpoint, (ids,), **given), exact, bound, dtype)


@pytest.mark.parametrize("other", [{"positions": "learned", "padding": None}, {"padding": 0}, {"padding": 2}])
def test_positions_of_roberta_show(other: dict[str, Any]) -> None:
    module, ids = roberta_of("Roberta", "float64"), padded_anywhere()
    with torch.no_grad():
        got = module(torch.from_numpy(ids), torch.from_numpy((ids != PAD).astype(int))).last_hidden_state.numpy()
    given = ROBERTA | other | {"options": {"key_padding": ids != PAD}}
    exact, bound = expected("bert", state(module), (ids,), "float64", **given)
    assert np.max(np.abs(got - exact) / bound) > 1


FAULTS = {
    "padding counts": ("{} * real + padding", "{} + padding"),
    "counted from 0": ("{} * real + padding", "({} - 1) * real + padding"),
    "from the beginning of the table": ("{} * real + padding", "{} * real"),
}
SUMS = {"reference_numpy": "np.cumsum(real, axis=1)", "torch_impl": "torch.cumsum(real, dim=1)",
        "jax_impl": "jnp.cumsum(real, axis=1)"}  # fmt: skip


@pytest.mark.rule("TRF-1")
@pytest.mark.parametrize("name", FAULTS)
def test_faults_in_positions_are_found(
    name: str, implementation: Implementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, ids = state(roberta_of("Roberta", "float32")), padded_anywhere()
    given = ROBERTA | {"options": {"key_padding": ids != PAD}}
    exact, bound = expected("bert", checkpoint, (ids,), "float32", **given)
    old, new = (text.format(SUMS[implementation.package]) for text in FAULTS[name])
    plant(f"{implementation.package}.transformer", old, new, monkeypatch)
    assert (np.abs(answer(implementation, "bert", checkpoint, (ids,), **given) - exact) > bound).any()


@pytest.mark.parametrize("kind", LIKE_ROBERTA)
def test_heads_of_roberta_are_ignored_and_its_prefix_is_no_bert(kind: str) -> None:
    checkpoint = state(roberta_of(kind, "float32", "ForMaskedLM"))
    parameters, configuration = dialects.read("bert", checkpoint, **ROBERTA)
    assert len(parameters.blocks) == 2
    assert (configuration.positions, configuration.position_padding) == ("after_padding", PAD)
    with pytest.raises(ValueError, match="whose positions are 'after_padding': give positions"):
        dialects.read("bert", checkpoint, num_heads=3)


def test_what_may_be_a_roberta_is_told() -> None:
    """Without a prefix there is one hint, a single token type; who says which positions they are is not asked."""
    checkpoint = state(roberta_of("Roberta", "float32"))
    with pytest.warns(UserWarning, match="there is one token type, as in RoBERTa"):
        dialects.read("bert", checkpoint, num_heads=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dialects.read("bert", checkpoint, num_heads=3, positions="learned")
        dialects.read("bert", checkpoint, **ROBERTA)


def test_sequences_longer_than_positions_after_padding(implementation: Implementation) -> None:
    """Of 20 rows the first two are padding's and nobody's."""
    checkpoint = state(roberta_of("Roberta", "float32"))
    model = implementation.load("bert", checkpoint, **ROBERTA)
    assert model(implementation.convert(np.full((1, 18), 5))).shape == (1, 18, 24)
    assert model(implementation.convert(np.full((1, 30), PAD))).shape == (1, 30, 24)
    with pytest.raises(ValueError, match=r"positions after padding must lie in \[0, 20\), got values from 2 to 20"):
        model(implementation.convert(np.full((1, 19), 5)))


# --- positions that may attend to nothing -----------------------------------------------------------------------------


def test_empty_rows_of_torch(implementation: Implementation) -> None:
    """What `nn.MultiheadAttention` gives with weights and without, and a stack of layers."""
    x, keep = embedded("source")(SIZES[0])[0].astype("float32"), np.arange(9) < np.array([9, 4, 0])[:, None]
    padding, given = torch.from_numpy(~keep), torch.from_numpy(x)
    attention = filled(torch.nn.MultiheadAttention(16, 4, batch_first=True))
    stack = filled(torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 4, 24, batch_first=True), 2))
    with torch.enable_grad():
        results = {
            "nan": (attention, attention(given, given, given, key_padding_mask=padding)[0]),
            "zero": (attention, attention(given, given, given, key_padding_mask=padding, need_weights=False)[0]),
            "zero ": (stack, stack(given, src_key_padding_mask=padding)),
        }
    for name, (module, result) in results.items():
        options = {"num_heads": 4, "empty_rows": name.strip(), "options": {"mask": KeyPadding(keep)}}
        exact, bound = expected("pytorch", state(module), (x,), "float32", **options)
        got, own = result.detach().numpy(), answer(implementation, "pytorch", state(module), (x,), **options)
        assert np.isnan(got).any() == (name == "nan")
        for found in (got, own):
            assert np.array_equal(np.isnan(found), np.isnan(exact))
            assert (np.isnan(found) | (np.abs(found - exact) <= bound)).all()


# --- small pieces -----------------------------------------------------------------------------------------------------


def test_self_attention_without_parameters(implementation: Implementation) -> None:
    """softmax(x x^T) x is attention of one head with scale 1, within attention's own bound."""
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    heads = dict.fromkeys(("query", "key", "value"), x[:, None])
    bound = operation_bound(Case("attention", "float32", heads, {"scale": 1.0}))["output"][:, 0]
    wide = torch.from_numpy(x).double()
    exact = (torch.softmax(wide @ wide.mT, dim=-1) @ wide).numpy()
    got = implementation.call("plain_self_attention", x)
    assert_within(got, exact, bound, "float32")


def test_float64_in_jax_needs_x64() -> None:
    checkpoint = {name: array.astype("float64") for name, array in state(filled(tutorials_101())).items()}
    with jax.enable_x64(False), pytest.raises(TypeError, match="float64"):
        jax_impl.load("transformer101", checkpoint)


def tutorials_101() -> torch.nn.Module:
    return SOURCES["transformer101"].module(SIZES[0])

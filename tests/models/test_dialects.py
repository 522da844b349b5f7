"""Every dialect reproduces the module that its checkpoint comes from, within the carried bound, three times."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import torch

import jax_impl
import reference_numpy
from conformance.reports import dialects as dialect_tables
from specification import Causal, KeyPadding, dialects
from specification.checkpoints import flatten
from specification.dialects import DIALECTS
from specification.fitting import misfits
from specification.loading.record import Variant
from tests.support.helpers import IMPLEMENTATIONS, Case, Implementation
from tests.support.helpers import bound as operation_bound
from tests.support.pretrained import MODELS
from tests.support.small_models import assert_within, exact_and_bound, in_dtype, plant, result_of
from tests.support.tutorials import SIZES, SOURCES, VOCABULARY, Arrays, Sizes, Source, embedded, one


def filled(module: torch.nn.Module) -> torch.nn.Module:
    """Vectors (biases, norms' weights) far from the 0 and 1 with which they begin, which hide mistakes."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, *((0.5, 0.5) if parameter.ndim == 1 else (0, 0.3)))
    return module.eval()


def state(module: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: tensor.detach().numpy() for name, tensor in module.state_dict().items()}


def expected(
    dialect: str, checkpoint: Any, inputs: Arrays, dtype: str, narrow: frozenset[str] = frozenset(), **given: Any
) -> tuple[np.ndarray, np.ndarray]:
    """What the definition gives in float64, and the bound for an implementation in that dtype."""
    options = given.pop("options", {})
    model = reference_numpy.load(dialect, checkpoint, **given)
    return exact_and_bound(model.parameters, model.configuration, inputs, dtype, narrow=narrow, **options)


def answer(implementation: Implementation, dialect: str, checkpoint: Any, inputs: Arrays, **given: Any) -> np.ndarray:
    options = given.pop("options", {})
    return result_of(implementation, implementation.load(dialect, checkpoint, **given), inputs, **options)


CASES = [(name, sizes, dtype) for name in SOURCES for sizes in SIZES for dtype in ("float32", "float64")]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{SIZES.index(case[1])}-{case[2]}", scope="module")
def tutorial(request: pytest.FixtureRequest) -> tuple[Source, Sizes, str, dict[str, np.ndarray], Arrays]:
    name, sizes, dtype = request.param
    source = SOURCES[name]
    module = filled(source.module(sizes)).to(getattr(torch, dtype))
    return source, sizes, dtype, state(module), in_dtype(source.inputs(sizes), dtype)


@pytest.fixture(scope="module")
def within(tutorial: Any) -> tuple[np.ndarray, np.ndarray]:
    source, sizes, dtype, checkpoint, inputs = tutorial
    return expected(source.dialect, checkpoint, inputs, dtype, **source.hyperparameters(sizes))


@pytest.mark.rule("TRF-1", "BLK-1")
@pytest.mark.slow_where("jax_impl", unless="-1-float32")
@pytest.mark.slow_where("jax_impl", unless=("dawn", "prenorm-blog-1", "mean, wide"))
def test_implementations_agree(tutorial: Any, within: Any, implementation: Implementation) -> None:
    source, sizes, dtype, checkpoint, inputs = tutorial
    given, (exact, bound) = source.hyperparameters(sizes), within
    assert_within(answer(implementation, source.dialect, checkpoint, inputs, **given), exact, bound, dtype)


@pytest.mark.rule("TRF-1", "BLK-1")
def test_the_tutorial_agrees(tutorial: Any, within: Any) -> None:
    """With positions in float32 where the tutorial makes a table of them, whatever the model's dtype."""
    source, sizes, dtype, checkpoint, inputs = tutorial
    module = source.module(sizes).to(getattr(torch, dtype)).eval()
    module.load_state_dict({name: torch.from_numpy(array) for name, array in checkpoint.items()})
    with torch.no_grad():
        got = module(*map(torch.from_numpy, inputs)).numpy()
    exact, bound = within
    if source.narrow:
        hyperparameters = source.hyperparameters(sizes)
        exact, bound = expected(source.dialect, checkpoint, inputs, dtype, source.narrow, **hyperparameters)
    assert_within(got, exact, bound, dtype)


# --- torch.nn ---------------------------------------------------------------------------------------------------------

OPTIONS = [(first, bias, act) for first in (False, True) for bias in (False, True) for act in ("relu", "gelu")]


@pytest.mark.rule("TRF-1")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("norm_first", "bias", "activation"), OPTIONS)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:The PyTorch API of nested tensors")
@pytest.mark.slow_where(unless=("True-True-gelu-float32", "False-False-relu-float32"))
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


# --- records ----------------------------------------------------------------------------------------------------------

OPTIONAL = {
    "Dialect": {"prefixes", "renamed", "ignored", "ignored_layers", "config", "tutorial"},
    "Variant": {"name", "marks", "counted", "heads_share", "padding", "check", "example"},
    "Example": {"hyperparameters", "options", "about", "sizes", "without", "unread"},
    "ConfigFile": {"fixed", "sizes", "computed_sizes", "routed", "instead", "entries", "tied", "without_effect"},
    "Tutorial": set(),
}
"""Fields that may be empty."""


def empty_fields(record: Any) -> list[str]:
    """Fields that must not be empty and are, of the record and all records in it."""
    kind = type(record).__name__
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    found = [f"{kind}.{name}" for name, value in values.items() if not value and name not in OPTIONAL[kind]]
    within = [*values.get("variants", ()), *(values.get(name) for name in ("example", "config", "tutorial"))]
    return found + [name for one in within if one is not None for name in empty_fields(one)]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_record_is_complete(dialect: str) -> None:
    record = DIALECTS[dialect]
    assert record.name == dialect
    assert empty_fields(record) == []
    assert Path(dialects.__path__[0], f"{dialect.replace('-', '_')}.py").is_file()
    if record.config is not None:
        assert set(record.config.keys) <= set(record.hyperparameters)
    for variant in record.variants:
        assert (variant.name == "") == (variant.marks == ()) or variant is record.variants[-1]
        assert set(variant.padding) <= set(variant.hyperparameters)
        assert set(record.example.hyperparameters) <= set(record.hyperparameters)


def test_an_incomplete_record_is_noticed() -> None:
    record = DIALECTS["dawn"]
    without = replace(record, source="", variants=(replace(record.described, gives="", table=()),))
    without = replace(without, tutorial=replace(record.tutorial, builds=""))
    assert empty_fields(without) == ["Dialect.source", "Variant.table", "Variant.gives", "Tutorial.builds"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_example_is_read_and_every_entry_of_it_is_needed(dialect: str) -> None:
    record = DIALECTS[dialect]
    example = record.example
    entries = {name: np.ones(shape, "float32") for name, (shape, _) in record.example_entries().items()}
    prefix = (*record.prefixes, "")[0]

    def without_numbers(name: str) -> str:
        return re.sub(r"\{\w+\}|(?<=\.)\d+(?=\.)", "#", name)

    optional = {without_numbers(row.theirs) for row in record.described.table if row.when}
    parameters, configuration = dialects.read(dialect, entries, **example.hyperparameters)
    assert misfits(parameters, configuration) == []
    for name in entries:
        rest = {other: array for other, array in entries.items() if other != name}
        if name.removeprefix(prefix) in example.unread:
            dialects.read(dialect, rest, **example.hyperparameters)
        elif without_numbers(name.removeprefix(prefix)) not in optional:
            with pytest.raises(ValueError, match=f"{re.escape(name.removeprefix(prefix))} is missing"):
                dialects.read(dialect, rest, **example.hyperparameters)


def test_the_documents_list_every_dialect() -> None:
    """`conformance dev dialects` has been called since the last change of a record."""
    text = Path(dialect_tables.DOCUMENT).read_text()
    assert dialect_tables.renew_tables(text) == text
    assert all(f"| `{dialect}`" in text for dialect in DIALECTS)
    with pytest.raises(ValueError, match="there is no place for the table"):
        dialect_tables.renew_tables(text.replace("<!-- end of tutorials -->", ""))


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


class Origin(NamedTuple):
    """The models of Hugging Face that a dialect's checkpoints come from.

    family: what the names of its classes begin with. options: of its configuration class, for sizes and options.
    call: from the module and tokens, in which 0 is padding at the end, to its result, and what ours is called with.
    kind: how the class's name goes on whose result is compared. heads: the same of classes whose heads are ignored.
    """

    family: str
    options: Callable[[Pretrained], dict[str, Any]]
    call: Callable[[torch.nn.Module, np.ndarray], tuple[np.ndarray, Arrays, dict[str, Any]]]
    kind: str = "Model"
    heads: tuple[str, ...] = ()


def call_hugging_face(module: torch.nn.Module, ids: np.ndarray, keep: np.ndarray, *others: np.ndarray) -> Any:
    """What a module gives where it attends to the tokens that are kept."""
    with torch.no_grad():
        return module(*map(torch.from_numpy, (ids, keep.astype(int), *others)))


def bert_options(made: Pretrained) -> dict[str, Any]:
    width, heads, inner, depth, *_ = made.sizes
    return {
        "vocab_size": VOCABULARY[1], "hidden_size": width, "num_attention_heads": heads, "intermediate_size": inner,
        "num_hidden_layers": depth, "max_position_embeddings": LONGEST, "type_vocab_size": TYPE_COUNT,
        "hidden_act": made.activation, "layer_norm_eps": made.eps,
    }  # fmt: skip


def bert_call(module: torch.nn.Module, ids: np.ndarray) -> tuple[np.ndarray, Arrays, dict[str, Any]]:
    """Token types, and padding of differing lengths, in the last sequence everything."""
    types = np.random.default_rng(0).integers(0, TYPE_COUNT, ids.shape)
    got = call_hugging_face(module, ids, ids != 0, types).last_hidden_state.numpy()
    return got, (ids,), {"key_padding": ids != 0, "token_types": types}


def distilbert_options(made: Pretrained) -> dict[str, Any]:
    """Its norms have an eps of their own, in no configuration."""
    width, heads, inner, depth, *_ = made.sizes
    return {
        "vocab_size": VOCABULARY[1], "dim": width, "n_heads": heads, "hidden_dim": inner, "n_layers": depth,
        "max_position_embeddings": LONGEST, "activation": made.activation, "tie_word_embeddings": made.tied,
    }  # fmt: skip


def distilbert_call(module: torch.nn.Module, ids: np.ndarray) -> tuple[np.ndarray, Arrays, dict[str, Any]]:
    """Padding of differing lengths, in the last sequence everything."""
    return call_hugging_face(module, ids, ids != 0).last_hidden_state.numpy(), (ids,), {"key_padding": ids != 0}


def gpt2_options(made: Pretrained) -> dict[str, Any]:
    width, heads, inner, depth, *_ = made.sizes
    return {
        "vocab_size": VOCABULARY[1], "n_embd": width, "n_head": heads, "n_inner": inner, "n_layer": depth,
        "n_positions": LONGEST, "activation_function": made.activation, "layer_norm_epsilon": made.eps,
        "tie_word_embeddings": made.tied, "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip


def gpt2_call(module: torch.nn.Module, ids: np.ndarray) -> tuple[np.ndarray, Arrays, dict[str, Any]]:
    """Padding of differing lengths, masked; it comes first, so that positions are there that may attend to nothing."""
    ids = ids[:, ::-1].copy()
    with torch.no_grad():
        got = module(torch.from_numpy(ids), attention_mask=torch.from_numpy((ids != 0).astype(int))).logits.numpy()
    return got, (ids,), {"mask": KeyPadding(ids != 0)}


ORIGINS = {
    "bert": Origin(
        "Bert",
        bert_options,
        bert_call,
        heads=("ForPreTraining", "ForMaskedLM", "ForSequenceClassification", "ForQuestionAnswering"),
    ),
    "distilbert": Origin(
        "DistilBert",
        distilbert_options,
        distilbert_call,
        heads=("ForMaskedLM", "ForSequenceClassification", "ForQuestionAnswering", "ForTokenClassification"),
    ),
    "gpt2": Origin("GPT2", gpt2_options, gpt2_call, kind="LMHeadModel"),
}


def hugging_face(dialect: str, made: Pretrained, dtype: str = "float32", kind: str = "") -> torch.nn.Module:
    """A module with random weights; kind: another one than is compared."""
    transformers, origin = pytest.importorskip("transformers"), ORIGINS[dialect]
    options = origin.options(made) | {"attn_implementation": made.attention}
    configuration = getattr(transformers, f"{origin.family}Config")(**options)
    module = getattr(transformers, origin.family + (kind or origin.kind))(configuration)
    return filled(module).to(getattr(torch, dtype))


def hugging_face_case(dialect: str, made: Pretrained, dtype: str) -> tuple[np.ndarray, Any, Arrays, dict[str, Any]]:
    """The module's result, the checkpoint, the inputs, and what the model is loaded and called with."""
    module, (ids,) = hugging_face(dialect, made, dtype), one(made.sizes)
    got, inputs, options = ORIGINS[dialect].call(module, ids)
    checkpoint = state(module)
    if made.tied:
        checkpoint.pop("lm_head.weight", None)
    given = made.hyperparameters | {"empty_rows": "zero" if made.attention == "sdpa" else "mean"}
    given = {name: value for name, value in given.items() if name in DIALECTS[dialect].hyperparameters}
    return got, checkpoint, inputs, given | {"options": options}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", PRETRAINED)
@pytest.mark.parametrize("dialect", ORIGINS)
@pytest.mark.slow_where(unless="small-float32")
@pytest.mark.slow_where("bert-small-float32", unless="distilbert")
def test_hugging_face(dialect: str, name: str, dtype: str) -> None:
    """Hugging Face's module, and the checkpoint that it gives in each of the three packages."""
    got, checkpoint, inputs, given = hugging_face_case(dialect, PRETRAINED[name], dtype)
    exact, bound = expected(dialect, checkpoint, inputs, dtype, **given)
    assert_within(got, exact, bound, dtype)
    for implementation in IMPLEMENTATIONS:
        assert_within(answer(implementation, dialect, checkpoint, inputs, **given), exact, bound, dtype)


def test_every_dialect_of_hugging_face_is_compared() -> None:
    """Those that are not here are in `test_pretrained.py`."""
    today = {made.dialect for made in MODELS.values()}
    assert {name for name, dialect in DIALECTS.items() if dialect.config} == set(ORIGINS) | today


def test_tied_weights_are_two_arrays(implementation: Implementation) -> None:
    """Changing one leaves the other, in all packages alike."""
    made = PRETRAINED["small"]
    entries = state(hugging_face("gpt2", made))
    entries.pop("lm_head.weight", None)
    model = implementation.load("gpt2", entries, **made.hyperparameters)
    parameters = model.structure() if implementation.package == "torch_impl" else model.parameters
    tokens, output = parameters.decoder.embedding.tokens, parameters.output.weight
    if implementation.package == "reference_numpy":
        assert not np.shares_memory(tokens, output)
    if implementation.package == "torch_impl":
        assert tokens.data_ptr() != output.data_ptr()


@pytest.mark.parametrize(("dialect", "head"), [(name, head) for name in ORIGINS for head in ORIGINS[name].heads])
def test_heads_are_ignored(dialect: str, head: str) -> None:
    """Under the names that they have in a file with a head, the same arrays are read."""
    made = PRETRAINED["small"]
    entries = state(hugging_face(dialect, made, kind=head))
    prefix = DIALECTS[dialect].prefixes[0]
    plain = {name.removeprefix(prefix): array for name, array in entries.items() if name.startswith(prefix)}
    assert len(plain) < len(entries)
    given = {name: value for name, value in made.hyperparameters.items() if name in DIALECTS[dialect].hyperparameters}
    parameters, configuration = dialects.read(dialect, entries, **given)
    alone, same = dialects.read(dialect, plain, **given)
    assert configuration == same
    assert all(map(np.array_equal, flatten(parameters).values(), flatten(alone).values()))


OTHERWISE: dict[str, dict[str, Any]] = {
    "num_heads": {"num_heads": 4},
    "eps": {"eps": 1.1e-3},
    "activation": {"activation": "gelu"},
    "empty_rows": {"empty_rows": "zero"},
    "padding": {"options": {}},
}


OF_EACH = [
    (dialect, what) for dialect in ORIGINS for what in OTHERWISE
    if what == "padding" or what in DIALECTS[dialect].hyperparameters
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "what"), OF_EACH)
def test_what_is_not_in_a_checkpoint_shows(dialect: str, what: str) -> None:
    """With one hyperparameter or the mask otherwise, Hugging Face's module is beyond the bound."""
    got, checkpoint, inputs, given = hugging_face_case(dialect, PRETRAINED["deep"], "float64")
    exact, bound = expected(dialect, checkpoint, inputs, "float64", **given | OTHERWISE[what])
    assert np.max(np.abs(got - exact) / bound) > 1


def with_queries_for_keys(variant: Variant) -> Variant:
    """Its table with the query and the key exchanged."""
    other = {"query": "key", "key": "query"}
    rows = []
    for row in variant.table:
        paths = tuple(re.sub("query|key", lambda found: other[found[0]], path) for path in row.paths)
        rows.append(row._replace(ours=paths if len(paths) > 1 else paths[0]))
    return replace(variant, table=tuple(rows))


def with_another_eps(variant: Variant) -> Variant:
    def configuration(**given: Any) -> Any:
        right = variant.configuration(**given)
        return replace(right, norm_eps=right.norm_eps + 1e-6)

    names = functools.wraps(variant.configuration)(configuration)
    return replace(variant, configuration=names)


@pytest.mark.parametrize("fault", [with_queries_for_keys, with_another_eps])
@pytest.mark.parametrize("dialect", ORIGINS)
def test_a_fault_in_a_record_shows(
    dialect: str, fault: Callable[[Variant], Variant], monkeypatch: pytest.MonkeyPatch
) -> None:
    got, checkpoint, inputs, given = hugging_face_case(dialect, PRETRAINED["small"], "float64")
    record = DIALECTS[dialect]
    monkeypatch.setitem(DIALECTS, dialect, replace(record, variants=tuple(map(fault, record.variants))))
    exact, bound = expected(dialect, checkpoint, inputs, "float64", **given)
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
@pytest.mark.slow_where("float64")
@pytest.mark.slow_where("Data2VecText")
@pytest.mark.slow_where("Camembert")
@pytest.mark.slow_where("XLM")
def test_roberta(kind: str, dtype: str) -> None:
    """With padding masked, and with padding that is attended to: positions skip it in either case."""
    module, ids = roberta_of(kind, dtype), padded_anywhere()
    checkpoint = state(module)
    for keep in (ids != PAD, np.ones_like(ids, bool)):
        got = call_hugging_face(module, ids, keep).last_hidden_state.numpy()
        given = ROBERTA | {"options": {"key_padding": keep}}
        exact, bound = expected("bert", checkpoint, (ids,), dtype, **given)
        assert_within(got, exact, bound, dtype)
        for implementation in IMPLEMENTATIONS if dtype == "float32" or kind == "Roberta" else ():
            assert_within(answer(implementation, "bert", checkpoint, (ids,), **given), exact, bound, dtype)


@pytest.mark.parametrize("other", [{"positions": "learned", "padding": None}, {"padding": 0}, {"padding": 2}])
def test_positions_of_roberta_show(other: dict[str, Any]) -> None:
    module, ids = roberta_of("Roberta", "float64"), padded_anywhere()
    got = call_hugging_face(module, ids, ids != PAD).last_hidden_state.numpy()
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


@pytest.mark.slow_where("jax_impl")
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
    checkpoint = state(filled(SOURCES["transformer101"].module(SIZES[0])).double())
    with jax.enable_x64(False), pytest.raises(TypeError, match="float64"):
        jax_impl.load("transformer101", checkpoint)

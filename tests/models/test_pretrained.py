"""`load_pretrained` on folders that transformers has written: the same numbers as its own, within the carried bound.

The modules compute in float32, as they are, and in float64 throughout (`tests.support.pretrained.Wide`).
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import reference_numpy
from conformance.models.error_propagation import carried_bound
from conformance.models.structures import widen_parameters
from reference_numpy import Model
from specification.dialects import DIALECTS
from specification.loading.record import Variant
from specification.masks import KeyPadding
from specification.parameters import LanguageModel, Transformer, leaves
from specification.rotary import Rotary, YarnScaling
from tests.support.helpers import IMPLEMENTATIONS, Implementation
from tests.support.pretrained import (
    CONTENT,
    MODELS,
    Call,
    Pretrained,
    arithmetic,
    call_of,
    module_of,
    module_result,
    randomized,
    saved,
)
from tests.support.small_models import exact_and_bound, in_dtype, result_of

pytest.importorskip("transformers")
FIRST = {made.dialect: name for name, made in reversed(MODELS.items())}
"""By dialect, the name of its first model."""
OF_EACH_CLASS = {made.architecture: name for name, made in reversed(MODELS.items())}
ALONE = {"gemma2", "gpt_oss"}
"""Dialects whose attention in transformers is "eager" alone."""


@pytest.fixture(autouse=True)
def quiet() -> Any:
    """Without the bars and hints of transformers."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


def bound_of(model: Model, call: Call, dtype: str, samples: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """What the definition gives in float64, and the carried bound for an implementation in that dtype."""
    parameters, configuration = model.parameters, model.configuration
    return exact_and_bound(parameters, configuration, call.inputs, dtype, samples=samples, **call.options)


def ratio(got: Any, exact: np.ndarray, bound: np.ndarray, call: Call, dtype: str) -> float:
    """The largest error of the real positions, in bounds."""
    assert str(got.dtype).removeprefix("torch.") == dtype
    assert got.shape == exact.shape
    return float((np.abs(np.asarray(got) - exact) / bound)[call.real].max())


def own(implementation: Implementation, folder: Path, call: Call) -> np.ndarray:
    return result_of(implementation, implementation.load_pretrained(folder), call.inputs, **call.options)


def test_every_dialect_has_at_least_four_models() -> None:
    today = {name for name, record in DIALECTS.items() if record.config is not None} - {"bert", "distilbert", "gpt2"}
    counts = {dialect: sum(made.dialect == dialect for made in MODELS.values()) for dialect in today}
    assert set(FIRST) == today
    assert min(counts.values()) >= 4


@pytest.mark.rule("TRF-1", "BLK-3")
@pytest.mark.parametrize("dialect", FIRST)
def test_a_model_of_each_dialect(dialect: str, tmp_path: Path) -> None:
    """In float64, where a mistake stands out; few samples, because the errors are far from the bound."""
    made = MODELS[FIRST[dialect]]
    module, folder = saved(made, "float64", tmp_path)
    model, call = reference_numpy.load_pretrained(folder), call_of(made, "float64")
    exact, bound = bound_of(model, call, "float64", samples=12)
    assert ratio(module_result(module, made, call, "float64"), exact, bound, call, "float64") <= 1


HEADS = {LanguageModel: "AutoModelForCausalLM", Transformer: "AutoModelForSeq2SeqLM"}


def default_names(dialect: str, folder: Path, **options: Any) -> set[str]:
    """The names in a file of a default model of the family, of the sizes of the record's example."""
    import transformers
    from safetensors import safe_open

    record = DIALECTS[dialect]
    content = {name: value for name, value in CONTENT[dialect].items() if name not in ("torch_dtype", "architectures")}
    configuration = transformers.AutoConfig.for_model(
        next(iter(record.config.families)), **content | {"pad_token_id": 0, **options}
    )
    kind = getattr(transformers, HEADS.get(record.described.structure, "AutoModel"))
    kind.from_config(configuration).save_pretrained(folder)
    with safe_open(folder / "model.safetensors", "np") as file:
        names = set(file.keys())
    known, prefix = record.example_entries(), (*record.prefixes, "")[0]
    whole = {name if name in known else prefix + name for name in names}
    return {name for name in whole if not re.search(r"\.[1-9]\d*\.", name) or name in known}


@pytest.mark.parametrize("dialect", CONTENT)
def test_the_example_of_a_record_has_the_names_of_a_default_model(dialect: str, tmp_path: Path) -> None:
    """Its biases, among others, are those that the family has where no option says otherwise."""
    assert default_names(dialect, tmp_path) == set(DIALECTS[dialect].example_entries())


@pytest.mark.parametrize(
    ("dialect", "options"),
    [("llama", {"attention_bias": True}), ("llama", {"mlp_bias": True}), ("gpt_neox", {"attention_bias": False})],
)
def test_other_biases_than_those_of_a_default_model_show(
    dialect: str, options: dict[str, bool], tmp_path: Path
) -> None:
    different = default_names(dialect, tmp_path, **options) ^ set(DIALECTS[dialect].example_entries())
    assert different
    assert all(name.endswith("bias") for name in different)


@pytest.mark.slow
@pytest.mark.rule("TRF-1", "BLK-3")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MODELS)
def test_transformers(name: str, dtype: str, tmp_path: Path) -> None:
    """Its attention "eager" and "sdpa", and our three packages; JAX, which compiles every model, once for a dialect."""
    made = MODELS[name]
    module, folder = saved(made, dtype, tmp_path)
    call = call_of(made, dtype)
    exact, bound = bound_of(reference_numpy.load_pretrained(folder), call, dtype)
    assert ratio(module_result(module, made, call, dtype), exact, bound, call, dtype) <= 1
    if made.dialect not in ALONE:
        other = module_of(made, dtype, "sdpa")
        assert ratio(module_result(other, made, call, dtype), exact, bound, call, dtype) <= 1
    for implementation in IMPLEMENTATIONS:
        if implementation.package != "jax_impl" or name == FIRST[made.dialect]:
            assert ratio(own(implementation, folder, call), exact, bound, call, dtype) <= 1


# --- generation -------------------------------------------------------------------------------------------------------

GENERATING = [
    name for name, made in MODELS.items()
    if made.architecture.endswith(("ForCausalLM", "ForConditionalGeneration"))
]  # fmt: skip
BY_LENGTH = {"llama-each", "phi3-long"}
"""Their rotation depends on the length, and transformers keeps cached keys as an earlier length rotated them."""


def generated(
    module: torch.nn.Module, made: Pretrained, prompt: np.ndarray, source: np.ndarray | None, **options: Any
) -> Any:
    with arithmetic(str(next(module.parameters()).dtype).removeprefix("torch.")):
        given = {"inputs": torch.from_numpy(prompt if source is None else source)}
        if source is not None:
            given["decoder_input_ids"] = torch.from_numpy(prompt)
        module.generation_config.eos_token_id = None
        return module.generate(**given, max_new_tokens=20, do_sample=False, **options).numpy()


@pytest.mark.slow
@pytest.mark.rule("GEN-1")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", GENERATING)
def test_greedy_tokens(name: str, dtype: str, tmp_path: Path) -> None:
    """The same 20 tokens after a prompt, with caches of keys and values on both sides; JAX once for a dialect."""
    made, cached = MODELS[name], name not in BY_LENGTH
    module, folder = saved(made, dtype, tmp_path)
    generator = np.random.default_rng(2)
    prompt = generator.integers(3, 37, (2, 5))
    source = generator.integers(3, 37, (2, 6)) if made.dialect == "t5" else None
    prompt = prompt if source is None else prompt[:, :1] * 0  # transformers puts decoder_start_token_id before others
    expected = generated(module, made, prompt, source, use_cache=cached)
    given = {} if source is None else {"source": source}
    for implementation in IMPLEMENTATIONS:
        if implementation.package == "jax_impl" and name != FIRST[made.dialect]:
            continue
        framework = implementation.subject.framework
        with framework.context():
            model, arrays = implementation.load_pretrained(folder), implementation.convert(given)
            tokens = implementation.greedy(model, implementation.convert(prompt), 20, cached=cached, **arrays)
            assert np.array_equal(framework.numpy(tokens), expected), implementation.package


# --- gradients --------------------------------------------------------------------------------------------------------

DIFFERENTIATED = (
    "llama-grouped", "llama-mistral", "llama-wider", "modernbert-windows", "modernbert-biased", "t5-relu", "t5-gated",
    "t5-encoder", "gemma2-grouped", "qwen3-grouped", "gpt_neox-parallel", "olmo2-grouped", "vit-wide",
)  # fmt: skip


def theirs(
    module: torch.nn.Module, made: Pretrained, call: Call, cotangent: np.ndarray, dtype: str, folder: Path
) -> Any:
    """Gradients by autograd in our structure, read from the module's files with gradients in place of weights."""
    with torch.enable_grad(), arithmetic(dtype):
        module_result(module, made, call, dtype).backward(torch.from_numpy(cotangent))
    for parameter in module.parameters():
        parameter.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    module.save_pretrained(folder)
    return reference_numpy.load_pretrained(folder).parameters


def by_hand(functions: Any, model: Model, call: Call, cotangent: np.ndarray) -> Any:
    """Gradients by the definition's vector-Jacobian products."""
    parameters, inputs = model.parameters, call.inputs
    options: dict[str, Any] = {"configuration": model.configuration}
    masks = {name: KeyPadding(keep) for name, keep in call.options.items()}
    if isinstance(parameters, Transformer):
        source, target = masks["source_key_padding"], masks["target_key_padding"]
        options |= {"source_mask": source, "target_mask": target, "memory_mask": source}
        return functions.transformer_vjp(parameters, *inputs, cotangent, **options).parameters
    options["mask"] = masks.get("key_padding")
    if isinstance(parameters, LanguageModel):
        return functions.language_model_vjp(parameters, *inputs, cotangent, **options)
    return functions.encoder_vjp(parameters, *inputs, cotangent, **options).parameters


def with_ties(gradients: Any, tied: bool) -> dict[str, Any]:
    """The gradients of one array in the place of all: of tokens of both sides, and of an output that is their table."""
    found = leaves(gradients)
    tables = [name for name in found if name.endswith("embedding.tokens")]
    same = [found.pop(name) for name in tables[1:]] + ([found.pop(".output.weight").T] if tied else [])
    return found | ({tables[0]: sum(same, found[tables[0]])} if tables else {})


def one_of_each(gradients: Any, tied: bool) -> dict[str, Any]:
    """As `with_ties`, of gradients that autograd has added up already."""
    found = leaves(gradients)
    tables = [name for name in found if name.endswith("embedding.tokens")]
    left_out = {*tables[1:], *([".output.weight"] if tied else [])}
    return {name: array for name, array in found.items() if name not in left_out}


@pytest.mark.slow
@pytest.mark.rule("ATT-12")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradients_of_all_parameters(name: str, dtype: str, tmp_path: Path) -> None:
    """torch's autograd through transformers' model; a wrong norm in the definition shows."""
    made = MODELS[name]
    module, folder = saved(made, dtype, tmp_path / "weights")
    model, call = reference_numpy.load_pretrained(folder), call_of(made, dtype)
    shape = module_result(module, made, call, dtype).shape
    cotangent = np.random.default_rng(3).normal(size=shape) * call.real[..., None]
    got = theirs(module, made, call, cotangent.astype(dtype), dtype, tmp_path / "gradients")
    tied = isinstance(model.parameters, LanguageModel | Transformer) and module.config.tie_word_embeddings
    wide = replace(model, parameters=widen_parameters(model.parameters))
    call = call._replace(inputs=in_dtype(call.inputs, "float64"))
    cotangent = cotangent.astype(dtype).astype(np.float64)

    def worst(model: Model, samples: int = 32) -> float:
        def run(functions: Any) -> Any:
            return with_ties(by_hand(functions, model, call, cotangent), tied)

        exact, bounds = carried_bound(run, model.parameters, dtype, samples=samples)
        found = one_of_each(got, tied)
        assert found.keys() == exact.keys()
        tiny = np.finfo(dtype).tiny  # of a row of the token table that no token takes, nothing is off
        return max(float((np.abs(found[path] - exact[path]) / (bounds[path] + tiny)).max()) for path in exact)

    assert worst(wide) <= 1
    wrong = replace(wide.configuration, norm_eps=wide.configuration.norm_eps + (1e-7 if dtype == "float64" else 0.3))
    assert worst(replace(wide, configuration=wrong), 8) > 1


# --- faults -----------------------------------------------------------------------------------------------------------


def otherwise(model: Model, change: str) -> Model:
    """With one thing in the configuration as it is not."""
    configuration = model.configuration

    def layers(**changed: Any) -> dict[str, Any]:
        return {"attention_layers": tuple(replace(layer, **changed) for layer in configuration.attention_layers)}

    def rotaries(**changed: Any) -> dict[str, Any]:
        rotated = [replace(layer, rotary=replace(layer.rotary, **changed)) for layer in configuration.attention_layers]
        return {"attention_layers": tuple(rotated)}

    changes: dict[str, Callable[[], dict[str, Any]]] = {
        "base": lambda: rotaries(base=9e3),
        "scaling": lambda: rotaries(scaling=None),
        "window": lambda: layers(window=None),
        "no rotation": lambda: layers(rotary=None),
        "eps": lambda: {"norm_eps": configuration.norm_eps + 1e-7},
        "activation": lambda: {"activation": "gelu_tanh" if configuration.activation == "gelu" else "gelu"},
        "softcap": lambda: {"softcap": 49.0},
        "output softcap": lambda: {"output_softcap": 29.0},
        "scale": lambda: {"scale": 0.3},
        "norm": lambda: {"norm": "rms_norm"},
        "embedding": lambda: {"scaled_embedding": not configuration.scaled_embedding},
        "output": lambda: {"scaled_output": not configuration.scaled_output},
        "furthest": lambda: {"relative_furthest": 64},
        "order": lambda: {"norm_order": "pre"},
    }
    return replace(model, configuration=replace(configuration, **changes[change]()))


FAULTS = {
    "llama-grouped": ("base", "scaling", "eps", "activation", "no rotation", "scale"),
    "llama-mistral": ("window",),
    "gemma-grouped": ("norm", "embedding", "activation"),
    "gemma2-grouped": ("softcap", "output softcap", "scale", "window", "norm"),
    "gemma3-grouped": ("base", "scale", "window"),
    "gpt_neox-parallel": ("order", "no rotation", "eps"),
    "phi3-short": ("scaling",),
    "modernbert-windows": ("window", "base"),
    "t5-relu": ("output", "furthest", "scale"),
    "vit-wide": ("eps", "activation"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_what_a_file_says_shows(name: str, tmp_path: Path) -> None:
    """With one entry of config.json read otherwise, transformers is beyond the bound."""
    made = MODELS[name]
    module, folder = saved(made, "float64", tmp_path)
    call = call_of(made, "float64")
    got = module_result(module, made, call, "float64")
    for change in FAULTS[name]:
        wrong = otherwise(reference_numpy.load_pretrained(folder), change)
        exact, bound = bound_of(wrong, call, "float64", samples=8)
        assert ratio(got, exact, bound, call, "float64") > 1, change


def with_values_for_keys(variant: Variant) -> Variant:
    """Its table with the projections of keys and values exchanged; of latent attention, those of gated networks."""
    latent = any(".key_value_up." in path for row in variant.table for path in row.paths)
    one, two = ("gate", "inner") if latent else ("key", "value")
    other = {one: two, two: one}
    rows = []
    for row in variant.table:
        paths = [re.sub(rf"(?<=\.)({one}|{two})(?=[.\[])", lambda found: other[found[0]], path) for path in row.paths]
        rows.append(row._replace(ours=tuple(paths) if len(paths) > 1 else paths[0]))
    return replace(variant, table=tuple(rows))


@pytest.mark.slow
@pytest.mark.parametrize("dialect", FIRST)
def test_a_fault_in_a_table_shows(dialect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, record = MODELS[FIRST[dialect]], DIALECTS[dialect]
    module, folder = saved(made, "float64", tmp_path)
    call = call_of(made, "float64")
    monkeypatch.setitem(DIALECTS, dialect, replace(record, variants=tuple(map(with_values_for_keys, record.variants))))
    exact, bound = bound_of(reference_numpy.load_pretrained(folder), call, "float64", samples=8)
    assert ratio(module_result(module, made, call, "float64"), exact, bound, call, "float64") > 1


# --- folders ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", FIRST.values())
def test_shards_and_a_narrow_dtype(name: str, tmp_path: Path) -> None:
    """The same arrays out of many small files; and in bfloat16 those that transformers has."""
    module, _ = saved(MODELS[name], "float32", tmp_path / "one")
    module.save_pretrained(tmp_path / "many", max_shard_size="4KB")
    assert (tmp_path / "many" / "model.safetensors.index.json").is_file()
    one, many = (reference_numpy.load_pretrained(tmp_path / way) for way in ("one", "many"))
    assert one.configuration == many.configuration
    whole, shards = leaves(one.parameters), leaves(many.parameters)
    assert all(np.array_equal(shards[path], array) for path, array in whole.items())
    module.to(torch.bfloat16).save_pretrained(tmp_path / "narrow")
    narrow = leaves(reference_numpy.load_pretrained(tmp_path / "narrow", dtype="bfloat16").parameters)
    assert all(np.array_equal(narrow[path], array.astype(narrow[path].dtype)) for path, array in whole.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_EACH_CLASS.values())
def test_what_is_meant_where_a_file_says_nothing_else(name: str, tmp_path: Path) -> None:
    """The sizes alone, and all that the configuration class writes for them, mean the same."""
    import transformers

    made = MODELS[name]
    kind = getattr(transformers, made.architecture)
    names = ("size", "hidden", "num_", "head_dim", "d_", "_dim", "_type", "buckets")
    sizes = {key: value for key, value in made.options.items() if any(part in key for part in names)}
    module = kind(kind.config_class(**sizes))
    module.save_pretrained(tmp_path)
    whole = reference_numpy.load_pretrained(tmp_path).configuration
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    short = sizes | {key: content[key] for key in ("model_type", "architectures")}
    assert len(short) < len(content)
    path.write_text(json.dumps(short))
    assert reference_numpy.load_pretrained(tmp_path).configuration == whole


# --- other forms ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.rule("ATT-5")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("number", [0, 1])
def test_attention_of_gpt_oss(number: int, dtype: str) -> None:
    """Of a layer with a window and of one without, in the three packages; without sinks it is another."""
    from transformers import GptOssConfig, GptOssModel

    rope = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}
    configuration = GptOssConfig(
        vocab_size=37, hidden_size=24, intermediate_size=8, num_hidden_layers=2, num_attention_heads=4, head_dim=6,
        num_key_value_heads=2, num_local_experts=2, num_experts_per_tok=1, sliding_window=3, pad_token_id=0,
        rope_parameters=rope | {"truncate": False}, attn_implementation="eager",
    )  # fmt: skip
    x = np.random.default_rng(0).normal(size=(2, 9, 24)).astype(dtype)
    causal = np.tril(np.ones((9, 9), bool))
    with arithmetic(dtype):
        module = randomized(GptOssModel(configuration)).to(getattr(torch, dtype))
        attention, given = module.layers[number].self_attn, torch.from_numpy(x)
        seen = torch.from_numpy(causal if number else np.triu(causal, -2))
        mask = torch.where(seen, 0.0, torch.finfo(given.dtype).min).to(given.dtype)
        turns = module.rotary_emb(given, torch.arange(9)[None])
        got = attention(hidden_states=given, position_embeddings=turns, attention_mask=mask[None, None])[0]
    entries = {name: tensor.detach().numpy() for name, tensor in attention.state_dict().items()}
    scaling = YarnScaling(factor=4.0, original_length=16, truncate=False)
    hyperparameters = {"num_heads": 4, "key_heads": 2, "window": None if number else 3}
    hyperparameters["rotary"] = Rotary(base=500.0, scaling=scaling)
    model = reference_numpy.load("gpt_oss", entries, **hyperparameters)
    call = Call({}, (x,), {"mask": causal}, np.ones((2, 9), bool))
    exact, bound = bound_of(model, call, dtype)
    assert ratio(got.numpy(), exact, bound, call, dtype) <= 1
    for implementation in IMPLEMENTATIONS:
        result = result_of(
            implementation, implementation.load("gpt_oss", entries, **hyperparameters), (x,), mask=causal
        )
        assert ratio(result, exact, bound, call, dtype) <= 1
    without = replace(model, parameters=model.parameters._replace(sinks=None))
    exact, bound = bound_of(without, call, dtype)
    assert ratio(got.numpy(), exact, bound, call, dtype) > 1


LIKE_BERT = {"hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 3}
OLDER = {
    "Bert": LIKE_BERT | {"type_vocab_size": 2},
    "Roberta": LIKE_BERT | {"type_vocab_size": 1, "pad_token_id": 1},
    "DistilBert": {"n_heads": 3, "dim": 24, "hidden_dim": 20, "n_layers": 2},
    "GPT2": {"n_head": 3, "n_embd": 24, "n_inner": 20, "n_layer": 2, "n_positions": 20},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", OLDER)
@pytest.mark.parametrize("head", ["Model", ""])
def test_dialects_from_before(kind: str, head: str, tmp_path: Path) -> None:
    """Folders of BERT's kin and of GPT-2, with a head and without."""
    common = {"vocab_size": 37, "max_position_embeddings": 20, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}
    if kind == "GPT2":
        del common["max_position_embeddings"]
    name = kind + (head or {"GPT2": "LMHeadModel"}.get(kind, "ForMaskedLM"))
    made = Pretrained("bert", name, common | OLDER[kind])
    module, folder = saved(made, "float64", tmp_path)
    call = call_of(made, "float64")
    model = reference_numpy.load_pretrained(folder)
    whole = kind == "GPT2" or head == "Model"
    if not whole:
        module = getattr(module, module.base_model_prefix)
    assert isinstance(model.parameters, LanguageModel) == (kind == "GPT2" and head == "")
    exact, bound = bound_of(model, call, "float64")
    assert ratio(module_result(module, made, call, "float64"), exact, bound, call, "float64") <= 1

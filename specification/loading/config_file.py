"""The config.json of a checkpoint: what it means, and whether it contradicts what the checkpoint is read with."""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from specification.configuration import AttentionLayer, Configuration, is_count
from specification.loading.families import judgeable, of_model_type
from specification.loading.record import ConfigFile, Dialect
from specification.loading.table import any_of

NAME = "config.json"
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""The activations of `Configuration` by the names that they have there."""

QUANTISED = "quantization_config"
"""The key that says how weights are quantised; it stands where they are."""

WITH_OUTPUT = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Endings of the architectures that give logits; all others give hidden states."""

WITHOUT_EFFECT = frozenset(
    """
    _attn_implementation_autoset _commit_hash _name_or_path architectures auto_map dtype finetuning_task model_type
    name_or_path output_attentions output_hidden_states return_dict return_dict_in_generate torch_dtype torchscript
    transformers_version use_cache

    attention_dropout attention_probs_dropout_prob attn_pdrop classifier_dropout classifier_dropout_prob dropout
    dropout_rate embd_pdrop embedding_dropout hidden_dropout hidden_dropout_prob mlp_dropout qa_dropout resid_pdrop
    seq_classif_dropout summary_first_dropout

    chunk_size_feed_forward gradient_checkpointing initializer_cutoff_factor initializer_factor initializer_range
    pretraining_tp

    bos_token_id cls_token_id decoder_start_token_id eos_token_id forced_bos_token_id forced_eos_token_id pad_token_id
    sep_token_id tokenizer_class unk_token_id

    id2label label2id num_labels problem_type task_specific_params

    bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
    exponential_decay_length_penalty length_penalty max_length min_length no_repeat_ngram_size num_beam_groups num_beams
    num_return_sequences output_scores prefix remove_invalid_values repetition_penalty suppress_tokens temperature top_k
    top_p typical_p
    """.split()  # noqa: SIM905
)
"""Keys that change no number of a model in evaluation: names, dropout, initial weights, ids of tokens, generation.

`auto_map` names code beside the file, which Hugging Face runs in place of its own only where it is told to trust it.
"""


def config_beside(dialect: Dialect, checkpoint: Path, known: Iterable[Dialect]) -> dict[str, Any] | None:
    """Read the config.json beside a checkpoint; None if there is none, or none that says anything of such a model.

    `known` are all dialects. ValueError for a file that is no JSON, and for a model that the dialect does not read.
    """
    path = checkpoint.parent / NAME
    if dialect.config is None or not path.is_file():
        return None
    told = json_of(path)
    if not isinstance(told, dict) or not isinstance(told.get("model_type"), str):
        return None
    if told["model_type"] not in dialect.config.families:
        raise ValueError(f"{path} says otherwise: {other_model(told['model_type'], dialect.config, known)}")
    return told


def json_of(path: Path) -> Any:
    """Read a JSON file; ValueError for one that is none."""
    try:
        return json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from error


def other_model(model_type: str, config: ConfigFile, known: Iterable[Dialect]) -> str:
    """Say what a model is that a dialect does not read, and which of the known ones does."""
    family = of_model_type(str(model_type))
    if family:
        return f"model_type is {model_type!r}, of {judgeable(family)}"
    reading = dialect_of(model_type, known)
    by = f"; dialect {reading.name!r} reads it" if reading is not None else ""
    return f"model_type is {model_type!r}, and this dialect reads {', '.join(map(repr, config.families))}{by}"


def dialect_of(model_type: str, known: Iterable[Dialect]) -> Dialect | None:
    """Find the dialect that reads a model."""
    return next((one for one in known if one.config is not None and model_type in one.config.families), None)


# --- what a file means ------------------------------------------------------------------------------------------------


def with_defaults(config: ConfigFile, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's content with what is meant where it does not say."""
    return {**config.defaults.get(told["model_type"], {}), **told}


class Meant(NamedTuple):
    """What a config.json means: hyperparameters by name; keys that are missing; and what is not supported."""

    hyperparameters: dict[str, Any]
    missing: list[str]
    problems: list[str]


def meant_by(dialect: Dialect, told: Mapping[str, Any]) -> Meant:
    """Read the hyperparameters that a config.json determines.

    A key is missing where it has no default and a hyperparameter needs it.
    """
    config = dialect.config
    if config is None:
        return Meant({}, [], [])
    family = config.families[told["model_type"]]
    found = Meant({name: value for name, value in family.items() if name in dialect.hyperparameters}, [], [])
    content, needed = with_defaults(config, told), dialect.hyperparameters
    for name, key in config.keys.items():
        try:
            value = content[key] if isinstance(key, str) else key.value(content)
        except KeyError as error:
            if not isinstance(key, str) or needed[name] is inspect.Parameter.empty:
                found.missing.append(error.args[0])
            continue
        except ValueError as error:
            found.problems.append(str(error))
            continue
        except (TypeError, AttributeError, ArithmeticError):
            said = (f"{one} is {told[one]!r}" for one in config.read_by(name) if one in told)
            found.problems.append(f"{name} cannot be read from {', '.join(said)}")
            continue
        if name == "activation" and not (isinstance(value, str) and value in ACTIVATIONS):
            key, listed = config.read_by(name)[0], ", ".join(ACTIVATIONS)
            found.problems.append(
                f"{key} is {told.get(key, value)!r}, which is not supported; supported activations are {listed}"
            )
        elif value is not None or isinstance(key, str) or needed[name] is None:  # None is a value, or says nothing
            found.hyperparameters[name] = ACTIVATIONS[value] if name == "activation" else value
    return found


def unsupported(config: ConfigFile, told: Mapping[str, Any]) -> list[str]:
    """Collect the entries of a config.json that are not known, or have a value that is not supported.

    An entry that is not known may be None, False or empty. None in place of the only value that is supported says False
    where that is True, and otherwise nothing.
    """
    found = []
    known = config.known(told["model_type"])
    for key, value in told.items():
        if key == QUANTISED and not is_empty(value):
            found.append("quantised weights are not supported: save the model without quantisation")
            continue
        fixed = config.fixed.get(key, value)
        if value != fixed and (value is not None or fixed is True):
            found.append(f"{key} is {value!r}, of which only {fixed!r} is supported")
        if key not in known and key not in WITHOUT_EFFECT and not is_empty(value):
            found.append(f"{key} is {value!r}, which is not known and might change numbers")
    return found


def is_empty(value: object) -> bool:
    """Tell whether a value says that there is nothing."""
    return value is None or value is False or (isinstance(value, str | list | dict) and not value)


def sizes_of(config: ConfigFile, told: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return, by the name of a size in the table, the key and the value that a config.json gives it."""
    said = {key: key if told.get(key) is not None else config.instead.get(key, key) for key in config.sizes}
    found = {
        size: (said[key], told[said[key]]) for key, size in config.sizes.items() if told.get(said[key]) is not None
    }
    for size, (keys, value) in config.computed_sizes.items():
        if size not in found and all(is_count(told.get(key)) for key in keys):
            found[size] = f"what follows from {' and '.join(keys)}", value(told)
    return found


def routed_layers(config: ConfigFile, content: Mapping[str, Any]) -> list[bool]:
    """Tell of every layer whether it has experts, by a file's content with defaults; empty where all are alike.

    ValueError for entries that do not say it.
    """
    if config.routed is None:
        return []
    try:
        return list(config.routed.value(content))
    except (TypeError, ArithmeticError, KeyError) as error:
        said = " and ".join(f"{key} is {content.get(key)!r}" for key in config.routed.keys)
        raise ValueError(f"which layers have experts cannot be read: {said}") from error


def has_output(told: Mapping[str, Any]) -> bool:
    """Tell whether a model gives logits, where it may: a file that names no architecture has an output layer."""
    named = told.get("architectures") or "ForCausalLM"
    named = [named] if isinstance(named, str) else named
    return any(str(name).endswith(WITH_OUTPUT) for name in named)


def of_entries(config: ConfigFile, told: Mapping[str, Any], entries: Collection[str]) -> list[str]:
    """Compare what a config.json says of a checkpoint's entries with those that are there, a sentence each."""
    content, found = with_defaults(config, told), []
    for key, name in config.entries.items():
        if key in content and bool(content[key]) != any_of((name, f"*.{name}"), entries):
            has = "there are no such entries" if content[key] else "there are such entries"
            found.append(f"by config.json {key} is {content[key]!r}, and {has}: {name}")
    try:
        layers = routed_layers(config, content)
    except ValueError as error:
        layers, found = [], [str(error)]
    for i, routed in enumerate(layers):
        if routed != any_of((f"*layers.{i}.mlp.gate.weight",), entries):
            there = "has no router" if routed else "has a router"
            found.append(f"by config.json layer {i} has {'' if routed else 'no '}experts, and it {there}")
    tied = config.tied
    untied = tied is not None and content.get(tied.key) is False and has_output(told)
    if tied is not None and untied and not any_of((tied.output,), entries):
        found.append(f"by config.json {tied.key} is False, and {tied.output} is missing")
    return found


# --- whether it contradicts -------------------------------------------------------------------------------------------


def contradictions(
    dialect: Dialect, told: Mapping[str, Any], given: Mapping[str, Any], configuration: Configuration
) -> list[str]:
    """Compare a config.json with what a checkpoint was read with: what each contradiction says, and what is so."""
    config = dialect.config
    if config is None:
        return []
    meant, _, found = meant_by(dialect, told)
    for name in config.keys:
        keys = [key for key in config.read_by(name) if key in told]
        if name not in meant or collapsed(given[name]) == collapsed(meant[name]) or not keys:
            continue
        said = " and ".join(f"{key} is {told[key]!r}" for key in keys)
        here = "" if len(keys) == 1 and told[keys[0]] == meant[name] else f", which is {meant[name]!r} here"
        found.append(f"{said}{here}, and {name} is {given[name]!r}")
    family = told["model_type"]
    for name, value in config.families[family].items():
        if getattr(configuration, name) != value:
            found.append(f"a {family} has {name}={value!r}, and it is read with {getattr(configuration, name)!r}")
    return [*found, *unsupported(config, told)]


def collapsed(value: object) -> Any:
    """Return attention layers as `layers_of` does, one where all are alike, and any other value as it is."""
    if not isinstance(value, list | tuple):
        return value
    every = tuple(value) or (AttentionLayer(),)
    return every[:1] if all(one == every[0] for one in every) else every

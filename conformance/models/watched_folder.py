"""A folder of Hugging Face's, as the model and the tokenizer that `transformers` makes of it.

Whatever is wrong with the folder is told in one line, by a ValueError that names the file and the entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conformance.models.named_attention import implementation
from specification.loading.config_file import NAME, json_of

TOKENIZER = "tokenizer.json"
INSTEAD = "give token ids by --tokens, such as --tokens 5,7,2"
LONGEST = 300
"""Characters of what the library says."""


def load_model(folder: Path, attention: str | None, dtype: str) -> tuple[Any, list[str]]:
    """Load the model that a folder's `config.json` names, in evaluation; nothing is downloaded.

    Args:
        folder: as `save_pretrained` writes it.
        attention: the implementation, or the function that computes it, as `implementation` takes it; None for the
            one that `transformers` chooses. "reference" is this project's.
        dtype: a name, or "auto" for that of the folder.

    Returns:
        The model, and the names of its entries that the folder lacks: these weights are random.

    Raises:
        ImportError: `transformers` is older than 5.
        ValueError: It cannot be loaded, or reads no tokens.
    """
    path = folder / NAME
    if not folder.exists():
        raise ValueError(f"{folder} is not there")
    if not path.is_file():
        raise ValueError(f"{folder} is no folder of a model: it has no {NAME}")
    if not isinstance(json_of(path), dict):
        raise ValueError(f"{path} must hold an object")
    import transformers

    from torch_impl.huggingface import register

    register()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    given = {} if attention is None else {"attn_implementation": implementation(attention)}
    try:
        configuration = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the library's own, whatever they are
        raise ValueError(f"{path}: {error_line(error)}") from error
    kind: Any = None
    if names := configuration.architectures:
        kind = getattr(transformers, str(names[0]), None)
        if not hasattr(kind, "main_input_name"):
            raise ValueError(f"{path}: transformers {transformers.__version__} has no model {names[0]}")
    elif type(configuration) in (kinds := transformers.AutoModel._model_mapping):
        kind = kinds[type(configuration)]
    else:
        raise ValueError(f"{path} names no model: it has no architectures")
    if kind.main_input_name != "input_ids":
        raise ValueError(f"{kind.__name__} reads {kind.main_input_name}: only models that read tokens can be watched")
    try:
        model, found = kind.from_pretrained(
            folder, dtype=dtype, local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True, **given
        )
    except Exception as error:
        raise ValueError(broken_file(folder) or f"{folder} cannot be loaded: {error_line(error)}") from error
    others = sorted((name, list(got), list(expected)) for name, got, expected in found["mismatched_keys"])
    if others:
        (name, got, expected), more = others[0], len(others) - 1
        told = f"{folder}: {name} has shape {got}, and {NAME} says {expected}"
        raise ValueError(told + (f", and {more} more do not fit" if more else ""))
    return model.eval(), sorted(found["missing_keys"])


def broken_file(folder: Path) -> str:
    """Name a file of weights that cannot be read, and why; empty where all can."""
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="numpy"):
                pass
        except Exception as error:
            return f"{path} cannot be read as a safetensors file: {error}"
    for path in sorted(folder.glob("*.index.json")):
        try:
            files = {folder / str(name) for name in json_of(path)["weight_map"].values()}
        except ValueError as error:
            return str(error)
        except Exception:
            return f"{path} has no weight_map of file names"
        missing = sorted(str(file) for file in files if not file.is_file())
        if missing:
            return f"{missing[0]} is not there, and {path.name} names it"
    return ""


def read_texts(folder: Path, texts: str | Sequence[str]) -> dict[str, Any]:
    """Return the model's inputs by the folder's tokenizer; several texts are padded to one length.

    Raises:
        ValueError: The folder has none that can be loaded.
    """
    import transformers

    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the library's own, whatever they are
        why = f"{folder} has no tokenizer that can be loaded: {error_line(error)}"
        found = sorted(folder.glob("*token*.json"))
        try:
            for path in found:
                json_of(path)
        except ValueError as broken:
            why = str(broken)
        why = why if found else f"{folder / TOKENIZER} is not there"
        raise ValueError(f"{why}; {INSTEAD}") from error
    files = getattr(tokenizer, "vocab_files_names", None) or {}  # tokenizers of bytes have none
    if files and not any((folder / name).is_file() for name in {TOKENIZER, *files.values()}):
        # The library has made a tokenizer of nothing, with an empty vocabulary.
        raise ValueError(f"{folder / TOKENIZER} is not there; {INSTEAD}")
    several = [texts] if isinstance(texts, str) else list(texts)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return dict(tokenizer(several, padding=len(several) > 1, return_tensors="pt"))


def error_line(error: BaseException) -> str:
    """What an error of several lines says, and its kind where that is no general one."""
    words = " ".join(str(error).split())
    told = words if len(words) <= LONGEST else f"{words[:LONGEST]}..."
    return told if type(error) in (ValueError, OSError, RuntimeError) else f"{type(error).__name__}: {told}"

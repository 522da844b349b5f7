"""`conformance watch`: judge every attention call of a Hugging Face model on the model's own inputs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from conformance.cases.declaration import read_conventions
from conformance.checks.levels import DEFAULT, LEVELS
from conformance.cli.console import console, explain_error, refuse, save_steps
from conformance.cli.options import Conventions, Json, Profile, complete_names

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from conformance.judge.watched import JudgedCall
    from conformance.subjects.attention_calls import AttentionCall

ATTENTION = (
    "transformers' name of an attention implementation, or a function of yours, as path/to/file.py:function; "
    "reference is torch_impl's; by default the model's own"
)

TOKENS = "token ids instead of a text, such as 3,1,4; may be repeated for a batch, padded on the right"
BACKWARD = "judge the gradients of query, key and value too, not of sinks and biases, by the model's own loss"
DEVICE = "cpu, cuda, or a GPU by its number, such as cuda:1"
DTYPES = ("auto", "bfloat16", "float16", "float32", "float64")


def one_of(what: str, *names: str) -> Any:
    """Return an option whose value a shell completes by these names."""
    return typer.Option(help=what, autocompletion=complete_names(lambda: names))


def watch(
    folder: Annotated[Path, typer.Argument(help="a model's folder, as save_pretrained writes it")],
    texts: Annotated[list[str] | None, typer.Argument(help="what the model reads; several texts are padded")] = None,
    tokens: Annotated[list[str] | None, typer.Option(help=TOKENS)] = None,
    attention: Annotated[str | None, one_of(ATTENTION, "eager", "sdpa", "flex_attention", "reference")] = None,
    dtype: Annotated[str, one_of("of the model; auto is the folder's", *DTYPES)] = "auto",
    device: Annotated[str, one_of(DEVICE, "cpu", "cuda")] = "cpu",
    backward: Annotated[bool, typer.Option("--backward", help=BACKWARD)] = False,
    conventions: Conventions = None,
    profile: Profile = DEFAULT,
    json: Json = None,
) -> None:
    """Run a Hugging Face model once, and judge every call of its attention on the model's own inputs.

    The judge compares each result with the definition's, by the error bound of `conformance check`. It takes the mask
    as the model gave it: whether that is the right mask, it does not judge. The table names it.

    Exit code 0: all calls conform. 1: one violates a rule that the profile asks for. 2: wrong usage, or calls that
    cannot be judged in full.
    """
    from conformance.judge.watched import judge_calls
    from conformance.models import watched_folder, watching
    from conformance.reports.watched import watch_content
    from specification.loading.reader import first_few

    if profile not in LEVELS or dtype not in DTYPES:
        wrong, names = ("profile", LEVELS) if profile not in LEVELS else ("dtype", DTYPES)
        refuse(f"{wrong} must be one of {', '.join(names)}")
    if bool(texts) == bool(tokens):
        refuse("give a text, or --tokens")
    if importlib.util.find_spec("transformers") is None:
        refuse("transformers is not installed: pip install 'transformers>=5' torch")
    try:
        departures = read_conventions(conventions or [])
        watching.refuse_absent(device)
        model, lacking = watched_folder.load_model(folder, attention, dtype)
        if lacking:
            told = f"{folder} lacks entries, and their weights are random: {', '.join(first_few(lacking))}"
            console.print(Text(told, style="yellow"), soft_wrap=True)
        if tokens:
            try:
                sequences = [[int(word) for word in row.split(",")] for row in tokens]
            except ValueError as error:
                raise ValueError(f"token ids are numbers with commas between them, got {tokens}") from error
            inputs = watching.read_tokens(sequences)
        else:
            inputs = watched_folder.read_texts(folder, texts or [])
            tell_tokens(inputs)
        watching.refuse_unknown(model, inputs)
        inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
        calls = judge_calls(record_calls(model.to(device), inputs, backward, attention), departures)
    except Exception as error:  # the library's own, whatever they are
        refuse(explain_error(error))
    name = attention or model.config._attn_implementation
    dtypes = ", ".join(dict.fromkeys(call.case.dtype for call in calls if call.case is not None)) or dtype
    where = "" if device == "cpu" else f" on {device}"
    title = f"{type(model).__name__}, attention {name}, {dtypes}{where}: {len(calls)} calls"
    tell(calls, title + (", outputs and gradients" if backward else ""), profile)
    if json is not None:
        more: dict[str, Any] = {"folder": str(folder), "model": type(model).__name__, "attention": name}
        more |= {"texts": texts or [], "tokens": tokens or [], "device": device}
        more |= {"backward": backward, "conventions": departures}
        save_steps(json, watch_content(calls, profile, **more))
    judged = calls and all(call.is_judged for call in calls)
    conforms = all(call.conforms(profile) for call in calls)
    raise typer.Exit(1 if not conforms else 0 if judged else 2)


def record_calls(
    model: PreTrainedModel, inputs: dict[str, Any], backward: bool, attention: str | None = None
) -> list[AttentionCall]:
    """Watch the model; ValueError says in one line why it cannot be run on these tokens, and where."""
    from conformance.models.watching import watch
    from conformance.reports.content import OF_ARRAYS
    from conformance.subjects.wrong_answers import find_raising_line

    try:
        return watch(model, inputs, backward=backward)
    except Exception as error:
        length, line = inputs["input_ids"].shape[1], find_raising_line(error, None)
        most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        told = f"{type(model).__name__} cannot be run on {length} tokens: {explain_error(error)}"
        where = [f"raised at {line}"] if line else []
        where += [f"in {layer}" for layer in getattr(error, "__notes__", ())[:1]]
        told += f" ({', '.join(where)})" if where else ""
        of_arrays = attention and ":" in attention and OF_ARRAYS.search(str(error))
        told += "; the function gets PyTorch tensors" if of_arrays else ""
        told += f"; max_position_embeddings in config.json is {most}" if most is not None and length > most else ""
        raise ValueError(told) from error


def tell_tokens(inputs: dict[str, Any]) -> None:
    """Print what a tokenizer made of each text, without padding."""
    from specification.loading.reader import first_few

    ids = inputs["input_ids"]
    for row, kept in zip(ids, inputs.get("attention_mask", ids == ids), strict=True):
        read = list(map(str, row[kept.bool()].tolist()))
        console.print(Text(f"{len(read)} tokens: {', '.join(first_few(read))}"))


def tell(calls: list[JudgedCall], title: str, profile: str) -> None:
    """Print a row for every call, a block for every kind of violation, and the verdict."""
    from conformance.reports.narrow import fitting
    from conformance.reports.watched import blocks, calls_table

    console.print(Text(title), soft_wrap=True)
    if not calls:
        console.print(Text("the model has called no attention by transformers' attention interface", style="bold red"))
        return
    console.print(fitting(calls_table(calls, profile), console))
    for block in blocks(calls):
        console.print(Text(f"\n{block}"), soft_wrap=True)
    broken = [call.layer for call in calls if not call.conforms(profile)]
    unjudged = [call.layer for call in calls if not call.is_judged]
    if broken:
        verdict = f"{len(broken)} of {len(calls)} calls do not conform (profile {profile}), first {broken[0]}"
    elif unjudged:
        verdict = f"{len(unjudged)} of {len(calls)} calls could not be judged in full"
    else:
        stricter = sum(call.violation is not None for call in calls)
        more = f"; at a stricter profile {stricter} would not" if stricter else ""
        verdict = f"all calls conform (profile {profile}){more}"
    console.print(Text(verdict, style="bold red" if broken or unjudged else "bold green"))

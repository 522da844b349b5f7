"""A mask that a caller gives beside what a model knows by itself: padding, and what is causal. Both have to hold.

Every case is held to the definition under one boolean array, which is put together here, with a configuration that
knows of no padding and leaves the causal mask to its caller; and whole stacks are held to those of torch.nn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from specification import Configuration, Embedding
from specification.dialects import read
from tests.models.test_dialects import filled, state
from tests.support.helpers import IMPLEMENTATIONS, Implementation
from tests.support.small_models import (
    VOCABULARY,
    E,
    H,
    Maker,
    assert_within,
    exact_and_bound,
    model_of,
    module_name,
    plant,
    result_of,
)

KNOWING = Configuration(
    H, positions="learned", source_padding=0, target_padding=0, target_mask="causal and real keys", norm_eps=1e-3
)
UNKNOWING = {"source_padding": None, "target_padding": None, "target_mask": "none"}
SOURCE = np.array([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 0, 0, 0, 0], [0, 2, 0, 7, 1, 0, 3]])
TARGET = np.array([[2, 7, 1, 8, 2], [8, 1, 0, 0, 0], [1, 0, 4, 0, 6]])
S, T = SOURCE.shape[1], TARGET.shape[1]
EARLIER = np.tril(np.ones((T, T), bool))


def pairs(seed: int, queries: int, keys: int) -> np.ndarray:
    """Who may attend to whom, each element of the batch on its own."""
    return np.random.default_rng(seed).random((len(SOURCE), 1, queries, keys)) < 0.6


def keys(tokens: np.ndarray) -> np.ndarray:
    return (tokens != 0)[:, None, None, :]


def queries(tokens: np.ndarray) -> np.ndarray:
    return (tokens != 0)[:, None, :, None]


UP, DOWN, ACROSS = pairs(1, S, S), pairs(2, T, T), pairs(3, T, S)


class Beside(NamedTuple):
    """A model, called with masks beside what it knows, and the whole of each mask where it knows nothing.

    inputs: what it is called with; the others are called with the first `plain` of them.
    """

    parameters: Any
    inputs: tuple[np.ndarray, ...]
    configuration: Configuration
    given: dict[str, np.ndarray]
    whole: dict[str, np.ndarray]
    plain: int


def without_embedding(stack: Any) -> Any:
    return stack._replace(embedding=None)


def embedded(length: int) -> np.ndarray:
    return np.random.default_rng(length).normal(size=(len(SOURCE), length, E)).astype("float32")


def language_model(target_mask: str, known: np.ndarray) -> Beside:
    configuration = replace(KNOWING, target_mask=target_mask)
    made = Maker(dtype="float32").language_model(1)
    return Beside(made, (TARGET,), configuration, {"mask": DOWN}, {"mask": DOWN & known}, 1)


def classifier() -> Beside:
    made, masks = Maker(dtype="float32").classifier(1), {"mask": UP & keys(SOURCE)}
    return Beside(made, (SOURCE,), KNOWING, {"mask": UP}, masks, 1)


def encoder_of_tokens() -> Beside:
    """What the configuration knows, what is told as an array, and a mask."""
    real = np.random.default_rng(4).random(SOURCE.shape) < 0.7
    whole = {"mask": UP & keys(SOURCE) & real[:, None, None, :]}
    return Beside(Maker(dtype="float32").encoder(1), (SOURCE, real), KNOWING, {"mask": UP}, whole, 1)


def encoder_of_embedded() -> Beside:
    made, whole = without_embedding(Maker(dtype="float32").encoder(1)), {"mask": UP & keys(SOURCE)}
    return Beside(made, (embedded(S), SOURCE != 0), KNOWING, {"mask": UP}, whole, 1)


def decoder_of_embedded() -> Beside:
    made = without_embedding(Maker(dtype="float32").decoder(1, cross=True))
    given = {"mask": DOWN, "memory_mask": ACROSS}
    return Beside(made, (embedded(T), embedded(S)), KNOWING, given, given | {"mask": DOWN & EARLIER}, 2)


def transformer() -> Beside:
    given = {"source_mask": UP, "target_mask": DOWN, "memory_mask": ACROSS}
    whole = {
        "source_mask": UP & keys(SOURCE),
        "target_mask": DOWN & EARLIER & keys(TARGET),
        "memory_mask": ACROSS & keys(SOURCE),
    }
    return Beside(Maker(dtype="float32").transformer(1), (SOURCE, TARGET), KNOWING, given, whole, 2)


def language_model_with_padding() -> Beside:
    """Padding as an array, beside a mask and what is causal."""
    made = Maker(dtype="float32").language_model(1)
    configuration = replace(KNOWING, target_mask="causal", target_padding=None)
    whole = {"mask": DOWN & EARLIER & keys(TARGET)}
    return Beside(made, (TARGET, TARGET != 0), configuration, {"mask": DOWN}, whole, 1)


def decoder_with_padding() -> Beside:
    found = decoder_of_embedded()
    mask = DOWN & EARLIER & keys(TARGET)
    return found._replace(given=found.given | {"key_padding": TARGET != 0}, whole=found.whole | {"mask": mask})


def transformer_with_padding() -> Beside:
    """Of source and target; the source's is that of the memory too."""
    found = transformer()
    given = found.given | {"source_key_padding": SOURCE != 0, "target_key_padding": TARGET != 0}
    configuration = replace(KNOWING, source_padding=None, target_padding=None, target_mask="causal")
    return found._replace(given=given, configuration=configuration)


CASES: dict[str, Callable[[], Beside]] = {
    "encoder of tokens": encoder_of_tokens,
    "encoder of embedded": encoder_of_embedded,
    "classifier": classifier,
    "decoder of embedded": decoder_of_embedded,
    "language model": lambda: language_model("causal", EARLIER),
    "language model, real keys": lambda: language_model("causal and real keys", EARLIER & keys(TARGET)),
    "language model, real queries": lambda: language_model("causal and real queries", EARLIER & queries(TARGET)),
    "transformer": transformer,
    "language model, padding as an array": language_model_with_padding,
    "decoder, padding as an array": decoder_with_padding,
    "transformer, padding as an array": transformer_with_padding,
}


def exactly(case: Beside, masks: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The definition in float64 under these masks alone, and the bound for float32."""
    configuration = replace(case.configuration, **UNKNOWING)
    return exact_and_bound(case.parameters, configuration, case.inputs[: case.plain], **masks)


def answer(implementation: Implementation, case: Beside) -> np.ndarray:
    model = model_of(implementation, case.parameters, case.configuration)
    return result_of(implementation, model, case.inputs, **case.given)


def assert_right(case: Beside, *others: torch.Tensor) -> None:
    """The results of all packages, and others, are those under the whole masks."""
    exact, bound = exactly(case, case.whole)
    for got in (*(other.detach().numpy() for other in others), *(answer(one, case) for one in IMPLEMENTATIONS)):
        assert_within(got, exact, bound)


@pytest.mark.rule("TRF-1", "MASK-6")
@pytest.mark.parametrize("name", CASES)
def test_a_mask_holds_beside_what_is_known(name: str) -> None:
    assert_right(CASES[name]())


@pytest.mark.parametrize("name", CASES)
def test_each_of_two_masks_matters(name: str) -> None:
    """Under what was given alone, or under what is known alone, the results are other ones."""
    case = CASES[name]()
    exact, bound = exactly(case, case.whole)
    for site in case.whole:
        mask = case.given[site]
        alone = [mask] if (mask != case.whole[site]).any() else []
        for other in (*alone, case.whole[site] | ~mask):
            result, _ = exactly(case, case.whole | {site: other})
            assert (np.abs(result - exact) > bound).any(), (site, name)


# --- torch.nn ---------------------------------------------------------------------------------------------------------


def forbidden(allowed: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(~allowed)


SHARED = {name: mask[0, 0] | np.eye(*mask.shape[2:], dtype=bool) for name, mask in
          (("up", UP), ("down", DOWN), ("across", ACROSS))}  # fmt: skip
"""One mask for all sequences, as torch.nn takes it, and in which everybody may attend to somebody."""
FIRST = {name: ids.copy() for name, ids in (("source", SOURCE), ("target", TARGET))}
for ids in FIRST.values():
    ids[:, 0] = 5
SHARED["across"][:, 0] = SHARED["up"][:, 0] = SHARED["down"][:, 0] = True


def tables(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(VOCABULARY, E)).astype("float32")


@pytest.mark.rule("TRF-1")
@pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("norm_first", [False, True])
def test_masks_beside_padding_as_in_torch(norm_first: bool) -> None:
    """Tokens of which padding is known, and embeddings with padding as an array, beside three masks."""
    module = filled(torch.nn.Transformer(E, H, 2, 2, 24, batch_first=True, norm_first=norm_first))
    parameters, configuration = read("pytorch", state(module), num_heads=H, norm_first=norm_first)
    source, target = FIRST["source"], FIRST["target"]
    up, down = tables(0), tables(1)
    padded = torch.from_numpy(source == 0)
    with torch.enable_grad():
        got = module(
            torch.from_numpy(up[source]), torch.from_numpy(down[target]),
            src_mask=forbidden(SHARED["up"]), src_key_padding_mask=padded,
            tgt_mask=forbidden(SHARED["down"] & EARLIER), tgt_key_padding_mask=torch.from_numpy(target == 0),
            memory_mask=forbidden(SHARED["across"]), memory_key_padding_mask=padded,
        )  # fmt: skip
    encoder = parameters.encoder._replace(embedding=Embedding(up))
    decoder = parameters.decoder._replace(embedding=Embedding(down))
    known = {"source_padding": 0, "target_padding": 0, "target_mask": "causal and real keys"}
    masks = {"source_mask": SHARED["up"], "target_mask": SHARED["down"], "memory_mask": SHARED["across"]}
    whole = {
        "source_mask": SHARED["up"] & keys(source),
        "target_mask": SHARED["down"] & EARLIER & keys(target),
        "memory_mask": SHARED["across"] & keys(source),
    }
    case = Beside(
        parameters._replace(encoder=encoder, decoder=decoder), (source, target), replace(configuration, **known),
        masks, whole, 2,
    )  # fmt: skip
    assert_right(case, got)


def test_an_encoder_of_torch_with_a_mask_beside_padding() -> None:
    module = filled(torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(E, H, 24, batch_first=True), 2))
    x, real = embedded(S), FIRST["source"] != 0
    got = module(torch.from_numpy(x), mask=forbidden(SHARED["up"]), src_key_padding_mask=forbidden(real))
    parameters, configuration = read("pytorch", state(module), num_heads=H)
    whole = {"mask": SHARED["up"] & real[:, None, None, :]}
    case = Beside(parameters, (x, real), configuration, {"mask": SHARED["up"]}, whole, 1)
    assert_right(case, got)


def test_a_decoder_of_torch_with_a_mask_beside_causal() -> None:
    layer = torch.nn.TransformerDecoderLayer(E, H, 24, batch_first=True)
    module = filled(torch.nn.TransformerDecoder(layer, 2))
    x, memory = embedded(T), embedded(S)
    later = forbidden(SHARED["down"] & EARLIER)
    across = {"memory_mask": forbidden(SHARED["across"])}
    got = module(torch.from_numpy(x), torch.from_numpy(memory), tgt_mask=later, **across)
    parameters, configuration = read("pytorch", state(module), num_heads=H)
    given = {"mask": SHARED["down"], "memory_mask": SHARED["across"]}
    whole = given | {"mask": SHARED["down"] & EARLIER}
    case = Beside(parameters, (x, memory), replace(configuration, target_mask="causal"), given, whole, 2)
    assert_right(case, got)


# --- planted faults ---------------------------------------------------------------------------------------------------

BOTH = {
    "padding as an array": (
        "specification.calls", "mask = both(mask, kept_keys(key_padding))",
        "mask = mask", "mask = kept_keys(key_padding)", "encoder of embedded",
    ),
    "padding as an array, language model": (
        "specification.calls", "tokens, mask=both(mask, kept_keys(key_padding))",
        "tokens, mask=mask", "tokens, mask=kept_keys(key_padding)", "language model, padding as an array",
    ),
    "padding as an array, decoder": (
        "specification.calls", "memory, mask=both(mask, kept_keys(key_padding))",
        "memory, mask=mask", "memory, mask=kept_keys(key_padding)", "decoder, padding as an array",
    ),
    "padding as an array, source": (
        "specification.calls", "both(source_mask, source_padding)",
        "source_mask", "source_padding", "transformer, padding as an array",
    ),
    "padding as an array, target": (
        "specification.calls", "both(target_mask, kept_keys(target_key_padding))",
        "target_mask", "kept_keys(target_key_padding)", "transformer, padding as an array",
    ),
    "padding as an array, memory": (
        "specification.calls", "both(memory_mask, source_padding)",
        "memory_mask", "source_padding", "transformer, padding as an array",
    ),
    "padding of the source": (
        "transformer", "both(mask, padding_mask(x, configuration.source_padding))",
        "mask", "padding_mask(x, configuration.source_padding)", "classifier",
    ),
    "padding of the memory": (
        "transformer", "both(memory_mask, padding_mask(source, configuration.source_padding))",
        "memory_mask", "padding_mask(source, configuration.source_padding)", "transformer",
    ),
    "what is known of the target": (
        "transformer", "both(mask, target_mask(x, configuration))",
        "mask", "target_mask(x, configuration)", "language model, real keys",
    ),
    "causal": ("transformer", "both(mask, Causal())", "mask", "Causal()", "decoder of embedded"),
}  # fmt: skip
"""Where two masks meet: the file, how both are taken, what it would be to take one of them, and the case that shows."""
ONE_LOST = [(name, lost) for name in BOTH for lost in (0, 1)]


@pytest.mark.rule("TRF-1")
@pytest.mark.parametrize(("name", "lost"), ONE_LOST)
@pytest.mark.slow_where("as an array, ")
def test_a_mask_that_is_lost_is_found(
    name: str, lost: int, implementation: Implementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, together, *alone, case_name = BOTH[name]
    case = CASES[case_name]()
    exact, bound = exactly(case, case.whole)
    with monkeypatch.context() as patch:
        plant(module_name(implementation.package, file), together, alone[lost], patch)
        assert (np.abs(answer(implementation, case) - exact) > bound).any()
    assert_within(answer(implementation, case), exact, bound)

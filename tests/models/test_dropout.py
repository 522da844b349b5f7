"""Training mode of every kind of model, from keep masks that are given: the same in three packages, at every site.

`test_gradients` has its gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import reference_numpy
from specification import Configuration
from specification.dropout import Dropout, TransformerDropout
from tests.support.helpers import IMPLEMENTATIONS, Implementation
from tests.support.small_models import (
    E,
    H,
    Maker,
    assert_within,
    exact_and_bound,
    keep_masks,
    model_of,
    module_name,
    plant,
    result_of,
    without_cross,
)

POST = Configuration(H, positions="learned", source_padding=0, target_padding=0, target_mask="causal and real keys")
PRE = replace(POST, norm_order="pre", norm="standard_deviation_norm", activation="gelu", scale="model_width")
ORDERS = {"post": POST, "pre": PRE}
SOURCE = np.array([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 0, 0, 0, 0]])
TARGET = np.array([[2, 7, 1, 8, 2], [8, 1, 0, 0, 0]])
S, T = SOURCE.shape[1], TARGET.shape[1]
X, MEMORY = (np.random.default_rng(n).normal(size=(2, n, E)).astype("float32") for n in (T, S))
UP = keep_masks(0, 2, S, 2)


def maker() -> Maker:
    return Maker(dtype="float32")


class Trained(NamedTuple):
    """A model, its inputs, and a keep mask at every site."""

    parameters: Any
    inputs: tuple[np.ndarray, ...]
    dropout: Any


def decoder_alone() -> Trained:
    decoder = maker().decoder(2, cross=True)._replace(embedding=None)
    return Trained(decoder, (X, MEMORY), keep_masks(1, 2, T, 2, memory=S))


def language_model() -> Trained:
    """Without attention to an encoder, and so without its sites."""
    return Trained(maker().language_model(), (TARGET,), without_cross(keep_masks(1, 2, T, 2, memory=T)))


def transformer() -> Trained:
    dropout = TransformerDropout(UP, keep_masks(1, 2, T, 2, memory=S))
    return Trained(maker().transformer(), (SOURCE, TARGET), dropout)


def attention() -> Trained:
    weights = Dropout(np.random.default_rng(5).random((2, H, T, S)) < 0.7, 0.3)
    return Trained(maker().attention(), (X, MEMORY), weights)


MODELS: dict[str, Callable[[], Trained]] = {
    "encoder": lambda: Trained(maker().encoder(2), (SOURCE, SOURCE != 0), UP),
    "encoder of embedded": lambda: Trained(
        maker().encoder(2)._replace(embedding=None), (MEMORY, SOURCE != 0), keep_masks(0, 2, S, 2)
    ),
    "decoder of embedded": decoder_alone,
    "transformer": transformer,
    "classifier": lambda: Trained(maker().classifier(), (SOURCE,), UP),
    "language model": language_model,
    "attention": attention,
}


def flat_sites(value: Any) -> list[Any]:
    if isinstance(value, Dropout):
        return [value]
    return [site for part in value for site in flat_sites(part)] if isinstance(value, list | tuple) else []


def replaced_site(value: Any, site: Dropout) -> Any:
    if value is site:
        return None
    if isinstance(value, Dropout) or not isinstance(value, list | tuple):
        return value
    parts = [replaced_site(part, site) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else parts


@cache
def exactly(name: str, order: str) -> tuple[np.ndarray, np.ndarray]:
    """What the definition gives in float64, and the bound for float32."""
    trained = MODELS[name]()
    return exact_and_bound(trained.parameters, ORDERS[order], trained.inputs, dropout=trained.dropout)


def answer(implementation: Implementation, trained: Trained, configuration: Configuration) -> np.ndarray:
    model = model_of(implementation, trained.parameters, configuration)
    return result_of(implementation, model, trained.inputs, dropout=trained.dropout)


@pytest.mark.rule("BLK-2")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.slow_where("pre")
@pytest.mark.slow_where("decoder of embedded")
def test_dropout_at_every_site(name: str, order: str) -> None:
    """Every model as it is called; and each site matters."""
    trained, configuration = MODELS[name](), ORDERS[order]
    exact, bound = exactly(name, order)
    for implementation in IMPLEMENTATIONS:
        assert_within(answer(implementation, trained, configuration), exact, bound)
    model = reference_numpy.Model(trained.parameters, configuration)
    whole = model(*trained.inputs, dropout=trained.dropout)
    sites = flat_sites(trained.dropout)
    assert len(sites) == {"attention": 1, "transformer": 32, "decoder of embedded": 19}.get(name, 13)
    for site in sites:
        fewer = replaced_site(trained.dropout, site)
        assert np.abs(model(*trained.inputs, dropout=fewer) - whole).max() > 1e-3


# --- planted faults ---------------------------------------------------------------------------------------------------

HANDED_ON, NO_DROPOUT = "types, **options)", "types, configuration=options['configuration'])"
OPTIONS = "attention_options(width, mask, dropout,"
POOLED = "tokens, configuration=configuration, mask=mask, dropout=dropout)\n    return log"
LOGITS = "mask=mask, dropout=dropout)\n    return output_layer"
DECODED = "memory_mask=memory_mask, dropout=dropout.decoder,"
ENCODED = "mask=source_mask, dropout=dropout.encoder)"
LOST = {
    "encoder": ("specification.calls", HANDED_ON, NO_DROPOUT),
    "attention": ("specification.calls", OPTIONS, OPTIONS.replace("dropout", "None")),
    "classifier": ("transformer", POOLED, POOLED.replace(", dropout=dropout", "")),
    "language model": ("transformer", LOGITS, LOGITS.replace(", dropout=dropout", "")),
    "transformer": ("transformer", DECODED, DECODED.replace(" dropout=dropout.decoder,", "")),
    "transformer, encoder": ("transformer", ENCODED, ENCODED.replace(", dropout=dropout.encoder", "")),
}
"""By the model that shows it: the file, what hands the keep masks on, and the same without."""


@pytest.mark.rule("BLK-2")
@pytest.mark.parametrize("name", LOST)
def test_a_site_that_is_lost_is_found(
    name: str, implementation: Implementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, old, new = LOST[name]
    model = name.split(",")[0]
    trained, (exact, bound) = MODELS[model](), exactly(model, "post")
    plant(module_name(implementation.package, file), old, new, monkeypatch)
    assert (np.abs(answer(implementation, trained, POST) - exact) > bound).any()


# --- what is no dropout of this model ---------------------------------------------------------------------------------


OTHERS = (0.1, None, TransformerDropout(), Dropout(np.ones((2, T, E), bool), 0.5))
SITES = language_model().dropout
BLOCK = SITES.blocks[0]
WRONG_BLOCKS = (
    (UP.blocks[0], "dropout must be a DecoderBlockDropout, got EncoderBlockDropout"),
    (BLOCK._replace(self_attention=0.1), "dropout.self_attention must be a SublayerDropout, got float"),
    (
        BLOCK._replace(feed_forward=BLOCK.feed_forward._replace(norm=0.1)),
        "feed_forward.norm must be a Dropout, got float",
    ),
)
REFUSED = [
    *((wrong, TypeError, "dropout must be a StackDropout, got") for wrong in OTHERS),
    *((SITES._replace(blocks=[block] * 2), TypeError, message) for block, message in WRONG_BLOCKS),
    (keep_masks(1, 2, T, 2, memory=T), ValueError, "must be empty without cross-attention"),
]


@pytest.mark.rule("BLK-2")
@pytest.mark.parametrize(("dropout", "error", "message"), REFUSED, ids=range(len(REFUSED)))
def test_another_structure_is_refused(
    implementation: Implementation, dropout: Any, error: type[Exception], message: str
) -> None:
    convert, trained = implementation.convert, language_model()
    given = convert((trained.parameters, *trained.inputs))
    with pytest.raises(error, match=message):
        implementation.language_model(*given, configuration=POST, dropout=convert(dropout))

"""Sines and cosines of rotary positions are made once for a forward pass, and PyTorch waits for no device over them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import torch_impl
from reference_numpy.transformer_vjp import language_model_vjp
from specification.configuration import AttentionLayer, Configuration
from specification.parameters import mapped
from specification.rotary import Rotary, Rotation
from tests.support.helpers import REFERENCE, Implementation, by_reference
from tests.support.small_models import decoding, plant
from tests.support.todays_models import TODAY, D, E, Example, H, Parts

ROTATIONS = {"llama": 1, "gemma3": 2}
"""How many different ones a model has, in four layers."""


def deeper(name: str) -> Example:
    """The example with its two blocks twice."""
    example = TODAY[name]()
    decoder = example.arrays.decoder
    layers = example.configuration.attention_layers
    return example._replace(
        arrays=example.arrays._replace(decoder=decoder._replace(blocks=[*decoder.blocks] * 2)),
        configuration=replace(example.configuration, attention_layers=layers * (1 if len(layers) == 1 else 2)),
    )


def tables_made(package: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Is given the positions of every table that the package's blocks make."""
    blocks, made = importlib.import_module(f"{package}.blocks"), []
    right = blocks.rotary_table

    def table(positions: Any, *others: Any) -> Any:
        made.append(positions)
        return right(positions, *others)

    monkeypatch.setattr(blocks, "rotary_table", table)
    return made


@pytest.mark.rule("POS-3")
@pytest.mark.parametrize("name", ROTATIONS)
@pytest.mark.slow_where("jax_impl", unless="llama")
def test_tables_are_made_once_for_a_pass(
    implementation: Implementation, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    example, made = deeper(name), tables_made(implementation.package, monkeypatch)
    parameters, tokens = map(implementation.convert, (example.parameters("float32"), example.target()))
    implementation.language_model(parameters, tokens, configuration=example.configuration)
    assert len(made) == ROTATIONS[name]
    start, decode_step = decoding(implementation).start, decoding(implementation).decode_step
    _, cache = start(parameters, tokens[:, :3], configuration=example.configuration, capacity=4)
    decode_step(parameters, tokens[:, 3:4], cache, configuration=example.configuration)
    assert sorted(map(len, made)) == sorted([example.target().shape[1], 3, 1] * ROTATIONS[name])


@pytest.mark.rule("POS-3")
@pytest.mark.parametrize("name", ROTATIONS)
def test_tables_are_made_once_for_a_pass_and_its_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    example, made = deeper(name), tables_made("reference_numpy", monkeypatch)
    cotangent = np.ones((*example.target().shape, example.arrays.output.weight.shape[1]), np.float32)
    arguments = (example.parameters("float32"), example.target(), cotangent)
    language_model_vjp(*arguments, configuration=example.configuration)
    assert len(made) == ROTATIONS[name]


@pytest.mark.rule("POS-3")
def test_keys_may_be_more_than_queries(implementation: Implementation) -> None:
    """In an attention alone: the first queries of all get what they get among all, and their gradients."""
    parts = Parts()
    parameters, x = implementation.convert(parts.attention()), parts.array(2, 5, E)
    configuration = Configuration(H, attention_layers=(AttentionLayer(rotary=Rotary(base=10.0)),))
    model = implementation.Model(parameters, configuration)
    answers = [
        implementation.subject.framework.numpy(model(*map(implementation.convert, given)))
        for given in ((x,), (x[:, :3], x))
    ]
    np.testing.assert_allclose(answers[1], answers[0][:, :3], rtol=1e-5, atol=1e-6)


MISFITS: dict[str, tuple[Callable[[Any, Any], Any], type[Exception], str]] = {
    "swapped, without names": (lambda s, c: (c, s), TypeError, "rotation must be a Rotation, got tuple"),
    "one position": (lambda s, c: Rotation(s[:, :1], c[:, :1]), ValueError,
          r"sine must have shape \[1, 5, 3\], got \[1, 1, 3\]"),
    "fewer pairs": (lambda s, c: Rotation(s, c[..., :1]), ValueError, r"cosine must have .*got \[1, 5, 1\]"),
    "another dtype": (lambda s, c: Rotation(s, c > 0), TypeError,
          "cosine must be float32 beside x of float32, got bool"),
}  # fmt: skip


def attended(implementation: Implementation, rotary: Rotary | None, changed: Callable[[Any, Any], Any]) -> Any:
    """Attention of x, with the rotation of `Rotary()` for five positions, changed."""
    blocks, parts, layer = importlib.import_module(f"{implementation.package}.blocks"), Parts(), AttentionLayer
    parameters, x = map(implementation.convert, (parts.attention(), parts.array(2, 5, E)))
    rotation = changed(*blocks.rotation_of(Rotary(), D, x))
    return blocks.attend(parameters, x, x, None, None, Configuration(H), layer(rotary=rotary), rotation=rotation)


@pytest.mark.rule("POS-3")
@pytest.mark.parametrize("name", MISFITS)
def test_a_rotation_that_does_not_fit_is_refused(implementation: Implementation, name: str) -> None:
    changed, kind, told = MISFITS[name]
    with pytest.raises(kind, match=told):
        attended(implementation, Rotary(), changed)


@pytest.mark.rule("POS-3")
def test_a_layer_that_rotates_nothing_takes_no_rotation(implementation: Implementation) -> None:
    with pytest.raises(ValueError, match="the layer has no rotary"):
        attended(implementation, None, Rotation)
    assert attended(implementation, Rotary(), Rotation).shape == (2, 5, E)


def test_a_rotation_that_is_not_checked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of one position broadcasts."""
    monkeypatch.setattr("specification.checks.rotation", lambda *_: None)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_a_rotation_that_does_not_fit_is_refused(REFERENCE, "one position")


def test_a_table_for_every_layer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(
        "reference_numpy.blocks",
        "first = next(i for i, other in enumerate(kinds) if other == kind)",
        "first = len(made)",
        monkeypatch,
    )
    with pytest.raises(AssertionError, match="assert 4 == 1"):
        test_tables_are_made_once_for_a_pass(REFERENCE, "llama", monkeypatch)


def values_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Is given the name of every method of a tensor that is called and would wait for a device."""
    read: list[str] = []

    def watched(name: str) -> Callable[..., Any]:
        right = getattr(torch.Tensor, name)

        def reading(*arguments: Any) -> Any:
            read.append(name)
            return right(*arguments)

        return reading

    for name in ("cpu", "numpy", "item", "tolist", "nonzero", "__bool__", "__int__", "__float__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, watched(name))
    return read


@pytest.mark.parametrize("name", ROTATIONS)
def test_torch_reads_nothing_back_but_ids(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An array read is `cpu` and `numpy`: once for a pass, whose tokens must lie in the vocabulary."""
    example = deeper(name)
    parameters, tokens = mapped(torch.tensor, example.parameters("float32")), torch.tensor(example.target())
    by_reference("torch_impl", monkeypatch)  # others read how large numbers are
    read = values_read(monkeypatch)
    torch_impl.language_model(parameters, tokens, configuration=example.configuration)
    assert read == ["cpu", "numpy"]
    _, cache = torch_impl.start(parameters, tokens[:, :3], configuration=example.configuration, capacity=4)
    torch_impl.decode_step(parameters, tokens[:, 3:4], cache, configuration=example.configuration)
    assert read == ["cpu", "numpy"] * 3


def test_positions_that_are_read_back_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(
        "torch_impl.blocks",
        "    columns, dtype = checks.rotary_fits(",
        "    _ = positions.cpu()\n    columns, dtype = checks.rotary_fits(",
        monkeypatch,
    )
    with pytest.raises(AssertionError, match="Left contains one more item: 'cpu'"):
        test_torch_reads_nothing_back_but_ids("llama", monkeypatch)

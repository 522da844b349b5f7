"""Which engine takes a call, and what is refused."""

from __future__ import annotations

import importlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jax_impl
import torch_impl
from specification import Causal, KeyLengths
from specification.engines import Choice
from tests.support.engine_cases import PIECES, SIZES, B, H, K, Q, module_of
from tests.support.helpers import Sizes

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")


def zeros(package: str, *shape: int, dtype: str = "float32") -> Any:
    return torch.zeros(shape, dtype=getattr(torch, dtype)) if package == "torch_impl" else jnp.zeros(shape, dtype)


def call(package: str, sizes: Sizes = SIZES, **options: Any) -> tuple[list[Any], dict[str, Any]]:
    """Arguments and options; options given as shapes become arrays."""
    s = sizes
    shapes = (s.B, s.H, s.Q, s.D), (s.B, s.G, s.K, s.D), (s.B, s.G, s.K, s.V)
    made = {name: zeros(package, *given) if isinstance(given, tuple) else given for name, given in options.items()}
    if "dropout_keep" in made:
        made["dropout_keep"] = made["dropout_keep"] == 0
    return [zeros(package, *shape) for shape in shapes], made


OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "causal": {"mask": Causal(0)},
    "by name": {"mask": Causal(0), "engine": "blocked"},
    "reference by name": {"mask": KeyLengths([3, 9]), "engine": "reference"},
    "array": {"mask": np.ones((Q, K), bool)},
    "scale": {"scale": -2.0},
    "softcap": {"softcap": 3.0},
    "softcap by name": {"softcap": 3.0, "engine": "blocked"},
    "bias": {"bias": (1, H, Q, K)},
    "sinks": {"sinks": (H,)},
    "dropout": {"dropout_keep": (B, H, Q, K), "dropout_rate": 0.5},
    "mean": {"empty_rows": "mean"},
    "nan": {"empty_rows": "nan"},
    "no keys": {"sizes": SIZES._replace(K=0)},
    "no queries": {"sizes": SIZES._replace(Q=0)},
    "wider values": {"sizes": SIZES._replace(V=7)},
    "many scores": {"sizes": SIZES._replace(Q=65), "mask": Causal(0)},
}
TAKEN = {
    "torch_impl": {
        "nothing": "fused", "causal": "fused", "by name": "blocked", "reference by name": "reference", "array": "fused",
        "scale": "fused", "softcap": "blocked", "softcap by name": "blocked", "bias": "blocked", "sinks": "blocked",
        "dropout": "reference", "mean": "reference", "nan": "reference", "no keys": "reference",
        "no queries": "reference", "wider values": "blocked", "many scores": "fused",
    },
    "jax_impl": {
        "nothing": "reference", "causal": "reference", "by name": "blocked", "reference by name": "reference",
        "array": "reference", "scale": "reference", "softcap": "reference", "softcap by name": "blocked",
        "bias": "reference", "sinks": "reference", "dropout": "reference", "mean": "reference", "nan": "reference",
        "no keys": "reference", "no queries": "reference", "wider values": "reference", "many scores": "blocked",
    },
}  # fmt: skip
"""With JAX's limit of small cases so low that one of them is not."""


def engines_run(package: str, monkeypatch: pytest.MonkeyPatch, given: Any, options: Any) -> list[str]:
    """The engines that a call of attention goes to, in their order."""
    run: list[str] = []
    module = importlib.import_module(f"{package}.attention")

    def noted(name: str, function: Any) -> Any:
        return lambda *arguments, **more: (run.append(name), function(*arguments, **more))[1]

    names = {"reference": "reference_attention", "blocked": "blocked_attention", "fused": "fused_attention"}
    with monkeypatch.context() as patch:
        for name, function in names.items():
            if hasattr(module, function):
                patch.setattr(module, function, noted(name, getattr(module, function)))
        module.attention(*given, **options)
    return run


def explained(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = importlib.import_module(package)
    if package == "jax_impl":
        monkeypatch.setattr(module_of(PIECES, "engines.choice"), "SMALL", 4000)
    for name, options in OPTIONS.items():
        given, keywords = call(package, **options)
        choice = port.explain_engine(*given, **keywords)
        assert isinstance(choice, Choice)
        assert (name, choice.engine) == (name, TAKEN[package][name])
        assert choice.why
        assert choice.engine not in choice.hindrances
        assert (name, engines_run(package, monkeypatch, given, keywords)[0]) == (name, choice.engine)
        for other, hindrance in choice.hindrances.items():
            assert hindrance
            with pytest.raises(ValueError, match=re.escape(hindrance)):
                port.attention(*given, **keywords | {"engine": other})


@pytest.mark.parametrize("package", ["torch_impl", "jax_impl"])
def test_explained_is_what_runs(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    explained(package, monkeypatch)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("fast", {}, "engine must be one of auto, reference, blocked, fused, got 'fast'"),
    (None, {}, "engine must be one of auto, reference, blocked, fused, got None"),  # type: ignore[list-item]
    ("Blocked", {"empty_rows": "mean"}, "engine must be one of"),
    ("blocked", {"dropout_keep": (B, H, Q, K)}, "engine 'blocked' cannot take this call: .*dropout"),
    ("blocked", {"empty_rows": "mean"}, "engine 'blocked' cannot take this call: .*empty_rows='mean'"),
    ("blocked", {"empty_rows": "nan"}, "engine 'blocked' cannot take this call: .*empty_rows='nan'"),
    *(("blocked", {"sizes": SIZES._replace(**{axis: 0})}, "cannot take this call: .*nothing") for axis in "BQKV"),
]
REFUSED_IN_TORCH = [
    ("blocked", {"scale": torch.tensor(0.5)}, "cannot take this call: .*scale"),
    ("blocked", {"softcap": torch.tensor(0.5)}, "cannot take this call: .*softcap"),
    ("fused", {"softcap": 2.0}, "engine 'fused' cannot take this call: .*softcap"),
    ("fused", {"bias": (1, H, Q, K)}, "engine 'fused' cannot take this call: .*bias"),
    ("fused", {"sinks": (H,)}, "engine 'fused' cannot take this call: .*sinks"),
    ("fused", {"sizes": SIZES._replace(V=7)}, "engine 'fused' cannot take this call: .*wide"),
    ("fused", {"empty_rows": "mean"}, "engine 'fused' cannot take this call: .*empty_rows='mean'"),
    ("fused", {"sizes": SIZES._replace(K=0)}, "engine 'fused' cannot take this call: .*nothing"),
]
REFUSED_IN_JAX = [("fused", {}, "engine 'fused' cannot take this call: JAX has no")]
ALL_REFUSED = [
    pytest.param(package, *refused, id=f"{package}, {refused[0]}: {refused[1]}")
    for package, more in (("torch_impl", REFUSED_IN_TORCH), ("jax_impl", REFUSED_IN_JAX))
    for refused in REFUSED + more
]


def refusal(package: str, engine: str, options: dict[str, Any], pattern: str) -> None:
    port = importlib.import_module(package)
    given, keywords = call(package, **options)
    for function in (port.attention, port.explain_engine):
        with pytest.raises(ValueError, match=pattern) as raised:
            function(*given, engine=engine, **keywords)
        assert "\n" not in str(raised.value)
        assert len(str(raised.value)) < 200


@pytest.mark.parametrize(("package", "engine", "options", "pattern"), ALL_REFUSED)
def test_refused(package: str, engine: str, options: dict[str, Any], pattern: str) -> None:
    refusal(package, engine, options, pattern)


@pytest.mark.parametrize("option", ["scale", "softcap"])
def test_traced_numbers_are_refused_by_name_and_taken_by_default(option: str, no_case_is_small: None) -> None:
    given, _ = call("jax_impl")

    def attend(number: Any, engine: str) -> Any:
        return jnp.sum(jax_impl.attention(*given, **{option: number}, engine=engine))

    with pytest.raises(ValueError, match=f"engine 'blocked' cannot take this call: .*{option}"):
        jax.grad(lambda number: attend(number, "blocked"))(0.5)
    assert jax.grad(lambda number: attend(number, "auto"))(0.5) == 0


class Subclass(torch.Tensor):
    """Any of PyTorch's own, which may make something else of an operation."""


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("odd", [lambda array: array.as_subclass(Subclass), lambda array: array.to("meta")])
def test_every_tensor_is_looked_at(place: int, odd: Any) -> None:
    given, _ = call("torch_impl")
    given[place] = odd(given[place])
    assert torch_impl.explain_engine(*given).engine == "reference"
    given = [torch.zeros(4, 6), torch.ones(6), torch.zeros(6)]
    given[place] = odd(given[place])
    assert torch_impl.explain_layer_norm_engine(*given).engine == "reference"


@pytest.mark.parametrize("name", ["blocked", "fused"])
def test_refused_while_torch_transforms(name: str) -> None:
    given, _ = call("torch_impl")
    with pytest.raises(ValueError, match=f"engine {name!r} cannot take this call: .*transforms"):
        torch.func.grad(lambda query: torch_impl.attention(query, *given[1:], engine=name).sum())(given[0])
    with pytest.raises(ValueError, match=f"engine {name!r} cannot take this call: .*numbers"):
        torch_impl.attention(*(array.to("meta") for array in given), engine=name)

"""Which arrays a function takes, where nobody says it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch

import jax_impl
import reference_numpy
import torch_impl
from conformance.runner import array_guess, in_subprocess
from tests.support.helpers import Target, checked_content, judged, printed

PLAIN = "def attention(query, key, value, *, scale=None):\n"
FILES = {
    "annotated": (
        "torch",
        "its annotations name torch",
        "import numpy, torch\ndef attention(query: torch.Tensor, key, value): ...",
    ),
    "named": ("jax", "its annotations name jax", "def attention(query: 'jax.Array | None', key, value): ..."),
    "shaped": (
        "torch",
        "its annotations name torch",
        "from jaxtyping import Float\nfrom torch import Tensor\ndef attention(query: Float[Tensor, '...'], k, v): ...",
    ),
    "method": ("torch", "its module imports torch", f"import torch\n{PLAIN}    return value.softmax(-1)"),
    "code": ("numpy", "its code uses numpy", f"import numpy as np\nimport torch\n{PLAIN}    return np.zeros(3)"),
    "helper": (
        "jax",
        "its code uses jax",
        f"import numpy, jax.numpy as jnp\ndef helper(x): return jnp.exp(x)\n{PLAIN}    return helper(value)",
    ),
    "local": ("torch", "its code uses torch", f"{PLAIN}    import torch\n    return torch.zeros(3)"),
    "both": (
        "torch",
        "a trial call returned them",
        f"import numpy as np\nimport torch\n{PLAIN}    print('!')\n    return torch.exp(value) * np.sqrt(4)",
    ),
    "converted": (
        "numpy",
        "a trial call returned them",
        f"import numpy as np\nimport torch\n{PLAIN}    return torch.exp(torch.tensor(np.array(value))).numpy()",
    ),
    "neither": ("numpy", array_guess.NOTHING_TELLS, f"{PLAIN}    return [1]"),
    "leaves": ("numpy", array_guess.NOTHING_TELLS, f"import sys\n{PLAIN}    sys.exit(1)"),
    "hangs": ("numpy", array_guess.NOTHING_TELLS, f"import time\n{PLAIN}    time.sleep(60)"),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.slow_where("hangs")
def test_guess_of_a_file(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays, why, text = FILES[name]
    file = tmp_path / f"{name}.py"
    file.write_text(text)
    target, subject = array_guess.make_subject(Target(f"{file}:attention", "attention", None), 1.0)
    assert (target.arrays, target.guessed) == (arrays, why)
    assert subject.framework.name == arrays
    assert subject.name == f"{file}:attention"
    assert capsys.readouterr().out == ""


class Attention(torch.nn.Module):
    def forward(self, query: Any, key: Any, value: Any) -> Any:
        return value


def of_numpy(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    return value


@pytest.mark.parametrize(
    ("subject", "arrays"),
    [
        ("reference_numpy", "numpy"),
        ("jax_impl", "jax"),
        ("torch_impl:attention", "torch"),
        (reference_numpy.attention, "numpy"),
        (torch_impl.attention, "torch"),
        (jax.jit(jax_impl.attention), "jax"),
        (partial(jax_impl.attention, scale=1.0), "jax"),
        (torch.nn.functional.scaled_dot_product_attention, "torch"),
        (jax.nn.dot_product_attention, "jax"),
        (Attention(), "torch"),
        (of_numpy, "numpy"),
        (lambda query, key, value: torch.zeros(3), "torch"),
    ],
)
def test_guess_of_objects_and_names(subject: Any, arrays: str) -> None:
    assert array_guess.make_subject(Target(subject, "attention", None), 1.0)[0].arrays == arrays


def test_a_trial_call_that_ends_the_process_is_no_verdict_yet(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text(f"import os\n{PLAIN}    os._exit(3)")
    runner = in_subprocess.SubprocessRunner(Target(f"{tmp_path / 'dies.py'}:attention", "attention", None), 1.0)
    runner.close()
    assert (runner.target.arrays, runner.target.guessed) == ("numpy", in_subprocess.UNTRIED)


def test_what_is_given_is_not_guessed() -> None:
    target, subject = array_guess.make_subject(Target(torch_impl.attention, "attention", "numpy"), 1.0)
    assert (target.guessed, subject.framework.name) == ("", "numpy")


def test_report_names_the_guess() -> None:
    report = judged(torch_impl.attention, "ATT-1")
    line = "arrays: torch, a guess: its annotations name torch"
    assert line in str(report)
    subject = checked_content(report, None)
    assert (subject["arrays"], subject["arrays_guessed"]) == ("torch", "its annotations name torch")
    assert f"{line}; --arrays names others." in printed(subject)
    said = checked_content(judged(torch_impl.attention, "ATT-1", arrays="torch"), None)
    assert said["arrays_guessed"] is None
    assert "a guess" not in printed(said)


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ("query.is_cuda", True),
        ("torch.exp(query)", True),
        ("torch.zeros(3)", True),
        ("print(1, 2, speed=3)", False),
        ("[query]", False),
        ("None", False),
        ("__import__('torch.nothing')", False),
        ("1 / 0", False),
    ],
)
def test_hint_about_arrays_stands_where_it_may_be_true(body: str, hint: bool) -> None:
    function: Any = eval(f"lambda query, key, value: {body}", {"torch": torch})
    (violation,) = checked_content(judged(function, arrays="numpy"), None)["violations"]
    assert (violation["called_with"] is not None) == hint

"""The shapes and dtypes that the annotations promise.

They are those that arguments are checked by. And they are checked while every operation runs. That check is switched on
in a process of its own: it refuses a wrong rank before the operation can, with words of its own, and the rest of the
tests are about the operation's words.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import reference_numpy
from specification import checks
from tests.support.helpers import PACKAGES

PROGRAM = """
from jaxtyping import TypeCheckError, install_import_hook

with install_import_hook("{package}", "beartype.beartype"):
    import {package}

import numpy as np
from tests.support.helpers import Implementation
from tests.definition.test_vjp import CASES, Function

implementation = Implementation("{package}")
for case in CASES:
    implementation.call(case.operation, *case.arguments, **case.options)
    if "{package}" == "reference_numpy":
        Function(case).gradients()
for width in (1, 4):
    implementation.sinusoidal_positions(3, width)
implementation.materialize(None, 3, 4)

parameters, uniform = implementation.convert([np.ones((3, 2), np.float32)]), implementation.convert(np.zeros((3, 2)))
for name, options in (("adam", {{}}), ("sgd", {{"momentum": 0.5}})):
    start, step = (getattr(implementation, f"{{name}}_{{part}}") for part in ("start", "step"))
    step(parameters, parameters, start(parameters), learning_rate=0.1, **options)
implementation.clip_by_global_norm(parameters, 1.0)
implementation.inverse_square_root(0, width=4, warmup=2)
implementation.linear_default(uniform, uniform[0])
implementation.xavier_uniform(uniform)
implementation.embedding_default(uniform, padding=1)

table = implementation.convert(np.ones(4))
try:
    implementation.learned_positions(table, 2)
except TypeCheckError:
    print(len(CASES), "cases")
"""

CHECKS = {"choose": "choice", "embedding_default": "embedding_numbers", "layer_norm": "norm"}
CHECKS |= {"linear_default": "linear_numbers", "standard_deviation_norm": "norm", "rms_norm": "norm"}
CHECKS |= {name: name for name in checks.__all__ if name in reference_numpy.__all__ and name not in CHECKS}


def shapes(function: Callable[..., object]) -> dict[str, list[str]]:
    """The shapes that each argument may have, `...` for any."""
    annotations = {name: str(p.annotation) for name, p in inspect.signature(function).parameters.items()}
    return {name: re.findall(r"""\w+\[[\w.]+, ['"](.*?)['"]\]""", text) for name, text in annotations.items()}


@pytest.mark.parametrize("operation", CHECKS)
def test_arguments_are_checked_by_their_annotations(operation: str) -> None:
    """Those of the definition; the ports have the same."""
    own, expected = shapes(getattr(checks, CHECKS[operation])), shapes(getattr(reference_numpy, operation))
    for name in own.keys() & expected.keys():
        if own[name] and expected[name] != ["..."]:
            assert own[name] == expected[name], name


def test_most_operations_are_checked_by_annotations() -> None:
    assert sum(any(shapes(getattr(checks, name)).values()) for name in CHECKS.values()) >= 14


@pytest.mark.rule("ATT-8", "ATT-9")
@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.slow_where(unless="reference_numpy")
def test_annotations_hold(package: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM.format(package=package)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    assert answer.stdout.endswith("cases\n"), "a table of rank 1 was not refused: the check is not on"

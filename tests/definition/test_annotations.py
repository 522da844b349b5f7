"""The shapes and dtypes that the annotations promise, checked while every operation runs.

The check is switched on in a process of its own: it refuses a wrong rank before the operation can, with words of its
own, and the rest of the tests are about the operation's words.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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

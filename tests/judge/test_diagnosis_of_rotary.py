"""Names of known mistakes of rotary embeddings and their frequencies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conformance.selftest.faults import rotary

from conformance.cases.case import Case
from specification import DynamicScaling, LinearScaling, Llama3Scaling, LongRopeScaling, YarnScaling
from tests.judge.test_diagnosis import told

FAULTS = {(fault.operation, fault.name): fault for fault in rotary.FAULTS}
NEAR, FAR = np.array([3, 701, 4, 19, 160]), np.array([70_000, 3, 200_001, 9_000, 131_071])
OF_BATCH = np.array([[3, 700, 4, 19, 160], [5, 6, 7, 8, 2]])
YARN = YarnScaling(factor=8.0, original_length=4096)
LLAMA3 = Llama3Scaling(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_length=8192)
LINEAR, DYNAMIC = LinearScaling(factor=4.0), DynamicScaling(factor=4.0, original_length=4096)
LONG = LongRopeScaling(
    short_factors=tuple(np.linspace(1, 2, 16).tolist()),
    long_factors=tuple(np.linspace(1, 30, 16).tolist()),
    original_length=4096,
    factor=8.0,
)


def case(positions: Any = NEAR, *, bar: bool = False, **options: Any) -> Case:
    rng = np.random.default_rng(2)
    x, cotangent = (rng.normal(size=(2, 3, 5, 32)).astype(np.float32) for _ in range(2))
    return Case(
        "rotary_embedding", "float32", {"x": x, "positions": positions}, options, {"output": cotangent} if bar else {}
    )


NAMES: dict[str, tuple[Case, str]] = {
    "halves whatever the pairing": (case(pairing="interleaved"), "pairs are (p, p + W / 2), not (2p, 2p + 1)"),
    "the pairing swapped": (case(), "pairs are (2p, 2p + 1), not (p, p + W / 2)"),
    "the negative angle": (case(), "pairs turn the other way"),
    "the gradient turned forwards": (case(bar=True), "the gradient is turned forwards, not back"),
    "sine and cosine exchanged": (case(), "sine and cosine are swapped"),
    "positions from 1 on": (case(), "positions count from 1"),
    "positions from 0 on": (case(), "positions start at 0, whatever is given"),
    "positions of the first batch element": (case(OF_BATCH), "the first batch element's positions are used for all"),
    "a table of 32768 rows, the last read again": (case(FAR), "positions past 32767 are taken for 32767"),
    "a table of 8192 rows that starts anew": (case(FAR), "positions start anew at 8192"),
    "another base": (case(), "the base is 500000"),
    "the exponent by the head's width": (case(rotary_width=8), "the exponent is 2p / D, not 2p / W"),
    "angles in float32": (case(FAR), "angles are computed in float32"),
    "frequencies in float32": (case(FAR), "frequencies are rounded to float32"),
    "frequencies in bfloat16": (case(), "frequencies are rounded to bfloat16"),
    "frequencies in float16": (case(), "frequencies are rounded to float16"),
    "positions in bfloat16": (case(), "positions are rounded to bfloat16"),
    "scalings ignored": (case(scaling=LLAMA3), "the scaling is ignored"),
    "the attention factor left out": (
        case(scaling=YARN),
        "sine and cosine are not multiplied by the attention factor",
    ),
    "the attention factor twice": (case(scaling=YARN), "sine and cosine are multiplied by the attention factor twice"),
    "linear scaling that multiplies": (case(scaling=LINEAR), "frequencies are multiplied by the factor"),
    "llama3 without a ramp": (case(scaling=LLAMA3), "there is no ramp: what is not kept is divided"),
    "yarn never truncated": (case(scaling=YARN), "the ramp's ends are not rounded to whole pairs"),
    "short factors of longrope always": (
        case(FAR, scaling=LONG),
        "the factors for short sequences are always used",
    ),
    "a dynamic base that always grows": (case(scaling=DYNAMIC, length=4000), "the base grows whatever the length"),
}


@pytest.mark.rule("POS-3", "POS-4")
@pytest.mark.parametrize("fault", NAMES)
def test_names(fault: str) -> None:
    asked, name = NAMES[fault]
    assert told(FAULTS["rotary_embedding", fault].function, asked)[0] == name


@pytest.mark.rule("POS-4")
@pytest.mark.parametrize(
    ("fault", "scaling", "name"),
    [
        ("frequencies in float32 inside", None, "frequencies are rounded to float32"),
        ("scalings ignored", LLAMA3, "the scaling is ignored"),
        ("linear scaling that multiplies", LINEAR, "frequencies are multiplied by the factor"),
        ("the attention factor of no scaling", YARN, "the attention factor is left out"),
    ],
)
def test_names_of_frequencies(fault: str, scaling: Any, name: str) -> None:
    asked = Case("rotary_frequencies", "float64", {}, {"width": 32, "base": 10000.0, "scaling": scaling})
    assert name in told(FAULTS["rotary_frequencies", f"frequencies: {fault}"].function, asked)


def powers_in_float32(x: Any, positions: Any, *, base: float = 10000.0, rotary_width: Any = None) -> Any:
    """Halves turned by angles of which every step is in float32."""
    width = x.shape[-1] if rotary_width is None else rotary_width
    share = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    angles = positions.astype(np.float32)[:, None] * (np.float32(1) / np.float32(base) ** share)
    cos, sin, half = np.cos(angles.astype(float)), np.sin(angles.astype(float)), width // 2
    left, right, rest = x[..., :half], x[..., half:width], x[..., width:]
    return np.concatenate([left * cos - right * sin, right * cos + left * sin, rest], axis=-1).astype(x.dtype)


@pytest.mark.rule("POS-3")
@pytest.mark.parametrize("width", [None, 24])
def test_angles_of_powers_in_float32_have_a_name(width: int | None) -> None:
    asked = case(FAR, rotary_width=width)
    assert told(powers_in_float32, asked)[0] == "angles are computed in float32"


@pytest.mark.rule("POS-3")
def test_an_odd_width_of_which_a_part_turns_has_a_name() -> None:
    """All columns of an odd width cannot turn, as a known mistake has it."""
    asked = case(rotary_width=8)
    asked.inputs["x"] = asked.inputs["x"][..., :31]
    assert told(FAULTS["rotary_embedding", "positions from 1 on"].function, asked)[0] == "positions count from 1"

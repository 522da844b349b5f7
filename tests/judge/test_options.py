"""Options that are written once: the command line, pytest, Python and the report have the same, and read them alike."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import conformance
import reference_numpy
from conformance import pytest_plugin
from conformance.cases.declaration import DeclarationOptions
from conformance.cases.options import options_of
from conformance.cli import check
from conformance.judge.options import CheckOptions
from conformance.reports.content import declaration_content
from tests.support.helpers import EVERYTHING, checked_content, command, declaration_of

NAMES = [*options_of(CheckOptions)]
SAID: dict[str, tuple[str, Any]] = {
    "supports": ("no-sinks,no-softcap", ["no-sinks", "no-softcap"]),
    "dtypes": ("float32,float64", {"float64", "float32"}),
    "layout": ("BTHD", "BTHD"),
    "width_multiple": ("2", 2),
    "length_multiple": ("4", 4),
    "head_multiple": ("4", 4),
    "tile": ("8x4", (8, 4)),
    "head_widths": ("8,16/4", [8, (16, 4)]),
    "windows": ("3/0,7/all", [(3, 0), (7, None)]),
    "limits": ("keys=9,queries=9", {"keys": 9, "queries": 9}),
    "conventions": ("empty_rows=any,isolation=finite", {"empty_rows": "any", "isolation": "finite"}),
    "rules": ("ATT-1", ["ATT-1"]),
    "seed": ("7", 7),
    "time_limit": ("5", 5.0),
    "memory_limit": ("3.5", 3.5),
    "ranks": ("3", 3),
    "shard": ("zigzag", "zigzag"),
}
"""Options as they stand on a command line, and as values of Python."""


def attention(query: Any, key: Any, value: Any, *, mask: Any = None, sinks: Any = None, softcap: Any = None) -> Any:
    """A signature with room for what is declared."""


def test_every_interface_has_every_option() -> None:
    for function in (conformance.check, pytest_plugin.conformance_test):
        assert set(inspect.signature(function).parameters) >= {*NAMES}
    assert set(inspect.signature(conformance.declare).parameters) == {*options_of(DeclarationOptions)}
    assert set(inspect.signature(check.check).parameters) >= {*NAMES}
    parser = pytest.Parser(_ispytest=True)
    pytest_plugin.pytest_addoption(parser)
    assert set(vars(parser.parse([]))) >= {f"conformance_{name}" for name in NAMES}


def test_the_report_has_every_declared_option() -> None:
    schema = json.loads(files("conformance.reports").joinpath("schema.json").read_text())
    content = declaration_content(EVERYTHING)
    assert content.keys() == {*schema["definitions"]["declaration"]["required"]}
    assert content.keys() >= {*options_of(DeclarationOptions)} - {"supports", "vjp"}
    assert json.loads(json.dumps(content)) == content


@pytest.mark.parametrize("name", [name for name in SAID if name in options_of(DeclarationOptions)])
def test_a_string_says_what_a_value_says(name: str) -> None:
    text, value = SAID[name]
    declared = [declaration_of(attention, False, **{name: said}) for said in (text, value)]

    def decorated(said: Any) -> Any:
        function: Callable[..., Any] = conformance.declare(**{name: said})(lambda *a, mask=None, **k: None)
        return getattr(declaration_of(function, False), "features" if name == "supports" else name)

    assert declared[0] == declared[1]
    assert declared[0] != declaration_of(attention, False)
    assert decorated(text) == decorated(value)


def test_a_repeated_option_adds_to_itself() -> None:
    both = declaration_of(attention, False, windows=["3/0", "7/all"])
    assert both.windows == ((3, 0), (7, None))
    assert declaration_of(attention, False, conventions=["heads=tiled", "isolation=finite"]).conventions == {
        "heads": "tiled", "isolation": "finite",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seed": "-1"}, "seed must be a whole number of at least 0, got '-1'"),
        ({"width_multiple": 0}, "width_multiple must be a whole number of at least 1, got 0"),
        ({"time_limit": "long"}, "time_limit must be a number of seconds, got 'long'"),
        ({"shrink": "no"}, "shrink: got 'no', expected one of True, False"),
        ({"tile": "128"}, "tile must be two positive integers, such as 128x64, got '128'"),
        ({"limits": "keys=many"}, "limit of keys must be a positive integer, got 'many'"),
        ({"convention": "heads=tiled"}, "unknown option: got 'convention', expected one of supports, dtypes"),
        ({"vjp": 3}, "vjp must be a function, got 3"),
        ({"supports": {"causal": False}}, "supports must be names"),
        ({"windows": 31}, "windows must be"),
        ({"dtypes": {"float32": 1}}, "dtypes must be names"),
        ({"supports": "no-window", "windows": [(31, 0)]}, "does not support window"),
        ({"supports": "sinks,no-unmasked"}, "must be a kind of mask"),
        ({"head_widths": "192/256", "limits": "key_width=192,value_width=128"}, "beyond the limit of value_width, 128"),
    ],
)
def test_wrong_values(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        conformance.check(attention, "attention", **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"limits": {"model_width": 1}}, "limit of model_width is below the smallest width, 2"),
        ({"limits": {"model_width": 4}, "width_multiple": 3}, "limit of model_width is below the smallest width, 6"),
        ({"limits": {"model_width": 6}, "width_multiple": 8}, "limit of model_width is below width_multiple 8"),
    ],
)
def test_limits_that_leave_no_width(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        conformance.check(reference_numpy.rotary_embedding, "rotary_embedding", arrays="numpy", **given)


def test_a_layer_cannot_declare_what_its_softcap_is_of() -> None:
    given: dict[str, Any] = {"arrays": "numpy", "conventions": {"capped": "scores"}}
    with pytest.raises(ValueError, match="convention capped is judged for attention only: judge the layer's attention"):
        conformance.check(reference_numpy.multi_head_attention, "multi_head_attention", **given)


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        ("layer_norm", {"limits": {"model_width": 64}},
         "limits of layer_norm: got 'model_width', expected one of rows, norm_width; did you mean norm_width?"),
        ("feed_forward", {"least": {"norm_width": 8}},
         "least of feed_forward: got 'norm_width', expected one of model_width, inner_width"),
        ("attention_weights", {"limits": {"value_width": 8}}, "limits of attention_weights: got 'value_width'"),
        ("embedding", {"limits": {"table": 100}}, "limits of embedding: got 'table', expected one of rows, vocabulary"),
        ("silu", {"least": {"model_width": 8}, "width_multiple": 8}, "width_multiple, least mean nothing for silu"),
    ],
)  # fmt: skip
def test_sizes_that_the_operation_lacks(function: str, given: dict[str, Any], message: str) -> None:
    subject = getattr(reference_numpy, function)
    with pytest.raises(ValueError, match=re.escape(message)):
        conformance.check(subject, function, arrays="numpy", **given)
    with pytest.raises(ValueError, match=re.escape(message)):
        conformance.check(conformance.declare(**given)(lambda *x: subject(*x)), function, arrays="numpy")


def test_scalings_beside_no_scaling() -> None:
    given: dict[str, Any] = {"supports": "no-rotary_scaling", "scalings": "linear,yarn"}
    with pytest.raises(ValueError, match="scalings are declared of a function that does not support rotary_scaling"):
        conformance.check(reference_numpy.rotary_embedding, "rotary_embedding", arrays="numpy", **given)


NO_VALUES: dict[str, tuple[str, list[Any]]] = {
    "head_widths": ("must be positive integers or pairs of them, such", [[0], [(8, 8, 8)], [(8, -1)], "6/", "6,x", ""]),
    "windows": ("must be pairs", [[3], [(1,)], [(None, None)], [(-1, 0)], "31", "31/", "a/0", "-1/0", ""]),
    "time_limit": ("must be above 0", [0, -1, float("inf"), float("nan"), 1e12]),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in NO_VALUES for value in NO_VALUES[name][1]])
def test_values_that_an_option_does_not_take(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} {NO_VALUES[name][0]}") as error:
        conformance.check(attention, "attention", **{name: value})
    assert not isinstance(value, str) or repr(value) in str(error.value)


def test_unknown_declaration() -> None:
    unknown: dict[str, Any] = {"tiles": (8, 8)}
    with pytest.raises(ValueError, match="unknown option: got 'tiles', expected one of supports, dtypes"):
        conformance.declare(**unknown)
    with pytest.raises(ValueError, match=r"dtypes: got 'float8', expected one of .*; did you mean float"):
        conformance.declare(dtypes=["float8"])


def test_commands_and_python_give_the_same_report(folder: Path) -> None:
    """A real check, by words of the command line, by values, and by words as pytest has them."""
    left_out = ("windows", "layout", "head_widths", "ranks", "shard")
    said = {name: pair for name, pair in SAID.items() if name not in left_out}
    said |= {"dtypes": ("float32", ["float32"]), "effort": ("quick", "quick"), "arrays": ("numpy", "numpy")}
    words = [word for name, (text, _) in said.items() for word in (f"--{name.replace('_', '-')}", text)]
    words += ["--operation", "attention", "--in-process", "--no-shrink", "--json", "report.json"]
    command("check", "targets.py:unscaled", *words)
    (told,) = json.loads(Path("report.json").read_text())["subjects"]
    values: dict[str, Any] = {name: value for name, (_, value) in said.items()}
    report = conformance.check("targets.py:unscaled", "attention", isolate=False, shrink=False, **values)
    content = json.loads(json.dumps(checked_content(report, None)))
    assert told["declaration"]["tile"] == [8, 4]
    for name in ("declaration", "rules", "conforms", "levels"):
        assert told[name] == content[name]
    assert [one["message"] for one in told["violations"]] == [one["message"] for one in content["violations"]]
    assert told["violations"]
    words = {name: [text] if options_of(CheckOptions)[name].many else text for name, (text, _) in said.items()}
    judge = pytest_plugin.make_judge(
        "targets.py:unscaled", "attention", None, words | {"isolate": False, "shrink": False}
    )
    assert declaration_content(judge.executor.runner.declaration) == content["declaration"]
    assert {question.rule for question in judge.executor.list_all()} == {"ATT-1"}


def test_one_head_width_needs_no_list() -> None:
    assert declaration_of(attention, False, head_widths=64).head_widths == ((64, 64),)


def test_a_declaration_without_parentheses_is_refused() -> None:
    with pytest.raises(TypeError, match=r"write @declare\(...\)"):
        conformance.declare(len)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"tile": "8x8"}, "tile means"),
        ({"conventions": "moments=lerp"}, "convention moments means"),
        ({"supports": "no-gqa,gradients", "layout": "BTHD"}, "layout, feature gqa mean"),
    ],
)
def test_what_says_nothing_of_the_operation_is_refused(given: dict[str, Any], refused: str) -> None:
    with pytest.raises(ValueError, match=f"^{refused} nothing for layer_norm$"):
        conformance.check(lambda x, weight, bias, *, eps: x, "layer_norm", **given)

"""The columns of the three implementations: that they align, and that a test says where when they no longer do."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from conformance.side_by_side import drift, marking
from conformance.side_by_side.columns import Columns, side_by_side
from conformance.side_by_side.drift import FILES, all_columns, drifts, label
from conformance.side_by_side.sources import PACKAGES, ROOT, Function, functions_in
from study.__main__ import alignment_lines


def edited(file: str, package: str, old: str, new: str) -> Mapping[str, Mapping[str, Function]]:
    """The functions of a file, with one place of one package's text changed."""
    texts = {name: (ROOT / name / file).read_text() for name in PACKAGES}
    assert texts[package].count(old) == 1, f"{old!r} stands {texts[package].count(old)} times in {package}/{file}"
    texts[package] = texts[package].replace(old, new)
    return {name: functions_in(text, name, file) for name, text in texts.items()}


def faults(file: str, name: str, functions: Mapping[str, Mapping[str, Function]]) -> list[str]:
    return drifts([side_by_side(file, name, functions)])


def test_the_columns_align() -> None:
    assert drifts() == []


def test_a_build_tells_a_reader_only_of_columns_that_do_not_align() -> None:
    assert alignment_lines([]) == []
    first, second = alignment_lines(["softmax: step `powers` stands alone"])
    assert first.startswith("The code is shown as it is, and no number changes.")
    assert second == "  softmax: step `powers` stands alone"


def test_every_function_in_a_reason_stands_on_the_page() -> None:
    """A reason that stands beside a step of layer norm does not speak of attention."""
    for key, reasons in drift.idioms().items():
        named = {name for reason in reasons for name in re.findall(r"\breference_\w+", reason)}
        assert named <= {f"reference_{key.partition(':')[0]}"}, key


def test_most_steps_stand_in_all_three() -> None:
    found = re.match(r"(\d+) of (\d+) steps", drift.summary())
    assert found
    assert int(found[1]) > 0.75 * int(found[2]) > 300


@pytest.mark.parametrize(
    ("file", "function", "package", "old", "new", "told"),
    [
        pytest.param(
            "attention_steps.py", "softmax", "jax_impl",
            "exponentials = jnp.exp(jnp.where(allowed, scores - maximum, -jnp.inf))\n    total = jnp.sum(exponentials,",
            "powers = jnp.exp(jnp.where(allowed, scores - maximum, -jnp.inf))\n    total = jnp.sum(powers,",
            r"softmax: step `powers` of jax_impl/attention_steps.py:\d+ has nothing beside it in reference_numpy and",
            id="renamed",
        ),
        pytest.param(
            "attention_steps.py", "softmax", "torch_impl",
            "    maximum = torch.where(maximum == -torch.inf, 0, maximum).detach()\n", "",
            r"softmax: step `maximum` of reference_numpy/attention_steps.py:\d+ and jax_impl/attention_steps.py:\d+ "
            r"has nothing beside it in torch_impl",
            id="left out",
        ),
        pytest.param(
            "layer_norm.py", "rms_norm", "torch_impl",
            "    axes = checks.rms_norm(x, weight, eps, plus_one)\n    wide = widen(x)\n",
            "    wide = widen(x)\n    axes = checks.rms_norm(x, weight, eps, plus_one)\n",
            r"rms_norm: step `(axes|wide)` of .* has nothing beside it in torch_impl, where it comes in another order: "
            r"torch_impl/layer_norm.py:\d+",
            id="swapped",
        ),
        pytest.param(
            "attention_steps.py", "allowed_sum", "torch_impl",
            "        finite = torch.isfinite(values)\n", "        numbers = torch.isfinite(values)\n",
            r"allowed_sum: .*`numbers` .*torch_impl/attention_steps.py:\d+",
            id="in the helper that follows",
        ),
        pytest.param(
            "attention_steps.py", "softmax", "reference_numpy",
            "    return weights, (maximum + np.log(total))[..., 0]\n",
            "    logsumexp = maximum + np.log(total)\n    return weights, logsumexp[..., 0]\n",
            r"softmax: step `logsumexp` of reference_numpy/attention_steps.py:\d+ has nothing beside it in torch_impl",
            id="one more in the definition",
        ),
        pytest.param(
            "blocks.py", "residual", "jax_impl",
            'if configuration.norm_order == "post":', "if parameters_say_post_norm:",
            r"residual: step `if parameters_say_post_norm` of jax_impl/blocks.py:\d+ has nothing beside it",
            id="another question",
        ),
        pytest.param(
            "generation.py", "extend", "jax_impl",
            "    W, N = log_probabilities.shape[1:]\n", "    W, M = log_probabilities.shape[1:]\n",
            r"extend: one step has several names, `W, N` in reference_numpy/generation.py:\d+, .* `W, M` in jax_impl",
            id="one of two names",
        ),
    ],
)  # fmt: skip
def test_an_edit_is_found(file: str, function: str, package: str, old: str, new: str, told: str) -> None:
    functions = edited(file, package, old, new)
    found = faults(file, function, functions)
    assert any(re.search(told, message) for message in found), found


def test_an_idiom_that_nothing_needs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    more = {**drift.idioms(), "softmax: nowhere [JAX]": ["no reason"]}
    monkeypatch.setattr(drift, "idioms", lambda: more)
    assert drifts() == ["idioms.toml allows `softmax: nowhere [JAX]`, which no longer differs"]


def test_an_idiom_allows_no_more_than_it_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = sum(len(reasons) - 1 for reasons in drift.idioms().values())
    fewer = {key: reasons[:1] for key, reasons in drift.idioms().items()}
    monkeypatch.setattr(drift, "idioms", lambda: fewer)
    assert 0 < len(drifts()) == twice


def test_functions_in_another_order_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "jax_impl/layer_norm.py").read_text()
    start, stop = text.index("def rms_norm"), text.index("def standard_deviation_norm")
    turned = text[:start] + text[stop:] + "\n\n" + text[start:stop]
    functions = {
        name: functions_in(turned if name == "jax_impl" else (ROOT / name / "layer_norm.py").read_text(), name, "")
        for name in PACKAGES
    }
    monkeypatch.setattr(drift, "live", lambda file: functions)
    assert list(drift.order_drifts("layer_norm.py")) == [
        "jax_impl/layer_norm.py: `standard_deviation_norm` stands where the definition has `rms_norm`"
    ]


@pytest.mark.parametrize("file", FILES)
def test_no_step_is_lost_or_doubled(file: str) -> None:
    """Every step of a function stands in one row of its column, in the source's order."""
    for columns in (one for one in all_columns() if one.file == file):
        for number, function in enumerate(columns.functions):
            if function is not None:
                shown = [row.steps[number] for row in columns.body]
                own = [step for step in shown if step is not None and not step.inside]
                assert own == list(function.steps)


def row(columns: Columns, name: str, which: int = 0) -> list[str]:
    found = [one for one in columns.body if any(step and label(step) == name for step in one.steps)]
    return ["" if step is None else step.text for step in found[which].steps]


def test_steps_of_the_same_purpose_stand_beside_each_other() -> None:
    softmax = side_by_side("attention_steps.py", "softmax")
    assert row(softmax, "exponentials") == [
        "exponentials = np.exp(np.where(allowed, scores - maximum, -np.inf))",
        "exponentials = torch.exp(torch.where(allowed, scores - maximum, -torch.inf))",
        "exponentials = jnp.exp(jnp.where(allowed, scores - maximum, -jnp.inf))",
    ]
    assert ["sinks[:, None, None] - maximum" in text for text in row(softmax, "total", 1)] == [True] * 3


def test_comments_are_notes_and_not_code() -> None:
    for columns in all_columns():
        for one in columns.body:
            for step in one.steps:
                assert step is None or not re.search(r"(^|\s)# ", step.text), step
    steps = [one.steps[1] for one in side_by_side("attention_steps.py", "softmax").body]
    assert "constant to the gradient" in next(step.notes[0] for step in steps if step is not None and step.notes)


# --- marks ------------------------------------------------------------------------------------------------------------


def marked(*texts: str) -> list[list[str]]:
    return [[piece.text for piece in pieces if piece.differs] for pieces in marking.mark_differences(texts)]


def test_what_differs_is_marked_and_nothing_else() -> None:
    assert marked("x = np.exp(y)", "x = torch.exp(y)", "x = jnp.exp(y)") == [["np"], ["torch"], ["jnp"]]
    assert marked("a.astype(d)", "a.to(d)", "a.astype(d)") == [["astype"], ["to"], ["astype"]]
    assert marked("sum(e, axis=-1, keepdims=True)", "sum(e, dim=-1, keepdim=True)") == [
        ["axis", "keepdims"],
        ["dim", "keepdim"],
    ]
    assert marked("return x", "return x", "return x") == [[], [], []]
    assert marked("f(\n    x,\n)", "f(x,)") == [[], []]  # line breaks are layout


def test_marking_loses_no_text() -> None:
    for columns in all_columns():
        for one in columns.body:
            texts = [None if step is None else step.text for step in one.steps]
            for text, pieces in zip(texts, marking.mark_differences(texts), strict=True):
                assert "".join(piece.text for piece in pieces) == (text or "")


@pytest.mark.parametrize("package", PACKAGES)
def test_the_star_stands_on_its_own_line(package: str) -> None:
    """It has no place in Python's syntax tree: one on a line of its own must not get that of the next argument."""
    for path in (ROOT / package).rglob("*.py"):
        text = path.read_text()
        lines = text.splitlines()
        stars = [one for found in functions_in(text, package, "").values() for one in found.head if one.name == "*"]
        assert all("*," in lines[one.line - 1] for one in stars), path

"""The walk-throughs in `examples/`: each runs as a script without a warning, says what it claims, and can fail."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import conformance
from conformance.models import minilm
from tests.support.helpers import command

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TIME_LIMIT = 300
"""Seconds; each takes less than a minute on an idle machine."""
CELL = re.compile(r"(?m)^(?=# %%)")
BY_HAND = re.compile(r"allclose|assert_close|isclose|\b[ar]tol\b|approx")

PUBLIC = {
    "conformance": conformance.__all__,
    "conformance.pytest_plugin": ["conformance_test"],
    "conformance.timing.subjects.timed_subject": ["TOKENS", "Subject", "without"],
    "conformance.timing.subjects.torch_subjects": ["prepared"],
}
"""By module, the names of the judge that others may import."""
OF_MODELS = "conformance.models."
"""Whole models are judged by functions of these modules, which `docs/watch.md` and two walk-throughs show."""

VERDICTS = {
    "one_query": [
        "attention_logsumexp: off by 0.0",
        "usual as attention: violates",
        "attention as attention: conforms",
        "multi_head_attention as multi_head_attention: conforms",
        "literal_norm as layer_norm: violates",
        "layer_norm as layer_norm: conforms",
        "feed_forward: off by 0.0",
        "encoder block: off by 0.0",
        "Transformer: off by 0.0",
        "the definition, with a cache: True",
    ],
    "in_torch_and_jax": [
        "torch_literal: violates",
        "jax_literal: violates",
        "rows that allow nothing hold NaN",
        "torch_mended: conforms",
        "jax_mended: conforms",
        "has dtype and shape float64",
        "scores are rounded to the inputs' dtype at every step",
        "torch_attention: conforms",
        "jax_attention: conforms",
        "digits are lost",
        "query: was changed by the call",
        "output - bias: holds",
        "NORM-4: the variance is E[x^2] - E[x]^2",
        "torch_layer_norm: conforms",
        "jax_layer_norm: conforms",
        "22 steps, none beyond its bound",
    ],
    "bring_your_own_kernel": [
        "the kernel: conforms",
        "8 keys: differs from the right one by 0\n",
        "the output is not rescaled: violates",
        "the running output is not rescaled when the maximum grows",
        "the mask at the top left: violates",
        "a causal mask's offset is taken for 0 (top left)",
        "declared as top_left: conforms",
        "weights in bfloat16: violates",
        "weights are rounded to the inputs' dtype before the division",
        "declared as weights in the inputs' dtype: conforms",
        "the broken kernel: ",
    ],
    "one_training_step": [
        "loss: 1.7512644604326708",
        "cross_entropy_of_torch: conforms, worst 0.",
        "LOSS-1 (robust, not asked by the profile core): ",
        "the mean is taken over all rows, not over the targets that count",
        "adam: conforms",
        "the square of eps stands inside the root",
        "step 9: loss 0.66",
    ],
    "look_inside": [
        "the word before  most in layer 0, head  2",
        "nothing changed: 0 of 42 steps beyond their bounds",
        "eps 1e-5 for 1e-12: 8 of 42 steps beyond their bounds",
        "scale 1 / sqrt(384): 6 of 42 steps beyond their bounds",
        "in float64: 6 steps beyond their bounds",
        "every change shows at its own steps and at no others",
    ],
}


FAULTS = {
    "score over D": ("one_query", "query @ key / np.float32(np.sqrt(D))", "query @ key / np.float32(D)", "bounds"),
    "no residual": ("one_query", "layer_norm(x + found,", "layer_norm(found,", "encoder block"),
    "NaN hidden": ("in_torch_and_jax", "weights.masked_fill(~mask, 0) @", "weights @", "torch_mended violates"),
    "output not rescaled": (
        "bring_your_own_kernel", "output * factor + multiply", "output + multiply", "the kernel violates"
    ),
    "bias correction left out": (
        "one_training_step", "mean / (1 - beta_1**step) / size", "mean / size", "adam violates"
    ),
    "heads halved": ("look_inside", "H = f\"blocks.{layer}.attention\", configuration.num_heads",
                          "H = f\"blocks.{layer}.attention\", 6", "blocks.0.attention"),
    "nothing is changed": (
        "look_inside", "changed if isinstance(a, Configuration) else a for", "a for", "assert beyond"
    ),
}  # fmt: skip
"""By name: in which walk-through what becomes what, and what the assertion that then ends it says."""


def run(file: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """The script in a process of its own, from another folder than its own. Warnings are printed, to stderr.

    As errors they would pass unseen: the judge takes one that a function under test raises for a violation.
    """
    cache = Path.home() / ".cache" / "transformer-conformance" / "jax"
    environment = {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"}
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    environment |= {"JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    ignored = "ignore:Error reading persistent compilation cache entry:UserWarning"
    return subprocess.run(
        [sys.executable, "-W", "default", "-W", ignored, str(file)],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
    )


def needs(walk: str) -> None:
    """Skips where what the walk-through imports is not installed."""
    for package in ("torch", "jax"):
        if f"import {package}\n" in (EXAMPLES / f"{walk}.py").read_text():
            pytest.importorskip(package)
    if walk == "look_inside" and minilm.missing_packages():
        pytest.skip(f"needs {', '.join(minilm.missing_packages())}")


def cells(walk: str) -> list[str]:
    return [cell for cell in CELL.split((EXAMPLES / f"{walk}.py").read_text()) if cell.strip()]


@pytest.mark.slow
@pytest.mark.parametrize("walk", VERDICTS)
def test_it_runs_and_says_what_it_claims(walk: str, tmp_path: Path) -> None:
    needs(walk)
    done = run(EXAMPLES / f"{walk}.py", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert [verdict for verdict in VERDICTS[walk] if verdict not in done.stdout] == []
    assert {file.name for file in tmp_path.iterdir()} <= {".hypothesis"}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_ends_it(name: str, tmp_path: Path) -> None:
    walk, old, new, message = FAULTS[name]
    needs(walk)
    text = (EXAMPLES / f"{walk}.py").read_text()
    assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {walk}"
    copy = tmp_path / "walk.py"
    copy.write_text(text.replace(old, new))
    done = run(copy, tmp_path)
    assert done.returncode == 1
    assert "AssertionError" in done.stderr
    assert message in done.stderr


def test_without_the_model_it_says_so_and_ends(tmp_path: Path) -> None:
    copy = tmp_path / "walk.py"
    imported = "from conformance.models import minilm\n"
    text = (EXAMPLES / "look_inside.py").read_text()
    copy.write_text(text.replace(imported, f'{imported}minilm.missing_packages = lambda: ["tokenizers"]\n'))
    done = run(copy, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "left out: the model needs tokenizers, which is not installed\n"


def test_every_walk_is_tested() -> None:
    found = {file.stem for file in EXAMPLES.glob("*.py") if "# %%" in file.read_text()}
    assert found == set(VERDICTS)


@pytest.mark.parametrize("walk", VERDICTS)
def test_it_is_a_notebook(walk: str) -> None:
    """Its cells are whole, its text is comments, and it asks for nothing that only a script has."""
    found = cells(walk)
    assert found[0].startswith("# %% [markdown]\n# # ")
    for cell in found:
        ast.parse(cell)
        if cell.startswith("# %% [markdown]"):
            assert all(line.startswith("#") for line in cell.splitlines() if line)
    names = {node.id for node in ast.walk(ast.parse("".join(found))) if isinstance(node, ast.Name)}
    assert not names & {"__file__", "__name__"}


@pytest.mark.parametrize("walk", VERDICTS)
def test_no_tolerance_is_chosen_by_hand(walk: str) -> None:
    code = "".join(cell for cell in cells(walk) if not cell.startswith("# %% [markdown]"))
    assert BY_HAND.findall(code) == []
    assert "ratio <= 1" in code or "report.conforms" in code or "right.conforms" in code


# --- the exercise in docs/walks.md ------------------------------------------------------------------------------------

EXERCISE = (ROOT / "docs" / "walks.md").read_text().partition("## An exercise")[2]
MEND = ("np.where(mask, -np.inf, scores)", "np.where(mask, scores, -np.inf)")
USUAL = ("np.where(mask, -np.inf, scores)", "np.where(mask, scores, -1e9)")
ANSWERS: dict[str, tuple[tuple[str, str] | None, dict[str, str]]] = {
    "as it stands": (None, {"MASK-1": "the mask is inverted: True is taken for forbidden", "MASK-3": "violates"}),
    "with the mask mended": (
        MEND,
        {"MASK-1": "conforms", "MASK-3": "conforms", "ATT-6": "violates", "MASK-7": "violates"},
    ),
    "with a finite number": (USUAL, {"MASK-1": "conforms", "ATT-6": "forbidden scores are"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
def test_the_exercise_is_judged_as_the_document_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit, verdicts = ANSWERS[name]
    (code,) = re.findall(r"```python\n(.*?)```", EXERCISE, re.DOTALL)
    (line,) = re.findall(r"(?m)^conformance (check exercise.*?\n.*?)$", EXERCISE)
    words = line.replace("\\", " ").split()
    assert "MASK-1" in words
    monkeypatch.chdir(tmp_path)
    Path("exercise.py").write_text(code if edit is None else code.replace(*edit))
    for rule, said in verdicts.items():
        status, output = command(*(word.replace("MASK-1", rule) for word in words))
        assert said in " ".join(output.split()), output
        assert status == (0 if said == "conforms" else 1)


@pytest.mark.slow
def test_the_exercise_names_the_lines_of_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", EXERCISE, re.DOTALL)
    (line,) = re.findall(r"(?m)^conformance (check exercise.*?\n.*?)$", EXERCISE)
    monkeypatch.chdir(tmp_path)
    Path("exercise.py").write_text(code)
    _, output = command(*line.replace("\\", " ").split())
    rows = re.findall(r"(?m)^\| (`.*?) \|", EXERCISE)
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    of_others = ["worst", "when", "pattern", "CALL", "refused", "untried"]  # lines of other functions' reports
    assert [name for name in named if not re.search(rf"(?m)^ *{re.escape(name)}\b", output)] == of_others


def imported_names(code: str) -> list[tuple[str, str]]:
    """Return (module, name) of everything that code imports from the judge, names of `conformance.` among them."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "conformance":
            found += [(node.module, alias.name) for alias in node.names]
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "conformance":
            found.append(("conformance", node.attr))
    return found


def private_names(code: str) -> list[tuple[str, str]]:
    allowed = [(module, name) for module, names in PUBLIC.items() for name in names]
    return [
        (module, name)
        for module, name in imported_names(code)
        if (module, name) not in allowed and not f"{module}.{name}".startswith(OF_MODELS)
    ]


def test_a_private_name_is_seen() -> None:
    assert private_names("from conformance.checks.findings import Finding") == [
        ("conformance.checks.findings", "Finding")
    ]
    assert private_names("import conformance\nconformance.judge.plan") == [("conformance", "judge")]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_walk_throughs_use_public_names_of_the_judge(path: Path) -> None:
    assert private_names(path.read_text()) == []


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.stem
)
def test_documents_use_public_names_of_the_judge(path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
    assert [name for block in blocks for name in private_names(block)] == []

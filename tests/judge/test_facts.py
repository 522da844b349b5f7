"""Nothing in the judge reads a sentence, and no probe draws other cases because its title was reworded."""

from __future__ import annotations

import ast
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import conformance
from conformance.judge import plan
from tests.support.helpers import probes_of_all

ROOT = Path(conformance.__file__).parent
READERS = ("side_by_side", "selftest/ports", "peers/models")
"""Folders that read what others write: code, and names of a checkpoint's entries."""
SOURCES = sorted(path for path in ROOT.rglob("*.py") if str(path.parent.relative_to(ROOT)) not in READERS)
EXPRESSIONS = {
    "ports/checkpoints.py": "numbers of layers in names of a checkpoint's entries",
    "runner/array_guess.py": "annotations of a user's function",
    "reports/content.py": "characters that no terminal shows, and the text of a user's errors",
    "reports/replays.py": "names of files",
    "cli/dev/spec.py": "the text of SPEC.md",
    "judge/batches.py": "a part of a run, as the command line names it",
    "selftest/tightness.py": "numbers of parts in names of results",
    "timing/measure/environment.py": "what Linux says of the processor",
    "timing/measure/memory.py": "what Linux says of memory",
}
"""Files with regular expressions, and what these are for."""
WORDS = {
    *("gradient of ", "output", "outputs", "outputs[", "logsumexps", "query[", "option ", ".weight", ".bias", "_vjp"),
    *("attention", "cross_attention", "encoder.", "blocks.", "layer", "_plus_one", "."),
    *("torch.", "_impl", ".py", "test_", "<frozen", "_", "#"),
    *("no-", "eps", "experts.", "shared.", "_output_norm", ".feed_forward_norm", "self_", "tokens", "_mm"),
    *("decoder.", "source_", "target_", "token_types", "norm", "norm.weight", "rms", "mask", ":"),
    *("router.", "padding", "_norm", ": add", "encoder.blocks.", "2", ".0", "gated-", "embedding.norm"),
}
"""How names may begin or end, line by line: results and inputs, operations and steps, Python's own, what users say, and
a model's options and parameters. A colon ends an error's line that announces the next."""
AFFIXES = ("startswith", "endswith", "removeprefix", "removesuffix")
SECTIONS = {f"{path.stem}." for path in (ROOT / "mistakes").glob("*.py")}
"""Of the catalogue, with which ids begin."""


def constants(call: ast.Call) -> Iterator[str]:
    arguments = call.args[0].elts if isinstance(call.args[0], ast.Tuple) else call.args[:1]
    yield from (one.value for one in arguments if isinstance(one, ast.Constant))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_reads_the_words_of_another(path: Path) -> None:
    """Facts have fields. Regular expressions and beginnings of text are for what comes from elsewhere."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import) and any(name.name == "re" for name in node.names):
            assert str(path.relative_to(ROOT)) in EXPRESSIONS
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in AFFIXES:
            assert {*constants(node)} <= WORDS | SECTIONS, ast.unparse(node)


def test_files_with_regular_expressions_have_some() -> None:
    assert all("import re\n" in (ROOT / path).read_text() for path in EXPRESSIONS)


SEEDS = 766, 1791695908
"""How many probes there are, and the checksum of all seeds. Both change where a probe is added, and never otherwise."""


def test_the_seeds_of_probes_have_not_changed() -> None:
    """A report of an older version is drawn again by its seed, whatever the probes are called today."""
    seeds = sorted(plan.seed_of(probe, 0) for probe in probes_of_all())
    assert (len(seeds), zlib.crc32(" ".join(map(str, seeds)).encode())) == SEEDS

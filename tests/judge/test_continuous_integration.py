"""What others copy into their repositories: the commands of the documents, the workflow, and the pre-commit hooks."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.support.helpers import DOCUMENTS, command

ROOT = DOCUMENTS.parent
FENCED = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)


def commands(text: str) -> list[list[str]]:
    """The words of each line that calls `conformance`, in the blocks of a document."""
    lines = [line for _, block in FENCED.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("conformance ")]


def list_refused(text: str) -> list[str]:
    """Those commands that have an option or a subcommand that is not there; help takes any argument."""
    return [shlex.join(words) for words in commands(text) if command(*words, "--help")[0] != 0]


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted(DOCUMENTS.glob("*.md"))], ids=lambda path: path.name)
def test_documented_commands_exist(path: Path) -> None:
    assert list_refused(path.read_text()) == []


def test_commands_that_do_not_exist_are_noticed() -> None:
    text = "```\nconformance judge x\nconformance check f.py:g --effort quick \\\n  --swiftly\n```\nconformance nothing"
    assert list_refused(text) == ["judge x", "check f.py:g --effort quick --swiftly"]


# --- what others copy -------------------------------------------------------------------------------------------------

WORKFLOW, LOCAL, BY_ADDRESS = (
    block for kind, block in FENCED.findall((DOCUMENTS / "ci.md").read_text()) if kind == "yaml"
)


def test_the_documented_workflow_runs_a_check() -> None:
    yaml = pytest.importorskip("yaml")
    steps = yaml.safe_load(WORKFLOW)["jobs"]["check"]["steps"]
    (check,) = (step["run"] for step in steps if step.get("run", "").startswith("conformance check"))
    words = shlex.split(check)
    assert command(*words[1:], "--help")[0] == 0
    (upload,) = (step["with"]["path"].split() for step in steps if "upload-artifact" in step.get("uses", ""))
    assert upload == [str(Path(words[words.index("--html") + 1]).parent), "conformance-replays"]


def test_the_offered_hook_is_the_documented_one(tmp_path: Path) -> None:
    clientlib = pytest.importorskip("pre_commit.clientlib")
    (offered,) = clientlib.load_manifest(ROOT / ".pre-commit-hooks.yaml")
    hooks = []
    for text in (LOCAL, BY_ADDRESS):
        (tmp_path / "config.yaml").write_text(text)
        (repository,) = clientlib.load_config(tmp_path / "config.yaml")["repos"]
        hooks += repository["hooks"]
    local, by_address = hooks
    same = ("name", "entry", "pass_filenames", "require_serial")
    assert [local[name] for name in same] == [offered[name] for name in same]
    assert [by_address[name] for name in ("id", "args", "files")] == [local[name] for name in ("id", "args", "files")]
    assert by_address["id"] == offered["id"]
    assert command(*shlex.split(offered["entry"])[1:], *local["args"], "--help")[0] == 0

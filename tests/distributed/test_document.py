"""The programs in docs/scaling.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = re.findall(r"`(\w+\.py)`:\n\n```python\n(.*?)```", (ROOT / "docs" / "scaling.md").read_text(), re.DOTALL)
COMMANDS = {
    "ring.py": (("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"), 4),
    "devices.py": ((), 1),
    "model.py": (("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"), 4),
    "experts.py": (("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"), 4),
    "expert_devices.py": ((), 1),
}
"""How each is run, and how many lines it prints."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "text"), PROGRAMS, ids=[name for name, _ in PROGRAMS])
@pytest.mark.rule("DIST-1", "DIST-3", "DIST-6", "DIST-7")
def test_programs_run(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    command, lines = COMMANDS[name]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command, str(tmp_path / name)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == lines


def test_every_program_has_its_command() -> None:
    assert [name for name, _ in PROGRAMS] == [*COMMANDS]

"""Processes that the judge and the benchmark start end with the one that has started them, though that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PARENTS = {
    "workers of a run": """
        from conformance.judge.pool import Workers
        pool = Workers(["reference_numpy"], 1).pool
        """,
    "workers of the self-test": """
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context
        from conformance.runner.cores import start
        pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=start)
        """,
}
ASKED = """
        import os, time
        print(pool.submit(os.getpid).result(), flush=True)
        pool.submit(time.sleep, 600)
        """
CHILD = """
        import time
        from conformance.runner.in_subprocess import SubprocessRunner
        from conformance.subjects.targets import Target
        runner = SubprocessRunner(Target("reference_numpy:layer_norm", "layer_norm"), 60.0)
        print(runner.process.pid, flush=True)
        """
BENCHMARK = """
        import multiprocessing
        from benchmarks.measure.workers import serve
        pipe, other = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(target=serve, args=(other, 1, {}, dict, ()))
        process.start()
        pipe.send(("copy", ()))
        pipe.recv()
        print(process.pid, flush=True)
        """
CHECK = """
        from conformance.judge.worker_processes import Start, WorkerProcesses
        from conformance.subjects.targets import Target
        workers = WorkerProcesses(Start(Target("reference_numpy:layer_norm", "layer_norm"), 60.0, 2))
        print(*workers.processes, flush=True)
        """
SCRIPTS: dict[str, str] = {name: start.rstrip(" ") + ASKED.removeprefix("\n") for name, start in PARENTS.items()} | {
    "child": CHILD,
    "workers of a check": CHECK,
    "benchmark": BENCHMARK,
}


def there(pid: int) -> bool:
    """Whether it runs; one that has ended and that nobody has asked about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up as on Linux")
@pytest.mark.parametrize("name", SCRIPTS)
def test_ends_with_its_parent(name: str, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(f'import time\nif __name__ == "__main__":{SCRIPTS[name].rstrip(" ")}        time.sleep(600)\n')
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env=own, cwd=tmp_path) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert there(pid)
        parent.send_signal(signal.SIGKILL)
    until = time.monotonic() + 30
    while there(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not there(pid)

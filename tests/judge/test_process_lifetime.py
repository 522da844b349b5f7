"""Processes that the judge and the benchmark start end with the one that has started them, though that is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from conformance.runner import workers
from conformance.runner.fresh import ForkingProcess, serve_subject
from conformance.runner.in_process import Runner
from conformance.runner.in_subprocess import SubprocessRunner
from conformance.subjects.callables import Target

ROOT = Path(__file__).parents[2]

POOL = """
        import os
        from conformance.runner.workers import WorkerPool, encode_call
        pool = WorkerPool(1, encode_call(os.getpid))
        print(pool.submit(os.getpid).result(), flush=True)
        pool.submit(time.sleep, 600)
        """
SUBJECT = """
        from conformance.runner.in_subprocess import SubprocessRunner
        from conformance.subjects.callables import Target
        runner = SubprocessRunner(Target("reference_numpy:layer_norm", "layer_norm"), 60.0)
        print(runner.worker.process.pid, flush=True)
        """
FORKED = """
        import os
        from conformance.runner.fresh import FORKING_PROCESS
        from conformance.runner.in_subprocess import SubprocessRunner
        from conformance.runner.workers import encode_call
        from conformance.subjects.callables import Target
        runner = SubprocessRunner(Target("reference_numpy:layer_norm", "layer_norm"), 60.0)
        print(FORKING_PROCESS.worker.call(encode_call(os.getpid)), flush=True)
        """
BENCHMARK = """
        import multiprocessing
        from conformance.timing.measure.processes import serve
        pipe, other = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(target=serve, args=(other, 1, {}, dict, ()))
        process.start()
        pipe.send(("copy", ()))
        pipe.recv()
        print(process.pid, flush=True)
        """
SCRIPTS = {"pool of workers": POOL, "subject": SUBJECT, "forked by it": FORKED, "benchmark": BENCHMARK}


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


def test_calls_fail_once_no_worker_is_left() -> None:
    """Those that are waiting too, and those that come later."""
    pool = workers.WorkerPool(2, workers.encode_call(os.getpid))
    try:
        futures = [pool.submit(os._exit, 3) for _ in range(5)]
        assert [type(future.exception(60)) for future in futures] == [workers.NoReply] * 5
        assert type(pool.submit(os.getpid).exception(60)) is workers.NoReply
    finally:
        pool.close()


def test_an_interrupted_call_ends_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or its reply would be that to the next call."""
    worker = workers.Worker()

    def interrupt(*arguments: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "ready_in_time", interrupt)
    with pytest.raises(KeyboardInterrupt):
        worker.call(workers.encode_call(os.getpid))
    monkeypatch.undo()
    assert not worker.is_alive
    with pytest.raises(workers.NoReply):
        worker.call(workers.encode_call(os.getpid))


def test_the_process_that_forks_has_the_framework_and_not_the_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it outlives the process that has forked it."""
    forking = ForkingProcess()
    monkeypatch.setattr("conformance.runner.in_subprocess.FORKING_PROCESS", forking)
    kernels = ROOT / "tests/support/kernels.py"
    runner = SubprocessRunner(Target(f"{kernels}:causal_kernel", "attention", arrays="torch"), 60.0)
    runner.close()
    assert forking.worker is not None
    assert forking.worker.is_alive
    names = "[name in __import__('sys').modules for name in ('torch', 'kernels')]"
    assert forking.worker.call(workers.encode_call(eval, names), 60.0) == [True, False]
    forking.close()


def start_subject(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> tuple[ForkingProcess, Runner]:
    """A subject of a file, and what its process forks."""
    (tmp_path / "kernel.py").write_text(source + "\n\ndef silu(x):\n    return x\n")
    forking = ForkingProcess()
    monkeypatch.setattr("conformance.runner.in_subprocess.FORKING_PROCESS", forking)
    return forking, SubprocessRunner(Target(f"{tmp_path}/kernel.py:silu", "silu", arrays="numpy"), 60.0)


def test_a_subject_has_no_child_that_it_did_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = "import os\ntry:\n    os.wait()\nexcept ChildProcessError:\n    none = True"
    forking, runner = start_subject(tmp_path, wait, monkeypatch)
    runner.close()
    forking.close()


def test_the_process_that_forks_is_ended_and_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forking, runner = start_subject(tmp_path, "", monkeypatch)
    worker = forking.worker
    assert worker is not None
    pid = worker.call(workers.encode_call(os.getpid), 60.0)
    assert there(pid)
    with pytest.raises(workers.NoReply):
        worker.call(workers.encode_call(time.sleep, 600), 1.0)
    worker.close()
    until = time.monotonic() + 30
    while there(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not there(pid)
    assert not worker.is_alive
    runner.close()


def test_a_subject_starts_where_no_process_is_left_to_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own limit stands for one of the system's."""
    ours, theirs = socket.socketpair()
    fork = Mock(side_effect=BlockingIOError)
    monkeypatch.setattr("conformance.runner.fresh.os.fork", fork)
    monkeypatch.setattr("conformance.runner.fresh.serve", lambda descriptor: None)
    serve_subject(-1, theirs.detach(), ())
    fork.assert_called_once()
    assert not workers.ForkedWorker(ours).is_alive

"""A process that another has started ends with it, also where that one is killed and cannot say so."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import wait


def end_with_parent() -> None:
    """To be called first in a process started by `multiprocessing`; elsewhere it does nothing."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=end_after, args=(parent.sentinel,), daemon=True).start()


def end_after(sentinel: int) -> None:
    """Without the usual ending, which would wait for what is being computed."""
    wait([sentinel])
    os._exit(1)

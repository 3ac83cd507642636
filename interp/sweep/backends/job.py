"""What submitit runs on a cluster: `interp run --cells FILE`, and nothing else. Imports little: every job does."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

GRACE = 30.0
"""Seconds a worker has to put its cell in order when the job's end was announced."""
DEATHS = 3
"""Times a worker that was killed is started again."""
LOOK = 0.1
"""Seconds between two looks at a worker."""
STOPPED = 130
"""A worker's exit code after a signal that asked it to stop."""
END = 120.0
"""Seconds within which the cluster ends a job whose worker it told to stop."""


class ShellJob:
    """What submitit runs: a worker's command line. `checkpoint` stops it and asks for a requeue."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = list(command)
        self._worker: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def __call__(self) -> int:
        """Run the worker, again where it was killed (a cell that kills every worker is recorded by the worker)."""
        code = 0
        # the job's log begins with what it runs, as a shell with `set -x` says it
        sys.stdout.write(f"+ {shlex.join(self.command)}\n")
        sys.stdout.flush()
        for _ in range(DEATHS + 1):
            self._worker = subprocess.Popen(self.command)
            if self._stopping:
                self._worker.terminate()
            code = self._ended(self._worker)
            if code >= 0 or self._stopping:
                break
        if code == STOPPED and not self._stopping:
            # the cluster will end or requeue the job in a moment; one that ends by itself is not requeued
            time.sleep(END)
        if code:
            # the worker's own records say more; the cluster should see that something is left
            raise RuntimeError(f"the worker ended with code {code}")
        return code

    @staticmethod
    def _ended(worker: subprocess.Popen[bytes]) -> int:
        """A worker's exit code. Not by `wait`: `checkpoint` interrupts this thread and could not wait within it."""
        while (code := worker.poll()) is None:
            time.sleep(LOOK)
        return code

    def checkpoint(self) -> Any:
        """Called by submitit in the job when its end was announced."""
        from submitit.helpers import DelayedSubmission

        self._stopping = True
        if self._worker is not None and self._worker.poll() is None:
            self._worker.terminate()
            try:
                self._worker.wait(GRACE)
            except subprocess.TimeoutExpired:
                self._worker.kill()
        return DelayedSubmission(ShellJob(self.command))

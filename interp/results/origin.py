"""Where a number comes from: what `run.json` records besides the config.

Versions of Python and of the packages that compute, device, threads, commit, wall time, peak memory.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from interp._version import __version__

PACKAGES = ("torch", "transformers", "transformer-lens", "numpy", "scipy", "pandas", "pyarrow", "safetensors")


def versions() -> dict[str, str]:
    """Versions of this package, of Python and of what it computes with; packages that are absent are left out."""
    found = {"interp": __version__, "python": platform.python_version(), "platform": platform.system()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The git commit this package's source stands at (`+` where files differ from it), None outside git."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "HEAD")
        return head + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no", "--", "interp") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def peak_memory(device: str = "cpu") -> int | None:
    """Most memory in use so far, in bytes: the process's on a CPU, the allocator's on a CUDA device."""
    torch = sys.modules.get("torch")
    if device.startswith("cuda") and torch is not None:
        return int(torch.cuda.max_memory_allocated(device))
    status = Path("/proc/self/status")
    if status.exists():  # Linux: what `getrusage` says there starts at the peak of the process's parent
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def threads_now() -> int | None:
    """PyTorch's thread count where PyTorch is in use."""
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


@dataclass(frozen=True)
class Origin:
    """The settings a cell is computed under; `record` closes it with what only the end of the run knows."""

    device: str = "cpu"
    dtype: str | None = None
    threads: int | None = None
    pack: int | None = None
    plain: bool = False
    command: str | None = None
    started: float = field(default_factory=time.perf_counter)

    def settings(self) -> dict[str, Any]:
        """What may differ between two runs of one cell."""
        return {"device": self.device, "threads": self.threads, "pack": self.pack}

    def record(self, **more: Any) -> Mapping[str, Any]:
        """Everything for run.json."""
        return {
            **more,
            "device": self.device, "dtype": self.dtype, "threads": self.threads or threads_now(),
            "pack": self.pack, "plain": self.plain, "command": self.command, "versions": versions(),
            "commit": commit(), "wall_seconds": round(time.perf_counter() - self.started, 3),
            "peak_memory_bytes": peak_memory(self.device),
        }  # fmt: skip

"""Places that cannot be written to: a read-only folder, a full disk, another person's. One line, and nothing lost."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from interp.registry import UserError

UNWRITABLE = {
    errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOTDIR, errno.ENOENT,
    errno.ENAMETOOLONG,
}  # fmt: skip


class UnwritableError(UserError, OSError):
    """Results cannot be written; `errno` says why, as an OSError's does."""

    def __init__(self, folder: Path, why: int) -> None:
        super().__init__(
            f"results cannot be written to {folder}: {os.strerror(why)}; rows that were computed are kept: make it "
            "writable, or make room, and give the same command again, or give another --out"
        )
        self.errno, self.strerror = why, os.strerror(why)

    def __str__(self) -> str:
        # an OSError with an errno would say only what that means
        return str(self.args[0])


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Inside, an OSError that says that `folder` cannot be written to becomes an UnwritableError."""
    try:
        yield
    except UnwritableError:
        raise
    except OSError as e:
        if e.errno not in UNWRITABLE:
            raise
        raise UnwritableError(folder, e.errno) from e


def check_writable(folder: Path) -> None:
    """UnwritableError where nothing can be made in `folder`, or in the first folder above it that exists."""
    there = next(p for p in (folder.absolute(), *folder.absolute().parents) if os.path.isdir(p))
    if os.access(there, os.W_OK | os.X_OK):
        return
    read_only = os.statvfs(there).f_flag & os.ST_RDONLY
    raise UnwritableError(folder, errno.EROFS if read_only else errno.EACCES)

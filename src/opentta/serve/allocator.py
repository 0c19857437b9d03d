"""What glibc's malloc does with memory that is free; elsewhere nothing happens here.

A step frees as many megabytes as its activations take, in threads that come and go, with the small
tensors of streams between them. By itself malloc keeps an arena per thread and gives little back.
"""

import ctypes
import sys
from typing import Any

ARENA_MAX = -8  # glibc's M_ARENA_MAX


def share_one_arena() -> None:
    """All threads allocate from one arena; for a process that has not many yet."""
    mallopt = _of_libc("mallopt")
    if mallopt is not None:
        mallopt(ARENA_MAX, 1)


def give_back() -> None:
    """Pages that hold nothing return to the system: takes milliseconds, and others wait."""
    trim = _of_libc("malloc_trim")
    if trim is not None:
        trim(0)


def _of_libc(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None

"""Text is read correctly after the program changes its locale: run with the installed package on Windows.

libc++ once kept the address of a table of letters that the C library frees when the locale changes.
"""

from __future__ import annotations

import ctypes
import locale

from ortrain import _ortrain

LIBRARY = ctypes.CDLL("ucrtbase")
LIBRARY.malloc.restype = ctypes.c_void_p


def overwrite_freed_memory() -> None:
    """Allocate and fill blocks of every size up to 2,000 bytes, without freeing them."""
    for size in range(100, 2000, 4):
        for _ in range(20):
            ctypes.memset(ctypes.c_void_p(LIBRARY.malloc(ctypes.c_size_t(size))), 0xFF, size)


def main() -> None:
    for name in ("German", "C", "French", "C"):
        locale.setlocale(locale.LC_ALL, name)
        overwrite_freed_memory()
        _ortrain.create_metric("accuracy", "ignore_index=-100")
    print("ok: options are read after changes of the locale")


if __name__ == "__main__":
    main()

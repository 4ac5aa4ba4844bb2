"""What the processor can do, as far as results of onnxruntime depend on it."""

from __future__ import annotations

import functools
import re
from pathlib import Path


@functools.cache
def adds_byte_products_exactly() -> bool:
    """Whether onnxruntime adds products of unsigned and signed bytes exactly.

    On x86-64 processors without VNNI it adds pairs of them in 16 bits, which saturate. Signed values of 7 bits are exact on
    all processors.
    """
    path = Path("/proc/cpuinfo")
    flags = re.search(r"^flags\s*:(.*)$", path.read_text(), re.MULTILINE) if path.exists() else None
    return flags is None or bool({"avx512_vnni", "avx_vnni"} & set(flags[1].split()))

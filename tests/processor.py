"""What the processor can do, as far as results depend on it."""

from __future__ import annotations

import functools
import re
from pathlib import Path


@functools.cache
def flags() -> frozenset[str]:
    """Return the instruction sets that Linux names on x86-64; none on other systems."""
    path = Path("/proc/cpuinfo")
    found = re.search(r"^flags\s*:(.*)$", path.read_text(), re.MULTILINE) if path.exists() else None
    return frozenset(found[1].split()) if found else frozenset()


def multiplies_bfloat16() -> bool:
    """Whether an x86-64 processor has an instruction for products of bfloat16."""
    return "avx512_bf16" in flags()


def adds_byte_products_exactly() -> bool:
    """Whether onnxruntime adds products of unsigned and signed bytes exactly.

    On x86-64 processors without VNNI it adds pairs of them in 16 bits, which saturate. Signed values of 7 bits are exact on
    all processors.
    """
    return not flags() or bool({"avx512_vnni", "avx_vnni"} & flags())

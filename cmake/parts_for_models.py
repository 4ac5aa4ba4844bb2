"""Print the parts of the library that the element types and convolutions of ONNX models need (spec/library.yaml).

``parts_for_models.py MODEL...`` prints names of options without their prefix, as HALVES, one in a line.
"""

from __future__ import annotations

import sys
from pathlib import Path

from built_operators import model_contents


def main() -> None:
    """Print the parts."""
    import onnx

    models = [onnx.load(Path(path), load_external_data=False) for path in sys.argv[1:]]
    for part in sorted({part for model in models for part in model_contents.parts_for(model)}):
        print(part.upper())


if __name__ == "__main__":
    main()

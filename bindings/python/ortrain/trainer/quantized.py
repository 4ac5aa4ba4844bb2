"""Exports of networks that were trained with their quantization."""

from __future__ import annotations

import os

from ortrain._files.writing import write_file

RANGE = "int8/"
"""The prefix of the names of ranges in a checkpoint, see ``ortrain.artifacts.graph.quantization_aware``."""


def fold_quantization(path: str | os.PathLike[str]) -> None:
    """Replace the computation of scales and bytes in an exported model with their values, if there is onnx.

    Without the package onnx the model stays as it is, with the weights as floats: a runtime computes the same.
    """
    try:
        import onnx

        from ortrain.artifacts.graph.quantization_aware import with_constants
    except ImportError:
        return
    write_file(path, "model", with_constants(onnx.load(path)).SerializeToString())

"""Writes what the page needs into its folder: the step model, the start of the parameters, and the digits.

Usage: python prepare.py [FOLDER]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
from ortrain import artifacts
from ortrain.api import CheckpointState

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "digits"))

from data import load  # noqa: E402
from model import build_model  # noqa: E402


def main() -> None:
    """Write the files into the folder that is given, or beside the page."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    network, trainable, frozen = build_model(seed=0)
    # onnxruntime-web takes no values for initializers, so the parameters are inputs alone.
    report = artifacts.generate_step(
        network,
        requires_grad=trainable,
        frozen_params=frozen,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        path=folder / "step.onnx",
        initializers=False,
    )
    model = onnx.load(folder / "step.onnx")
    [about] = [json.loads(entry.value) for entry in model.metadata_props if entry.key == "ortrain.step"]
    parameters = dict(CheckpointState.load_checkpoint(str(report.checkpoint)).parameters)
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in model.graph.input
        if value.name in about["state"] or value.name in about["frozen"]
    }
    # The values one after the other, as float32: those of parameters, and zeros for moments.
    values = [
        parameters[name].data.astype(np.float32) if name in parameters else np.zeros(shape, np.float32)
        for name, shape in shapes.items()
        if name != "step"
    ]
    (folder / "start.bin").write_bytes(b"".join(value.tobytes() for value in values))
    train, _ = load()
    (folder / "images.bin").write_bytes(train.images.astype(np.float32).tobytes())
    (folder / "labels.bin").write_bytes(train.labels.astype(np.uint8).tobytes())
    described = {
        "about": about,
        "shapes": {name: shape for name, shape in shapes.items() if name != "step"},
        "image": list(train.images.shape[1:]),
        "count": len(train),
    }
    (folder / "step.json").write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

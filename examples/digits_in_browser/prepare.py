"""Writes the page with everything that it needs into a folder, which any web server can serve.

That is the page, the library, the artifacts of a small network, and the digits of examples/digits.

Usage: python prepare.py FOLDER LIBRARY     LIBRARY: the folder with ortrain.wasm, build/wasm
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from ortrain import artifacts

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "digits"))

from data import Split, load  # noqa: E402

SIZES = (64, 128, 10)
OPSET = 17
IR_VERSION = 8


def build_network(seed: int) -> onnx.ModelProto:
    """Build two fully connected layers with random weights.

    They are simpler than the convolutions of examples/digits: a library with the few operators of `make wasm` has all
    that the page needs.
    """
    rng = np.random.default_rng(seed)
    weights, nodes, value = [], [], "images"
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(SIZES), start=1):
        random = rng.normal(0.0, np.sqrt(2.0 / inputs), (outputs, inputs))
        for name, content in (("weight", random), ("bias", np.zeros(outputs))):
            weights.append(numpy_helper.from_array(content.astype(np.float32), f"layer{layer}.{name}"))
        last = layer == len(SIZES) - 1
        result = "logits" if last else f"layer{layer}.sum"
        nodes.append(
            helper.make_node(
                "Gemm", [value, f"layer{layer}.weight", f"layer{layer}.bias"], [result], transB=1
            )
        )
        if not last:
            value = f"layer{layer}.out"
            nodes.append(helper.make_node("Relu", [result], [value]))
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", SIZES[0]])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", SIZES[-1]])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model, full_check=True)
    return model


def write_split(folder: Path, name: str, split: Split) -> int:
    """Write the images and labels as plain numbers, and return how many there are."""
    (folder / f"{name}_images.bin").write_bytes(split.images.astype(np.float32).tobytes())
    (folder / f"{name}_labels.bin").write_bytes(split.labels.astype(np.uint8).tobytes())
    return len(split)


def main() -> None:
    """Write the folder."""
    folder, library = map(Path, sys.argv[1:3])
    folder.mkdir(parents=True, exist_ok=True)
    network = build_network(seed=0)
    artifacts.generate_artifacts(
        network,
        requires_grad=[weight.name for weight in network.graph.initializer],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
        additional_output_names=["logits"],
    )
    train, test = load()
    counts = {"train": write_split(folder, "train", train), "test": write_split(folder, "test", test)}
    (folder / "digits.json").write_text(json.dumps(counts) + "\n", encoding="utf-8")
    for source in ("index.html", "page.mjs"):
        shutil.copy(HERE / source, folder)
    for name in ("ortrain.wasm", "ortrain.mjs", "files.mjs"):
        shutil.copy(library / name, folder)
    shutil.copytree(library / "generated", folder / "generated", dirs_exist_ok=True)


if __name__ == "__main__":
    main()

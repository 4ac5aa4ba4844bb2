"""Create the files to try the program in this folder: training artifacts and a folder of samples.

The samples are the 1,797 handwritten digits of 8x8 pixels that scikit-learn ships, written as PGM images into one folder per
digit. The artifacts are those of a small convolutional network with random weights.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from ortrain import artifacts
from sklearn.datasets import load_digits

CHANNELS = 16


def make_model(seed: int) -> onnx.ModelProto:
    """Return a network from images, float32 of shape [batch, 1, 8, 8], to logits, float32 of shape [batch, 10]."""
    rng = np.random.default_rng(seed)
    weights = {
        "conv.weight": rng.normal(0, np.sqrt(2 / 9), (CHANNELS, 1, 3, 3)),
        "conv.bias": np.zeros(CHANNELS),
        "linear.weight": rng.normal(0, np.sqrt(2 / (CHANNELS * 16)), (10, CHANNELS * 16)),
        "linear.bias": np.zeros(10),
    }
    nodes = [
        helper.make_node("Conv", ["images", "conv.weight", "conv.bias"], ["maps"], "conv", pads=[1] * 4),
        helper.make_node("Relu", ["maps"], ["active"], "relu"),
        helper.make_node("MaxPool", ["active"], ["pooled"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["pooled"], ["flat"], "flatten"),
        helper.make_node("Gemm", ["flat", "linear.weight", "linear.bias"], ["logits"], "linear", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def write_artifacts(folder: Path, seed: int) -> None:
    """Write the four artifacts of training.

    The logits are an output besides the loss: the program computes its accuracy from them and exports them.
    """
    model = make_model(seed)
    artifacts.generate_artifacts(
        model,
        requires_grad=[weight.name for weight in model.graph.initializer],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
        additional_output_names=["logits"],
    )


def write_samples(folder: Path, count: int) -> int:
    """Write the first `count` digits as FOLDER/<digit>/<number>.pgm and return how many there are."""
    images, labels = load_digits(return_X_y=True)
    for number, (image, label) in enumerate(zip(images[:count], labels[:count], strict=True)):
        path = folder / str(label) / f"{number:04}.pgm"
        path.parent.mkdir(parents=True, exist_ok=True)
        # The pixels of these digits range from 0 to 16.
        path.write_bytes(b"P5\n8 8\n16\n" + image.astype(np.uint8).tobytes())
    return len(labels[:count])


def main() -> None:
    """Read the command line and write both folders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/personalize"),
        metavar="FOLDER",
        help="receives the folders artifacts and samples (default build/personalize)",
    )
    parser.add_argument(
        "--samples", type=int, default=1797, metavar="N", help="how many digits (default all, 1797)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="seed of the initial weights (default 1)"
    )
    options = parser.parse_args()
    (options.out / "artifacts").mkdir(parents=True, exist_ok=True)
    write_artifacts(options.out / "artifacts", options.seed)
    count = write_samples(options.out / "samples", options.samples)
    print(f"{options.out / 'artifacts'}, {options.out / 'samples'} with {count} digits")


if __name__ == "__main__":
    main()

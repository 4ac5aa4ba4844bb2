"""Writes the page with everything that it needs into a folder, which any web server can serve.

That is the page, the library, the artifacts of the network of examples/digits, and the digits.

Usage: python prepare.py FOLDER LIBRARY     LIBRARY: the folder with ortrain.wasm, build/wasm
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
from ortrain import artifacts

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "digits"))

from data import Split, load  # noqa: E402
from model import build_model  # noqa: E402


def write_split(folder: Path, name: str, split: Split) -> dict[str, object]:
    """Write the images and labels as plain numbers, and return what the page must know of them."""
    (folder / f"{name}_images.bin").write_bytes(split.images.astype(np.float32).tobytes())
    (folder / f"{name}_labels.bin").write_bytes(split.labels.astype(np.uint8).tobytes())
    return {"count": len(split), "shape": list(split.images.shape[1:])}


def main() -> None:
    """Write the folder."""
    folder, library = map(Path, sys.argv[1:3])
    folder.mkdir(parents=True, exist_ok=True)
    network, trainable, frozen = build_model(seed=0)
    artifacts.generate_artifacts(
        network,
        requires_grad=trainable,
        frozen_params=frozen,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
        additional_output_names=["logits"],
    )
    train, test = load()
    described = {"train": write_split(folder, "train", train), "test": write_split(folder, "test", test)}
    (folder / "digits.json").write_text(json.dumps(described) + "\n", encoding="utf-8")
    for source in ("index.html", "page.mjs"):
        shutil.copy(HERE / source, folder)
    for name in ("ortrain.wasm", "ortrain.mjs", "files.mjs"):
        shutil.copy(library / name, folder)
    shutil.copytree(library / "generated", folder / "generated", dirs_exist_ok=True)


if __name__ == "__main__":
    main()

"""The measured cases: models, batches and hyperparameters, and the files that every contestant reads.

This module imports only numpy, so that the runner and every worker can use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# AdamW as `onnxruntime.training` writes it into its optimizer model.
LEARNING_RATE = 1e-4
BETAS = (0.9, 0.999)
EPSILON = 1e-6
WEIGHT_DECAY = 0.0

BATCHES = 8
"""Different batches of a case; steps cycle through them."""


@dataclass(frozen=True)
class Case:
    """One model trained at one batch size.

    Attributes
    ----------
    name : what the user selects and the reports show.
    model : key in `benchmarks.models.MODELS`; cases of one model share its exported file.
    batch : examples in a step.
    shape : shape of one example.
    classes : number of labels.
    vocabulary : number of token ids of an example made of int64 tokens; 0 for an example of float32 numbers.
    tolerance : largest relative difference of contestants' losses at one of the first steps. Float32 differs from
    float64 by 1e-7, and by 6e-5 in resnet18, whose batch normalizations amplify rounding; a first layer that is not
    trained makes a difference of 2e-5 or more, and of 9e-4 in resnet18. steps : timed steps in a round, chosen so that
    a round takes about a second. differing : contestants that compute something different, and what; their losses are
    not compared. points : shape of the labels of one example, () for one label. more : measured only when it is named.
    """

    name: str
    model: str
    batch: int
    shape: tuple[int, ...]
    classes: int
    vocabulary: int = 0
    tolerance: float = 1e-5
    steps: int = 10
    differing: tuple[tuple[str, str], ...] = ()
    points: tuple[int, ...] = ()
    more: bool = False


CASES = (
    Case("mlp-b1", "mlp", 1, (784,), 10, steps=200),
    Case("mlp-b64", "mlp", 64, (784,), 10, steps=200),
    Case("lenet", "lenet", 64, (1, 28, 28), 10, steps=20),
    Case("resnet18", "resnet18", 16, (3, 32, 32), 10, tolerance=3e-4, steps=3),
    Case("bert-mini", "bert-mini", 8, (128,), 4, vocabulary=8000, steps=4),
    Case(
        "mobilenet-v2",
        "mobilenet-v2",
        4,
        (3, 224, 224),
        10,
        tolerance=1e-4,
        differing=(("ort", "normalizes by the batch, though the model says by the running statistics"),),
    ),
    # 52 normalizations by the batch amplify rounding: after five steps all contestants differ by 1e-3 to 3e-3.
    Case("mobilenet-v2-all", "mobilenet-v2-all", 4, (3, 224, 224), 10, tolerance=3e-3, steps=2, more=True),
    Case("lstm", "lstm", 32, (64, 32), 10, steps=30, more=True),
    Case("gru", "gru", 32, (64, 32), 10, steps=30, more=True),
    Case("conv1d", "conv1d", 32, (3, 1024), 10, steps=30, more=True),
    Case("unet", "unet", 8, (3, 64, 64), 4, steps=10, points=(64, 64), more=True),
    Case("vit", "vit", 16, (3, 32, 32), 10, steps=5, more=True),
    Case("recommender", "recommender", 256, (8,), 2, vocabulary=50_000, steps=50, more=True),
)
MORE, ALL = "more", "all"
"""Names for the cases that are measured only when they are named, and for all cases."""


def select(names: list[str]) -> list[Case]:
    """Return the cases with the given names or of the given models, in the order of `CASES`; none: those of the README.

    Raises
    ------
    ValueError
        A name is neither a case nor a model, nor `MORE` or `ALL`.
    """
    if not names:
        return [case for case in CASES if not case.more]
    known = {case.name for case in CASES} | {case.model for case in CASES} | {MORE, ALL}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"unknown model {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    return [
        case
        for case in CASES
        if case.name in names or case.model in names or ALL in names or (case.more and MORE in names)
    ]


def example_input(case: Case, batch: int, rng: np.random.Generator) -> NDArray[Any]:
    """Return random input of shape (batch, *case.shape): int64 tokens or normal float32."""
    if case.vocabulary:
        return rng.integers(0, case.vocabulary, (batch, *case.shape), dtype=np.int64)
    return rng.standard_normal((batch, *case.shape), dtype=np.float32)


def make_batches(case: Case) -> list[tuple[NDArray[Any], NDArray[np.int64]]]:
    """Return `BATCHES` pairs of input and labels (shape (batch, *case.points), int64), the same in every process."""
    rng = np.random.default_rng(20240)
    return [
        (
            example_input(case, case.batch, rng),
            rng.integers(0, case.classes, (case.batch, *case.points), dtype=np.int64),
        )
        for _ in range(BATCHES)
    ]


@dataclass(frozen=True)
class ModelFiles:
    """The files of the export of one model in the cache folder."""

    folder: Path

    @property
    def onnx(self) -> Path:
        return self.folder / "model.onnx"

    @property
    def weights(self) -> Path:
        """The initializers of `onnx` by name, for contestants that cannot read ONNX."""
        return self.folder / "weights.npz"

    @property
    def trainable(self) -> Path:
        """JSON list of the names of the trainable parameters."""
        return self.folder / "trainable.json"

    @property
    def frozen(self) -> Path:
        """JSON list of the names of the parameters that are not trained."""
        return self.folder / "frozen.json"

    @property
    def stamp(self) -> Path:
        """Digest of the source of the export; an export with another digest is recreated."""
        return self.folder / "stamp"

    def artifacts(self, contestant: str) -> Path:
        return self.folder / f"artifacts-{contestant}"


def model_files(cache: Path, case: Case) -> ModelFiles:
    return ModelFiles(cache / case.model)

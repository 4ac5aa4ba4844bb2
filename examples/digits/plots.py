"""The plots of the demo."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # draws into files; needs no display

import matplotlib.pyplot as plt
import numpy as np

TRAIN, HELD_OUT = "tab:blue", "tab:orange"


def draw_curves(
    path: Path,
    step_losses: list[float],
    train_accuracies: list[float],
    test_losses: list[float],
    test_accuracies: list[float],
) -> None:
    """Draw loss and accuracy over the epochs.

    Parameters
    ----------
    path : Path
        The PNG to write.
    step_losses : list of float
        Loss of every training step.
    train_accuracies, test_losses, test_accuracies : list of float
        One value per epoch; accuracies from 0 to 1.
    """
    epochs = np.arange(1, len(test_losses) + 1)
    steps = np.arange(1, len(step_losses) + 1) * len(epochs) / len(step_losses)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    left.plot(steps, step_losses, color=TRAIN, linewidth=0.8, alpha=0.6, label="training, each step")
    left.plot(epochs, test_losses, color=HELD_OUT, marker="o", markersize=3, label="held-out, each epoch")
    left.set(xlabel="epoch", ylabel="cross entropy", yscale="log", title="Loss")
    right.plot(
        epochs, np.multiply(train_accuracies, 100), color=TRAIN, marker="o", markersize=3, label="training"
    )
    right.plot(
        epochs, np.multiply(test_accuracies, 100), color=HELD_OUT, marker="o", markersize=3, label="held-out"
    )
    right.set(xlabel="epoch", ylabel="%", title="Accuracy")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_misread(
    path: Path, images: np.ndarray, labels: np.ndarray, predictions: np.ndarray, columns: int = 8
) -> None:
    """Draw the digits that were misread, each with its label and the prediction.

    Parameters
    ----------
    path : Path
        The PNG to write.
    images : numpy.ndarray
        float32 of shape [n, 1, 8, 8].
    labels, predictions : numpy.ndarray
        int64 of shape [n].
    columns : int
        The number of digits per row; at most three rows are drawn.
    """
    misread = np.flatnonzero(labels != predictions)
    shown = misread[: 3 * columns]
    columns = max(1, min(columns, len(shown)))
    rows = max(1, -(-len(shown) // columns))
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(max(4.5, 1.2 * columns), 1.5 * rows + 0.5),
        layout="constrained",
        squeeze=False,
    )
    figure.suptitle(f"{len(misread)} of {len(labels)} held-out digits misread")
    for axis in axes.flat:
        axis.axis("off")
    for axis, index in zip(axes.flat, shown, strict=False):
        axis.imshow(images[index, 0], cmap="gray_r", vmin=0, vmax=1)
        axis.set_title(f"{labels[index]} read as {predictions[index]}", fontsize=9)
    figure.savefig(path, dpi=110)
    plt.close(figure)

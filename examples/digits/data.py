"""The data of the demo: scikit-learn's handwritten digits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SPLIT_SEED = 1797  # one split for every run, so that accuracies can be compared


@dataclass(frozen=True)
class Split:
    """Images with their labels.

    Attributes
    ----------
    images : numpy.ndarray
        float32 of shape [n, 1, 8, 8], from 0 (paper) to 1 (ink).
    labels : numpy.ndarray
        int64 of shape [n], the digits 0 to 9.
    """

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, size: int, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield shuffled batches of `size` images; the remaining few are left out until the next shuffle."""
        order = rng.permutation(len(self))
        for start in range(0, len(self) - size + 1, size):
            chosen = order[start : start + size]
            yield self.images[chosen], self.labels[chosen]


def load() -> tuple[Split, Split]:
    """Return the 1,797 digits as a training part and a held-out quarter, both with equal shares of every digit."""
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, labels.astype(np.int64), test_size=0.25, stratify=labels, random_state=SPLIT_SEED
    )
    return Split(train_images, train_labels), Split(test_images, test_labels)

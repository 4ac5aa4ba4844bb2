"""TfIdfVectorizer, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import Op, check_rejected
from ml_cases import check_against_onnxruntime


def test_tfidf_vectorizer_of_integers() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    assert onnxruntime
    x = np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8]], np.int32)
    pool = [2, 3, 5, 4, 5, 6, 7, 8, 6, 7]
    for mode in ("TF", "IDF", "TFIDF"):
        for skip in (0, 1, 5):
            for shortest, longest in ((1, 1), (1, 2), (2, 2)):
                attributes = {
                    "mode": mode, "min_gram_length": shortest, "max_gram_length": longest, "max_skip_count": skip,
                    "ngram_counts": [0, 4], "ngram_indexes": list(range(7)), "pool_int64s": pool,
                    "weights": [0.5, 1.0, 2.0, 3.0, 0.25, 4.0, 5.0],
                }  # fmt: skip
                op = Op("TfIdfVectorizer", attributes)
                check_against_onnxruntime(op, [x])
                check_against_onnxruntime(op, [x[1].astype(np.int64)])
    check_rejected(Op("TfIdfVectorizer", {**attributes, "ngram_counts": [0, 5]}), [x], "does not divide")
    check_rejected(Op("TfIdfVectorizer", {**attributes, "mode": "ALL"}), [x], "TF, IDF or TFIDF")

"""Pipelines of scikit-learn, converted by skl2onnx, give what scikit-learn gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import ortrain
import pytest

skl2onnx = pytest.importorskip("skl2onnx", reason="it converts the pipelines")
sklearn = pytest.importorskip("sklearn")

from skl2onnx.common.data_types import DictionaryType, FloatTensorType, StringTensorType  # noqa: E402
from sklearn.compose import ColumnTransformer  # noqa: E402
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier  # noqa: E402
from sklearn.feature_extraction import DictVectorizer  # noqa: E402
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.naive_bayes import MultinomialNB  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler  # noqa: E402
from sklearn.svm import SVC  # noqa: E402

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 4)).astype(np.float32)
NAMES = np.array(["blue", "green", "red"])
Y = NAMES[(X[:, 0] + X[:, 1] > 0).astype(int) + (X[:, 2] > 0.5)]
OPSETS = {"": 17, "ai.onnx.ml": 3, "com.microsoft": 1}


def session(model: Any, types: list[tuple[str, Any]], **options: Any) -> ortrain.InferenceSession:
    converted = skl2onnx.convert_sklearn(
        model, initial_types=types, target_opset=OPSETS, options=options or None
    )
    return ortrain.InferenceSession(converted.SerializeToString())


def check_classifier(model: Any, given: ortrain.InferenceSession, feed: dict[str, Any], data: Any) -> None:
    """Compare labels and probabilities, which ZipMap returns as a dictionary for each row."""
    labels, probabilities = given.run(None, feed)
    assert labels.tolist() == model.predict(data).tolist()
    assert given.get_outputs()[1].type == "seq(map(string,tensor(float)))"
    rows = [[row[name] for name in model.classes_] for row in probabilities]
    np.testing.assert_allclose(rows, model.predict_proba(data), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "classifier",
    [
        LogisticRegression(),
        RandomForestClassifier(n_estimators=5, max_depth=4, random_state=0),
        GradientBoostingClassifier(n_estimators=4, random_state=0),
        SVC(probability=True, random_state=0),
    ],
    ids=lambda classifier: type(classifier).__name__,
)
def test_a_classifier_of_named_classes(classifier: Any) -> None:
    model = make_pipeline(StandardScaler(), classifier).fit(X, Y)
    check_classifier(model, session(model, [("x", FloatTensorType([None, 4]))]), {"x": X}, X)


def test_columns_of_strings_and_of_numbers() -> None:
    words = np.array(["cat", "dog", "eel", "fox"])[RANDOM.integers(0, 4, size=60)]
    table = np.column_stack([words.astype(object), X[:, :2].astype(object)])
    columns = ColumnTransformer(
        [("words", OneHotEncoder(handle_unknown="ignore"), [0]), ("numbers", StandardScaler(), [1, 2])]
    )
    model = make_pipeline(columns, LogisticRegression()).fit(table, Y)
    types = [
        ("word", StringTensorType([None, 1])),
        ("a", FloatTensorType([None, 1])),
        ("b", FloatTensorType([None, 1])),
    ]
    feed = {"word": words[:, None].astype(object), "a": X[:, :1], "b": X[:, 1:2]}
    check_classifier(model, session(model, types), feed, table)
    feed["word"] = np.full((60, 1), "unknown", object)
    table[:, 0] = "unknown"
    check_classifier(model, session(model, types), feed, table)


def test_ordinals_of_strings() -> None:
    words = np.array([["cat", "s"], ["dog", "m"], ["eel", "l"], ["cat", "m"]], object)
    model = OrdinalEncoder().fit(words)
    given = session(model, [("x", StringTensorType([None, 2]))])
    np.testing.assert_array_equal(given.run(None, {"x": words})[0], model.transform(words))


TEXTS = np.array(
    ["The cat sat on the mat", "A dog, a cat!", "", "dogs and CATS and mats", "the dog sat"], object
)


@pytest.mark.parametrize(
    "vectorizer",
    [
        CountVectorizer(token_pattern="[a-zA-Z]+"),
        TfidfVectorizer(token_pattern="[a-zA-Z]+", ngram_range=(1, 2)),
        TfidfVectorizer(token_pattern="[a-zA-Z]+", stop_words=["the", "a"], lowercase=True),
    ],
    ids=["counts", "bigrams", "stop words"],
)
def test_texts_become_vectors(vectorizer: Any) -> None:
    vectorizer.fit(TEXTS)
    given = session(vectorizer, [("x", StringTensorType([None, 1]))])
    for _ in range(2):
        result = given.run(None, {"x": TEXTS[:, None]})[0]
        np.testing.assert_allclose(result, vectorizer.transform(TEXTS).toarray(), rtol=1e-5, atol=1e-6)


def test_texts_are_classified() -> None:
    labels = np.array(["yes", "no", "no", "yes", "no"])
    model = make_pipeline(CountVectorizer(token_pattern="[a-zA-Z]+"), MultinomialNB()).fit(TEXTS, labels)
    given = session(model, [("x", StringTensorType([None, 1]))])
    check_classifier(model, given, {"x": TEXTS[:, None]}, TEXTS)


def test_a_dictionary_becomes_a_vector() -> None:
    rows = [{"a": 1.0, "b": 2.0}, {"b": 3.0, "c": 4.0}]
    model = DictVectorizer(sparse=False).fit(rows)
    given = session(model, [("x", DictionaryType(StringTensorType([1]), FloatTensorType([])))])
    for row in rows:
        np.testing.assert_allclose(given.run(None, {"x": row})[0], model.transform([row]))

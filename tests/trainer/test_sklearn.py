"""The estimators keep scikit-learn's rules and work in its tools."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import onnxruntime
import pytest
import small
from ortrain.models import mlp
from ortrain.sklearn import ONNXClassifier, ONNXRegressor
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks


def unmet(estimator):
    """Checks that do not apply: a row of weight 0 changes which rows are together in a batch, unlike a row that is not there."""
    names = ("check_sample_weight_equivalence_on_dense_data", "check_sample_weights_invariance")
    return dict.fromkeys(names, "training goes batch by batch")


@parametrize_with_checks([ONNXClassifier(epochs=20), ONNXRegressor(epochs=20)], expected_failed_checks=unmet)
def test_the_rules_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def iris():
    rows, classes = load_iris(return_X_y=True)
    return rows, np.array(["setosa", "versicolor", "virginica"])[classes]


def test_pipelines_and_searches(iris):
    rows, names = iris
    pipeline = make_pipeline(StandardScaler(), ONNXClassifier(epochs=60, random_state=0))
    assert cross_val_score(pipeline, rows, names, cv=3).mean() > 0.9
    grid = {"onnxclassifier__hidden_layer_sizes": [(), (16,)], "onnxclassifier__learning_rate": [1e-7, 1e-2]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(rows, names)
    assert search.best_params_["onnxclassifier__learning_rate"] == 1e-2
    assert search.best_score_ > 0.9


def test_diabetes():
    rows, values = load_diabetes(return_X_y=True)
    values = (values - values.mean()) / values.std()
    regressor = ONNXRegressor(epochs=60, hidden_layer_sizes=(16,), random_state=0)
    # A linear regression by least squares has 0.518 on the rows that it was fit to.
    assert regressor.fit(rows, values).score(rows, values) > 0.5


def with_outputs(count: int) -> onnx.ModelProto:
    model = small.model()
    del model.graph.node[1:4]
    model.graph.node[-1].input[0] = "hidden"
    names = {name for node in model.graph.node for name in node.input}
    for tensor in [tensor for tensor in model.graph.initializer if tensor.name not in names]:
        model.graph.initializer.remove(tensor)
    model.graph.initializer[1].CopyFrom(
        onnx.numpy_helper.from_array(np.full((16, count), 0.1, np.float32), "w2")
    )
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = count
    return model


@pytest.mark.parametrize("kind", ["path", "bytes", "model"])
def test_a_model_of_your_own(kind, tmp_path):
    model = with_outputs(3)
    onnx.save(model, tmp_path / "model.onnx")
    given = {"path": str(tmp_path / "model.onnx"), "bytes": model.SerializeToString(), "model": model}[kind]
    rows, classes = small.rows(300)
    estimator = clone(ONNXClassifier(given, epochs=40, learning_rate=1e-2, random_state=0))
    assert estimator.fit(rows, classes).score(rows, classes) > 0.9
    estimator.export(tmp_path / "trained.onnx")
    scores = onnxruntime.InferenceSession(tmp_path / "trained.onnx").run(None, {"x": rows})[0]
    np.testing.assert_array_equal(scores.argmax(axis=1), estimator.predict(rows))
    with pytest.raises(
        ValueError, match=r"expected scores of shape \[batch, 2\] for 2 classes, found \[1, 3\]"
    ):
        estimator.fit(rows, classes == 0)
    with pytest.raises(ValueError, match=r"rows of shape \[8\], found X with 7 features"):
        estimator.fit(rows[:, :7], classes)


def test_images_get_their_shape():
    pixels = np.random.default_rng(0).random((90, 16), np.float32)
    classes = pixels[:, :2].argmax(axis=1)
    nodes = [
        onnx.helper.make_node("Flatten", ["image"], ["flat"]),
        onnx.helper.make_node("MatMul", ["flat", "w"], ["scores"]),
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "images",
        [onnx.helper.make_tensor_value_info("image", onnx.TensorProto.FLOAT, ["batch", 1, 4, 4])],
        [onnx.helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, ["batch", 2])],
        [onnx.numpy_helper.from_array(np.zeros((16, 2), np.float32), "w")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    estimator = ONNXClassifier(model, epochs=60, learning_rate=1e-2, random_state=0)
    assert estimator.fit(pixels, classes).score(pixels, classes) > 0.9
    images = pixels.reshape(-1, 1, 4, 4)
    np.testing.assert_array_equal(
        clone(estimator).fit(images, classes).predict_proba(images), estimator.predict_proba(pixels)
    )
    with pytest.raises(
        ValueError, match=r"expected float32 \[batch, 1, 4, 4\], found the shape \(1, 1, 8, 2\)"
    ):
        estimator.fit(pixels.reshape(-1, 1, 8, 2), classes)


def test_weights_and_early_stopping(iris):
    rows, names = iris
    rows = StandardScaler().fit_transform(rows)
    # Rows of a class without weight are as if they were not there, up to the batches.
    weights = np.where(names == "virginica", 0.0, 1.0)
    for options, given in (({}, weights), ({"class_weight": {"virginica": 0.0}}, None)):
        estimator = ONNXClassifier(epochs=40, random_state=0, **options).fit(rows, names, sample_weight=given)
        assert "virginica" not in estimator.predict(rows)
    two = names != "setosa"
    estimator = ONNXClassifier(epochs=500, early_stopping=True, n_iter_no_change=5, random_state=0)
    estimator.fit(rows[two], names[two])
    assert estimator.n_iter_ == len(estimator.loss_curve_) < 500
    scores = estimator.decision_function(rows[two])
    assert scores.shape == (two.sum(),)
    np.testing.assert_array_equal(estimator.predict(rows[two]) == "virginica", scores > 0)
    many = ONNXClassifier(epochs=2, random_state=0).fit(rows, names)
    np.testing.assert_array_equal(
        many.decision_function(rows).argmax(axis=1), many.predict_proba(rows).argmax(axis=1)
    )
    heavy = np.r_[np.full(75, 100.0), np.ones(75)]
    values = np.r_[np.zeros(75), np.ones(75)]
    constant = ONNXRegressor(hidden_layer_sizes=(), epochs=200, learning_rate=0.05, random_state=0)
    found = constant.fit(np.zeros((150, 1)), values, sample_weight=heavy).predict(np.zeros((1, 1)))
    assert found == pytest.approx(1 / 101, abs=0.03)
    started = ONNXRegressor(random_state=0).partial_fit(rows, values)
    with pytest.raises(ValueError, match="the first call of partial_fit had none"):
        started.partial_fit(rows, values, sample_weight=heavy)


def test_partial_fit_goes_on_and_a_pickle_does_too(iris):
    rows, names = iris
    rows = StandardScaler().fit_transform(rows)
    one = ONNXClassifier(random_state=3)
    with pytest.raises(ValueError, match="expected all classes in the first call"):
        one.partial_fit(rows, names)
    one.partial_fit(rows[::2], names[::2], classes=np.unique(names))
    two = pickle.loads(pickle.dumps(one))
    for estimator in (one, two):
        for _ in range(40):
            estimator.partial_fit(rows[1::2], names[1::2])
    # The optimizer's state is in the pickle: otherwise the steps would differ.
    np.testing.assert_array_equal(one.predict_proba(rows), two.predict_proba(rows))
    assert len(one.loss_curve_) == 41
    assert one.score(rows, names) > 0.9
    with pytest.raises(ValueError, match="expected the classes"):
        one.partial_fit(rows, np.full(len(rows), "rose"))


def test_several_targets():
    rows = np.random.default_rng(0).normal(size=(200, 3))
    values = rows @ np.array([[1.0, 0], [0, -1], [2, 1]])
    regressor = ONNXRegressor(epochs=40, random_state=0).fit(rows, values)
    assert regressor.predict(rows).shape == (200, 2)
    assert regressor.score(rows, values) > 0.95


def test_a_model_with_a_fixed_batch_takes_any_number_of_rows():
    rows = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    classes = np.arange(50) % 3
    free = mlp(4, 3, (5,), seed=0)
    fixed = onnx.ModelProto.FromString(free.SerializeToString())
    for value in (fixed.graph.input[0], fixed.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_value = 2
    found = [
        ONNXClassifier(model, epochs=2, random_state=0).fit(rows, classes).predict_proba(rows[:7])
        for model in (free, fixed)
    ]
    np.testing.assert_array_equal(found[0], found[1])

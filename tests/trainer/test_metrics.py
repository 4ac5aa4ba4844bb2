"""Streaming metrics equal those of scikit-learn over all rows."""

from __future__ import annotations

import base64
import json
import math

import numpy as np
import pytest
from ortrain.trainer import AUC, F1, MAE, R2, Accuracy, ConfusionMatrix, CoreMetric, IoU, Perplexity, TopK
from ortrain.trainer.metrics import METRIC_NAMES, metric_of
from sklearn import metrics

RNG = np.random.default_rng(5)
SCORES = RNG.normal(size=(97, 6)).astype(np.float32)
TARGETS = RNG.integers(0, 5, 97)  # class 5 never occurs, but is predicted


def stream(metric, scores=SCORES, targets=TARGETS, losses=None):
    for i, start in enumerate(range(0, len(scores), 10)):
        if i == 4:  # as in a resumed run
            state = json.loads(json.dumps(metric.state()))
            metric.reset()
            metric.load_state(state)
        metric.update(
            scores[start : start + 10], targets[start : start + 10], losses[i] if losses is not None else 0.0
        )
    return metric.result()


PREDICTED = SCORES.argmax(axis=1)
LABELS = list(range(6))


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (Accuracy(), metrics.accuracy_score(TARGETS, PREDICTED)),
        (TopK(3), metrics.top_k_accuracy_score(TARGETS, SCORES, k=3, labels=LABELS)),
        (F1(), metrics.f1_score(TARGETS, PREDICTED, average="macro")),
        (F1("micro"), metrics.f1_score(TARGETS, PREDICTED, average="micro")),
        (ConfusionMatrix(), metrics.confusion_matrix(TARGETS, PREDICTED, labels=LABELS).tolist()),
    ],
)
def test_metrics_of_classes(metric, expected):
    found = stream(metric)
    assert found == (expected if isinstance(expected, list) else pytest.approx(expected))


def test_a_single_logit_is_a_binary_prediction():
    scores, targets = SCORES[:, :1], (TARGETS > 2).astype(np.float32)[:, None]
    predicted = scores[:, 0] > 0
    assert stream(Accuracy(), scores, targets) == pytest.approx(metrics.accuracy_score(targets, predicted))
    assert stream(F1("binary"), scores, targets) == pytest.approx(metrics.f1_score(targets, predicted))


def test_targets_can_be_left_out():
    targets = TARGETS.copy()
    targets[::3] = -100
    kept = targets >= 0
    assert stream(Accuracy(), targets=targets) == pytest.approx(
        metrics.accuracy_score(targets[kept], PREDICTED[kept])
    )


def test_scores_of_every_token():
    scores = SCORES[:96].reshape(8, 12, 6).transpose(0, 2, 1)  # [batch, classes, tokens]
    found = stream(Accuracy(), scores, TARGETS[:96].reshape(8, 12))
    assert found == pytest.approx(metrics.accuracy_score(TARGETS[:96], PREDICTED[:96]))


@pytest.mark.parametrize("metric", [Accuracy, ConfusionMatrix])
def test_scores_of_every_token_with_the_classes_last(metric):
    scores, targets = SCORES[:96].reshape(8, 12, 6), TARGETS[:96].reshape(8, 12)
    assert stream(metric(), scores, targets) == stream(metric(), scores.transpose(0, 2, 1), targets)


def test_mean_absolute_error():
    targets = RNG.normal(size=97).astype(np.float32)
    assert stream(MAE(), SCORES[:, :1], targets) == pytest.approx(
        metrics.mean_absolute_error(targets, SCORES[:, 0])
    )


def test_perplexity_is_the_exponential_of_the_mean_loss_per_target():
    each = -np.log(np.exp(SCORES)[np.arange(97), TARGETS] / np.exp(SCORES).sum(axis=1))
    losses = [float(each[start : start + 10].mean()) for start in range(0, 97, 10)]
    expected = math.exp(
        metrics.log_loss(TARGETS, np.exp(SCORES) / np.exp(SCORES).sum(1, keepdims=True), labels=LABELS)
    )
    assert stream(Perplexity(), losses=losses) == pytest.approx(expected, rel=1e-5)


def test_without_rows_there_is_no_value():
    assert all(math.isnan(metric.result()) for metric in (Accuracy(), TopK(2), F1(), MAE(), Perplexity()))


def test_metrics_by_name():
    top = metric_of("top3")
    assert top.name == "top3"
    assert stream(top) == stream(TopK(3))
    with pytest.raises(
        ValueError,
        match=r'no metric "acuracy"; known are "accuracy", "auc", .* and top<k> such as "top5"; did you mean "accuracy"',
    ):
        metric_of("acuracy")


BATCHES = [[97], [1] * 97, [50, 0, 3, 44]]


@pytest.mark.parametrize("sizes", BATCHES[1:], ids=["rows", "uneven"])
@pytest.mark.parametrize(
    "name", [name for name in METRIC_NAMES if name not in ("mae", "r2", "auc_multilabel")]
)
def test_values_do_not_depend_on_the_batches(name, sizes):
    def value(sizes):
        metric, start = metric_of(name), 0
        for size in sizes:
            stop = start + size
            metric.update(SCORES[start:stop], TARGETS[start:stop], 1.5)
            start = stop
        return metric.result()

    assert value(sizes) == value(BATCHES[0])


@pytest.mark.parametrize("metric", METRIC_NAMES)
def test_parts_are_merged(metric):
    numbers = metric in ("mae", "r2", "auc_multilabel")
    targets = (SCORES > 0.3).astype(np.float32) if numbers else TARGETS
    whole, first, second = (metric_of(metric) for _ in range(3))
    for part, rows in ((whole, slice(0, 97)), (first, slice(0, 31)), (second, slice(31, 97))):
        part.update(SCORES[rows], targets[rows], 0.7)
    first.merge(second)
    assert (
        first.result() == pytest.approx(whole.result(), rel=1e-12)
        if numbers
        else first.result() == whole.result()
    )
    with pytest.raises(ValueError, match="only a metric with the same name and options can be added"):
        first.merge(CoreMetric("accuracy", {"ignore_index": 7}))


@pytest.mark.parametrize("scores", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("targets", [np.int32, np.int64, np.uint8, np.float32])
def test_predictions_and_targets_have_any_type(scores, targets):
    given = SCORES.astype(scores)
    found = stream(Accuracy(), given, TARGETS.astype(targets))
    assert found == metrics.accuracy_score(TARGETS, given.argmax(axis=1))


def test_the_largest_of_many_scores():
    scores = RNG.normal(size=(40, 1003)).astype(np.float32)
    scores[3, [17, 900]] = 9  # the first of equal ones counts
    assert stream(Accuracy(), scores, scores.argmax(axis=1)) == 1
    scores[5] = np.nan
    assert stream(Accuracy(), scores[5:6], np.array([0])) == 1


def test_top_k_of_tokens_leaves_out_ignored_ones():
    scores, targets = SCORES[:96].reshape(8, 12, 6), TARGETS[:96].reshape(8, 12).copy()
    targets[:, :4] = -100
    kept = targets.ravel() != -100
    expected = metrics.top_k_accuracy_score(targets.ravel()[kept], SCORES[:96][kept], k=2, labels=LABELS)
    assert stream(TopK(2), scores, targets) == pytest.approx(expected)
    assert stream(TopK(2), scores.transpose(0, 2, 1), targets) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("metric", "targets", "words"),
    [
        ("accuracy", TARGETS[:5], "expected one class index for each of 97 predictions, found 5 targets"),
        (
            "f1",
            TARGETS - 1,
            "expected as targets class indices of 0 or more, or the ignored index -100, found -1",
        ),
        ("top5", TARGETS + 2, r"metric top_k: expected targets below the number of classes, 6, found 6"),
        ("mae", TARGETS, r"expected as many targets as predictions, found \[97\] for \[97, 6\]"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(metric, targets, words):
    metric = metric_of(metric)
    before = metric.state()
    with pytest.raises(ValueError, match=words):
        metric.update(SCORES, targets, 0)
    assert metric.state() == before


def test_a_state_of_other_options_is_refused():
    with pytest.raises(
        ValueError, match='the state belongs to "top_k k=3 ignore_index=-100", expected "top_k k=2'
    ):
        TopK(2).load_state(TopK(3).state())


def softmax(scores):
    each = np.exp(scores - scores.max(axis=1, keepdims=True))
    return each / each.sum(axis=1, keepdims=True)


def test_area_under_the_curve_of_two_classes():
    targets, scores = TARGETS > 2, np.round(SCORES, 1)  # many equal scores
    assert stream(AUC(), scores[:, :1], targets[:, None]) == pytest.approx(
        metrics.roc_auc_score(targets, scores[:, 0])
    )
    two = metrics.roc_auc_score(targets, softmax(SCORES[:, :2].astype(np.float64))[:, 1])
    assert stream(AUC(), SCORES[:, :2], targets) == pytest.approx(two)
    assert stream(AUC(), softmax(SCORES[:, :2]), targets) == pytest.approx(two)


@pytest.mark.parametrize("form", ["scores", "probabilities", "tokens", "one-hot"])
def test_area_under_the_curve_of_several_classes(form):
    scores, targets = SCORES[:96, :5], TARGETS[:96]
    expected = metrics.roc_auc_score(targets, softmax(scores), multi_class="ovr")
    given = {
        "scores": (scores, targets),
        "probabilities": (softmax(scores), targets),
        "tokens": (scores.reshape(8, 12, 5), targets.reshape(8, 12)),
        "one-hot": (scores, np.eye(5, dtype=np.float32)[targets]),
    }[form]
    assert stream(AUC(), *given) == pytest.approx(expected)


def test_area_under_the_curve_of_several_labels():
    labels = (RNG.random(SCORES.shape) < 0.3).astype(np.float32)
    expected = metrics.roc_auc_score(labels, SCORES)
    assert stream(metric_of("auc_multilabel"), SCORES, labels) == pytest.approx(expected)
    with pytest.raises(
        ValueError, match=r"whose sum over the classes is 1, found the sum \d.*auc_multilabel"
    ):
        stream(AUC(), SCORES, labels)


def test_area_under_the_curve_of_many_rows_takes_little_memory():
    rng = np.random.default_rng(0)
    targets = rng.random(300_000) < 0.4
    scores = (rng.normal(size=300_000) + 0.7 * targets).astype(np.float32)
    metric = AUC()
    for start in range(0, len(scores), 1000):
        metric.update(scores[start : start + 1000, None], targets[start : start + 1000], 0.0)
    assert metric.result() == pytest.approx(metrics.roc_auc_score(targets, scores), abs=1e-5)
    assert len(base64.b64decode(metric.state()["counts"])) < 65536 * 24 + 100  # three numbers for each score


def test_overlap_of_areas():
    expected = metrics.jaccard_score(TARGETS, PREDICTED, average="macro")
    assert stream(IoU()) == pytest.approx(expected)
    pixels = SCORES[:96].reshape(8, 3, 4, 6).transpose(0, 3, 1, 2)
    inside = metrics.jaccard_score(TARGETS[:96], PREDICTED[:96], average="macro")
    assert stream(IoU(), pixels, TARGETS[:96].reshape(8, 3, 4)) == pytest.approx(inside)


@pytest.mark.parametrize("columns", [1, 3])
def test_coefficient_of_determination(columns):
    targets = (SCORES[:, :columns] + RNG.normal(size=(97, columns)) + 1e4).astype(np.float32)
    scores = SCORES[:, :columns] + np.float32(1e4)  # a mean that is large beside the spread
    expected = metrics.r2_score(targets.astype(np.float64), scores.astype(np.float64))
    assert stream(R2(), scores, targets) == pytest.approx(expected, rel=1e-9)
    if columns == 1:
        assert stream(R2(), scores, targets[:, 0]) == pytest.approx(expected, rel=1e-9)
    assert stream(R2(), scores, scores) == 1


def test_likeliest_classes_count_where_targets_are_probabilities():
    soft = np.eye(6)[TARGETS] * 0.7 + 0.05
    for metric in (Accuracy, F1, IoU, ConfusionMatrix, AUC, lambda: TopK(2)):
        assert stream(metric(), targets=soft) == stream(metric())


@pytest.mark.parametrize("name", ["accuracy", "f1", "auc", "auc_multilabel", "confusion_matrix", "iou"])
def test_a_metric_of_classes_rejects_numbers(name):
    metric = metric_of(name)
    metric.update(np.array([[-1.0], [2.0]], np.float32), np.array([[0], [1]], np.float32), 0.0)
    expected = f"metric {name}: the model has a single score for each target.* found 151; mae and r2 are metrics of numbers"
    with pytest.raises(ValueError, match=expected):
        metric.update(np.array([[140.0], [80.0]], np.float32), np.array([[151], [75]], np.float32), 0.0)

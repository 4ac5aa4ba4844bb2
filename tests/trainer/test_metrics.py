"""Streaming metrics equal those of scikit-learn over all rows."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from ortrain.trainer import F1, MAE, Accuracy, ConfusionMatrix, Perplexity, TopK
from ortrain.trainer.metrics import metric_of
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
    assert metric_of("top3").k == 3
    with pytest.raises(
        ValueError, match=r"no metric 'acuracy' \(did you mean 'accuracy'\?\); known are accuracy, top5"
    ):
        metric_of("acuracy")

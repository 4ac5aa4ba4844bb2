"""Pictures of validations and of settings in Chromium, and pictures saved as files."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from ortrain import Trainer, models
from ortrain.trainer import JSONLogger
from run_logs import begin, step, write
from test_browser import browser, expect, page  # noqa: F401

RNG = np.random.default_rng(11)
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """Three runs that predict a number, with their rows and what a trainer predicts after the last."""
    folder = tmp_path_factory.mktemp("numbers")
    x = RNG.normal(size=(400, 5)).astype(np.float32) * np.float32([4, 2, 1, 0.5, 0.1])
    y = (x @ np.float32([1, -2, 0.5, 3, 0]))[:, None] + RNG.normal(size=(400, 1)).astype(np.float32)
    for name, rate in (("slow", 1e-3), ("middle", 1e-2), ("fast", 1e-1)):
        trainer = Trainer(models.mlp(5, 1), loss="mse", learning_rate=rate, threads=1)
        logger = JSONLogger(folder / f"{name}.jsonl", name=name)
        trainer.fit((x, y), 2, validation=(x, y), callbacks=[logger], verbose=False)
    return folder, x, y, np.asarray(trainer.predict(x)).reshape(-1)


def of(path, event):
    return [entry for line in path.read_text().splitlines() if (entry := json.loads(line))["event"] == event]


def read_csv(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_predicted_against_actual_and_the_largest_errors(page, serve, numbers):  # noqa: F811
    folder, _, y, predicted = numbers
    page.goto(serve(folder).server.url + "#tab=misread")
    page.get_by_role("combobox").select_option("fast")
    chart = page.get_by_role("region", name="Predicted against actual")
    expect(chart.locator("circle")).to_have_count(300)
    with page.expect_download() as saved:
        chart.get_by_role("button", name="Save Predicted against actual as CSV").click()
    rows = read_csv(saved.value.path())
    assert rows[0] == ["actual", "predicted", "row"]
    found = np.array([[float(actual), float(value)] for actual, value, _ in rows[1:]])
    row = np.array([int(text.split()[1].rstrip(":")) for _, _, text in rows[1:]])
    assert len(set(row)) == 300
    np.testing.assert_allclose(found[:, 0], y[row, 0], rtol=1e-6)
    np.testing.assert_allclose(found[:, 1], predicted[row], rtol=1e-3, atol=1e-4)
    errors = np.abs(predicted - y[:, 0])
    shown = page.locator("figcaption small").all_inner_texts()
    assert [int(text.split()[1]) for text in shown] == np.argsort(-errors)[:12].tolist()
    expect(page.get_by_text("The root of the mean squared error of 400 rows is")).to_be_visible()
    (error,) = {entry["error"] for entry in of(folder / "fast.jsonl", "regression")[-1:]}
    assert error == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-3)


def test_the_map_of_the_rows_is_that_of_the_principal_components(page, serve, numbers):  # noqa: F811
    folder, x, _, _ = numbers
    found = of(folder / "fast.jsonl", "projection")[-1]
    rows = x[found["row"]].astype(np.float64)
    values, vectors = np.linalg.eigh(np.cov(rows.T))
    order = np.argsort(-values)[:2]
    wanted = (rows - rows.mean(axis=0)) @ vectors[:, order]
    np.testing.assert_allclose(np.abs(found["of"]["inputs"]["points"]), np.abs(wanted), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found["of"]["inputs"]["variance"], values[order] / values.sum(), rtol=1e-6)
    page.goto(serve(folder).server.url + "#tab=misread")
    page.get_by_role("combobox").select_option("fast")
    chart = page.get_by_role("region", name="Map of what the model takes")
    expect(chart.locator("circle")).to_have_count(300)
    share = round(100 * values[order][0] / values.sum())
    expect(chart.get_by_text(f"first component, {share} % of the variance")).to_be_visible()


def test_settings_against_results(page, serve, numbers):  # noqa: F811
    folder = numbers[0]
    page.goto(serve(folder).server.url + "#tab=compare")
    chart = page.get_by_role("region", name="Settings against results")
    expect(chart.locator("path.curve")).to_have_count(3)
    with page.expect_download() as saved:
        chart.get_by_role("button", name="Save Settings against results as CSV").click()
    rows = read_csv(saved.value.path())
    assert rows[0] == ["run", "learning_rate", "val_loss"]
    losses = {
        name: of(folder / f"{name}.jsonl", "epoch")[-1]["val_loss"] for name in ("slow", "middle", "fast")
    }
    assert {row[0]: float(row[2]) for row in rows[1:]} == losses
    ends = {
        line.get_attribute("data-run"): float(line.get_attribute("d").split(" ")[-1])
        for line in chart.locator("path.curve").all()
    }
    assert sorted(ends, key=ends.get) == sorted(losses, key=losses.get, reverse=True)  # up is more
    page.get_by_label("slow").uncheck()
    page.get_by_label("fast").uncheck()
    expect(chart).to_be_hidden()


def test_a_chart_is_saved_with_its_colors(page, serve, numbers):  # noqa: F811
    folder = numbers[0]
    page.goto(serve(folder).server.url)
    chart = page.get_by_role("region", name="Loss", exact=True)
    expect(chart.locator(".value")).to_have_count(6)
    with page.expect_download() as saved:
        chart.get_by_role("button", name="Save Loss as SVG").click()
    assert saved.value.suggested_filename == "loss.svg"
    drawing = ET.parse(saved.value.path()).getroot()
    assert drawing.tag == f"{SVG}svg"
    curves = [
        path for path in drawing.iter(f"{SVG}path") if path.get("fill") == "none" and len(path.get("d")) > 40
    ]
    assert len({path.get("stroke") for path in curves}) == 3
    assert "fast, validation" in [text.text for text in drawing.iter(f"{SVG}text")]
    with page.expect_download() as saved:
        chart.get_by_role("button", name="Save Loss as CSV").click()
    rows = read_csv(saved.value.path())
    losses = [float(row[3]) for row in rows if row[0] == "fast, training"]
    assert losses == [entry["loss"] for entry in of(folder / "fast.jsonl", "step")]


def test_tokens_are_text(page, serve, tmp_path):  # noqa: F811
    sample = {"row": 7, "predicted": 1, "expected": 0, "margin": 0.5, "shape": [4], "values": [2, 5, 3, 0]}
    sample["tokens"] = ["not", "<b>good</b>", "film"]
    entry = {
        "event": "samples",
        "step": 1,
        "epoch": 0,
        "input": "x",
        "rows": 9,
        "wrong": 1,
        "samples": [sample],
    }
    write(tmp_path / "log.jsonl", begin(classes=["bad", "good"]), step(1), entry)
    page.goto(serve(tmp_path).server.url + "#tab=misread")
    expect(page.locator(".tokens span")).to_have_count(3)
    assert page.locator(".tokens span").all_inner_texts() == ["not", "<b>good</b>", "film"]
    assert page.locator(".read").inner_text() == "good"


def test_a_run_is_renamed(page, serve, tmp_path):  # noqa: F811
    write(tmp_path / "a/log.jsonl", begin(name="quiet-otter"), step(1))
    url = serve(tmp_path).server.url
    page.goto(url)
    answers = iter(["  wide   layers\n", ""])
    page.on("dialog", lambda dialog: dialog.accept(next(answers)))
    for shown in ("wide layers", "quiet-otter"):
        page.locator(".run").hover()
        page.get_by_role("button", name="Rename").click()
        expect(page.locator(".run .name")).to_have_text(shown)
        page.reload()
        expect(page.locator(".run .name")).to_have_text(shown)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["log.jsonl"]

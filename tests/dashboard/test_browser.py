"""The page in Chromium: what it shows is what is in the files, it follows a run, and the keyboard reaches everything.

Needs Debian's chromium and the Python package playwright (without its browser): ``make test-browser`` installs both.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import languages
import numpy as np
import pytest
from ortrain import Trainer
from ortrain.trainer import JSONLogger, LambdaCallback

sys.path.insert(0, str(Path(__file__).parents[1] / "trainer"))
import small
from run_logs import begin, step, write

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    sync_playwright = None
if sync_playwright is None or CHROMIUM is None:
    if "browser" in languages.required():
        pytest.fail(
            "browser is required by ORTRAIN_REQUIRE, but there is no chromium or no playwright", pytrace=False
        )
    pytest.skip(
        "the page is not tested in a browser: there is no chromium or no playwright", allow_module_level=True
    )

expect.set_options(timeout=30_000)
X, Y = small.rows(96)
TABS = ["Curves", "Side by side", "Layers", "Profile", "Validation", "Model"]


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        # Chromium's own sandbox does not work in containers and for root.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """A page that must neither fail nor ask anybody else."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(30_000)
    complaints, asked = [], set()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.add(request.url.split("/")[2].partition(":")[0]))
    yield page
    context.close()
    assert complaints == []
    assert asked <= {"127.0.0.1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs, the second with another rate."""
    folder = tmp_path_factory.mktemp("runs")
    artifacts = small.make_artifacts(folder / "artifacts")
    for name, rate in (("first", 1e-2), ("second", 3e-2)):
        trainer = Trainer(artifacts, learning_rate=rate, metrics=["accuracy"], threads=1)
        logger = JSONLogger(folder / f"{name}.jsonl")
        trainer.fit((X, Y), 4, validation=(X, Y), callbacks=[logger], verbose=False)
    return folder


def lines(path, event):
    return [entry for line in path.read_text().splitlines() if (entry := json.loads(line))["event"] == event]


def chart(page, title):
    return page.get_by_role("region", name=title, exact=True)


def legend(page, title):
    """What a chart says at its cursor: values by curve."""
    rows = chart(page, title).locator(".legend li")
    return {
        row.locator(".name").inner_text(): float(row.locator(".value").get_attribute("data-value"))
        for row in rows.all()
    }


def test_the_curves_are_those_of_the_files(page, serve, folder):
    page.goto(serve(folder).server.url)
    expect(page.get_by_role("status")).to_have_text("2 runs, 0 running")
    expect(chart(page, "Loss").locator(".value")).to_have_count(4)
    shown = legend(page, "Loss")
    for name in ("first", "second"):
        steps, epochs = (lines(folder / f"{name}.jsonl", event) for event in ("step", "epoch"))
        assert shown[f"{name}, training"] == steps[-1]["loss"]
        assert shown[f"{name}, validation"] == epochs[-1]["val_loss"]
        assert legend(page, "accuracy")[f"{name}, validation"] == epochs[-1]["val_accuracy"]
        assert legend(page, "Learning rate")[name] == steps[-1]["learning_rate"]
        assert (
            legend(page, "Norm of all gradients")[name]
            == [s["gradient_norm"] for s in steps if "gradient_norm" in s][-1]
        )
        assert (
            legend(page, "Norm of all trained parameters")[name]
            == lines(folder / f"{name}.jsonl", "layers")[-1]["parameter_norm"]
        )
        assert legend(page, "Time of a step")[name] == steps[-1]["seconds"]
        memory = [s["memory"] for s in steps if "memory" in s][-1]
        assert legend(page, "Memory of the process")[name] == memory
    # The table below a chart has every point; the line has as many.
    chart(page, "Loss").get_by_text("Data").click()
    table = page.get_by_role("table", name="Loss: first, training")
    cells = table.locator("tbody td").all_inner_texts()
    wanted = [entry["loss"] for entry in lines(folder / "first.jsonl", "step")]
    assert [float(cell) for cell in cells] == wanted
    path = chart(page, "Loss").locator("path.faint").last.get_attribute("d")
    heights = [float(part.split(" ")[1]) for part in path.replace("M", "L").split("L")[1:]]
    drawn = [entry["loss"] for entry in lines(folder / "first.jsonl", "step")]
    assert (
        np.corrcoef(heights, drawn)[0, 1] < -0.9999
    )  # a straight relation: the axis is linear and points down


def test_a_logarithmic_axis_and_time(page, serve, folder):
    page.goto(serve(folder).server.url + "#runs=none")
    page.get_by_label("first").check()
    expect(chart(page, "Loss").locator(".value")).to_have_count(2)
    page.get_by_label("logarithmic").check()
    page.get_by_label("Smoothing").fill("0")
    expect(chart(page, "Loss").locator("path.faint")).to_have_count(0)
    path = chart(page, "Loss").locator("path.curve:not(.swatch *)").first.get_attribute("d")
    heights = [float(part.split(" ")[1]) for part in path.replace("M", "L").split("L")[1:]]
    drawn = np.log([entry["loss"] for entry in lines(folder / "first.jsonl", "step")])
    assert np.corrcoef(heights, drawn)[0, 1] < -0.9999
    page.get_by_label("Against").select_option("time")
    expect(chart(page, "Loss").get_by_text("time", exact=True)).to_be_visible()


def test_runs_side_by_side(page, serve, folder):
    page.goto(serve(folder).server.url + "#tab=compare")
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="val_loss, last epoch"))
    expect(row.get_by_role("cell")).to_have_count(2)
    values = [float(cell.get_attribute("data-value")) for cell in row.get_by_role("cell").all()]
    assert values == [
        lines(folder / f"{name}.jsonl", "epoch")[-1]["val_loss"] for name in ("second", "first")
    ]
    settings = page.get_by_role("row").filter(has=page.get_by_text("learning_rate", exact=True))
    assert settings.get_by_role("cell").all_inner_texts() == ["0.03", "0.01"]
    batch = page.get_by_role("rowheader", name="batch_size")
    expect(batch).to_be_visible()
    page.get_by_label("only what differs").check()
    expect(batch).to_have_count(0)
    expect(settings).to_be_visible()
    page.get_by_label("second").uncheck()
    expect(page.get_by_role("columnheader")).to_have_count(2)


def test_norms_and_histograms_of_a_layer(page, serve, folder):
    page.goto(serve(folder).server.url + "#tab=layers")
    last = lines(folder / "second.jsonl", "layers")[-1]["layers"]
    for name in small.TRAINED:
        row = page.get_by_role("row").filter(has=page.get_by_role("button", name=name, exact=True))
        expect(row.get_by_role("cell")).to_have_count(2)
        values = [float(cell.get_attribute("data-value")) for cell in row.get_by_role("cell").all()]
        assert values == [last[name]["parameter"]["norm"], last[name]["gradient"]["norm"]]
    page.get_by_role("button", name="w2", exact=True).click()
    expect(page.get_by_role("heading", name="w2")).to_be_visible()
    snapshots = lines(folder / "second.jsonl", "layers")
    figure = page.get_by_role("figure").filter(has_text="Gradient: values")
    expect(figure.locator("path.ridge")).to_have_count(len(snapshots))
    figure.get_by_text("Data").click()
    cells = figure.get_by_role("row").nth(2).get_by_role("cell").all_inner_texts()
    wanted = snapshots[1]["layers"]["w2"]["gradient"]
    assert [float(cell) for cell in cells[:2]] == [wanted["min"], wanted["max"]]
    assert [int(count) for count in cells[3].split()] == wanted["counts"]
    page.get_by_label("Filter").fill("scale")
    expect(page.get_by_text("1 of 4 parameters")).to_be_visible()
    page.get_by_role("combobox").select_option("first")
    first = lines(folder / "first.jsonl", "layers")[-1]["layers"]["scale"]["parameter"]["norm"]
    expect(page.locator(f'td[data-value="{first!r}"]')).to_be_visible()


def test_the_profile(page, serve, folder):
    page.goto(serve(folder).server.url + "#tab=profile")
    (profile,) = lines(folder / "second.jsonl", "profile")
    table = page.get_by_role("table", name="By operator")
    expect(table).to_be_visible()
    rows = table.locator("tbody tr").all()
    shown = {
        row.get_by_role("rowheader").inner_text(): float(
            row.locator("td[data-value]").get_attribute("data-value")
        )
        for row in rows
    }
    assert shown == {row["name"]: row["milliseconds"] for row in profile["operators"]}


def test_misread_rows(page, serve, folder, tmp_path):
    page.goto(serve(folder).server.url + "#tab=misread")
    found = lines(folder / "second.jsonl", "samples")
    for epoch in (3, 0):
        if epoch != 3:
            page.get_by_label("Validation after epoch").press("Home")
        expect(page.get_by_text(f"{found[epoch]['wrong']} of 96 rows are misread")).to_be_visible()
        expect(page.get_by_role("figure")).to_have_count(len(found[epoch]["samples"]))
        for figure, sample in zip(page.get_by_role("figure").all(), found[epoch]["samples"], strict=True):
            assert figure.locator(".read").inner_text() == str(sample["predicted"])
            assert figure.locator(".true").inner_text() == str(sample["expected"])
            assert f"row {sample['row']}," in figure.inner_text()
    page.get_by_text("Values").first.click()
    shown = [float(value) for value in page.locator(".numbers").first.inner_text().split()]
    np.testing.assert_allclose(shown, found[0]["samples"][0]["values"], rtol=1e-4)


def test_classes_have_names_and_a_confusion_matrix(page, serve, tmp_path):
    counts = [[8, 2, 0], [1, 9, 1234], [0, 0, 0]]
    sample = {"row": 4, "predicted": 1, "expected": 0, "margin": 0.5, "shape": [1], "values": [1.0]}
    later = {"event": "confusion", "step": 2, "epoch": 1, "rows": 7, "wrong": 3, "counts": [[4, 3], [0, 0]]}
    write(
        tmp_path / "log.jsonl",
        begin(classes=["cat", "dog", "<b>cow</b>"]),
        step(1),
        {"event": "confusion", "step": 1, "epoch": 0, "rows": 1254, "wrong": 1237, "counts": counts},
        {
            "event": "samples",
            "step": 1,
            "epoch": 0,
            "input": "x",
            "rows": 1254,
            "wrong": 1237,
            "samples": [sample],
        },
        later,
    )
    page.goto(serve(tmp_path).server.url + "#tab=misread")
    expect(page.get_by_text("3 of 7 rows are misread.")).to_be_visible()
    expect(page.get_by_role("figure")).to_have_count(0)
    page.get_by_label("Validation after epoch").press("Home")
    expect(page.get_by_text("1,237 of 1,254 rows are misread; the most certain")).to_be_visible()
    table = page.get_by_role("region", name="Confusion matrix").get_by_role("table")
    assert table.locator("thead th").all_inner_texts() == ["cat", "dog", "<b>cow</b>"]
    assert table.locator("tbody th").all_inner_texts() == ["cat", "dog", "<b>cow</b>"]
    shown = [int(cell.replace(",", "")) for cell in table.locator("tbody td").all_inner_texts()]
    assert shown == [count for row in counts for count in row]
    assert page.locator(".read").inner_text() == "dog"
    assert page.locator(".true").inner_text() == "cat"
    colours = table.locator("tbody td").evaluate_all(
        "cells => cells.map(c => getComputedStyle(c).backgroundColor)"
    )
    assert colours[0] != colours[5] != colours[2]  # most of a row right, most of it wrong, none of it


def test_an_image_has_its_pixels(page, serve, tmp_path):
    pixels = bytes([0, 50, 100, 150, 200, 250])
    sample = {"row": 4, "predicted": 1, "expected": 2, "margin": 0.5, "shape": [1, 2, 3], "low": 0, "high": 1}
    sample["pixels"] = base64.b64encode(pixels).decode()
    entry = {
        "event": "samples",
        "step": 1,
        "epoch": 0,
        "input": "x",
        "rows": 5,
        "wrong": 1,
        "samples": [sample],
    }
    write(tmp_path / "log.jsonl", begin(), step(1), entry)
    page.goto(serve(tmp_path).server.url + "#tab=misread")
    expect(page.locator("canvas")).to_be_visible()
    drawn = page.evaluate(
        "[...document.querySelector('canvas').getContext('2d').getImageData(0, 0, 3, 2).data]"
    )
    assert drawn[::4] == list(pixels) == drawn[2::4]


def test_the_model_and_what_trains(page, serve, folder):
    page.goto(serve(folder).server.url + "#tab=graph")
    (model,) = lines(folder / "first.jsonl", "model")
    boxes = page.locator(".graph .box")
    expect(boxes).to_have_count(len([node for node in model["nodes"] if node["operator"] != "Constant"]))
    fills = set()
    for node in model["nodes"]:
        label = page.get_by_role("button", name=f"{node['operator']}, ").first if not node["name"] else None
        if label is None:
            label = page.locator(".graph .box").filter(has_text=node["name"][:20]).first
        trained = any(model["parameters"].get(name, {}).get("trained") for name in node["inputs"])
        said = label.get_attribute("aria-label")
        assert ("trains" in said) == trained, said
        fills.add((trained, label.locator("rect").evaluate("rect => getComputedStyle(rect).fill")))
    assert {fill for trained, fill in fills if trained}.isdisjoint(
        fill for trained, fill in fills if not trained
    )
    expect(page.get_by_text("4 of 6 parameters train")).to_be_visible()


def test_a_model_of_2000_nodes_opens_by_keyboard(page, serve, tmp_path):
    nodes = [
        {
            "name": f"/layers.{n // 100}/part{n // 10 % 10}/Gemm_{n}",
            "operator": "Gemm",
            "inputs": [f"v{n - 1}", f"w{n}"],
            "outputs": [f"v{n}"],
        }
        for n in range(2000)
    ]
    parameters = {f"w{n}": {"shape": [2], "trained": n >= 1000} for n in range(2000)}
    entry = {
        "event": "model",
        "step": 0,
        "epoch": 0,
        "file": "m.onnx",
        "nodes": nodes,
        "parameters": parameters,
    }
    write(tmp_path / "log.jsonl", begin(), entry, step(1))
    page.goto(serve(tmp_path).server.url + "#tab=graph")
    boxes = page.locator(".graph .box")
    expect(page.get_by_text("1,000 of 2,000 parameters train")).to_be_visible()
    assert boxes.count() <= 60
    group = page.get_by_role("button", name="layers.19, 100 nodes, trains, opens")
    before = boxes.count()
    group.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Close layers.19")).to_be_visible()
    assert boxes.count() > before
    page.get_by_role("button", name="Close layers.19").press("Enter")
    expect(group).to_be_focused()
    assert boxes.count() == before


def test_it_follows_a_run_that_trains(page, serve, tmp_path):
    artifacts = small.make_artifacts(tmp_path / "artifacts")
    page.goto(serve(tmp_path).server.url)
    expect(page.get_by_role("heading", name="There is no run in this folder yet")).to_be_visible()
    go = {2: threading.Event(), 4: threading.Event()}

    def wait(epoch, logs):
        if epoch in go:
            assert go[epoch].wait(60)

    def train():
        trainer = Trainer(artifacts, learning_rate=1e-2, threads=1)
        callbacks = [JSONLogger(tmp_path / "live.jsonl"), LambdaCallback(on_epoch_begin=wait)]
        trainer.fit((X, Y), 5, callbacks=callbacks, verbose=False)

    thread = threading.Thread(target=train)
    thread.start()
    try:
        for steps, epoch in ((6, 2), (12, 4)):
            expect(chart(page, "Loss").locator("small").first).to_have_text(f"step {steps}")
            expect(page.get_by_role("status")).to_have_text("1 run, 1 running")
            last = lines(tmp_path / "live.jsonl", "step")[-1]
            assert legend(page, "Loss")["training"] == last["loss"]
            go[epoch].set()
        expect(chart(page, "Loss").locator("small").first).to_have_text("step 15")
        expect(page.get_by_text("complete, step 15")).to_be_visible()
    finally:
        for event in go.values():
            event.set()
        thread.join()


def test_everything_is_reached_by_keyboard(page, serve, folder):
    page.goto(serve(folder).server.url)
    expect(chart(page, "Loss").locator(".value")).to_have_count(4)
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the charts")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_label("second")).to_be_focused()
    page.keyboard.press("Space")
    expect(chart(page, "Loss").locator(".value")).to_have_count(2)
    for _ in range(4):  # each run has a box and a button
        page.keyboard.press("Tab")
    expect(page.get_by_role("tab", name="Curves")).to_be_focused()
    for name in [*TABS[1:], TABS[0]]:
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("tab", name=name)).to_be_focused()
        expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")
        expect(page.get_by_role("tabpanel", name=name)).to_be_visible()
    expect(chart(page, "Loss").locator(".value")).to_have_count(2)  # the charts are made anew
    for name in ("Smoothing", "logarithmic", "Against"):
        page.keyboard.press("Tab")
        expect(page.get_by_label(name)).to_be_focused()
    page.keyboard.press("Tab")
    plot = chart(page, "Loss").get_by_role("img")
    expect(plot).to_be_focused()
    steps = lines(folder / "first.jsonl", "step")
    for key, index in (("Home", 0), ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", -1)):
        page.keyboard.press(key)
        assert legend(page, "Loss")["training"] == steps[index]["loss"]
    expect(chart(page, "Loss").locator("[aria-live]")).to_contain_text(f"step {steps[-1]['step']}: training")
    page.keyboard.press("+")
    expect(page.get_by_role("button", name="Show everything")).to_be_enabled()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Show everything")).to_be_disabled()


def test_zoom_with_the_mouse_shows_the_points_of_that_part(page, serve, tmp_path):
    write(tmp_path / "log.jsonl", begin(), *(step(n, 1 + 1 / n) for n in range(1, 20_001)))
    page.goto(serve(tmp_path).server.url)
    plot = chart(page, "Loss").get_by_role("img")
    expect(chart(page, "Loss").locator(".value")).to_have_attribute("data-value", repr(1 + 1 / 20_000))
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.51, box["y"] + 60)
    page.mouse.move(box["x"] + box["width"] * 0.55, box["y"] + 60)
    page.mouse.up()
    expect(page.get_by_role("button", name="Show everything")).to_be_enabled()
    chart(page, "Loss").get_by_text("Data").click()
    numbers = chart(page, "Loss").locator("tbody th")
    expect(numbers.first).not_to_have_text("1")
    seen = [int(text) for text in numbers.all_inner_texts()]
    assert 8_000 < seen[0] < seen[-1] < 12_000
    plot.dblclick()
    expect(page.get_by_role("button", name="Show everything")).to_be_disabled()


def test_bad_lines_and_other_files_are_named(page, serve, tmp_path):
    write(
        tmp_path / "log.jsonl",
        begin(settings={"x": "<img src=x onerror=alert(1)>"}),
        "{nonsense",
        step(1, None),
        step(2, 0.5),
    )
    write(tmp_path / "data.jsonl", {"image": 1})
    page.goto(serve(tmp_path).server.url + "#tab=compare")
    page.get_by_text("1 line could not be read").click()
    expect(page.get_by_text("line 2: it is not JSON")).to_be_visible()
    page.get_by_text("1 file is not shown").click()
    expect(page.get_by_text("data.jsonl: no run begins in it")).to_be_visible()
    expect(page.get_by_text("<img src=x onerror=alert(1)>")).to_be_visible()
    page.get_by_role("tab", name="Curves").click()
    expect(page.get_by_text("1 value is not finite and not drawn")).to_be_visible()
    for name, message in (
        ("Layers", "no norms and histograms"),
        ("Profile", "no profile"),
        ("Validation", "no misread rows"),
        ("Model", "no graph"),
    ):
        page.get_by_role("tab", name=name).click()
        expect(page.get_by_text(message)).to_be_visible()


def test_a_page_of_another_site_gets_nothing(browser, serve, folder, tmp_path):
    """A script elsewhere, in the same browser, cannot read the runs: not by fetch, script, or image."""
    client = serve(folder)
    context = browser.new_context()
    page = context.new_page()
    page.route(
        "http://evil.example/**", lambda route: route.fulfill(body="<h1>hello</h1>", content_type="text/html")
    )
    page.goto("http://evil.example/")
    for mode in ("cors", "no-cors"):
        script = (
            f"fetch('{client.server.url}api/runs', {{mode: '{mode}'}}).then(r => r.text(), () => 'refused')"
        )
        assert page.evaluate(script) in ("refused", "")
    frame = f"""new Promise(done => {{ const f = document.createElement('iframe'); f.src = '{client.server.url}';
        f.onload = () => {{ try {{ done(f.contentDocument.body.innerText) }} catch (e) {{ done('refused') }} }};
        document.body.append(f); setTimeout(() => done('refused'), 3000) }})"""
    assert page.evaluate(frame) in ("refused", "")
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_told_from_its_background(browser, serve, folder, scheme):
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    page.goto(serve(folder).server.url)
    page.wait_for_selector(".run .state")

    def light(color):
        channels = [int(part) / 255 for part in color.removeprefix("rgb(").removesuffix(")").split(",")]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for text, behind in (
        ("body", "body"),
        (".run .state", "nav"),
        ("#folder", "header"),
        ('[role="tab"][tabindex="-1"]', "body"),
    ):
        color = page.eval_on_selector(text, "node => getComputedStyle(node).color")
        paper = page.eval_on_selector(behind, "node => getComputedStyle(node).backgroundColor")
        bright, dim = sorted((light(color), light(paper)), reverse=True)
        assert (bright + 0.05) / (dim + 0.05) >= 4.5, (scheme, text)  # WCAG 2, level AA
    context.close()


def test_the_command_ends_with_the_page_open(page, folder):
    command = [sys.executable, "-m", "ortrain", "dashboard", str(folder), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        page.goto(json.loads(process.stdout.readline())["url"])
        expect(page.get_by_role("status")).to_have_text("2 runs, 0 running")
        page.close()
        process.send_signal(2)
        assert process.wait(30) == 0

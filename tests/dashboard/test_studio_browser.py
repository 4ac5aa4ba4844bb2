"""The studio in Chromium: files and folders are dropped, understood, trained on and exported; a model of one's own too."""

from __future__ import annotations

import threading

import numpy as np
import onnx
import onnxruntime
import pytest
from ortrain import models
from ortrain.dashboard.studio import Studio
from test_browser import browser, expect, page  # noqa: F401


@pytest.fixture
def studio(tmp_path):
    (tmp_path / "work").mkdir()
    server = Studio(tmp_path / "work")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.work.close()
    server.shutdown()
    server.server_close()
    thread.join()


def test_from_a_file_to_an_exported_model(page, studio, tmp_path):  # noqa: F811
    rng = np.random.default_rng(3)
    rows = [f"{x},{'big' if x > 0 else 'small'}" for x in rng.normal(size=80).round(4)]
    (tmp_path / "sizes.csv").write_text("\n".join(["length,size", *rows]))
    page.goto(studio.url)
    page.get_by_label("Files of data, or an ONNX model").set_input_files(tmp_path / "sizes.csv")
    expect(page.get_by_text("sizes.csv: a table with 80 rows")).to_be_visible()
    expect(page.get_by_role("row", name="length number")).to_be_visible()
    page.get_by_label("Epochs").fill("25")
    page.get_by_label("Learning rate").fill("0.05")
    page.get_by_role("button", name="Train", exact=True).click()
    commands = page.locator(".jobs section")
    expect(commands.nth(2).get_by_text("done")).to_be_visible()
    expect(commands.nth(2).locator("code")).to_have_text(
        "ortrain train sizes-mlp --data=sizes.csv --epochs=25 --validation=0.2 --metric=accuracy --lr=0.05"
    )
    page.get_by_role("button", name="Export with preprocessing").click()
    expect(page.get_by_text("wrote sizes-mlp-trained.onnx with the parameters")).to_be_visible()
    session = onnxruntime.InferenceSession(tmp_path / "work/sizes-mlp-trained.onnx")
    assert session.run(None, {"length": np.array([-1.5, 1.5])})[0].argmax(1).tolist() == [1, 0]
    page.get_by_role("tab", name="Curves").click()
    expect(page.get_by_role("region", name="Loss", exact=True)).to_be_visible()


def drop(page, *paths):  # noqa: F811
    """Drop files and folders of this machine on the page, as the mouse does."""
    box = page.locator(".drop").bounding_box()
    place = {"x": box["x"] + 20, "y": box["y"] + 20}
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    session = page.context.new_cdp_session(page)
    for kind in ("dragEnter", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": kind, **place, "data": data})


def pictures(folder, rng):
    images = pytest.importorskip("PIL.Image")
    for channel, name in enumerate(("red", "grün")):
        (folder / name).mkdir(parents=True)
        for number in range(12):
            pixels = rng.integers(0, 90, (16, 16, 3)).astype(np.uint8)
            pixels[..., channel] += 150
            images.fromarray(pixels).save(folder / name / f"{number}.png")


@pytest.mark.parametrize("dropped", ["a folder of folders", "a folder for each class"])
def test_dropped_folders_of_pictures_are_trained_on(page, studio, tmp_path, dropped):  # noqa: F811
    pictures(tmp_path / "pictures", np.random.default_rng(4))
    (tmp_path / "pictures/red/notes.txt").write_text("not a picture")
    page.goto(studio.url)
    whole = tmp_path / "pictures"
    drop(page, *([whole] if dropped == "a folder of folders" else sorted(whole.iterdir())))
    expect(page.get_by_text("pictures: 24 images")).to_be_visible()
    expect(page.get_by_role("row", name="grün 12")).to_be_visible()
    expect(page.get_by_text("1 other file was not copied")).to_be_visible()
    page.get_by_label("Epochs").fill("8")
    page.get_by_role("button", name="Train", exact=True).click()
    last = page.locator(".jobs section").nth(2)
    expect(last.get_by_text("done")).to_be_visible()
    expect(last).to_contain_text("best  pictures-cnn/best.ckpt")


def test_a_model_of_ones_own_is_trained_on_one_of_several_tables(page, studio, tmp_path):  # noqa: F811
    rng = np.random.default_rng(5)
    for name in ("first.csv", "second.csv"):
        rows = [f"{x},{y},{int(x > y)}" for x, y in rng.normal(size=(60, 2)).round(4)]
        (tmp_path / name).write_text("\n".join(["a;b;kind", *rows]).replace(",", ";").replace(".", ","))
    onnx.save(models.mlp(2, 2, hidden=(7,)), tmp_path / "my network.onnx")
    page.goto(studio.url)
    drop(page, tmp_path / "my network.onnx", tmp_path / "first.csv", tmp_path / "second.csv")
    expect(page.get_by_text("second.csv can be chosen too")).to_be_visible()
    expect(page.get_by_label("Network")).to_have_value("my network.onnx")
    expect(page.get_by_text("semicolons between its cells and commas before decimals")).to_be_visible()
    page.get_by_label("Data", exact=True).select_option("second.csv")
    expect(page.get_by_text("second.csv: a table with 60 rows")).to_be_visible()
    expect(page.get_by_label("Network")).to_have_value("my network.onnx")
    page.get_by_label("Epochs").fill("15")
    page.get_by_label("Learning rate").fill("0.05")
    page.get_by_role("button", name="Train", exact=True).click()
    page.get_by_role("button", name="Train afterwards").click()
    commands = page.locator(".jobs section")
    kept = "kept  second-my-network/last-1.ckpt, second-my-network/best-1.ckpt: results of earlier runs"
    expect(commands.filter(has_text=kept)).to_be_visible()  # the second run, which waited for the first
    expect(page.get_by_role("button", name="Train", exact=True)).to_be_enabled()
    page.get_by_role("button", name="Export", exact=True).click()
    expect(page.get_by_text("wrote second-my-network-trained.onnx with the parameters")).to_be_visible()
    page.get_by_role("button", name="Predict the data above").click()
    expect(page.get_by_text("wrote second-my-network-predictions.csv")).to_be_visible()
    graph = onnx.load(tmp_path / "work/second-my-network-trained.onnx").graph
    assert {7, 14} <= {int(np.prod(tensor.dims)) for tensor in graph.initializer}  # its layer of 7


def test_what_is_no_data_is_refused(page, studio, tmp_path):  # noqa: F811
    (tmp_path / "notes.txt").write_text("text")
    page.goto(studio.url)
    drop(page, tmp_path / "notes.txt")
    expect(page.get_by_text("notes.txt: expected tables, ONNX models or folders of pictures")).to_be_visible()

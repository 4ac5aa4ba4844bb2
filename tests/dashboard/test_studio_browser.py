"""The studio in Chromium: a file is dropped, understood, trained on and exported."""

from __future__ import annotations

import threading

import numpy as np
import onnxruntime
import pytest
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
    page.get_by_label("A file of data").set_input_files(tmp_path / "sizes.csv")
    expect(page.get_by_text("sizes.csv: 80 rows of table")).to_be_visible()
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

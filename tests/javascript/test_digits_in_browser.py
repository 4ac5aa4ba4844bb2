"""examples/digits_in_browser: its page trains the digits in Chromium, from a folder that a plain web server serves.

Needs the library for WebAssembly, Chromium and playwright: ``make test-wasm-browser`` builds and installs them.
"""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import languages
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path(os.environ.get("ORTRAIN_WASM", ROOT / "build" / "wasm"))
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    sync_playwright = None
if sync_playwright is None or CHROMIUM is None or not (LIBRARY / "ortrain.wasm").exists():
    WHY = "there is no chromium, no playwright, or no build/wasm/ortrain.wasm"
    if "wasm" in languages.required():
        pytest.fail(f"wasm is required by ORTRAIN_REQUIRE, but {WHY}", pytrace=False)
    pytest.skip(f"the page is not tested: {WHY}", allow_module_level=True)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Serve the folder of the page on loopback."""
    program = ROOT / "examples" / "digits_in_browser" / "prepare.py"
    subprocess.run([sys.executable, program, tmp_path, LIBRARY], check=True, timeout=300)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_page_learns_the_digits_and_saves_a_model_that_reads_them(address: str, tmp_path: Path) -> None:
    with sync_playwright() as playwright:
        # Chromium's own sandbox does not work in containers and for root.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 900, "height": 900})
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{address}/?epochs=4")
        page.click("#start:enabled", timeout=60_000)
        expect(page.locator("#model")).to_be_visible(timeout=240_000)
        accuracy = float(page.locator("#accuracy").inner_text().split()[0])
        if shown := os.environ.get("ORTRAIN_SCREENSHOT"):
            page.screenshot(path=shown)
        with page.expect_download() as download:
            page.click("#model")
        model = tmp_path / "digits.onnx"
        download.value.save_as(model)
        browser.close()
    assert not errors
    assert accuracy > 90
    images = np.fromfile(tmp_path / "test_images.bin", np.float32).reshape(-1, 64)
    labels = np.fromfile(tmp_path / "test_labels.bin", np.uint8)
    session = ReferenceEvaluator(onnx.load(model))
    (logits,) = session.run(["logits"], {session.input_names[0]: images})
    assert abs(100 * np.mean(logits.argmax(1) == labels) - accuracy) < 0.3

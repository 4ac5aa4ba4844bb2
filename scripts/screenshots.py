"""Take the screenshots of docs/dashboard.md and docs/studio.md: ``python scripts/screenshots.py docs/images``.

The runs train on the digits that come with the package, with the commands that a user would type. The script needs chromium,
playwright, scikit-learn, pandas and Pillow; ``make screenshots`` installs the first two.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from ortrain.dashboard import Server
from ortrain.dashboard.studio import Studio
from PIL import Image
from playwright.sync_api import Page, sync_playwright
from sklearn import datasets

LARGEST = 150_000  # bytes
WIDTH, HEIGHT = 1100, 720


def train(folder: Path) -> None:
    """Train three times: the demo, and its network with other learning rates."""

    def ortrain(*arguments: object) -> None:
        subprocess.run([sys.executable, "-m", "ortrain", *map(str, arguments)], check=True, cwd=folder)

    ortrain("demo", "--out", "digits", "--epochs", "8")
    for rate in ("3e-4", "1e-2"):
        ortrain(
            "train", "digits/artifacts", "--data", "digits/train.npz", "--validation", "digits/test.npz", "--epochs", 8,
            "--metric", "accuracy", "--lr", rate, "--threads", 1, "--out", f"rate-{rate}", "--name", f"rate-{rate}",
        )  # fmt: skip


def numbers(page: Page, folder: Path) -> bytes:
    """Return a picture of the validation results of a model that predicts numbers."""
    patients = datasets.load_diabetes(as_frame=True)
    patients.frame.to_csv(folder / "patients.csv", index=False)
    command = [
        sys.executable,
        "-m",
        "ortrain",
        "train",
        "--data",
        "patients.csv",
        "--validation",
        "0.3",
        "--epochs",
        "20",
    ]
    subprocess.run(command, check=True, cwd=folder)
    server = Server(folder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page.goto(f"{server.url}#tab=misread")
    page.get_by_role("region", name="Predicted against actual").wait_for()
    page.wait_for_timeout(500)
    picture = page.screenshot()
    server.shutdown()
    return picture


def views(page: Page, url: str) -> dict[str, bytes]:
    """Return a picture of each view."""
    pictures = {}
    page.goto(url)
    page.get_by_role("region", name="Loss", exact=True).locator("path.curve").first.wait_for()
    for name, tab in (
        ("curves", "Curves"),
        ("compare", "Side by side"),
        ("layers", "Layers"),
        ("profile", "Profile"),
        ("misread", "Validation"),
        ("model", "Model"),
    ):
        page.get_by_role("tab", name=tab).click()
        if name == "layers":
            page.get_by_role("button", name="conv2.weight").click()
        if name in ("layers", "misread"):
            page.get_by_role("combobox").select_option("rate-3e-4")
        if name == "model":
            page.get_by_role("button", name="conv2, Conv").click()
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(1500)
        pictures[f"dashboard-{name}.png"] = page.screenshot()
    return pictures


def studio(page: Page, folder: Path) -> bytes:
    """Return a picture of the studio after a table of flowers was trained on."""
    flowers = datasets.load_iris(as_frame=True)
    table = flowers.data.assign(species=flowers.target_names[flowers.target])
    table.to_csv(folder.parent / "flowers.csv", index=False)
    server = Studio(folder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page.goto(server.url)
    page.get_by_label("Files of data, or an ONNX model").set_input_files(folder.parent / "flowers.csv")
    page.get_by_text("flowers.csv: 150 rows of table").wait_for()
    page.get_by_role("button", name="Train", exact=True).click()
    page.locator(".jobs section").nth(2).get_by_text("done").wait_for()
    page.wait_for_timeout(1500)
    picture = page.screenshot(full_page=True)
    server.work.close()
    server.shutdown()
    return picture


def main() -> None:
    """Train, take the pictures and write them."""
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name) / "runs"
        folder.mkdir()
        train(folder)
        server = Server(folder)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        (Path(name) / "studio").mkdir()
        (Path(name) / "numbers").mkdir()
        pictures = {**views(page, server.url), "studio.png": studio(page, Path(name) / "studio")}
        pictures["dashboard-numbers.png"] = numbers(page, Path(name) / "numbers")
        for file, picture in pictures.items():
            Image.open(io.BytesIO(picture)).convert("RGB").quantize(128).save(target / file, optimize=True)
            size = (target / file).stat().st_size
            print(f"{target / file}: {size:,} bytes")
            assert size <= LARGEST, file
        browser.close()
        server.shutdown()


if __name__ == "__main__":
    main()

"""The session of a newcomer that docs/first-session.md shows: ``python tests/docs/newcomer.py`` runs and writes it.

The page consists of the commands with what they print; the prose is here. What the newcomer has besides the commands is a
folder of pictures, which `make_pictures` makes.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import numpy as np
import ortrain
from PIL import Image

PAGE = Path(__file__).resolve().parents[2] / "docs/first-session.md"

STEPS = [
    (
        "Ana has installed ortrain from a clone, with `pip install '.[artifacts,data]'`. First she checks the "
        "installation: the demo trains a network on the digits that ortrain contains.",
        "ortrain demo --out demo --epochs 6",
    ),
    (
        "Now she uses her own pictures. She has scanned handwritten digits into one folder per digit, "
        "`pictures/0/000.png` to `pictures/9/...`, but her scanner rotates every page by 90 degrees. The demo "
        "model was trained on upright digits. How well does it read hers? She creates training artifacts from "
        "the demo model and evaluates them.",
        "ortrain artifacts demo/digits.onnx --loss cross_entropy --out mine",
    ),
    ("", "ortrain evaluate mine --data pictures --metric accuracy --threads 1"),
    (
        "The model reads one digit in ten, no better than chance. She trains it on her pictures and holds out "
        "a quarter of them for validation.",
        "ortrain train mine --data pictures --validation 0.25 --epochs 12 --metric accuracy --lr 3e-3 --threads 1",
    ),
    ("She exports the model that her app will run, and inspects it.", "ortrain export mine mine.onnx"),
    ("", "ortrain inspect mine.onnx"),
    ("How far did training move the parameters?", "ortrain diff mine/checkpoint mine/best.ckpt || true"),
]


def make_pictures(folder: Path, count: int = 400) -> None:
    """Write digits of the demo, turned by a quarter and 32 pixels wide, as PNG files in a folder per digit."""
    with np.load(Path(ortrain.__file__).parent / "demo_data/digits.npz") as file:
        pixels, labels = file["pixels"][:count], file["labels"][:count]
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        turned = np.rot90(image * np.uint8(15))
        Image.fromarray(turned).resize((32, 32), Image.Resampling.BILINEAR).save(
            folder / str(label) / f"{number:03}.png"
        )


def run(command: str, folder: Path) -> str:
    """Run a command line and return what it prints, in the order in which a terminal shows it."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
    }
    ran = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    if ran.returncode:
        raise RuntimeError(f"{command} ended with {ran.returncode}: {ran.stdout}")
    return ran.stdout


def look_at(command: str, folder: Path) -> None:
    """Start the dashboard, ask it for its runs, and end it as Ctrl-C does."""
    arguments = [sys.executable, "-m", *shlex.split(command), "--port", "0", "--json"]
    with subprocess.Popen(arguments, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = json.loads(process.stdout.readline())["url"]
            with urllib.request.urlopen(f"{url}api/runs", timeout=30) as answer:
                assert json.load(answer)["runs"], command
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()


def record() -> str:
    """Run the session and return the page."""
    intro = (
        "This page shows the commands of a newcomer and their output, from the demo to a model trained on a "
        "folder of images. `tests/docs/newcomer.py` runs the commands and writes this page."
    )
    parts = [f"# A first session\n\n{wrapped(intro)}\n"]
    with tempfile.TemporaryDirectory() as name:
        make_pictures(Path(name) / "pictures")
        for prose, command in STEPS:
            if prose:
                parts.append(wrapped(prose) + "\n")
            parts.append(f"```console\n$ {command}\n{run(command, Path(name)).rstrip()}\n```\n")
    return "\n".join(parts)


def wrapped(text: str, width: int = 128) -> str:
    """Return a paragraph as lines."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def shape_of(output: str) -> list[str]:
    """Return the lines of an output without numbers, drawn names, and drawings, which consist of shades."""
    output = re.sub(r"\brun [a-z]+-[a-z]+,", "run,", output)
    lines = [re.sub(r"[\d.,+-]+(e-?\d+)?", "#", line) for line in output.splitlines()]
    return [re.sub(r"[\s#]+", " ", line).strip() for line in lines if re.search(r"[a-zA-Z]", line)]


if __name__ == "__main__":
    PAGE.write_text(record(), encoding="utf-8")

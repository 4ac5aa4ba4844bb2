"""Eight users go from nothing to a prediction, and then through their second hour: ``python tests/docs/roles.py``.

Each has a folder with data as people have them, and types commands of the pages, or runs a program that consists of their
examples. The script measures the time, counts stumbles, prints a table and writes docs/roles.md. A stumble is a command that
fails, a traceback, a warning, or a result that is not what the user expects.
"""

from __future__ import annotations

import csv
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime
from newcomer import look_at, make_pictures, wrapped
from sklearn import datasets

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/roles.md"
STUMBLED = re.compile(r"Traceback|Warning|^hint:", re.MULTILINE)

Check = Callable[[Path, str], bool]


@dataclass
class Step:
    """A command, and what its user expects: ``check`` gets the folder and what was printed."""

    command: str
    check: Check | None = None


@dataclass
class Role:
    """A user: what he or she has, the commands up to the first prediction, and those of the second hour."""

    name: str
    prepare: Callable[[Path], None]
    first: list[Step]
    second: list[Step]
    programs: dict[str, str] = field(default_factory=dict)
    stumbles: list[str] = field(default_factory=list)
    seconds: tuple[float, float] = (0.0, 0.0)


def write_table(path: Path, head: list[str], rows: list[list[object]]) -> None:
    """Write a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])


def permute(folder: Path, name: str, new: str, order: list[int]) -> None:
    """Write a table with its columns in another order."""
    rows = list(csv.reader((folder / name).open(encoding="utf-8")))
    write_table(folder / new, [rows[0][i] for i in order], [[row[i] for i in order] for row in rows[1:]])


def flowers(folder: Path) -> None:
    """Three kinds of flowers, four numbers each."""
    data = datasets.load_iris()
    rows = [
        [*row, data.target_names[kind]] for row, kind in zip(data.data.tolist(), data.target, strict=True)
    ]
    random.Random(1).shuffle(rows)
    head = ["sepal length", "sepal width", "petal length", "petal width", "kind"]
    write_table(folder / "flowers.csv", head, rows[:120])
    write_table(folder / "new.csv", head[:4], [row[:4] for row in rows[120:]])
    write_table(folder / "test.csv", head, rows[120:])
    permute(folder, "test.csv", "permuted.csv", [4, 2, 0, 3, 1])


def houses(folder: Path) -> None:
    """Prices by size, place, year of building and a date, with missing cells."""
    rng = np.random.default_rng(2)
    rows = []
    for number in range(400):
        size, place, year = (
            rng.uniform(30, 200),
            rng.choice(["centre", "north", "köln"]),
            rng.integers(1900, 2020),
        )
        price = 3000 * size * {"centre": 1.6, "north": 1.0, "köln": 1.3}[place] + 400 * (year - 1900)
        cells = [
            f"{size:.1f}" if number % 7 else "",
            place if number % 11 else "NA",
            year,
            f"2026-{1 + number % 12:02}-15",
            int(price),
        ]
        rows.append(cells)
    head = ["size", "place", "built", "sold", "price"]
    write_table(folder / "houses.csv", head, rows[:320])
    write_table(folder / "test.csv", head, rows[320:])
    permute(folder, "test.csv", "permuted.csv", [3, 4, 1, 0, 2])


def pictures(folder: Path) -> None:
    """A folder of pictures for each digit, and new ones that nobody has sorted."""
    make_pictures(folder / "pictures", 400)
    (folder / "new").mkdir()
    for file in sorted((folder / "pictures").rglob("*.png"))[::20]:
        shutil.move(file, folder / "new" / f"{file.parent.name}-{file.name}")


def reviews(folder: Path) -> None:
    """Reviews with stars, and the file of a tokenizer."""
    import tokenizers

    rng = random.Random(3)
    good, bad, other = (
        ["great", "lovely", "superb"],
        ["dull", "awful", "boring"],
        ["the", "a", "film", "plot", "was", "and", "with", "actor"],
    )
    rows = []
    for number in range(300):
        words = rng.choices(other, k=8) + rng.choices((bad, good)[number % 2], k=2)
        rng.shuffle(words)
        rows.append([" ".join(words), ("no", "yes")[number % 2]])
    write_table(folder / "reviews.csv", ["review", "liked"], rows[:240])
    write_table(folder / "test.csv", ["liked", "review"], [row[::-1] for row in rows[240:]])
    write_table(folder / "new.csv", ["review"], [["a great film"], ["awful plot and boring actor"]])
    known = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *good, *bad, *other])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, "[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))


def exported(folder: Path) -> None:
    """A vision transformer that PyTorch's exporter wrote, and pictures of five classes."""
    shutil.copy(ROOT / "tests/data/lora/vit.onnx", folder / "vit.onnx")
    pictures(folder)
    for digit in range(5, 10):
        shutil.rmtree(folder / f"pictures/{digit}")


def digits(folder: Path) -> None:
    """Handwritten digits as arrays, and a table of them."""
    data = datasets.load_digits()
    images, labels = (data.images / 16).astype(np.float32)[:, None], data.target.astype(np.int64)
    np.savez(folder / "digits.npz", x=images[:1400], y=labels[:1400])
    np.savez(folder / "test.npz", x=images[1400:], y=labels[1400:])


def accuracy_above(least: float) -> Check:
    """Expect an accuracy in what ``evaluate`` or ``train`` printed."""
    return lambda _, printed: float(re.findall(r"accuracy ([\d.]+)", printed)[-1]) > least


def says(*texts: str) -> Check:
    """Expect texts in what a command printed."""
    return lambda _, printed: all(text in printed for text in texts)


def same_as_before(first: str, second: str) -> Check:
    """Expect that two files are the same."""
    return lambda folder, _: (folder / first).read_bytes() == (folder / second).read_bytes()


def lines(name: str, count: int) -> Check:
    """Expect a file of so many lines."""
    return lambda folder, _: len((folder / name).read_text("utf-8").splitlines()) == count


def table_on_onnxruntime(model: str, table: str, scores: str) -> Check:
    """Expect that stock onnxruntime predicts from the raw columns what ``predict`` wrote."""

    def check(folder: Path, _: str) -> bool:
        session = onnxruntime.InferenceSession(folder / model)
        rows = list(csv.DictReader((folder / table).open(encoding="utf-8")))
        given = {}
        for argument in session.get_inputs():
            cells = ["" if row[argument.name] == "NA" else row[argument.name] for row in rows]
            real = [float(cell or "nan") for cell in cells] if "double" in argument.type else None
            given[argument.name] = np.array(cells, object) if real is None else np.array(real)
        (found,) = session.run(None, given)
        wanted = [
            row[: found.shape[1]] for row in list(csv.reader((folder / scores).open(encoding="utf-8")))[1:]
        ]
        return bool(np.allclose(found, np.array(wanted, np.float64), rtol=1e-3, atol=1e-3))

    return check


DASHBOARD = Step("ortrain dashboard .")
SKLEARN = """
import pickle
import numpy as np
from ortrain.sklearn import ONNXClassifier
from sklearn.datasets import load_iris
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

rows, classes = load_iris(return_X_y=True)
pipeline = make_pipeline(StandardScaler(), ONNXClassifier(epochs=30, learning_rate=1e-2, random_state=0))
pipeline.fit(rows, classes)
print("accuracy", pipeline.score(rows, classes))
"""
SKLEARN_LATER = """
from sklearn.model_selection import GridSearchCV

search = GridSearchCV(pipeline, {"onnxclassifier__learning_rate": [1e-3, 1e-2]}, cv=3).fit(rows, classes)
search.best_estimator_[-1].export("iris.onnx")
weighted = ONNXClassifier(epochs=40, early_stopping=True, class_weight="balanced", random_state=0)
weighted.fit(rows, classes, sample_weight=np.ones(len(rows)))
assert weighted.n_iter_ <= 40 and weighted.decision_function(rows).shape == (150, 3)
again = pickle.loads(pickle.dumps(pipeline))
again[-1].partial_fit(again[0].transform(rows), classes)
print("accuracy", again.score(rows, classes))
"""
TRAINER = """
import numpy as np
import ortrain
from ortrain import Trainer
from ortrain.trainer import EarlyStopping, JSONLogger, ModelCheckpoint, plot

data, test = np.load("digits.npz"), np.load("test.npz")
trainer = Trainer(
    ortrain.models.cnn((1, 8, 8), 10),
    loss="cross_entropy",
    learning_rate=2e-3,
    metrics=["accuracy"],
    artifact_directory="artifacts",
    callbacks=[
        ModelCheckpoint("runs/{epoch}.ckpt", best_path="best.ckpt", last_path="last.ckpt"),
        JSONLogger("runs/log.jsonl"),
    ],
)
print(trainer)
history = trainer.fit(data["x"], data["y"], epochs=5, validation=0.2)
print("accuracy", trainer.evaluate(test["x"], test["y"])["accuracy"])
print(trainer.predict(test["x"])[:3].argmax(axis=1))
plot(history, "curves.png")
"""
TRAINER_LATER = """
import numpy as np
from ortrain import Trainer
from ortrain.trainer import EarlyStopping, ModelCheckpoint

data, test = np.load("digits.npz"), np.load("test.npz")
saved = ModelCheckpoint("runs/{epoch}.ckpt", best_path="best.ckpt", last_path="last.ckpt")
callbacks = [saved, EarlyStopping(patience=3)]
trainer = Trainer("artifacts", learning_rate=2e-3, metrics=["accuracy"], callbacks=callbacks)
trainer.fit(data["x"], data["y"], epochs=8, validation=0.2, resume="last.ckpt")
print("accuracy", trainer.evaluate(test["x"], test["y"])["accuracy"])
trainer.export("digits.onnx")
found = Trainer("artifacts").find_learning_rate(data["x"], data["y"])
print("suggested rate", found.suggestion)
"""


DIGITS = "--data digits.npz --validation 0.2 --epochs 12 --metric accuracy"
TABLE = "--validation 0.2 --epochs 30 --metric accuracy --lr 0.01"
ROLES = [
    Role(
        "a table of classes",
        flowers,
        [
            Step(f"ortrain train --data flowers.csv --target kind {TABLE}", accuracy_above(0.8)),
            Step("ortrain predict artifacts --data new.csv --out scores.csv", lines("scores.csv", 31)),
        ],
        [
            Step(
                "ortrain train artifacts --data flowers.csv --validation 0.2 --epochs 5 --metric accuracy",
                says("continues from"),
            ),
            Step("ortrain evaluate artifacts --data test.csv --metric accuracy > 1.txt", None),
            Step(
                "ortrain evaluate artifacts --data permuted.csv --metric accuracy > 2.txt",
                same_as_before("1.txt", "2.txt"),
            ),
            Step("ortrain predict artifacts --data test.csv --out scores.csv", lines("scores.csv", 31)),
            Step(
                "ortrain export artifacts flowers.onnx --with-preprocessing",
                table_on_onnxruntime("flowers.onnx", "test.csv", "scores.csv"),
            ),
            DASHBOARD,
        ],
    ),
    Role(
        "a table of numbers with categories, dates and missing cells",
        houses,
        [
            Step(
                "ortrain train --data houses.csv --target price --validation 0.2 --epochs 60 --metric mae --lr 0.01",
                lambda _, printed: float(re.findall(r"val_mae ([\d.e+]+)", printed)[-1]) < 60_000,
            ),
            Step("ortrain predict artifacts --data test.csv --out prices.csv", lines("prices.csv", 81)),
        ],
        [
            Step(
                "ortrain train artifacts --data houses.csv --validation 0.2 --epochs 5",
                says("continues from", "kept"),
            ),
            Step("ortrain predict artifacts --data test.csv --out 1.csv", None),
            Step(
                "ortrain predict artifacts --data permuted.csv --out 2.csv", same_as_before("1.csv", "2.csv")
            ),
            Step("ortrain predict artifacts --data test.csv --out prices.jsonl", lines("prices.jsonl", 80)),
            Step(
                "ortrain export artifacts houses.onnx --with-preprocessing",
                table_on_onnxruntime("houses.onnx", "test.csv", "1.csv"),
            ),
            DASHBOARD,
        ],
    ),
    Role(
        "a folder of pictures for each class",
        pictures,
        [
            Step(
                "ortrain train --data pictures --validation 0.2 --epochs 15 --metric accuracy",
                accuracy_above(0.8),
            ),
            Step(
                "ortrain predict artifacts --data new --out sorted",
                lambda folder, _: len(list((folder / "sorted").iterdir())) == 10,
            ),
        ],
        [
            Step(
                "ortrain train artifacts --data pictures --validation 0.2 --epochs 3", says("continues from")
            ),
            Step("ortrain evaluate artifacts --data pictures --metric confusion_matrix", None),
            Step("ortrain export artifacts digits.onnx --with-preprocessing", says("wrote digits.onnx")),
            Step("ortrain inspect digits.onnx", says("pixels", "uint8")),
            DASHBOARD,
        ],
    ),
    Role(
        "text",
        reviews,
        [
            Step(
                "ortrain train --data reviews.csv --target liked --tokenizer tokenizer.json --validation 0.2 --epochs 8 "
                "--metric accuracy",
                accuracy_above(0.9),
            ),
            Step(
                "ortrain predict artifacts --data new.csv",
                lambda _, printed: re.findall("yes|no", printed) == ["yes", "no"],
            ),
        ],
        [
            Step(
                "ortrain train artifacts --data reviews.csv --validation 0.2 --epochs 2",
                says("continues from"),
            ),
            Step("ortrain evaluate artifacts --data test.csv --metric accuracy", accuracy_above(0.9)),
            Step("ortrain export artifacts reviews.onnx", says("the numbers of tokens", "tokenizer.json")),
            DASHBOARD,
        ],
    ),
    Role(
        "a model of PyTorch's exporter",
        exported,
        [
            Step("ortrain compat vit.onnx", says("train")),
            Step("ortrain artifacts vit.onnx --loss cross_entropy --out vit", None),
            Step(
                "ortrain train vit --data pictures --validation 0.2 --epochs 15 --metric accuracy",
                accuracy_above(0.6),
            ),
            Step("ortrain predict vit --data new --out scores.csv", lines("scores.csv", 21)),
        ],
        [
            Step(
                "ortrain train vit --data pictures --validation 0.2 --epochs 3 --normalize none",
                says("continues from"),
            ),
            Step("ortrain export vit trained.onnx", says("best.ckpt")),
            Step("ortrain diff vit/checkpoint vit/best.ckpt || true", says("differs")),
            DASHBOARD,
        ],
    ),
    Role(
        "a run that is killed",
        digits,
        [
            Step("ortrain new cnn --data digits.npz", None),
            Step("ortrain artifacts model.onnx --loss cross_entropy", None),
            Step(
                f"KILL ortrain train artifacts {DIGITS}",
                None,
            ),
            Step(
                f"ortrain train artifacts {DIGITS} --resume artifacts/last.ckpt",
                accuracy_above(0.9),
            ),
            Step("ortrain predict artifacts --data test.npz --out scores.npy", None),
        ],
        [
            Step(
                f"ortrain train artifacts {DIGITS} --from-start --out whole",
                says("kept"),
            ),
            Step("ortrain diff artifacts/last.ckpt artifacts/last-1.ckpt", None),
            Step("ortrain train artifacts --data digits.npz --epochs 12 --resume artifacts/last.ckpt", None),
            Step("ortrain export artifacts digits.onnx", None),
            DASHBOARD,
        ],
    ),
    Role(
        "scikit-learn",
        lambda folder: None,
        [Step("python first.py", accuracy_above(0.9))],
        [Step("python second.py", accuracy_above(0.9)), Step("ortrain inspect iris.onnx", says("output  y"))],
        {"first.py": SKLEARN, "second.py": SKLEARN + SKLEARN_LATER},
    ),
    Role(
        "a program or notebook in Python",
        digits,
        [Step("python first.py", accuracy_above(0.9))],
        [
            Step("python second.py", accuracy_above(0.9)),
            Step("ortrain inspect digits.onnx", says("output  y")),
            DASHBOARD,
        ],
        {"first.py": TRAINER, "second.py": TRAINER_LATER},
    ),
]


def shown(step: Step) -> str:
    """Return a command as a reader types it."""
    return step.command.removeprefix("KILL ")


def run_step(step: Step, folder: Path) -> str | None:
    """Run a command; return how its user stumbled, None if not."""
    command = shown(step)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONWARNINGS": "default",
        "MPLBACKEND": "Agg",
    }
    try:
        if step.command.startswith("KILL "):
            kill_after_two_epochs(command, folder, environment)
            return None
        if command.startswith("ortrain dashboard"):
            look_at(command, folder)
            return None
        ran = subprocess.run(
            command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=900
        )
        printed = ran.stdout + ran.stderr
        if ran.returncode:
            return f"{command}: ended with {ran.returncode}: {printed[-600:]}"
        if STUMBLED.search(printed) and "is finished" not in printed:
            return f"{command}: {printed[-600:]}"
        if step.check is not None and not step.check(folder, printed):
            return f"{command}: the result is not as expected: {printed[-600:]}"
    except (OSError, ValueError, LookupError, AssertionError, subprocess.SubprocessError) as error:
        return f"{command}: {type(error).__name__}: {error}"
    return None


def kill_after_two_epochs(command: str, folder: Path, environment: dict[str, str]) -> None:
    """Start a training and kill it when its second epoch is saved."""
    arguments = [sys.executable, "-m", *shlex.split(command)]
    with subprocess.Popen(
        arguments, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        end = time.monotonic() + 300
        while not (folder / "artifacts/runs/1/epoch-2.ckpt").exists() and time.monotonic() < end:
            if process.poll() is not None:
                raise ValueError("the run ended before it was killed")
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)


def play(role: Role, folder: Path) -> None:
    """Go through the steps of a role, and record time and stumbles."""
    role.prepare(folder)
    for name, text in role.programs.items():
        (folder / name).write_text(text.lstrip("\n"), "utf-8")
    seconds = []
    for steps in (role.first, role.second):
        began = time.perf_counter()
        for step in steps:
            stumble = run_step(step, folder)
            if stumble is not None:
                role.stumbles.append(stumble)
        seconds.append(time.perf_counter() - began)
    role.seconds = (seconds[0], seconds[1])


def table() -> str:
    """Return the roles as the table of the page."""
    rows = [
        "| user | commands to a prediction | seconds | commands after it | seconds | stumbles |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    rows += [
        f"| {role.name} | {len(role.first)} | {role.seconds[0]:.0f} | {len(role.second)} | {role.seconds[1]:.0f} "
        f"| {len(role.stumbles)} |"
        for role in ROLES
    ]
    return "\n".join(rows)


def page() -> str:
    """Return docs/roles.md."""
    parts = [
        "# Eight users\n",
        wrapped(
            "Eight users go from raw data to a prediction with the commands below. Then they train further, pass the "
            "columns in another order, predict into files, export the model and open the dashboard. "
            "`tests/docs/roles.py` runs the commands, checks the results, and writes this page. A stumble is a command "
            "that fails, a traceback, a warning, or an unexpected result. The times were measured on two shared "
            "processors; starting a command takes a second or two."
        )
        + "\n",
        f"{table()}\n",
    ]
    for role in ROLES:
        commands = "\n".join(map(shown, role.first)) + "\n# later\n" + "\n".join(map(shown, role.second))
        if any(step.command.startswith("KILL ") for step in role.first):
            commands = commands.replace(
                "--metric accuracy\n", "--metric accuracy  # killed in the third epoch\n", 1
            )
        title = f"{role.name[0].upper()}{role.name[1:]}"
        parts.append(f"## {title}\n\n```bash roles\n{commands}\n```\n")
        before = ""
        for file, text in role.programs.items():
            new = text.removeprefix(before) if before else text
            how = f"`{file}`" if new == text else f"`{file}` begins as the other program, and continues:"
            parts.append(f"{how}\n\n```python\n{new.strip()}\n```\n")
            before = text
    return "\n".join(parts)


def main() -> int:
    """Play all roles, or those named; print the table, and write the page if all were played."""
    wanted = sys.argv[1:]
    for role in ROLES:
        if wanted and role.name not in wanted:
            continue
        with tempfile.TemporaryDirectory() as name:
            play(role, Path(name))
        print(json.dumps([role.name, *role.seconds, role.stumbles], ensure_ascii=False), flush=True)
    print(table())
    if not wanted:
        PAGE.write_text(page(), "utf-8")
    return int(any(role.stumbles for role in ROLES))


if __name__ == "__main__":
    sys.exit(main())

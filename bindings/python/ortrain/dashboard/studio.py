"""The server of the studio: the dashboard, and actions of a page in its folder.

A request needs the token in the address of the page, so that other users of the machine and other pages cannot start anything.
Every path that a page sends is below the folder, and every action is a command of ortrain, started without a shell.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ortrain.dashboard.commands import Work, answer_of
from ortrain.dashboard.server import Handler, Query, Refusal, Server
from ortrain.errors import OrtrainError

_MOST_BYTES_OF_A_FILE = 8 << 30
_CHUNK = 1 << 20
_MOST_ENTRIES = 200
_DATA = (".csv", ".tsv", ".parquet", ".jsonl", ".npz", ".npy")
NETWORKS = ("mlp", "cnn", "resnet", "gru", "transformer")

Answer = dict[str, Any]


class Studio(Server):
    """Serves the studio of a folder to this machine, to pages that have the token.

    Parameters
    ----------
    folder : Path
        The folder in which the page works.
    port : int, default 0
        The port; 0 for any free port.

    Attributes
    ----------
    token : str
        What requests have in the header X-Ortrain-Token.
    work : Work
        The commands that the page started.
    """

    def __init__(self, folder: Path, port: int = 0) -> None:
        super().__init__(folder, port, _Handler)
        self.token = secrets.token_urlsafe(24)
        self.url += f"#token={self.token}"
        self.folder = self.runs.folder
        self.work = Work(self.folder)

    def path_of(self, name: Any, what: str) -> str:
        """Return a path below the folder that a page named, as an argument of a command.

        Raises
        ------
        Refusal
            When it is not below the folder, or begins like an option or a hidden file.
        """
        parts = (
            PurePosixPath(name).parts
            if isinstance(name, str) and "\0" not in name and "\\" not in name
            else ()
        )
        if not parts or parts[0] == "/" or any(part.startswith((".", "-")) for part in parts):
            raise Refusal(
                HTTPStatus.BAD_REQUEST, f"{what}: expected a path below the folder, found {name!r:.80}"
            )
        if not (self.folder / name).resolve().is_relative_to(self.folder):
            raise Refusal(HTTPStatus.FORBIDDEN, f"{what}: {name!r:.80} leads out of the folder")
        return "/".join(parts)

    def answer(self, path: str, query: Query) -> Answer:
        """Return the answer of the studio or the dashboard for a path."""
        if path == "/api/studio/state":
            return {**self.work.describe(), **self._entries()}
        if path == "/api/studio/data":
            name = self.path_of(query.get("path", [""])[0], "path")
            target = query.get("target", [""])[0]
            return self._answer_of(["inspect", name, *([f"--target={target}"] if target else []), "--json"])
        return super().answer(path, query)

    def _entries(self) -> Answer:
        """Return the data, models and artifacts in the folder."""
        data, models, artifacts = [], [], []
        for entry in sorted(self.folder.iterdir())[:_MOST_ENTRIES]:
            if entry.name.startswith((".", "-")) or not entry.resolve().is_relative_to(self.folder):
                continue
            if entry.is_file() and entry.suffix.lower() in _DATA:
                data.append(entry.name)
            elif entry.is_file() and entry.suffix == ".onnx":
                models.append(entry.name)
            elif (entry / "training_model.onnx").exists():
                artifacts.append({"name": entry.name, "trained": (entry / "best.ckpt").exists()})
            elif entry.is_dir() and any(child.is_dir() for child in entry.iterdir()):
                data.append(entry.name)
        return {"data": data, "models": models, "artifacts": artifacts}

    def _answer_of(self, arguments: list[str]) -> Answer:
        status, printed, said = answer_of(arguments, self.folder)
        if status:
            raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, said.strip()[:2000])
        found: Answer = json.loads(printed)
        return found

    def act(self, path: str, asked: Answer) -> Answer:
        """Do what a page asks for; return the answer.

        Raises
        ------
        Refusal
            When there is no such action, an argument is invalid, or a command is running.
        """
        actions: dict[str, Callable[[Answer], list[list[str]]]] = {
            "/api/studio/train": self._train,
            "/api/studio/predict": self._predict,
            "/api/studio/export": self._export,
        }
        if path == "/api/studio/place":
            return {"path": self._place(asked)}
        if path == "/api/studio/stop":
            self.work.stop()
            return self.work.describe()
        if path not in actions:
            return super().act(path, asked)
        if not self.work.start(actions[path](asked)):
            raise Refusal(HTTPStatus.CONFLICT, "too many commands are waiting; wait for them or stop them")
        return self.work.describe()

    def _place(self, asked: Answer) -> str:
        """Return a name for data that a user drops on the page: the name of the data, with a number if it is in use."""
        name = self.path_of(asked.get("name"), "name")
        if "/" in name:
            raise Refusal(
                HTTPStatus.BAD_REQUEST, f"name: expected the name of a file or folder, found {name!r:.80}"
            )
        base, number = PurePosixPath(name), 1
        while (self.folder / name).exists() or self.work.is_result(name):
            name, number = f"{base.stem}-{number}{base.suffix}", number + 1
        return name

    def store(self, name: str, source: Any, size: int) -> None:
        """Write a file that a page sends; one that exists is refused."""
        path = self.folder / self.path_of(name, "path")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = path.open("xb")
        except FileExistsError:
            raise Refusal(HTTPStatus.CONFLICT, f"path: {name!r:.80} exists") from None
        try:
            with file:
                while size:
                    part = source.read(min(size, _CHUNK))
                    if not part:
                        raise Refusal(HTTPStatus.BAD_REQUEST, "the file ended early")
                    file.write(part)
                    size -= len(part)
        except BaseException:
            path.unlink()
            raise

    def _train(self, asked: Answer) -> list[list[str]]:
        """Return the commands that make a network and artifacts, unless these exist, and train them."""
        data = self.path_of(asked.get("data"), "data")
        name = self.path_of(asked.get("name"), "name")
        of_target = _option(asked, "target")
        epochs = _number(asked, "epochs", 1, 100_000)
        commands = []
        metric = ["--metric=accuracy"] if asked.get("loss") == "cross_entropy" else ["--metric=mae"]
        exists = (self.folder / name / "training_model.onnx").exists()
        if not exists and not self.work.is_result(name):
            if (self.folder / name).exists():
                raise Refusal(HTTPStatus.CONFLICT, f"name: {name} exists and has no artifacts")
            loss = asked.get("loss")
            if loss not in ("cross_entropy", "mse", "bce_with_logits", "l1"):
                raise Refusal(
                    HTTPStatus.BAD_REQUEST, f"loss: expected the name of a loss, found {loss!r:.40}"
                )
            network = asked.get("network")
            if network in NETWORKS:
                model = self._place({"name": f"{name}.onnx"})
                commands.append(["new", network, f"--data={data}", *of_target, f"--out={model}"])
            else:
                model = self.path_of(network, "network")
            commands.append(["artifacts", model, f"--loss={loss}", f"--out={name}"])
        rate = asked.get("rate")
        commands.append(
            [
                "train",
                name,
                f"--data={data}",
                *of_target,
                f"--epochs={epochs}",
                "--validation=0.2",
                *metric,
                *([] if rate in (None, "") else [f"--lr={_rate(rate)}"]),
            ]
        )
        return commands

    def _predict(self, asked: Answer) -> list[list[str]]:
        name, data = self.path_of(asked.get("name"), "name"), self.path_of(asked.get("data"), "data")
        out = self._place({"name": f"{name}-predictions.csv"})
        return [["predict", name, f"--data={data}", f"--out={out}"]]

    def _export(self, asked: Answer) -> list[list[str]]:
        name = self.path_of(asked.get("name"), "name")
        out = self._place({"name": f"{name}-trained.onnx"})
        return [["export", name, out, *(["--with-preprocessing"] if asked.get("preprocessing") else [])]]


def _option(asked: Answer, name: str) -> list[str]:
    value = asked.get(name)
    if value in (None, ""):
        return []
    if not isinstance(value, str) or len(value) > 1000:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"{name}: expected a text, found {value!r:.80}")
    return [f"--{name}={value}"]


def _number(asked: Answer, name: str, low: int, high: int) -> int:
    value = asked.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise Refusal(
            HTTPStatus.BAD_REQUEST,
            f"{name}: expected a whole number from {low} to {high}, found {value!r:.40}",
        )
    return value


def _rate(value: Any) -> float:
    if not isinstance(value, (int, float)) or not value > 0:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"rate: expected a number above 0, found {value!r:.40}")
    return float(value)


class _Handler(Handler):
    server: Studio

    def _check(self) -> None:
        """Refuse requests that do not come from the page, and requests for data without the token."""
        super()._check()
        given = self.headers.get("X-Ortrain-Token", "")
        path = urlsplit(self.path).path
        if path.startswith("/api/") and not hmac.compare_digest(given.encode(), self.server.token.encode()):
            raise Refusal(
                HTTPStatus.FORBIDDEN,
                "the token is missing or wrong: open the address that `ortrain studio` printed",
            )

    def do_POST(self) -> None:
        """Run an action, whose arguments are JSON, or receive a file."""
        # the body of a refused request stays unread, so the connection cannot be used again
        self.close_connection = True
        try:
            self._check()
            url = urlsplit(self.path)
            if url.path == "/api/studio/file":
                name = parse_qs(url.query).get("path", [""])[0]
                self.server.store(name, self.rfile, self._length(_MOST_BYTES_OF_A_FILE))
                answer: Answer = {"path": name}
            else:
                answer = self.server.act(url.path, self._question())
            self._send(HTTPStatus.OK, "application/json", json.dumps(answer).encode())
        except Refusal as refusal:
            self._refuse(refusal.status, str(refusal))
        except (ValueError, OSError, OrtrainError) as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))

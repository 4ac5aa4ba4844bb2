"""A client whose training is done by another program, such as one in C or C# on a device without Python.

``docs/tutorial-federated.md`` describes the files that the client and the program exchange.
"""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from ortrain._files.reading import open_file
from ortrain._files.writing import write_file
from ortrain.flower.records import CONTROL, Array, flat, record_of, set_parameters
from ortrain.flower.secure import instructions, is_masked, to_be_masked
from ortrain.trainer import Trainer

_MAGIC = b"ORTRFED1"
_TRAIN, _EVALUATE = 1, 2
_FLOAT = 1
_HEADING = Struct("<8sIIQQQQQd")


def external_client_app(
    artifacts: str | os.PathLike[str],
    command: Sequence[str | os.PathLike[str]],
    *,
    mods: Sequence[Any] = (),
    timeout: float = 3600,
) -> ClientApp:
    """Return a client that lets another program train.

    Parameters
    ----------
    artifacts : str or os.PathLike
        The folder of training artifacts, the same on every client and the server.
    command : list of str or os.PathLike
        The program and its first arguments, to which the paths of a request and a reply are added. It may carry the two
        files to another device. ``{partition-id}`` and other entries of the node's configuration in braces are replaced.
    mods : list of callable, default ()
        Flower's modules, which training goes through.
    timeout : float, default 3600
        Seconds after which the program is killed.

    Returns
    -------
    flwr.clientapp.ClientApp
        The client. It fails, which the server notes, if the program fails or its reply is not valid.
    """
    app = ClientApp()

    def run(message: Message, context: Context, kind: int) -> Message:
        received, config = instructions(message)
        unknown = [name for name in (CONTROL,) if name in received]
        unknown += ["proximal-mu"] if config.get("proximal-mu") else []
        if unknown:
            raise ValueError(f"an external program trains without {', '.join(unknown)}; use another strategy")
        trainer = Trainer(artifacts, threads=1)
        names = set_parameters(trainer, received)
        before = flat(trainer)
        if before.dtype != np.float32:
            raise ValueError(f"an external program exchanges float32, found parameters of {before.dtype}")
        number = int(config.get("server-round", 0))
        heading = _HEADING.pack(
            _MAGIC,
            kind,
            _FLOAT,
            before.size,
            number,
            int(config.get("seed", 0)),
            int(config.get("local-epochs", 1)),
            int(config.get("batch-size", 32)),
            float(config.get("learning-rate", 0.0)),
        )
        filled = [_fill(os.fspath(part), context.node_config) for part in command]
        with tempfile.TemporaryDirectory(prefix="ortrain-") as folder:
            request, answer = Path(folder, "request"), Path(folder, "reply")
            write_file(request, "request", heading + before.astype("<f4").tobytes())
            _call([*filled, str(request), str(answer)], timeout)
            if not answer.exists():
                raise RuntimeError(f"{filled[0]} ended without a reply")
            with open_file(answer, "reply") as file:
                data = file.read(_HEADING.size + 4 * before.size + 1)
            rows, loss, after = _read(data, filled[0], kind, number, before.size)
        metrics = MetricRecord({"loss": loss, "num-examples": rows})
        content = RecordDict({"metrics": metrics})
        if kind == _TRAIN:
            trainer.module.copy_buffer_to_parameters(after, True)
            arrays = record_of(trainer, names)
            if is_masked(message):
                content = to_be_masked(arrays, metrics, rows)
            else:
                content["arrays"] = arrays
        return Message(content=content, reply_to=message)

    @app.train(mods=list(mods))  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        return run(message, context, _TRAIN)

    @app.evaluate()  # type: ignore[untyped-decorator]
    def evaluate(message: Message, context: Context) -> Message:
        return run(message, context, _EVALUATE)

    return app


def _fill(text: str, values: dict[str, Any]) -> str:
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def _call(command: list[str], timeout: float) -> None:
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{command[0]} did not reply within {timeout:g} s") from None
    except OSError as error:
        raise RuntimeError(f"{command[0]} cannot be started: {error}") from None
    if ran.returncode:
        said = (ran.stderr or ran.stdout).strip()[-2000:]
        raise RuntimeError(f"{command[0]} ended with status {ran.returncode}: {said}")


def _read(data: bytes, program: str, kind: int, number: int, size: int) -> tuple[int, float, Array]:
    """Return the rows, the loss and the array of a reply."""

    def expect(what: str, expected: object, found: object) -> None:
        if found != expected:
            raise RuntimeError(f"the reply of {program}: {what}: expected {expected}, found {found}")

    if len(data) < _HEADING.size:
        raise RuntimeError(
            f"the reply of {program}: expected a heading of {_HEADING.size} bytes, found {len(data)}"
        )
    magic, replied, dtype, elements, round_, rows, _, _, loss = _HEADING.unpack_from(data)
    expect("first bytes", _MAGIC, magic)
    expect("kind", kind, replied)
    expect("element type", _FLOAT, dtype)
    expect("elements", size if kind == _TRAIN else 0, elements)
    expect("round", number, round_)
    expect("bytes", _HEADING.size + 4 * elements, len(data))
    if not 1 <= rows <= 2**53:
        raise RuntimeError(f"the reply of {program}: expected 1 or more rows, found {rows}")
    array = np.frombuffer(data, "<f4", offset=_HEADING.size).astype(np.float32)
    if not math.isfinite(loss) or not np.isfinite(array).all():
        raise RuntimeError(f"the reply of {program}: the loss or a parameter is not finite")
    return int(rows), float(loss), array

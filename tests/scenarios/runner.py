"""Runs a scenario with the Python API; README.md beside this file says what a scenario is."""

from __future__ import annotations

import gc
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from generated.python.commands import COMMANDS, Commands, Kind
from ortrain import InferenceSession, NodeArg, OrtrainError, OrtValue, _ortrain
from ortrain.api import CheckpointState, LinearLRScheduler, LRScheduler, Module, Optimizer

TYPES = {
    "float": np.float32,
    "float16": np.float16,
    "double": np.float64,
    "int64": np.int64,
    "int32": np.int32,
    "bool": np.bool_,
}
NAMES = {np.dtype(kind): name for name, kind in TYPES.items()}


class ScriptError(Exception):
    """The script, not the library, is at fault, or something went otherwise than the script says."""


@dataclass
class Session:
    """A module with what belongs to it."""

    module: Module
    optimizer: Optimizer | None
    scheduler: LinearLRScheduler | LRScheduler | None = None


class Unchecked(Module):
    """A module whose steps leave it to the library to reject inputs; the class rejects them in its own words."""

    def __init__(self, module: Module) -> None:
        self.__dict__.update(module.__dict__)

    def __call__(self, *inputs: OrtValue) -> list[OrtValue]:
        if self.training:
            count = _ortrain.training_session_get_training_model_output_count(self._handle)
            return _ortrain.train_step(self._handle, None, inputs, count)
        count = _ortrain.training_session_get_eval_model_output_count(self._handle)
        return _ortrain.eval_step(self._handle, None, inputs, count)


class Unattached(Optimizer):
    """The optimizer of a session without an optimizer model, which is none; the library has to say so."""

    def __init__(self, module: Module) -> None:
        self._owner = module


class Unscheduled(LinearLRScheduler):
    """The scheduler of a session without one, as above."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._owner = optimizer


def bits(value: float) -> str:
    return f"{struct.unpack('<I', struct.pack('<f', value))[0]:08x}"


def read_shape(text: str) -> list[int]:
    return [] if text == "-" else [int(dim) for dim in text.split("x")]


def print_tensor(value: OrtValue) -> str:
    array = value.numpy()
    shape = "x".join(map(str, value.shape())) or "-"
    if array.dtype == np.float32 and array.ndim == 0:
        return f"float {shape} {array.view(np.uint32):08x}"
    code = 0xCBF29CE484222325
    for byte in array.tobytes():
        code = ((code ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{NAMES[array.dtype]} {shape} {code:016x}"


class Runner(Commands):
    """The objects of a script, and a method for every command."""

    def __init__(self, data: str, out: str) -> None:
        self.folders = {"data:": data, "out:": out}
        self.objects: dict[str, object] = {}
        self.logging = True
        self.expects_failure = False

    def log(self, line: str) -> None:
        if self.logging:
            print(line)

    def log_tensor(self, what: str, value: OrtValue) -> None:
        if self.logging:
            print(f"{what} {print_tensor(value)}")

    def show(self, what: str, result: object) -> None:
        match result:
            case OrtValue():
                self.log_tensor(what, result)
            case float():
                self.log(f"{what} {bits(result)}")
            case list():
                self.log(" ".join([what, *result]))
            case _:
                self.log(f"{what} {result}")

    def show_each(self, what: str, names: Sequence[str], results: object) -> None:
        values = results if isinstance(results, (tuple, list)) else (results,)
        for name, value in zip(names, values, strict=True):
            self.show(f"{what} {name}", value)

    # Tokens.

    def counted(self, tokens: Sequence[str], index: int, each: int = 1) -> Sequence[str]:
        return tokens[index + 1 : index + 1 + each * int(tokens[index])]

    def behind(self, tokens: Sequence[str], index: int, each: int = 1) -> Sequence[str]:
        return tokens[index + 1 + each * int(tokens[index]) :]

    def optional(self, path: str) -> str | None:
        return None if path == "-" else path

    def number(self, token: str) -> float:
        bits_given = token.startswith("bits:")
        stored = struct.pack("<I", int(token[5:], 16)) if bits_given else struct.pack("<f", float(token))
        (value,) = struct.unpack("<f", stored)
        return float(value)

    def flag(self, token: str, yes: str, no: str) -> bool:
        if token not in (yes, no):
            raise ScriptError(f"expected {yes} or {no}, found {token}")
        return token == yes

    def typed(self, kind: type[Kind], value: object) -> Kind:
        if not isinstance(value, kind):
            raise ScriptError(f"expected a value of type {kind.__name__}, found {value!r}")
        return value

    # Labels.

    def keep(self, label: str, made: object, attached: Optimizer | None = None) -> None:
        self.objects[label] = Session(made, attached) if isinstance(made, Module) else made

    def attach(self, label: str, made: LinearLRScheduler | LRScheduler) -> None:
        self.session(label).scheduler = made

    def find(self, label: str, kind: type[Kind]) -> Kind:
        found = self.objects.get(label)
        if not isinstance(found, kind):
            raise ScriptError(f"{label} is no {kind.__name__}")
        return found

    def state(self, label: str) -> CheckpointState:
        return self.find(label, CheckpointState)

    def session(self, label: str) -> Session:
        return self.find(label, Session)

    def module(self, label: str, training: bool) -> Module:
        module = self.session(label).module.train(training)
        return Unchecked(module) if self.expects_failure else module

    def optimizer(self, label: str) -> Optimizer:
        session = self.session(label)
        return session.optimizer or Unattached(session.module)

    def scheduler(self, label: str) -> LinearLRScheduler | LRScheduler:
        return self.session(label).scheduler or Unscheduled(self.optimizer(label))

    def model(self, label: str) -> InferenceSession:
        return self.find(label, InferenceSession)

    def tensor(self, label: str) -> OrtValue:
        return self.find(label, OrtValue)

    def tensors(self, labels: Sequence[str]) -> list[OrtValue]:
        return [self.tensor(label) for label in labels]

    def named(self, tokens: Sequence[str]) -> dict[str, OrtValue]:
        return dict(zip(tokens[::2], self.tensors(tokens[1::2]), strict=True))

    # Commands.

    def command_tensor(self, label: str, path: str) -> None:
        header, _, content = Path(path).read_bytes().partition(b"\n")
        kind, dims = header.decode().split(" ")
        array: np.ndarray = np.frombuffer(content, TYPES[kind]).reshape(read_shape(dims))
        self.objects[label] = OrtValue.ortvalue_from_numpy(array.copy())

    def command_zeros(self, label: str, kind: str, dims: str) -> None:
        self.objects[label] = OrtValue.ortvalue_from_numpy(np.zeros(read_shape(dims), TYPES[kind]))

    def command_show(self, label: str) -> None:
        self.log_tensor("tensor", self.tensor(label))

    def command_describe(self, label: str) -> None:
        model = self.model(label)

        def log(what: str, value: NodeArg) -> None:
            dims = [str(e) if isinstance(e, int) else "-1" for e in value.shape]
            kind = value.type.removeprefix("tensor(").removesuffix(")")
            self.log(f"{what} {value.name} {kind} {'x'.join(dims) or '-'}")

        for value in model.get_inputs():
            log("input", value)
        for value in model.get_outputs():
            log("output", value)

    def command_group_names(self, label: str) -> None:
        self.show("groups", [name for name, _ in self.optimizer(label).param_groups])

    def command_group_attribute(self, label: str, group: str, attribute: str, value: str) -> None:
        # The classes reject unknown groups and attributes themselves.
        handle = self.optimizer(label)._handle
        _ortrain.set_optimizer_group_attribute(handle, group, attribute, self.number(value))

    def command_show_group_attribute(self, label: str, group: str, attribute: str) -> None:
        handle = self.optimizer(label)._handle
        self.show(
            f"group {group} {attribute}", _ortrain.get_optimizer_group_attribute(handle, group, attribute)
        )

    def command_log(self, which: str) -> None:
        self.logging = self.flag(which, "on", "off")

    def command_release(self, label: str) -> None:
        if label not in self.objects:
            raise ScriptError(f"{label} names nothing")
        del self.objects[label]

    def command_resident(self) -> None:
        gc.collect()
        status = Path("/proc/self/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        self.log(f"resident {line.split()[1]}")

    def command_measure(self, steps: str, label: str, *inputs: str) -> None:
        module = self.module(label, True)
        values = self.tensors(inputs)
        times = []
        for _ in range(int(steps)):
            began = time.perf_counter_ns()
            module(*values)
            times.append(time.perf_counter_ns() - began)
        self.log(f"nanoseconds {sorted(times)[(len(times) - 1) // 2]}")

    def fails(self, code: str, *command: str) -> None:
        self.expects_failure = True
        try:
            self.run_command(list(command))
        except OrtrainError as error:
            if error.code != int(code):
                raise ScriptError(
                    f"expected an error of code {code}, found {int(error.code)}: {error}"
                ) from error
            self.log(f"error {code} {error.message}")
        else:
            raise ScriptError(f"expected an error of code {code}, found none")
        finally:
            self.expects_failure = False

    def run_command(self, tokens: list[str]) -> None:
        name, *arguments = tokens
        if name == "fails":
            self.fails(*arguments)
            return
        if name not in COMMANDS:
            raise ScriptError("there is no such command")
        fewest, most = COMMANDS[name]
        if len(arguments) < fewest or (most is not None and len(arguments) > most):
            raise ScriptError("wrong number of tokens")
        getattr(self, f"command_{name}")(*arguments)

    # Scripts.

    def resolve(self, token: str, number: int) -> str:
        token = token.replace("{}", str(number))
        for prefix, folder in self.folders.items():
            if token.startswith(prefix):
                return f"{folder}/{token[len(prefix) :]}"
        return token

    def run(self, lines: list[tuple[int, list[str]]], number: int = 0) -> None:
        """Run lines, each with its place in the script; `number` is that of the round."""
        at = 0
        while at < len(lines):
            place, tokens = lines[at]
            try:
                if tokens[0] == "repeat":
                    end = self.end_of(lines, at)
                    count, first = int(tokens[1]), int(tokens[2]) if len(tokens) > 2 else 0
                    for round_number in range(first, first + count):
                        self.run(lines[at + 1 : end], round_number)
                    at = end
                else:
                    self.run_command([self.resolve(token, number) for token in tokens])
            except (ScriptError, OrtrainError, OSError, KeyError, TypeError, ValueError, IndexError) as error:
                raise SystemExit(
                    f"{sys.argv[1]}:{place}: {' '.join(tokens)}: {type(error).__name__}: {error}"
                ) from error
            at += 1

    @staticmethod
    def end_of(lines: list[tuple[int, list[str]]], start: int) -> int:
        depth = 0
        for at in range(start, len(lines)):
            depth += {"repeat": 1, "end": -1}.get(lines[at][1][0], 0)
            if depth == 0:
                return at
        raise ScriptError("this repeat has no end")


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit(f"usage: {sys.argv[0]} SCRIPT DATA OUT")
    lines = [
        (place, line.split())
        for place, line in enumerate(Path(sys.argv[1]).read_text(encoding="utf-8").splitlines(), start=1)
        if line.strip() and not line.startswith("#")
    ]
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    Runner(sys.argv[2], sys.argv[3]).run(lines)


if __name__ == "__main__":
    main()

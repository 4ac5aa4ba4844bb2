"""Runs a scenario with the Python API; README.md beside this file says what a scenario is."""

from __future__ import annotations

import gc
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import ortrain
from generated.python.commands import COMMANDS, Commands
from ortrain import InferenceSession, NodeArg, OrtrainError, OrtValue, _ortrain
from ortrain.api import CheckpointState, LinearLRScheduler, Module, Optimizer

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
    scheduler: LinearLRScheduler | None = None


def read_number(text: str) -> float:
    stored = (
        struct.pack("<I", int(text[5:], 16)) if text.startswith("bits:") else struct.pack("<f", float(text))
    )
    (value,) = struct.unpack("<f", stored)
    return float(value)


def bits(value: float) -> str:
    return f"{struct.unpack('<I', struct.pack('<f', value))[0]:08x}"


def read_shape(text: str) -> list[int]:
    return [] if text == "-" else [int(extent) for extent in text.split("x")]


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

    def show(self, what: str, result: OrtValue | list[str]) -> None:
        if isinstance(result, OrtValue):
            self.log_tensor(what, result)
        else:
            self.log(" ".join([what, *result]))

    def flag(self, token: str, yes: str, no: str) -> bool:
        if token not in (yes, no):
            raise ScriptError(f"expected {yes} or {no}, found {token}")
        return token == yes

    # Labels.

    def keep(self, label: str, made: object) -> None:
        self.objects[label] = made

    def find(self, label: str, kind: type) -> object:
        found = self.objects.get(label)
        if not isinstance(found, kind):
            raise ScriptError(f"{label} is no {kind.__name__}")
        return found

    def state(self, label: str) -> CheckpointState:
        return self.find(label, CheckpointState)  # type: ignore[return-value]

    def session_of(self, label: str) -> Session:
        return self.find(label, Session)  # type: ignore[return-value]

    def module(self, label: str, training: bool) -> Module:
        return self.session_of(label).module.train(training)

    def tensor(self, label: str) -> OrtValue:
        return self.find(label, OrtValue)  # type: ignore[return-value]

    def values(self, labels: tuple[str, ...]) -> list[OrtValue]:
        return [self.tensor(label) for label in labels]

    # Commands.

    def command_tensor(self, label: str, path: str) -> None:
        header, _, content = Path(path).read_bytes().partition(b"\n")
        kind, dims = header.decode().split(" ")
        array: np.ndarray = np.frombuffer(content, TYPES[kind]).reshape(read_shape(dims))
        self.objects[label] = OrtValue.ortvalue_from_numpy(array.copy())

    def command_zeros(self, label: str, kind: str, dims: str) -> None:
        self.objects[label] = OrtValue.ortvalue_from_numpy(np.zeros(read_shape(dims), TYPES[kind]))

    def command_show(self, label: str) -> None:
        self.log_tensor("tensor", *self.values((label,)))

    def command_session(self, label: str, state: str, train: str, evaluation: str, optimizer: str) -> None:
        options = ortrain.SessionOptions()
        eval_model = None if evaluation == "-" else evaluation
        module = Module(train, self.state(state), eval_model, session_options=options)
        self.keep(label, Session(module, None if optimizer == "-" else Optimizer(optimizer, module)))

    # A session without an optimizer model has no Optimizer in this API, so what is wrong without one is asked of
    # the layer below.

    def command_learning_rate(self, label: str, rate: str) -> None:
        session = self.session_of(label)
        if session.optimizer:
            session.optimizer.set_learning_rate(read_number(rate))
        else:
            _ortrain.set_learning_rate(session.module._handle, read_number(rate))

    def command_show_learning_rate(self, label: str) -> None:
        session = self.session_of(label)
        optimizer, handle = session.optimizer, session.module._handle
        rate = optimizer.get_learning_rate() if optimizer else _ortrain.get_learning_rate(handle)
        self.log(f"learning_rate {bits(rate)}")

    def command_schedule(self, label: str, warmup: str, total: str, rate: str) -> None:
        session = self.session_of(label)
        counts = int(warmup), int(total)
        if session.optimizer:
            session.scheduler = LinearLRScheduler(session.optimizer, *counts, read_number(rate))
        else:
            _ortrain.register_linear_lr_scheduler(session.module._handle, *counts, read_number(rate))

    def command_optimizer_step(self, label: str) -> None:
        session = self.session_of(label)
        if session.optimizer:
            session.optimizer.step()
        else:
            _ortrain.optimizer_step(session.module._handle)

    def command_scheduler_step(self, label: str) -> None:
        session = self.session_of(label)
        if session.scheduler:
            session.scheduler.step()
        else:
            _ortrain.scheduler_step(session.module._handle)

    def step(self, mode: str, label: str, inputs: tuple[str, ...]) -> None:
        module = self.module(label, mode == "train")
        values = self.values(inputs)
        if self.expects_failure:
            # The class refuses wrong inputs in its own words; the library's are wanted here.
            handle = module._handle
            if mode == "train":
                count = _ortrain.training_session_get_training_model_output_count(handle)
                outputs = _ortrain.train_step(handle, None, values, count)
            else:
                count = _ortrain.training_session_get_eval_model_output_count(handle)
                outputs = _ortrain.eval_step(handle, None, values, count)
        else:
            outputs = module(*values)
        for name, value in zip(
            module.output_names(), outputs if isinstance(outputs, (tuple, list)) else (outputs,), strict=True
        ):
            self.log_tensor(f"{mode} {name}", value)

    def command_train(self, label: str, *inputs: str) -> None:
        self.step("train", label, inputs)

    def command_eval(self, label: str, *inputs: str) -> None:
        self.step("eval", label, inputs)

    # Steps of this API give new outputs always.

    def command_train_into(self, label: str, count: str, *tensors: str) -> None:
        self.step("train", label, tensors[: int(count)])

    def command_eval_into(self, label: str, count: str, *tensors: str) -> None:
        self.step("eval", label, tensors[: int(count)])

    # Forward sessions.

    def model_of(self, label: str) -> InferenceSession:
        return self.find(label, InferenceSession)  # type: ignore[return-value]

    def command_describe(self, label: str) -> None:
        model = self.model_of(label)

        def log(what: str, value: NodeArg) -> None:
            extents = [str(e) if isinstance(e, int) else "-1" for e in value.shape]
            kind = value.type.removeprefix("tensor(").removesuffix(")")
            self.log(f"{what} {value.name} {kind} {'x'.join(extents) or '-'}")

        for value in model.get_inputs():
            log("input", value)
        for value in model.get_outputs():
            log("output", value)

    def named(self, tokens: tuple[str, ...]) -> dict[str, OrtValue]:
        return dict(zip(tokens[::2], self.values(tokens[1::2]), strict=True))

    def command_run(self, label: str, count: str, *tokens: str) -> None:
        inputs, names = self.named(tokens[: 2 * int(count)]), tokens[2 * int(count) :]
        for name, value in zip(names, self.model_of(label).run_with_ort_values(names, inputs), strict=True):
            self.log_tensor(f"run {name}", value)

    def command_run_into(self, label: str, count: str, *tokens: str) -> None:
        inputs, outputs = self.named(tokens[: 2 * int(count)]), self.named(tokens[2 * int(count) :])
        self.model_of(label).run_with_ort_values(list(outputs), inputs, output_values=outputs)
        for name, value in outputs.items():
            self.log_tensor(f"run {name}", value)

    def command_int_property(self, label: str, name: str, value: str) -> None:
        self.state(label).properties[name] = int(value)

    def command_float_property(self, label: str, name: str, value: str) -> None:
        self.state(label).properties[name] = read_number(value)

    def command_string_property(self, label: str, name: str, value: str) -> None:
        self.state(label).properties[name] = value

    def property(self, label: str, name: str, kind: type) -> int | float | str:
        # The mapping raises KeyError where the library has an error of its own.
        value = _ortrain.get_property(self.state(label)._handle, name)
        if type(value) is not kind:
            raise ScriptError(f"{name} is of type {type(value).__name__}")
        return value

    def command_show_int_property(self, label: str, name: str) -> None:
        self.log(f"property {name} int {self.property(label, name, int)}")

    def command_show_float_property(self, label: str, name: str) -> None:
        self.log(f"property {name} float {bits(float(self.property(label, name, float)))}")

    def command_show_string_property(self, label: str, name: str) -> None:
        self.log(f"property {name} string {self.property(label, name, str)}")

    def command_show_parameter(self, label: str, name: str) -> None:
        value = _ortrain.get_parameter(self.state(label)._handle, name)  # as above
        self.log_tensor(f"parameter {name}", value)

    def command_update_parameter(self, label: str, name: str, source: str) -> None:
        (value,) = self.values((source,))
        _ortrain.update_parameter(self.state(label)._handle, name, value)  # as above

    def command_show_gradient_norm(self, label: str) -> None:
        self.log(f"gradient_norm {bits(self.session_of(label).module.get_gradient_norm())}")

    def command_set_gradient(self, label: str, name: str, source: str) -> None:
        (value,) = self.values((source,))
        _ortrain.checkpoint_set_parameter_gradient(self.state(label)._handle, name, value)  # as above

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
        module = self.session_of(label).module.train()
        values = self.values(inputs)
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

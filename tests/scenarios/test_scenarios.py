"""Every language does the same with the same script, to the last bit, and what the recorded runs did.

README.md beside this file describes the scripts and their runners.
"""

from __future__ import annotations

import functools
import math
import re
import string
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from languages import COMPILERS, WINDOWS, Missing, Program, skip_or_fail
from onnx import numpy_helper
from ortrain.api import CheckpointState
from scenario_data import (
    CASES,
    expected,
    half,
    prepare_errors,
    prepare_fixture,
    prepare_groups,
    prepare_half,
    prepare_inference,
    prepare_values,
)

HERE = Path(__file__).resolve().parent
LANGUAGES = [*([] if WINDOWS else ["python"]), *COMPILERS]
RUNNERS = {
    "python": ["runner.py"],
    "c": ["runner.c"],
    "cpp": ["runner.cpp"],
    "csharp": ["Runner.cs", "generated/csharp/Commands.cs"],
    "objc": ["runner.m"],
    "swift": ["runner.swift", "generated/swift/Commands.swift"],
}

CYCLES = {"leaks_steps.txt": 10_000, "leaks_create.txt": 5_000}
"""How often each script repeats its cycle between the two places that show the memory."""

LEAST_BYTES_OF_A_LEAK = 210
"""What memory may grow by in a cycle. Less than the smallest thing that a cycle makes, a tensor of 16 floats with its handles (a
test below leaks those). Of all cycles of a script, more than what heaps and garbage collectors keep for later, of which up to
0.6 MiB were seen."""


@dataclass(frozen=True)
class Ran:
    """What a runner left behind."""

    log: list[str]
    files: dict[str, bytes]

    def floats(self, prefix: str) -> list[float]:
        """The floats at the end of the lines that begin so, in scalars and alone."""
        found = [re.fullmatch(prefix + r"(?:\S+ float - )?([0-9a-f]{8})", line) for line in self.log]
        return [bits_to_float(match[1]) for match in found if match]


def bits_to_float(bits: str) -> float:
    return struct.unpack(">f", bytes.fromhex(bits))[0]


@functools.cache
def build(language: str, folder: Path) -> Program:
    """The runner of a language, ready to run."""
    sources = [HERE / name for name in RUNNERS[language]]
    if language == "python":
        return Program([sys.executable, str(sources[0])])
    return COMPILERS[language][1](sources, folder / f"runner_{language}")


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runners")


@pytest.fixture
def runner_of(builds: Path) -> Callable[[str], Program]:
    """Gives the runner of a language; skips where it is missing, or fails where it is required."""

    def give(language: str) -> Program:
        try:
            return build(language, builds)
        except Missing as why:
            skip_or_fail(language, why)

    return give


class Scenario:
    """A script with its data, run once in each language that asks for it."""

    def __init__(self, script: str, prepare: Callable[[Path], None], folder: Path) -> None:
        self.folder = folder
        self.script = folder / "script.txt"
        self.data = folder / "data"
        self.ran: dict[str, Ran] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self.script.write_text(script, encoding="utf-8")
        prepare(self.data)

    def run(self, language: str, program: Program) -> Ran:
        if language not in self.ran:
            out = self.folder / language
            out.mkdir()
            done = program.run([self.script, self.data, out])
            assert done.returncode == 0, f"{language} ended with status {done.returncode}: {done.stderr}"
            log = [self.comparable(line, out) for line in done.stdout.split("\n")]
            files = {path.name: path.read_bytes() for path in sorted(out.iterdir())}
            self.ran[language] = Ran(log, files)
        return self.ran[language]

    def comparable(self, line: str, out: Path) -> str:
        """A line without what may differ: folders, and by which call a check was reached."""
        line = line.replace(str(self.data), "DATA").replace(str(out), "OUT")
        return re.sub(r"^(error \d+ )[A-Za-z]+: ", r"\1", line)


def fill_in(case: str) -> str:
    """training.txt for a recorded run."""
    recorded = expected(case)
    steps = len(recorded["train_losses"])
    schedule = recorded["scheduler"]
    values = {
        "steps": steps,
        "half": steps // 2,
        "rest": steps - steps // 2,
        "schedule": "",
        "scheduler_step": "",
    }
    if schedule:
        # As it ran: the Python class of 1.19.2 handed the two counts on in the wrong order.
        values["schedule"] = f"schedule s {schedule['total']} {schedule['warmup']} {schedule['initial_lr']}"
        values["scheduler_step"] = "scheduler_step s"
    return string.Template((HERE / "training.txt").read_text(encoding="utf-8")).substitute(values)


@pytest.fixture(scope="session")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Scenario]:
    """Gives a scenario by the name of its script, or of the recorded run that training.txt repeats."""

    @functools.cache
    def give(name: str) -> Scenario:
        folder = tmp_path_factory.mktemp(name.replace(".", "_"))
        if name in CASES:
            return Scenario(fill_in(name), functools.partial(prepare_fixture, name), folder)
        prepare = {
            "values.txt": prepare_values,
            "errors.txt": prepare_errors,
            "groups.txt": prepare_groups,
            "switching.txt": prepare_groups,
            "half.txt": prepare_half,
            "inference.txt": prepare_inference,
        }.get(name, functools.partial(prepare_fixture, "mlp_adamw"))
        return Scenario((HERE / name).read_text(encoding="utf-8"), prepare, folder)

    return give


def assert_same(ours: Ran, reference: Ran) -> None:
    for number, (line, wanted) in enumerate(zip(ours.log, reference.log, strict=False), start=1):
        assert line == wanted, f"line {number} of the log differs"
    assert len(ours.log) == len(reference.log)
    assert ours.files.keys() == reference.files.keys()
    different = [name for name in ours.files if ours.files[name] != reference.files[name]]
    assert not different, "these files differ"


@pytest.mark.parametrize("language", [language for language in LANGUAGES if language != "c"])
@pytest.mark.parametrize(
    "name", [*CASES, "values.txt", "groups.txt", "switching.txt", "half.txt", "inference.txt"]
)
def test_a_run_has_the_same_numbers_and_files_in_every_language(name, language, scenario, runner_of):
    reference = scenario(name).run("c", runner_of("c"))
    assert_same(scenario(name).run(language, runner_of(language)), reference)


@pytest.mark.parametrize("language", [language for language in LANGUAGES if language != "c"])
def test_wrong_calls_have_the_same_errors_in_every_language(language, scenario, runner_of):
    reference = scenario("errors.txt").run("c", runner_of("c"))
    assert_same(scenario("errors.txt").run(language, runner_of(language)), reference)


@pytest.mark.parametrize("case", CASES)
def test_a_run_has_the_recorded_numbers(case, scenario, runner_of):
    recorded = expected(case)
    ran = scenario(case).run("c", runner_of("c"))
    steps = len(recorded["train_losses"])
    np.testing.assert_allclose(ran.floats("train ")[:steps], recorded["train_losses"], rtol=1e-4)
    # One rate was shown in front of the schedule.
    np.testing.assert_allclose(
        ran.floats("learning_rate ")[1 : steps + 1], recorded["learning_rates"], rtol=1e-4
    )
    evals = recorded.get("eval_losses_after", [])
    np.testing.assert_allclose(ran.floats("eval ")[: len(evals)], evals, rtol=1e-4)

    ours = CheckpointState.load_checkpoint_from_buffer(ran.files["after"])
    theirs = CheckpointState.load_checkpoint(HERE.parent / "data/fixtures" / case / "checkpoint_after")
    assert {name for name, _ in ours.parameters} == {name for name, _ in theirs.parameters}
    for name, parameter in ours.parameters:
        wanted = theirs.parameters[name]
        assert parameter.requires_grad == wanted.requires_grad
        apart = np.linalg.norm((parameter.data - wanted.data).astype(np.float64))
        # resnet_bn: tests/session/test_fixtures.py says why its biases may differ by more.
        noise = 5e-4 if case == "resnet_bn" else 1e-6
        assert apart <= 2e-3 * np.linalg.norm(wanted.data.astype(np.float64)) + noise * np.sqrt(
            wanted.data.size
        ), name


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_is_the_uninterrupted_one(case, scenario, runner_of):
    ran = scenario(case).run("c", runner_of("c"))
    steps = len(expected(case)["train_losses"])
    losses = ran.floats("train ")
    rest = steps - steps // 2
    # After the recorded run come two steps that have nothing to do with it, then the second half.
    assert losses[steps + 2 : steps + 2 + rest] == losses[steps // 2 : steps]
    assert ran.files["after_resumed"] == ran.files["after"]
    assert ran.files["after_resumed.onnx"] == ran.files["after.onnx"]
    with_momentum = CheckpointState.load_checkpoint_from_buffer(ran.files["after"])
    without = CheckpointState.load_checkpoint_from_buffer(ran.files["after_forgetful"])
    same = all(
        np.array_equal(parameter.data, without.parameters[name].data)
        for name, parameter in with_momentum.parameters
        if parameter.requires_grad
    )
    remembers = expected(case)["optimizer"] == "AdamW" or expected(case)["scheduler"]
    assert same != bool(remembers)


def test_seeds_rates_parameters_and_properties_do_what_they_say(scenario, runner_of):
    ran = scenario("values.txt").run("c", runner_of("c"))
    losses, evals = ran.floats("train "), ran.floats("eval ")
    seeded, seeded_otherwise, seeded_again = losses[0], losses[4], losses[5]
    assert seeded_again == seeded != seeded_otherwise
    assert losses[1] != seeded, "every step drops others"
    assert evals[1] == evals[0], "train steps alone change no parameter, and nothing is dropped in eval"

    accumulated, stepped, written, stepped_by_zero, zeroed, loaded = (
        line.split()[-1] for line in ran.log if line.startswith("parameter fc2.bias ")
    )
    assert len({accumulated, stepped, written}) == 3
    assert written == stepped_by_zero
    assert zeroed == loaded
    np.testing.assert_allclose(evals[2:], [np.log(10)] * len(evals[2:]), rtol=1e-6)

    rates = ran.floats("learning_rate ")
    assert rates[:3] == [0.0, bits_to_float("3dcccccd"), bits_to_float("3dcccccc")]
    # Five optimizer steps lie behind the first of these, six behind the second and so on.
    np.testing.assert_allclose(rates[3:], [0.3 * (10 - t) / 8 for t in range(5, 11)], rtol=1e-6)

    assert "property large int 9223372036854775807" in ran.log
    assert "property word string Übergröße-字" in ran.log
    assert ran.files["properties"] == ran.files["properties_again"]
    for name, outputs in {"both.onnx": ["logits", "hidden"], "hidden.onnx": ["hidden"]}.items():
        assert [value.name for value in onnx.load_from_string(ran.files[name]).graph.output] == outputs


def test_parameter_groups_do_what_they_say(scenario, runner_of):
    ran = scenario("groups.txt").run("c", runner_of("c"))
    assert ran.log[:3] == [
        "groups group0 no_decay",
        "group of fc1.weight group0",
        "group of fc1.bias no_decay",
    ]
    values = {}
    for line in ran.log:
        if match := re.fullmatch(r"group (\w+) (\w+) ([0-9a-f]{8})", line):
            values.setdefault(f"{match[1]} {match[2]}", []).append(bits_to_float(match[3]))
    np.testing.assert_allclose(values["group0 learning_rate"], [0.01], rtol=1e-6)
    np.testing.assert_allclose(values["no_decay learning_rate"], [0.005], rtol=1e-6)
    assert values["no_decay learning_rate_factor"] == [0.5, 0.0]
    assert values["no_decay weight_decay"] == [0.0]
    assert values["group0 weight_decay"] == [0.25, 0.25]
    weights = [line for line in ran.log if line.startswith("parameter fc1.weight ")]
    biases = [line for line in ran.log if line.startswith("parameter fc1.bias ")]
    assert len(set(weights)) == 3
    assert len(set(biases)) == 1, "a rate of zero keeps the group as it is"
    rates = [bits_to_float(line.split()[1]) for line in ran.log if line.startswith("learning_rate ")]
    expected = [
        0.25 + 0.25 * math.cos(math.pi * step / 10) for step in (2, 3, 3)
    ]  # three steps before, less the warmup
    np.testing.assert_allclose(rates, expected, rtol=1e-6)


def test_a_buffer_has_the_type_and_the_values_of_float16_parameters(scenario, runner_of):
    script = scenario("half.txt")
    ran = script.run("c", runner_of("c"))
    shown = [line.removeprefix("buffer ") for line in ran.log if line.startswith("buffer ")]
    described = []
    for name, second in (("half", np.float16), ("mixed", np.float32)):
        weights = {t.name: numpy_helper.to_array(t) for t in half(second).graph.initializer}
        inputs = onnx.load(script.data / name / "training_model.onnx").graph.input
        order = [value.name for value in inputs if value.name in weights]
        assert sorted(order) == sorted(weights)
        for frozen in ((), ("b1",)) if name == "half" else (("w2", "b2"),):
            buffer = np.concatenate([weights[n].ravel() for n in order if n not in frozen])
            assert buffer.dtype == np.float16
            described.append(f"float16 {buffer.size} {fnv(buffer)}")
    everything, trainable, mixed = described
    assert shown[:2] == [everything, trainable]
    assert shown[2].startswith("float16 196 ")
    assert shown[2] != trainable
    assert shown[3:6] == [everything] * 3
    assert shown[6] == everything, "the file has the same values"
    assert shown[7] == shown[9] == mixed != shown[8]
    evals = [line for line in ran.log if line.startswith("eval ")]
    assert len(evals) == 8
    assert evals[0] == evals[2] == evals[4] != evals[1] == evals[3]
    assert evals[5] == evals[7] != evals[6]
    errors = [line for line in ran.log if line.startswith("error ")]
    assert "float16" in errors[0]
    assert "float[212]" in errors[0] or "float32" in errors[0]
    assert all(word in errors[2] for word in ("float16", "float32", '"w1"', '"w2"')), errors[2]


def test_forward_runs_give_what_the_model_says(scenario, runner_of):
    script = scenario("inference.txt")
    ran = script.run("c", runner_of("c"))
    text = (script.data / "a").read_bytes().partition(b"\n")[2]
    a, n = np.frombuffer(text, np.float32).reshape(3, 4), np.array([2, -1, 3])
    scaled = a * n[:, None]
    np.testing.assert_allclose(ran.floats("run total float - ")[0], scaled.sum(), rtol=1e-6)
    shown = [line for line in ran.log if line.startswith("run scaled ")]
    assert shown[0] == f"run scaled float 3x4 {fnv(scaled.astype(np.float32))}"
    assert f"run twice int64 3 {fnv(2 * n)}" in ran.log
    assert f"run positive bool 3x4 {fnv(a > 0)}" in ran.log
    assert f"run wide double 3x4 {fnv(a.astype(np.float64))}" in ran.log
    assert ran.log[0] == "input a float -1x4"
    assert shown[-1] == shown[0], "after errors as before"

    first, second, next_one = (line for line in ran.log if line.startswith("run logits "))
    assert first == second != next_one, "a seed decides what is dropped, and every run drops others"
    x = a[:1]
    np.testing.assert_allclose(ran.floats("run y float - ")[0], (x**3).sum(), rtol=1e-5)
    np.testing.assert_allclose(ran.floats("run bend float - ")[0], 6 * x.sum(), rtol=1e-5)


def fnv(array):
    """The hash of a tensor's bytes, as runners write it."""
    code = 0xCBF29CE484222325
    for byte in np.ascontiguousarray(array).tobytes():
        code = ((code ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{code:016x}"


def growth(ran: Ran) -> int:
    """By how many KiB memory grew between the two places of the script that show it."""
    before, after = (int(line.split()[1]) for line in ran.log if line.startswith("resident "))
    print(f"{before} KiB, then {after} KiB")
    return after - before


@pytest.mark.first_case
@pytest.mark.parametrize("script", ["leaks_steps.txt", "leaks_create.txt"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_memory_stays_flat(language, script, scenario, runner_of):
    assert f"\nrepeat {CYCLES[script]}\n" in scenario(script).script.read_text("utf-8")
    grown = growth(scenario(script).run(language, runner_of(language)))
    assert 1024 * grown < CYCLES[script] * LEAST_BYTES_OF_A_LEAK


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_small_leak_would_be_seen(language, runner_of, tmp_path):
    cycles = min(CYCLES.values())
    script = f"resident\nrepeat {cycles}\n  zeros kept{{}} float 16\nend\nresident\n"
    leaking = Scenario(script, lambda folder: folder.mkdir(), tmp_path)
    assert 1024 * growth(leaking.run(language, runner_of(language))) > cycles * LEAST_BYTES_OF_A_LEAK


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_step_can_be_measured(language, runner_of, tmp_path):
    script = "load state data:checkpoint\nsession s state data:training_model.onnx - -\n"
    script += "tensor x data:x_one\ntensor y data:y_one\nmeasure 50 s x y\n"
    measured = Scenario(script, functools.partial(prepare_fixture, "mlp_adamw"), tmp_path)
    (line,) = measured.run(language, runner_of(language)).log[:-1]
    assert 0 < int(re.fullmatch(r"nanoseconds (\d+)", line)[1]) < 10**9


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("load state data:nowhere", "nowhere"),
        ("fails 3 load state data:checkpoint", "none"),
        ("fails 1 load state data:nowhere", "3"),
        ("train nothing", "nothing"),
        ("dance", "dance"),
        ("seed", "seed"),
        ("train_into nothing", "wrong number of tokens"),
    ],
)
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_runner_says_where_a_script_went_wrong(line, said, language, runner_of, tmp_path):
    prepare_fixture("mlp_adamw", tmp_path / "data")
    script = tmp_path / "script.txt"
    script.write_text(f"# The second line is wrong.\n{line}\nseed 1\n")
    (tmp_path / "out").mkdir()
    ran = runner_of(language).run([script, tmp_path / "data", tmp_path / "out"])
    assert ran.returncode == 1, ran.stderr
    assert f"{script}:2: " in ran.stderr
    assert said in ran.stderr


def test_every_command_is_described():
    text = (HERE / "README.md").read_text(encoding="utf-8")
    listed = (HERE.parents[1] / "spec/scenarios.yaml").read_text(encoding="utf-8")
    commands = set(re.findall(r"^  - \{name: (\w+),", listed, re.MULTILINE))
    assert len(commands) == 54
    described = set(re.findall(r"`(\w+)[^`]*`", "".join(re.findall(r"^\| `.*?\|", text, re.MULTILINE))))
    assert commands <= described
    # The compilers see what other runners lack.
    sources = [HERE / name for name in ("runner.py", "generated/python/commands.py")]
    runner = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    assert commands == set(re.findall(r"^    def command_(\w+)\(self", runner, re.MULTILINE))

"""What a process may do around training: fork, end while a thread trains, run subinterpreters."""

from __future__ import annotations

import json
import multiprocessing
import os
import pathlib
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable

import pytest
from recorded import Fixture
from system import needs_fork
from training import Training

CASE = "resnet_bn"
# A child that hangs is ended by this signal instead of the whole test run.
SECONDS = 60


def losses(training: Training, first: int) -> list[float]:
    """Take a step with each recorded batch from `first` on."""
    return [training.step(x, y) for x, y in Fixture(CASE).batches[first:]]


def forked(work: Callable[[], list[float]]) -> list[float]:
    """Return what `work` returns in a child of fork."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        import signal

        signal.alarm(SECONDS)
        try:
            os.write(writing, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with status {status}"
    result: list[float] = json.loads(text)
    return result


@needs_fork
def test_a_child_of_fork_trains_as_its_parent_does():
    training = Training(Fixture(CASE).folder)
    training.step(*Fixture(CASE).batches[0])
    grandchild = forked(
        lambda: training.step(*Fixture(CASE).batches[1]) and forked(lambda: losses(training, 2))
    )
    child = forked(lambda: losses(training, 1))
    assert child == losses(training, 1)
    assert grandchild == child[1:]


@needs_fork
def test_a_child_that_multiprocessing_forks_trains_as_its_parent_does():
    training = Training(Fixture(CASE).folder)
    training.step(*Fixture(CASE).batches[0])
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=lambda: results.put(losses(training, 1)), daemon=True)
    child.start()
    child.join(SECONDS)
    assert child.exitcode == 0, "the child hangs" if child.exitcode is None else child.exitcode
    assert results.get() == losses(training, 1)


@needs_fork
def test_a_child_forked_while_other_threads_train_makes_and_trains_its_own_session():
    expected = losses(Training(Fixture(CASE).folder), 0)
    training = Training(Fixture(CASE).folder)
    training.step(*Fixture(CASE).batches[0])
    trains, done = threading.Event(), threading.Event()

    def train() -> None:
        other = Training(Fixture(CASE).folder)
        while not done.is_set():
            other.step(*Fixture(CASE).batches[0])
            trains.set()

    thread = threading.Thread(target=train)
    thread.start()
    try:
        assert trains.wait(SECONDS)
        for _ in range(3):
            assert forked(lambda: losses(Training(Fixture(CASE).folder), 0)) == expected
    finally:
        done.set()
        thread.join()
    assert losses(training, 1) == expected[1:]


def run_python(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    tests = str(pathlib.Path(__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")]),
            **environment,
        },
    )


@pytest.mark.parametrize("seconds", [0.05, 0.15, 0.3])
def test_the_interpreter_ends_while_daemon_threads_train_and_compile(seconds: float):
    program = """
        import sys, threading, time
        from recorded import Fixture
        from training import Training

        def train(name, started):
            fixture = Fixture(name)
            while True:
                training = Training(fixture.folder)
                for batch in range(1, 9):
                    for x, y in fixture.batches[:2]:
                        training.step(x[:batch], y[:batch])
                        started.set()

        for name in ("resnet_bn", "encoder", "lenet_adamw"):
            started = threading.Event()
            threading.Thread(target=train, args=(name, started), daemon=True).start()
            started.wait()
        time.sleep(float(sys.argv[1]))
        print("end")
    """
    ran = run_python(program, str(seconds))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "end\n", "")


@pytest.mark.parametrize("imported_before", [False, True])
def test_a_subinterpreter_cannot_import_the_package(imported_before: bool):
    program = """
        import sys
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        if sys.argv[1] == "True":
            import ortrain
        try:
            failure = interpreters.run_string(interpreters.create(), "import ortrain")
        except Exception as error:
            failure = error
        print(failure)
    """
    ran = run_python(program, str(imported_before))
    assert ran.returncode == 0, ran.stderr
    assert "ImportError" in ran.stdout


def test_gradients_are_complete_where_openmp_may_start_fewer_threads_than_the_session_wants():
    program = """
        import os, sys
        from ortrain import SessionOptions
        from ortrain.api import CheckpointState, Module
        from recorded import Fixture

        fixture = Fixture("encoder")
        x, y = fixture.batches[0]
        options = SessionOptions()
        options.intra_op_num_threads = int(sys.argv[1])
        state = CheckpointState.load_checkpoint(fixture.path("checkpoint"))
        module = Module(fixture.path("training_model.onnx"), state, session_options=options)
        for batch in (1, 4, 8):
            module(x[:batch], y[:batch])
            module.lazy_reset_grad()
            print([float(abs(p.grad).sum()) for _, p in state.parameters if p.requires_grad])
    """
    expected = run_python(program, "1")
    limited = run_python(program, "2", OMP_THREAD_LIMIT="1")
    assert expected.returncode == limited.returncode == 0, limited.stderr
    assert limited.stdout == expected.stdout

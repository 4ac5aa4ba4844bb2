"""The library as seen by a program that knows only the recorded slots: called by number, through ctypes."""

from __future__ import annotations

import csv
import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from spec_copy import ROOT

ortrain = pytest.importorskip("ortrain", reason="the package is not installed; make install")

FIXTURE = ROOT / "tests/data/fixtures/mlp_adamw"
NEWEST = 32


def rows(table: str) -> dict[str, dict[str, str]]:
    with (ROOT / f"tests/data/{table}.csv").open() as file:
        return {row["name"]: row for row in csv.DictReader(file)}


class Table:
    """A table of function pointers with the slots of the recorded layout."""

    def __init__(self, name: str, address: int):
        self.rows = rows(name)
        self.slots = ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        row = self.rows[name]
        results = {"void": None, "OrtErrorCode": ctypes.c_int, "const char*": ctypes.c_char_p}
        prototype = ctypes.CFUNCTYPE(results.get(row["returns"], ctypes.c_void_p))
        return prototype(self.slots[int(row["slot"])])


@pytest.fixture(scope="module")
def base() -> Any:
    library = ctypes.CDLL(ortrain._ortrain.__file__)  # its dependencies are searched too
    library.OrtGetApiBase.restype = ctypes.POINTER(ctypes.c_void_p)
    return library.OrtGetApiBase()


@pytest.fixture(scope="module")
def get_api(base: Any) -> Callable[[int], int | None]:
    return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(base[0])


@pytest.fixture(scope="module")
def api(get_api: Callable[[int], int | None]) -> Table:
    return Table("OrtApi", get_api(19) or 0)


@pytest.fixture(scope="module")
def training(api: Table) -> Table:
    return Table("OrtTrainingApi", api.GetTrainingApi(ctypes.c_uint32(19)))


def message(api: Table, status: int | None) -> tuple[int, str]:
    """Code and message of a status, which is released."""
    assert status is not None
    pointer = ctypes.c_void_p(status)
    said = api.GetErrorCode(pointer), api.GetErrorMessage(pointer).decode()
    api.ReleaseStatus(pointer)
    return said


def made(api: Table, call: Callable[..., Any], *arguments: Any) -> ctypes.c_void_p:
    """What a call stores through its last parameter."""
    out = ctypes.c_void_p()
    status = call(*arguments, ctypes.byref(out))
    assert status is None, message(api, status)
    return out


def test_versions_up_to_the_newest_give_the_same_table(
    get_api: Callable[[int], int | None], capfd: pytest.CaptureFixture[str]
) -> None:
    tables = {get_api(version) for version in range(1, NEWEST + 1)}
    assert len(tables) == 1
    assert None not in tables
    assert capfd.readouterr().err == ""
    assert get_api(NEWEST + 1) is None
    assert f"version {NEWEST + 1} of OrtApi" in capfd.readouterr().err
    assert get_api(0) is None


def test_the_version_says_which_interface_is_served(base: Any) -> None:
    version = ctypes.CFUNCTYPE(ctypes.c_char_p)(base[1])().decode()
    assert version.startswith(f"1.{NEWEST}.0")
    assert version.endswith(ortrain.__version__)


def test_no_slot_is_null(api: Table, training: Table) -> None:
    for table in (api, training):
        assert [name for name, row in table.rows.items() if not table.slots[int(row["slot"])]] == []


def test_calls_without_an_implementation_name_themselves(api: Table) -> None:
    entries = yaml.safe_load((ROOT / "spec/unimplemented.yaml").read_text())["unimplemented"]
    slots = {entry["slot"] for entry in entries if entry["table"] == "general"}
    silent = [name for name, row in api.rows.items() if int(row["slot"]) in slots]
    assert len(silent) == len(slots) > 0
    null = ctypes.c_void_p()
    for name in silent:
        if api.rows[name]["returns"] != "OrtStatus*":
            continue
        code, said = message(api, getattr(api, name)(*[null] * 13))
        assert (code, said) == (9, f"{name} is not implemented in ortrain")


def test_a_null_argument_is_rejected_by_name(api: Table, training: Table) -> None:
    state = ctypes.c_void_p()
    code, said = message(api, training.LoadCheckpoint(None, ctypes.byref(state)))
    assert code == 2
    assert "LoadCheckpoint: argument checkpoint_path is null" in said
    code, said = message(api, training.LoadCheckpoint(b"x", None))
    assert "argument checkpoint_state is null" in said


def test_every_training_call_survives_nothing_but_null(api: Table, training: Table) -> None:
    null = ctypes.c_void_p()
    for name, row in training.rows.items():
        if name == "SetSeed":
            continue
        status = getattr(training, name)(*[null] * 10)
        if row["returns"] == "OrtStatus*":
            code, said = message(api, status)
            assert code == 2, f"{name}: {said}"
            assert said.startswith(f"{name}: argument ")


def test_a_program_compiled_for_1_19_trains(api: Table, training: Table) -> None:
    import numpy as np

    env = made(api, api.CreateEnv, ctypes.c_int(3), b"test")
    options = made(api, api.CreateSessionOptions)
    state = made(api, training.LoadCheckpoint, str(FIXTURE / "checkpoint").encode())
    paths = [str(FIXTURE / f"{name}_model.onnx").encode() for name in ("training", "eval", "optimizer")]
    session = made(api, training.CreateTrainingSession, env, options, state, *paths)
    info = made(api, api.CreateCpuMemoryInfo, ctypes.c_int(0), ctypes.c_int(0))
    with np.load(FIXTURE / "batches.npz") as batches:
        arrays = [np.ascontiguousarray(batches["x0"]), np.ascontiguousarray(batches["y0"])]
    values = (ctypes.c_void_p * 2)()
    for i, (array, element_type) in enumerate(zip(arrays, (1, 7), strict=True)):
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        size, rank = ctypes.c_size_t(array.nbytes), ctypes.c_size_t(array.ndim)
        data = ctypes.c_void_p(array.ctypes.data)
        arguments = (info, data, size, shape, rank, ctypes.c_int(element_type))
        values[i] = made(api, api.CreateTensorWithDataAsOrtValue, *arguments)
    losses = []
    for _ in range(5):
        output = (ctypes.c_void_p * 1)()
        status = training.TrainStep(session, None, ctypes.c_size_t(2), values, ctypes.c_size_t(1), output)
        assert status is None, message(api, status)
        data = made(api, api.GetTensorMutableData, ctypes.c_void_p(output[0]))
        losses.append(ctypes.cast(data, ctypes.POINTER(ctypes.c_float))[0])
        api.ReleaseValue(ctypes.c_void_p(output[0]))
        assert training.OptimizerStep(session, None) is None
        assert training.LazyResetGrad(session) is None
    assert losses[0] == pytest.approx(2.32608842, rel=1e-4)
    assert losses == sorted(losses, reverse=True)
    for value in values:
        api.ReleaseValue(ctypes.c_void_p(value))
    training.ReleaseTrainingSession(session)
    training.ReleaseCheckpointState(state)
    api.ReleaseMemoryInfo(info)
    api.ReleaseSessionOptions(options)
    api.ReleaseEnv(env)

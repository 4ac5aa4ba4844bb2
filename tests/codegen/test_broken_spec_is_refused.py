"""A broken spec is refused with file, line, entry, and what was expected and found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from spec_copy import SpecCopy

Refusal = Callable[[], str]


def test_misspelled_key(spec_copy: SpecCopy, refusal: Refusal) -> None:
    spec_copy.replace(
        "training.yaml", "    summary: Reads a checkpoint file.", "    sumary: Reads a checkpoint file."
    )
    line = spec_copy.line_of("training.yaml", "sumary")
    said = refusal()
    assert (
        f"spec/training.yaml:{line}: call LoadCheckpoint: unknown key 'sumary'; did you mean 'summary'?"
        in said
    )
    assert "call LoadCheckpoint: expected the key 'summary'" in said


def test_missing_documentation_of_a_parameter(spec_copy: SpecCopy, refusal: Refusal) -> None:
    old = "{name: checkpoint_path, type: path, doc: Path of the checkpoint file.}"
    spec_copy.replace("training.yaml", old, "{name: checkpoint_path, type: path}")
    line = spec_copy.line_of("training.yaml", "{name: checkpoint_path, type: path}")
    expected = (
        f"spec/training.yaml:{line}: call LoadCheckpoint, parameter checkpoint_path: expected the key 'doc'"
    )
    assert expected in refusal()


def test_unknown_type(spec_copy: SpecCopy, refusal: Refusal) -> None:
    spec_copy.replace(
        "training.yaml", "type: OrtCheckpointState, direction: out", "type: OrtCheckpoint, direction: out"
    )
    said = refusal()
    assert "call LoadCheckpoint, parameter checkpoint_state" in said
    assert "found 'OrtCheckpoint'; did you mean 'OrtCheckpointState'?" in said


def test_duplicate_slot(spec_copy: SpecCopy, refusal: Refusal) -> None:
    spec_copy.replace("training.yaml", "    slot: 1\n", "    slot: 0\n")
    said = refusal()
    assert "slot 0 of OrtTrainingApi is taken by LoadCheckpoint at spec/training.yaml:" in said
    assert "found none for slot 1" in said


def test_duplicate_name(spec_copy: SpecCopy, refusal: Refusal) -> None:
    spec_copy.replace("training.yaml", "  - name: SaveCheckpoint\n", "  - name: LoadCheckpoint\n")
    assert "call LoadCheckpoint: the name is taken by the entry at spec/training.yaml:" in refusal()


def test_duplicate_key(spec_copy: SpecCopy, refusal: Refusal) -> None:
    spec_copy.replace("training.yaml", "    slot: 0\n", "    slot: 0\n    slot: 0\n")
    assert "duplicate key 'slot'" in refusal()


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("training.yaml", "group: buffers", "group: bufers", "found 'bufers'; did you mean 'buffers'?"),
        ("training.yaml", "code: ORT_NO_MODEL", "code: ORT_NOMODEL", "did you mean 'ORT_NO_MODEL'?"),
        ("training.yaml", "length: inputs_len", "length: input_len", "did you mean 'inputs_len'?"),
        ("training.yaml", "table: OrtTrainingApi", "table: OrtTrainingAp", "did you mean 'OrtTrainingApi'?"),
        (
            "training.yaml",
            "core: CheckpointState::save",
            "core: Checkpoint::save",
            "found 'Checkpoint::save'",
        ),
        ("training.yaml", "core: capi::TrainStep", "core: capi::Train", "expected capi::TrainStep"),
        ("training.yaml", "direction: out, owner: caller", "direction: out", "expected the key 'owner'"),
        ("training.yaml", "direction: out, owner", "direction: outt, owner", "did you mean 'out'?"),
        ("training.yaml", "slot: 32", "slot: 33", "expected a slot below 33"),
        ("library.yaml", "release: ReleaseStatus", "release: ReleaseStats", "did you mean 'ReleaseStatus'?"),
        ("classes.yaml", "pattern: describe", "pattern: descripe", "did you mean 'describe'?"),
        ("classes.yaml", "calls: [LazyResetGrad]", "calls: [LazyReset]", "did you mean 'LazyResetGrad'?"),
        (
            "classes.yaml",
            "calls: [LazyResetGrad]",
            "calls: []",
            "expected 1 calls for the pattern direct, found 0",
        ),
        ("classes.yaml", "handle: OrtCheckpointState", "handle: OrtState", "expected a handle of the spec"),
        ("classes.yaml", "view_of: Module", "view_of: Modul", "did you mean 'Module'?"),
        ("training.yaml", "calls:", "calls: [", "expected YAML"),
    ],
)
def test_other_mistakes(
    spec_copy: SpecCopy, refusal: Refusal, file: str, old: str, new: str, said: str
) -> None:
    spec_copy.replace(file, old, new)
    message = refusal()
    assert said in message
    assert f"spec/{file}:" in message or "spec/library.yaml:" in message


def test_every_mistake_is_said_at_once(spec_copy: SpecCopy, refusal: Refusal) -> None:
    spec_copy.replace("training.yaml", "group: buffers", "group: bufers")
    spec_copy.replace("extensions.yaml", "group: devices", "group: device")
    said = refusal()
    assert "'bufers'" in said
    assert "'device'" in said

"""A broken spec is rejected with file, line, entry, and what was expected and found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from spec_copy import SpecCopy

from codegen.render import render
from codegen.spec.check import load
from codegen.spec.source import SpecError

pytestmark = pytest.mark.thorough

Refusal = Callable[[], str]


def test_misspelled_key(spec_copy: SpecCopy, refusal: Refusal) -> None:
    spec_copy.replace(
        "training.yaml", "    summary: Reads a checkpoint file.", "    sumary: Reads a checkpoint file."
    )
    line = spec_copy.line_of("training.yaml", "sumary")
    said = refusal()
    assert (
        f"spec/training.yaml:{line}: call load_checkpoint: unknown key 'sumary'; did you mean 'summary'?"
        in said
    )
    assert "call load_checkpoint: expected the key 'summary'" in said


def test_missing_documentation_of_a_parameter(spec_copy: SpecCopy, refusal: Refusal) -> None:
    old = "{name: checkpoint_path, type: path, doc: Path of the checkpoint file.}"
    spec_copy.replace("training.yaml", old, "{name: checkpoint_path, type: path}")
    line = spec_copy.line_of("training.yaml", "{name: checkpoint_path, type: path}")
    expected = (
        f"spec/training.yaml:{line}: call load_checkpoint, parameter checkpoint_path: expected the key 'doc'"
    )
    assert expected in refusal()


def test_unknown_type(spec_copy: SpecCopy, refusal: Refusal) -> None:
    spec_copy.replace(
        "training.yaml", "type: checkpoint_state, direction: out", "type: checkpoint, direction: out"
    )
    said = refusal()
    assert "call load_checkpoint, parameter checkpoint_state" in said
    assert "found 'checkpoint'; did you mean 'checkpoint_state'?" in said


def test_duplicate_slot(spec_copy: SpecCopy, refusal: Refusal) -> None:
    spec_copy.replace("training.yaml", "    slot: 1\n", "    slot: 0\n")
    said = refusal()
    assert "slot 0 of training is taken by load_checkpoint at spec/training.yaml:" in said
    assert "found none for slot 1" in said


def test_duplicate_name(spec_copy: SpecCopy, refusal: Refusal) -> None:
    spec_copy.replace("training.yaml", "  - name: save_checkpoint\n", "  - name: load_checkpoint\n")
    assert "call load_checkpoint: the name is taken by the entry at spec/training.yaml:" in refusal()


def test_duplicate_key(spec_copy: SpecCopy, refusal: Refusal) -> None:
    spec_copy.replace("training.yaml", "    slot: 0\n", "    slot: 0\n    slot: 0\n")
    assert "duplicate key 'slot'" in refusal()


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (
            "scenarios.yaml",
            "[checkpoint_state.load_checkpoint]",
            "[checkpoint_state.load]",
            "expected a method of the spec",
        ),
        (
            "scenarios.yaml",
            "attached: optimizer.attach",
            "attached: optimizer.atach",
            "did you mean 'optimizer.attach'?",
        ),
        ("training.yaml", "group: buffers", "group: bufers", "found 'bufers'; did you mean 'buffers'?"),
        ("training.yaml", "code: no_model", "code: nomodel", "did you mean 'no_model'?"),
        ("training.yaml", "length: inputs_len", "length: input_len", "did you mean 'inputs_len'?"),
        ("training.yaml", "table: training", "table: trainin", "did you mean 'training'?"),
        (
            "training.yaml",
            "core: CheckpointState::save",
            "core: Checkpoint::save",
            "found 'Checkpoint::save'",
        ),
        ("training.yaml", "core: body", "core: capi::Train", "expected body, release"),
        ("training.yaml", "direction: out, owner: caller", "direction: out", "expected the key 'owner'"),
        ("training.yaml", "direction: out, owner", "direction: outt, owner", "did you mean 'out'?"),
        ("training.yaml", "slot: 32", "slot: 33", "expected a slot below 33"),
        ("training.yaml", "owner: caller", "owner: caller, taken: true", "expected no key 'taken'"),
        ("model_editor.yaml", "mutable: true, taken: true", "taken: true", "expected the key 'mutable'"),
        ("forward.yaml", "outlives: out", "outlives: output", "expected a parameter of create_io_binding"),
        (
            "unimplemented.yaml",
            "name: create_opaque_value",
            "name: CreateOpaqueValue",
            "found 'CreateOpaqueValue'",
        ),
        (
            "absent_providers.yaml",
            "form: set_device",
            "form: set_devices",
            "expected one of the absent_forms",
        ),
        (
            "absent_providers.yaml",
            "form: create, options: cuda_provider_options_v2",
            "form: create",
            "the key 'options'",
        ),
        ("absent_providers.yaml", "form: get_device", "form: get_device, options: int", "no key 'options'"),
        (
            "absent_providers.yaml",
            "options: cann_provider_options",
            "options: cann_options",
            "found 'cann_options'",
        ),
        ("absent_providers.yaml", "slot: 275", "slot: 276", "slot 276 of general is taken by"),
        ("unimplemented.yaml", "type: size}]", "type: sizes}]", "found 'sizes'; did you mean 'size'?"),
        ("unimplemented.yaml", "returns: ep_api", "returns: ep_apis", "did you mean 'ep_api'?"),
        ("unimplemented_types.yaml", "name: interop_api", "name: OrtInteropApi", "found 'OrtInteropApi'"),
        ("config_keys.yaml", "name: session_options_", "name: kOrtSessionOptions_", "found 'kOrtSession"),
        (
            "config_keys.yaml",
            'saved.", effect: "Honoured."}',
            'saved."}',
            "session_config has session.save_model_format: expected its effect",
        ),
        ("languages/c.yaml", "node_partition_config_file:", "node_partition_file:", "expected a key of"),
        ("languages/c.yaml", "thread_worker_fn:", "thread_work_fn:", "did you mean 'thread_worker_fn'?"),
        (
            "library.yaml",
            "release: release_status",
            "release: release_stats",
            "did you mean 'release_status'?",
        ),
        ("classes.yaml", "pattern: describe", "pattern: descripe", "did you mean 'describe'?"),
        (
            "classes.yaml",
            "call: lazy_reset_grad",
            "call: lazy_reset",
            "did you mean 'lazy_reset_grad'?",
        ),
        (
            "classes.yaml",
            "        call: lazy_reset_grad\n",
            "",
            "expected a call in the role call of the pattern direct, found none",
        ),
        ("classes.yaml", "calls: {count:", "calls: {cuont:", "found 'cuont'; did you mean 'count'?"),
        ("classes.yaml", "role: parameter_name", "role: parameter_nam", "did you mean 'parameter_name'?"),
        (
            "classes.yaml",
            "- name: get_int_property",
            "- name: add_int_property",
            "class checkpoint_state, method add_int_property: the name is taken by the method at spec/classes.yaml:",
        ),
        ("classes.yaml", '"@true for', '"@tru for', "expected a name of the spec behind @, found 'tru'"),
        (
            "classes.yaml",
            "handle: checkpoint_state",
            "handle: state",
            "expected a handle of the spec",
        ),
        ("classes.yaml", "view_of: module", "view_of: modul", "did you mean 'module'?"),
        ("training.yaml", "calls:", "calls: [", "expected YAML"),
        ("enums.yaml", "table: general", "table: genera", "did you mean 'general'?"),
        (
            "languages/csharp.yaml",
            "  enums:",
            "  enumerations:",
            "language csharp: unknown key 'enumerations'",
        ),
        (
            "languages/csharp.yaml",
            "    checkpoint_state:",
            "    checkpoint_sate:",
            "did you mean 'checkpoint_state'?",
        ),
        (
            "languages/csharp.yaml",
            "        lazy_reset_grad:",
            "        lazy_reset:",
            "language csharp, class training_session, method lazy_reset: expected a method of training_session, "
            "found 'lazy_reset'; did you mean 'lazy_reset_grad'?",
        ),
        (
            "languages/csharp.yaml",
            "add_property: {parameters: {name",
            "add_property: {parameters: {nam",
            "found 'nam'",
        ),
        ("languages/csharp.yaml", "add_property: {parameters:", "add_property: {parametres:", "'parameters'"),
        ("languages/csharp.yaml", "    error_code:", "    eror_code:", "did you mean 'error_code'?"),
        (
            "languages/cpp.yaml",
            "        get_since_version:",
            "        get_version_since:",
            "expected a method of node",
        ),
        (
            "languages/cpp.yaml",
            "        copy_kernel_info:",
            "        copy_kernel_inf:",
            "did you mean 'copy_kernel_info'?",
        ),
        (
            "languages/cpp.yaml",
            "{is_constant: {type: c}}",
            "{constant: {type: c}}",
            "did you mean 'is_constant'?",
        ),
        (
            "languages/cpp.yaml",
            "{dense_shape: {type: shape}}",
            "{dense_shape: {type: shap}}",
            "did you mean 'shape'?",
        ),
        (
            "languages/python.yaml",
            "    invalid_argument:",
            "    invalid_arg:",
            "did you mean 'invalid_argument'?",
        ),
        ("languages/c.yaml", "{no_such_file:", "{no_file:", "did you mean 'no_such_file'?"),
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


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (
            "languages/objc.yaml",
            "        get_learning_rate:\n",
            "        get_learning_rate: lazyResetGrad\n",
            "language objc, class training_session, method get_learning_rate: the name lazyResetGrad is taken by "
            "lazy_reset_grad, expected another",
        ),
        (
            "languages/csharp.yaml",
            "        get_learning_rate:\n",
            "        get_learning_rate: LazyResetGrad\n",
            "language csharp, class training_session, method get_learning_rate: the name LazyResetGrad is taken by "
            "lazy_reset_grad, expected another",
        ),
    ],
)
def test_two_methods_of_one_name_in_a_language(
    spec_copy: SpecCopy, file: str, old: str, new: str, said: str
) -> None:
    spec_copy.replace(file, old, new)
    with pytest.raises(SpecError) as caught:
        render(load(spec_copy.folder))
    line = spec_copy.line_of(file, new.strip())
    assert f"spec/{file}:{line}: {said}" in str(caught.value)


def test_a_parameter_that_a_call_needs_and_a_method_lacks(spec_copy: SpecCopy) -> None:
    old = '          - {name: learning_rate, type: float, doc: "The rate, a finite number."}\n'
    new = "          - {name: learning_rate, type: float, role: sess, doc: The rate.}\n"
    spec_copy.replace("classes.yaml", old, new)
    with pytest.raises(SpecError) as caught:
        render(load(spec_copy.folder))
    assert "method set_learning_rate: expected a parameter of the method in the role learning_rate" in str(
        caught.value
    )


def test_a_language_without_a_package_and_a_package_without_a_language(spec_copy: SpecCopy) -> None:
    spec_copy.replace("languages/objc.yaml", "  name: objc", "  name: objective_c")
    with pytest.raises(SpecError) as caught:
        render(load(spec_copy.folder))
    line = spec_copy.line_of("languages/objc.yaml", "  name: objective_c")
    message = f"spec/languages/objc.yaml:{line}: language objective_c: expected a package codegen/languages/objective_c"
    assert message in str(caught.value)
    assert "expected a file spec/languages/objc.yaml, found none" in str(caught.value)

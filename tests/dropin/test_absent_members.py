"""What the installed onnxruntime has in Python, ortrain has, but for what stands here with a reason."""

from __future__ import annotations

import enum
import inspect
import subprocess
import sys
from typing import Any

import ortrain
import ortrain.capi
import pytest

onnxruntime = pytest.importorskip("onnxruntime", reason="its members are compared")

_ARENAS = "sessions allocate their memory as a whole; no arena of an allocator serves them"
_STREAMS = "the CPU has no streams"
_INNER = "not meant for callers: an import, or a part of the installation of the package"
_COMPILED = "no execution provider here stores compiled nodes"
_PACKAGES = "a model package holds one model for several execution providers, of which there is one"

ABSENT = {
    "ModelPackage": _PACKAGES,
    "ModelPackageComponentContext": _PACKAGES,
    "ModelPackageContext": _PACKAGES,
    "ModelPackageOptions": _PACKAGES,
    "ModelPackageWriteMode": _PACKAGES,
    "OrtArenaCfg": _ARENAS,
    "create_and_register_allocator": _ARENAS,
    "create_and_register_allocator_v2": _ARENAS,
    "OrtDeviceVendorId": "vendors of GPUs, of which there are none",
    "OrtEpContextData": _COMPILED,
    "OrtEpContextDataBuffer": _COMPILED,
    "OrtSyncStream": _STREAMS,
    "set_global_thread_pool_sizes": "sessions share the threads of the process; intra_op_num_threads says how many they use",
    "contextlib": _INNER,
    "cuda_version": _INNER,
    "import_capi_exception": _INNER,
    "onnxruntime_validation": _INNER,
    "package_name": _INNER,
    "print_debug_info": _INNER,
    "version": _INNER,
    "InferenceSession.get_tuning_results": "kernels are chosen when a session is created, not tuned",
    "InferenceSession.set_tuning_results": "kernels are chosen when a session is created, not tuned",
    "ModelCompiler.clear_ep_context_data_write_func": _COMPILED,
    "ModelCompiler.set_ep_context_data_write_func": _COMPILED,
    "OrtEpDevice.create_sync_stream": _STREAMS,
    "SessionOptions.clear_ep_context_data_read_func": _COMPILED,
    "SessionOptions.set_ep_context_data_read_func": _COMPILED,
    "SessionOptions.set_provider_selection_policy_delegate": "there is one execution provider to select",
}


def members(kind: type[Any]) -> set[str]:
    """Public members of a class, with the fields of its instances."""
    fields = {name for base in kind.__mro__ for name in getattr(base, "__annotations__", {})}
    if issubclass(kind, enum.Enum):
        fields |= {"name", "value", *kind.__members__}  # also those that are other names of a value
    return {name for name in {*dir(kind), *fields} if not name.startswith("_")}


def names_of_the_package() -> list[str]:
    """The public names that onnxruntime has when nobody has imported its submodules, as other tests do here."""
    script = "import onnxruntime; print(*dir(onnxruntime))"
    ran = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return [name for name in ran.stdout.split() if not name.startswith("_")]


def missing() -> set[str]:
    names: set[str] = set()
    for name in names_of_the_package():
        theirs, ours = getattr(onnxruntime, name), getattr(ortrain, name, None)
        if ours is None:
            names.add(name)
        elif inspect.isclass(theirs):
            assert inspect.isclass(ours), name
            names |= {f"{name}.{member}" for member in members(theirs) - members(ours)}
    return names


def test_no_member_is_missing_without_a_reason() -> None:
    assert missing() <= ABSENT.keys()


def test_what_is_said_to_be_absent_is() -> None:
    for name in ABSENT:
        kind, _, member = name.partition(".")
        ours = getattr(ortrain, kind, None)
        assert ours is None or (member and member not in members(ours)), name


def test_enumerations_have_the_same_values() -> None:
    for name in (
        "OrtCompileApiFlags",
        "OrtExecutionProviderDevicePolicy",
        "OrtHardwareDeviceType",
        "OrtSparseFormat",
    ):
        theirs, ours = getattr(onnxruntime, name), getattr(ortrain, name)
        known = {member: int(value.value) for member, value in theirs.__members__.items()}
        assert known == {member: int(value) for member, value in ours.__members__.items()}, name


def test_memory_and_devices_answer_alike() -> None:
    def told(library: Any) -> list[Any]:
        memory = library.OrtMemoryInfo.create_v2(
            "Cpu",
            library.OrtMemoryInfoDeviceType.CPU,
            0,
            0,
            library.OrtDeviceMemoryType.DEFAULT,
            0,
            library.OrtAllocatorType.ORT_DEVICE_ALLOCATOR,
        )
        device = library.get_ep_devices()[0]
        return [
            memory.name,
            memory.device_id,
            memory.device_vendor_id,
            memory.mem_type.name,
            memory.device_mem_type.name,
            memory.allocator_type.name,
            device.ep_name,
            device.device.type.name,
            device.ep_options,
            library.has_collective_ops(),
        ]

    assert told(ortrain) == told(onnxruntime)
    with pytest.raises(ortrain.InvalidArgumentError, match="no device 'Cuda'"):
        ortrain.OrtMemoryInfo.create_v2(
            "Cuda",
            ortrain.OrtMemoryInfoDeviceType.GPU,
            0,
            0,
            ortrain.OrtDeviceMemoryType.DEFAULT,
            0,
            ortrain.OrtAllocatorType.ORT_DEVICE_ALLOCATOR,
        )

"""Information about the library under onnxruntime's names, and logging."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ortrain import _ortrain
from ortrain.errors import InvalidArgumentError, OrtErrorCode, OrtrainError

if TYPE_CHECKING:
    import onnx


def register_gradient(domain: str, op_type: str, model: onnx.ModelProto | bytes | None) -> None:
    """Register the gradient of a custom operator, for all artifacts that the process makes.

    Parameters
    ----------
    domain, op_type : str
        The operator.
    model : onnx.ModelProto or bytes, optional
        A model that computes the gradient. Its inputs are any of ``I(0)``, ``I(1)`` and so on, the inputs of the
        node; ``O(0)``, its outputs; and ``GO(0)``, the gradients of these. Its outputs are ``GI(0)`` and so on, the
        gradients of the inputs. None: the derivative is zero.

    Raises
    ------
    InvalidArgumentError
        If the library has that operator itself, or an input or output has another name.
    OrtrainError
        If it is not a valid model.
    """
    _ortrain.register_gradient(
        domain, op_type, model if model is None or isinstance(model, bytes) else model.SerializeToString()
    )


def get_available_providers() -> list[str]:
    """Return the names of the execution providers that a session can run on."""
    return _ortrain.available_providers()


def get_all_providers() -> list[str]:
    """Return the names of all execution providers that the library knows, which are the available ones."""
    return _ortrain.available_providers()


def get_device() -> str:
    """Return the kind of device that the library runs on, ``CPU``."""
    return "CPU"


def has_collective_ops() -> bool:
    """Return whether models can have operators that several GPUs run together. They cannot."""
    return False


def enable_telemetry_events() -> None:
    """Do nothing: the library sends nothing."""


def disable_telemetry_events() -> None:
    """Do nothing: the library sends nothing."""


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None
) -> None:
    """Do nothing: the library needs none of these libraries.

    Parameters
    ----------
    cuda, cudnn, msvc : bool
        Accepted for compatibility.
    directory : str, optional
        Accepted for compatibility.
    """


def register_execution_provider_library(registration_name: str, library_path: str) -> None:
    """Load a library of execution providers. There is only the provider of the CPU.

    Parameters
    ----------
    registration_name : str
        The name under which it should be registered.
    library_path : str
        The library.

    Raises
    ------
    OrtrainError
        Always.
    """
    message = f"the library {library_path!r} was not loaded: there are no execution providers besides that of the CPU"
    raise OrtrainError(message, OrtErrorCode.ORT_FAIL)


def unregister_execution_provider_library(registration_name: str) -> None:
    """Drop a library of execution providers.

    Parameters
    ----------
    registration_name : str
        The name under which it was registered.

    Raises
    ------
    OrtrainError
        Always: none can be registered.
    """
    raise OrtrainError(f"no library is registered as {registration_name!r}", OrtErrorCode.ORT_FAIL)


def get_version_string() -> str:
    """Return the onnxruntime version whose interface is provided, ``+``, and the version of the library."""
    return _ortrain.version_string()


def get_build_info() -> str:
    """Return version, compiler and kernels of the library in one line."""
    return _ortrain.build_info()


def set_default_logger_severity(severity: int) -> None:
    """Set the minimum severity that the library logs.

    Parameters
    ----------
    severity : int
        0 verbose, 1 info, 2 warning, 3 error, 4 fatal.

    Raises
    ------
    InvalidArgumentError
        If it is none of these.
    """
    _ortrain.set_log_severity(severity)


def set_default_logger_callback(
    callback: Callable[[int, str, str, str, str], object] | None, severity: int = 2
) -> None:
    """Send the messages of the library, also those of existing sessions, to a function.

    The function receives severity, category, name of the session or library, place and message. It is called by the
    thread in which the message arises, should return soon, and must not wait for that thread's work. Messages of
    threads that Python does not know, those that arise within the function, and those for which it raises, are written
    to standard error; what it raises is reported by :func:`sys.unraisablehook`.

    Parameters
    ----------
    callback : callable, optional
        The function; None: messages are written to standard error again, and the severity does not change.
    severity : int
        The minimum severity that the library logs from now on; sessions that exist keep theirs. 0 verbose, 1 info, 2
        warning, 3 error, 4 fatal.

    Raises
    ------
    InvalidArgumentError
        If the severity is none of these, or the function cannot be called.
    """
    if not isinstance(severity, int):
        raise TypeError(f"expected a severity that is an int, found {type(severity).__name__}")
    if not 0 <= severity <= 4:
        message = f"log severity is {severity}, expected a number between 0 and 4"
        raise InvalidArgumentError(message, OrtErrorCode.ORT_INVALID_ARGUMENT)
    if callback is not None:
        if not callable(callback):
            message = f"expected a function that receives messages, or None, found {type(callback).__name__}"
            raise InvalidArgumentError(message, OrtErrorCode.ORT_INVALID_ARGUMENT)
        _ortrain.set_log_severity(severity)
    _ortrain.set_log_callback(callback)


def set_default_logger_verbosity(verbosity: int) -> None:
    """Set how much detail is logged at verbose severity. Accepted but has no effect: there is one level of detail.

    Parameters
    ----------
    verbosity : int
        The level.
    """
    if not isinstance(verbosity, int):
        message = f"expected a verbosity that is an int, found {type(verbosity).__name__}"
        raise InvalidArgumentError(message, OrtErrorCode.ORT_INVALID_ARGUMENT)


def set_seed(seed: int) -> None:
    """Set the process-wide random seed.

    Parameters
    ----------
    seed : int
        Any 64-bit integer. Modules created afterwards draw the same random numbers in every run with this seed.
    """
    _ortrain.set_seed(seed)

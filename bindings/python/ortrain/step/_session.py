"""Session: steps of a step model on onnxruntime."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain._files import stored_state as checkpoint_file
from ortrain._files.writing import write_file
from ortrain._support.suggestions import did_you_mean
from ortrain.step._names import (
    ADAPTER_BASE,
    FINITE,
    METADATA,
    MOMENT,
    ONLY_GROUP,
    RATE,
    SCALE,
    SEEDS,
    STEP,
    VERSION,
)

Array = npt.NDArray[Any]

#: The seed of a step is that of the session times this, plus the number of steps.
_SEED_FACTOR = 48271
#: The steps with finite gradients after which the scale of the loss doubles.
_STEPS_TO_GROW = 2000
#: The beginning of the names of moments in a checkpoint, and the states that these are if the checkpoint names none.
_MOMENT = MOMENT.removeprefix(".")
_USUAL_STATES = ["first_moment", "second_moment"]
#: Element types of parameters, as ONNX numbers them.
_NUMPY_TYPES = {
    number: np.dtype(name)
    for number, name in {
        1: "float32", 11: "float64", 10: "float16", 2: "uint8", 3: "int8", 6: "int32", 7: "int64", 9: "bool"
    }.items()
}  # fmt: skip


class Session:
    """Runs a step model with onnxruntime. The values that a step changes stay in the memory of the device between steps.

    Parameters
    ----------
    path : str or os.PathLike
        The step model.
    providers : sequence, optional
        Execution providers of onnxruntime, as its ``InferenceSession`` takes them. Only the CPU's by default.
    checkpoint : str or os.PathLike, optional
        The checkpoint with the parameters and, if it has it, the optimizer's state. By default the parameters are those
        in the model.
    learning_rate : float, optional
        The learning rate of the first step; by default that of the checkpoint, or 0.001.
    seed : int, default: 0
        The seed of Dropout. Each step derives a seed from this seed and from the number of steps taken.
    loss_scale : float, default: 65536.0
        The initial loss scale, if the model has that input. A step whose gradients are not finite changes no parameter
        and halves the scale. The scale doubles after 2000 consecutive steps with finite gradients.
    session_options : onnxruntime.SessionOptions, optional
        Options of onnxruntime. By default, denormal numbers count as zero, as they do in ortrain: the moments of weights that
        no longer get gradients become denormal, and a step would take several times as long. In onnxruntime, the first session
        of a process decides this for its thread.

    Raises
    ------
    ImportError
        When onnxruntime is not installed.
    ValueError
        When the model is not a step model, or its parameters are neither in it nor in a checkpoint.

    Examples
    --------
    ::

        session = step.Session("step.onnx", providers=["CUDAExecutionProvider"], learning_rate=0.01)
        for images, labels in batches:
            loss = session(images, labels)
        session.save_checkpoint("trained.ckpt")
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        providers: Sequence[Any] | None = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        learning_rate: float | None = None,
        seed: int = 0,
        loss_scale: float = 65536.0,
        session_options: Any = None,
    ) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise ImportError("ortrain.step.Session needs onnxruntime: pip install onnxruntime") from error
        self._ort = onnxruntime
        if session_options is None:
            session_options = onnxruntime.SessionOptions()
            session_options.log_severity_level = 3  # no warnings that each parameter is an input, too
            session_options.add_session_config_entry("session.set_denormal_as_zero", "1")
        self._session = onnxruntime.InferenceSession(
            os.fspath(path), session_options, providers=list(providers or ["CPUExecutionProvider"])
        )
        metadata = self._session.get_modelmeta().custom_metadata_map
        entry = metadata.get(METADATA)
        if entry is None:
            raise ValueError(
                f"{os.fspath(path)}: expected a step model of ortrain.artifacts.generate_step, found a model without the "
                f"metadata {METADATA!r}"
            )
        self._about: dict[str, Any] = json.loads(entry)
        if self._about["version"] != VERSION:
            raise ValueError(
                f"{os.fspath(path)}: expected a step model of version {VERSION}, found version {self._about['version']}"
            )
        self._types = {v.name: _dtype_of(v.type) for v in self._session.get_inputs()}
        self._types |= {v.name: _dtype_of(v.type) for v in self._session.get_overridable_initializers()}
        self._shapes = {v.name: v.shape for v in self._session.get_inputs()}
        self._device = _device_of(self._session)
        self._seed = seed
        #: The factor of the loss in the next step.
        self.loss_scale = loss_scale
        self._finite_steps = 0  # consecutive steps with finite gradients since the scale changed
        self._stored = (
            checkpoint_file.StoredState()
            if checkpoint is None
            else checkpoint_file.read_file(Path(checkpoint))
        )
        self._expect_base(metadata.get(ADAPTER_BASE), checkpoint)
        groups = list(self._stored.groups.values())
        self._step_count = groups[0].step if groups else 0
        stored_rate = groups[0].learning_rate if groups else 0.0
        #: The learning rate of the next step.
        self.learning_rate = learning_rate if learning_rate is not None else stored_rate or 1e-3
        values = {name: self._on_device(array) for name, array in self._initial(path, checkpoint).items()}
        changed = list(self._about["state"])
        if STEP in changed:
            values[STEP] = self._on_device(np.array(self._step_count, np.int64))
        self._fixed = {name: value for name, value in values.items() if name not in changed}
        # There are two sets of memory for the values that a step changes: a step reads one set and writes the other. On the
        # CPU, both sets have the same memory for values that a step may write in place.
        shared = self._about.get("in_place", []) if self._only_on_cpu() else []
        spare = {name: values[name] if name in shared else self._like(values[name]) for name in changed}
        self._sets = ({name: values[name] for name in changed}, spare)
        self._now = 0
        self._outputs = [output.name for output in self._session.get_outputs()]
        # Outputs of a known shape, and numbers that a step reads, have memory from the beginning.
        self._returned = {
            value.name: self._on_cpu(np.zeros(value.shape, _dtype_of(value.type)))
            for value in self._session.get_outputs()
            if value.name not in self._about["state"].values()
            and all(isinstance(dim, int) for dim in value.shape)
        }
        self._bindings = [self._binding(now) for now in (0, 1)]
        self._numbers: tuple[dict[str, float], dict[str, float]] = ({}, {})  # the numbers in each binding

    def _initial(
        self, path: str | os.PathLike[str], checkpoint: str | os.PathLike[str] | None
    ) -> dict[str, Array]:
        """Return the parameters and moments before the first step."""
        names = [*self._about["trained"], *self._about["frozen"]]
        if checkpoint is None:
            found = _initializers_of(path, names)
        else:
            found = {
                name: _array_of(tensor)
                for name, tensor in {**self._stored.trained, **self._stored.frozen}.items()
            }
        missing = [name for name in names if name not in found]
        if missing:
            where = f"the checkpoint {os.fspath(checkpoint)}" if checkpoint is not None else "the model"
            raise ValueError(
                f"{os.fspath(path)}: {where} has no value for the parameter {missing[0]!r}{did_you_mean(missing[0], found)}"
                + ("" if checkpoint is not None else "; pass a checkpoint")
            )
        values = {name: found[name] for name in names}
        return values | self._initial_state(values)

    def _initial_state(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Return the state of the optimizer: from the checkpoint, or zeros.

        Raises
        ------
        ValueError
            When the checkpoint belongs to an optimizer with other states, or its states have other types or shapes.
        """
        groups = self._stored.groups.values()
        stored = {parameter: moments for group in groups for parameter, moments in group.states.items()}
        for group in groups:
            names = group.state_names or _USUAL_STATES[: max(map(len, group.states.values()), default=0)]
            if self._about["kind"] == "step" and names and names != self._about["states"]:
                raise ValueError(
                    f"the checkpoint's optimizer state consists of {', '.join(names)}, but the optimizer of the step model "
                    f"keeps {', '.join(self._about['states']) or 'none'}; it was saved with another optimizer"
                )
        state: dict[str, Array] = {}
        for parameter, moments in self._about["moments"].items():
            for moment in moments:
                tensor = stored.get(parameter, {}).get(_stored_name(moment))
                kept = np.zeros(self._shapes[moment], self._types[moment])
                found = kept if tensor is None else _array_of(tensor)
                if (found.dtype, found.shape) != (kept.dtype, kept.shape):
                    raise ValueError(
                        f"the checkpoint's optimizer state {_stored_name(moment)!r} of the parameter {parameter!r} should be "
                        f"{kept.dtype}{list(kept.shape)}, found {found.dtype}{list(found.shape)}; it was saved with other "
                        "settings of the optimizer, or by an earlier version"
                    )
                state[moment] = found
        scalars_kept = {name: numbers for group in groups for name, numbers in group.scalars.items()}
        for group_name, scalars in self._about["scalars"].items():
            for name, scalar in scalars.items():
                value = scalars_kept.get(group_name, {}).get(name, scalar["initial"])
                state[scalar["input"]] = np.array(value, np.float32)
        return state

    def _only_on_cpu(self) -> bool:
        return list(self._session.get_providers()) == ["CPUExecutionProvider"]

    # ---- steps ----

    def __call__(self, *batch: Any, **named: Any) -> Any:
        """Take a step with a batch, given in the order of the model's inputs or by their names.

        Returns
        -------
        numpy.ndarray or tuple of numpy.ndarray
            The loss; if the model has further outputs, a tuple of the loss and these outputs. A model of gradients returns the
            loss, the further outputs, and a dictionary of the gradients by parameter.

        Raises
        ------
        TypeError
            When the batch has other inputs than the model.
        """
        binding = self._bindings[self._now]
        for name, array in self._feeds(batch, named).items():
            binding.bind_cpu_input(name, array)
        bound = self._numbers[self._now]
        for name, number in self._numbers_of_step().items():
            if bound.get(name) != number:
                binding.bind_cpu_input(name, np.array(number, self._types[name]))
                bound[name] = number
        free = [name for name in self._about["outputs"] if name not in self._returned]
        for name in free:
            # onnxruntime allocates new memory, because the memory of the last step has the shapes of its batch
            binding.bind_output(name)
        self._session.run_with_iobinding(binding)
        found = self._returned
        if free:
            found = dict(zip(self._outputs, binding.get_outputs(), strict=True))
        self._now = 1 - self._now
        finite = FINITE not in found or bool(found[FINITE].numpy())
        if self._about["kind"] == "step" and finite:
            self._step_count += 1
        if self._about["loss_scale"]:
            self._adapt_scale(finite)
        results: list[Any] = [_copied(found[name]) for name in self._about["outputs"]]
        if self._about["gradients"]:
            results.append({p: _copied(found[name]) for p, name in self._about["gradients"].items()})
        return results[0] if len(results) == 1 else tuple(results)

    def _adapt_scale(self, finite: bool) -> None:
        """Change the scale of the loss as PyTorch's GradScaler does, with a factor that is exact in every type."""
        self._finite_steps = self._finite_steps + 1 if finite else 0
        if not finite:
            self.loss_scale /= 2
        elif self._finite_steps == _STEPS_TO_GROW:
            self.loss_scale *= 2
            self._finite_steps = 0

    def _feeds(self, batch: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Array]:
        wanted = self._about["batch"]
        given = dict(zip(wanted, batch, strict=False)) | dict(named)
        if len(batch) + len(named) != len(wanted) or set(given) != set(wanted):
            raise TypeError(
                f"expected a value for each of the inputs {', '.join(wanted)}, found {len(batch)} by position and "
                f"{', '.join(named) or 'none'} by name"
            )
        return {name: np.asarray(value, self._types[name], order="C") for name, value in given.items()}

    def _numbers_of_step(self) -> dict[str, float]:
        """Return the inputs that are numbers and that the model does not compute itself."""
        numbers: dict[str, float] = {}
        if self._about["kind"] == "step":
            numbers[RATE] = self.learning_rate
        if self._about["seed"]:
            numbers[self._about["seed"]] = (self._seed * _SEED_FACTOR + self._step_count) % SEEDS
        if self._about["loss_scale"]:
            numbers[SCALE] = self.loss_scale
        return numbers

    def _binding(self, now: int) -> Any:
        """Return the binding of a step that reads one set of memory and writes the other."""
        binding = self._session.io_binding()
        for name, value in {**self._fixed, **self._sets[now]}.items():
            binding.bind_ortvalue_input(name, value)
        after = {self._about["state"][name]: value for name, value in self._sets[1 - now].items()}
        for name in self._outputs:
            if (value := after.get(name, self._returned.get(name))) is not None:
                binding.bind_ortvalue_output(name, value)
            else:
                binding.bind_output(name)
        return binding

    # ---- state ----

    @property
    def step_count(self) -> int:
        """The number of steps taken, including those before the checkpoint."""
        return self._step_count

    @property
    def parameters(self) -> dict[str, Array]:
        """The current values of all parameters, copied from the device."""
        values = {**self._fixed, **self._sets[self._now]}
        return {name: _copied(values[name]) for name in (*self._about["trained"], *self._about["frozen"])}

    def set_parameter(self, name: str, value: Any) -> None:
        """Overwrite a parameter: for optimizers outside of the model.

        Parameters
        ----------
        name : str
            Name of the parameter.
        value : array_like
            The value, of the parameter's shape.

        Raises
        ------
        KeyError
            When there is no parameter of that name.
        ValueError
            When the shapes differ.
        """
        if name not in (known := [*self._about["trained"], *self._about["frozen"]]):
            raise KeyError(f"there is no parameter {name!r}{did_you_mean(name, known)}")
        target = {**self._fixed, **self._sets[self._now]}[name]
        array = np.asarray(value, self._types[name], order="C")
        if list(array.shape) != target.shape():
            raise ValueError(
                f"parameter {name!r} has the shape {target.shape()}, found a value of shape {list(array.shape)}"
            )
        target.update_inplace(array)

    def _expect_base(self, base: str | None, checkpoint: str | os.PathLike[str] | None) -> None:
        """Reject a checkpoint whose adapters belong to other weights than the model's; without one, note the model's base."""
        if checkpoint is None:
            self._stored.properties |= {ADAPTER_BASE: base} if base else {}
        elif (found := self._stored.properties.get(ADAPTER_BASE)) != base:
            raise ValueError(
                f"{os.fspath(checkpoint)}: expected adapters of the base of the step model, {base or 'no base'}, found those "
                f"of {found or 'no base'}"
            )

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint with the parameters and the optimizer's state, from which ortrain and other sessions continue.

        Parameters
        ----------
        path : str or os.PathLike
            The file.

        Raises
        ------
        ImportError
            When flatbuffers is not installed.
        OSError
            When the file cannot be written.
        """
        about, values = self._about, {**self._fixed, **self._sets[self._now]}
        state = checkpoint_file.StoredState(properties=dict(self._stored.properties))
        # Parameters that the model does not read keep their values.
        state.trained, state.frozen = dict(self._stored.trained), dict(self._stored.frozen)
        for names, stored in ((about["trained"], state.trained), (about["frozen"], state.frozen)):
            stored |= {name: _tensor_of(values[name].numpy()) for name in names}
        if about["kind"] == "step":
            states = {
                parameter: self._stored_moments(values[parameter], {m: values[m] for m in moments})
                for parameter, moments in about["moments"].items()
            }
            scalars = {
                group: {name: float(values[scalar["input"]].numpy()) for name, scalar in kept.items()}
                for group, kept in about["scalars"].items()
            }
            names = about["states"] if about["states"] != _USUAL_STATES else []
            state.groups = {
                ONLY_GROUP: checkpoint_file.Group(
                    self._step_count, self.learning_rate, states, names, scalars=scalars
                )
            }
        write_file(Path(path), "checkpoint", checkpoint_file.as_file(state))

    def _stored_moments(
        self, parameter: Any, moments: Mapping[str, Any]
    ) -> dict[str, checkpoint_file.Tensor]:
        """Return the states of a parameter in the form of checkpoints, without elements for states that it does not need."""
        kind = _dtype_of(parameter.data_type())
        none = np.zeros(0, np.float32 if kind.itemsize == 2 else kind)
        tensors = {f"{_MOMENT}{i}": _tensor_of(none) for i in range(len(self._about["states"]))}
        return tensors | {_stored_name(name): _tensor_of(value.numpy()) for name, value in moments.items()}

    def _on_device(self, array: Array) -> Any:
        return self._ort.OrtValue.ortvalue_from_numpy(np.array(array, order="C"), *self._device)

    def _on_cpu(self, array: Array) -> Any:
        return self._ort.OrtValue.ortvalue_from_numpy(array)

    def _like(self, value: Any) -> Any:
        """Return memory for a value of the same type and shape."""
        return self._on_device(np.zeros_like(value.numpy()))


def _copied(value: Any) -> Array:
    """Return a copy of the elements, which a later step does not change."""
    return np.array(value.numpy())


def _dtype_of(type: str) -> np.dtype[Any]:
    """Return the NumPy type of a value, which onnxruntime calls ``tensor(float)``."""
    name = type.removeprefix("tensor(").removesuffix(")")
    return np.dtype({"float": "float32", "double": "float64"}.get(name, name))


def _device_of(session: Any) -> tuple[str, int]:
    """Return the device in whose memory the values of a session stay."""
    on_cuda = {"CUDAExecutionProvider", "TensorrtExecutionProvider", "ROCMExecutionProvider"}
    provider = session.get_providers()[0]
    if provider not in on_cuda:
        return "cpu", 0
    return "cuda", int(session.get_provider_options().get(provider, {}).get("device_id", 0))


def _initializers_of(path: str | os.PathLike[str], names: Sequence[str]) -> dict[str, Array]:
    """Return initializers of a model."""
    try:
        import onnx

        from ortrain._files.models import load_model
    except ImportError as error:
        raise ImportError(
            "reading the parameters from a step model needs onnx: pip install 'ortrain[artifacts]'; or pass a checkpoint"
        ) from error
    wanted = set(names)
    return {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in load_model(path).graph.initializer
        if tensor.name in wanted
    }


def _array_of(tensor: checkpoint_file.Tensor) -> Array:
    if tensor.data_type not in _NUMPY_TYPES:
        raise ValueError(
            f"expected parameters of float, double or float16, found the element type {tensor.data_type} of ONNX"
        )
    return np.frombuffer(tensor.raw, _NUMPY_TYPES[tensor.data_type]).reshape(tensor.dims)


def _stored_name(moment: str) -> str:
    """Return the name in a checkpoint of the moment that an input holds."""
    return moment.rpartition(".")[2]


def _tensor_of(array: Array) -> checkpoint_file.Tensor:
    kind = next(number for number, dtype in _NUMPY_TYPES.items() if dtype == array.dtype)
    return checkpoint_file.Tensor(kind, list(array.shape), array.tobytes())

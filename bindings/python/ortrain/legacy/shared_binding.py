"""Bindings of a TrainingSession that trains in several processes."""

from __future__ import annotations

from collections.abc import Iterable

from ortrain._ortrain import OrtValue
from ortrain._support.checks import invalid
from ortrain.api.generated.run_options import RunOptions
from ortrain.legacy.shared_training import SharedTraining


class SharedBinding:
    """The values bound to the inputs and outputs that a caller sees; the graph of this process has others."""

    def __init__(self, inputs: Iterable[str], outputs: Iterable[str]) -> None:
        self._known = {"input": set(inputs), "output": set(outputs)}
        self._inputs: dict[str, OrtValue] = {}
        self._outputs: dict[str, OrtValue | None] = {}
        self._made: dict[str, OrtValue] = {}

    def _check(self, kind: str, name: str) -> None:
        if name not in self._known[kind]:
            known = ", ".join(sorted(self._known[kind]))
            raise invalid(f"binding: the model has no {kind} {name!r}; its {kind}s: {known}")

    def bind_input(self, name: str, value: OrtValue) -> None:
        """Bind a value to an input."""
        self._check("input", name)
        self._inputs[name] = value

    def bind_output(self, name: str, value: OrtValue | None = None) -> None:
        """Bind a value to an output; None for one that the run allocates."""
        self._check("output", name)
        self._outputs[name] = value
        self._made.pop(name, None)

    def clear_inputs(self) -> None:
        """Remove all inputs."""
        self._inputs.clear()

    def clear_outputs(self) -> None:
        """Remove all outputs."""
        self._outputs.clear()
        self._made.clear()

    def outputs(self) -> list[tuple[str, OrtValue]]:
        """Return names and values of the outputs that have one."""
        found = {name: value or self._made.get(name) for name, value in self._outputs.items()}
        return [(name, value) for name, value in found.items() if value is not None]

    def run(self, training: SharedTraining, options: RunOptions | None) -> None:
        """Run the session on what is bound."""
        if not self._outputs:
            raise invalid("run with a binding: no output is bound")
        path_only = options is not None and options.only_execute_path_to_fetches
        missing = sorted(self._known["input"] - self._inputs.keys())
        if missing and not path_only:
            raise invalid(f"run with a binding: Missing Input: {', '.join(missing)}")
        made = training.run(list(self._outputs), self._inputs, options, list(self._outputs.values()))
        self._made = dict(zip(self._outputs, made, strict=True))

"""The record about the network of the framework that an export by ortrain stores in the model.

The record is one entry of the model's metadata, ``ortrain.export``, in JSON. The record lists the parameters among the
initializers, so :func:`ortrain.artifacts.generate_artifacts` trains and freezes the same ones as the framework.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import onnx

KEY = "ortrain.export"
"""The key of the entry in ``ModelProto.metadata_props``."""


@dataclass(frozen=True)
class FrameworkExport:
    """The record of an export.

    Attributes
    ----------
    framework : str
        The name of the framework: ``"torch"``, ``"keras"`` or ``"jax"``.
    exporter : str
        The program that wrote the graph, with its version, such as ``"torch.export of PyTorch 2.13.0"``.
    trained : tuple of str
        The initializers that the framework trains.
    frozen : tuple of str
        The initializers that are parameters but that the framework does not train.
    buffers : tuple of str
        The initializers that belong to the network and are not parameters, such as running statistics.
    aliases : Mapping[str, str]
        Other names of parameters and buffers, each with the name of the initializer that has the values.
    """

    framework: str
    exporter: str
    trained: tuple[str, ...]
    frozen: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)

    def write(self, model: onnx.ModelProto) -> None:
        """Store the record in a model, in place of an older one."""
        others = [entry for entry in model.metadata_props if entry.key != KEY]
        del model.metadata_props[:]
        model.metadata_props.extend(others)
        model.metadata_props.add(key=KEY, value=json.dumps(asdict(self)))


def export_of(model: onnx.ModelProto) -> FrameworkExport | None:
    """Return the record of a model; None if it was not exported by ortrain.

    Raises
    ------
    ValueError
        When the entry is damaged.
    """
    text = next((entry.value for entry in model.metadata_props if entry.key == KEY), None)
    if text is None:
        return None
    try:
        entries = json.loads(text)
        names = {kind: _names(kind, entries[kind]) for kind in ("trained", "frozen", "buffers")}
        aliases = entries["aliases"]
        if not all(isinstance(name, str) for pair in aliases.items() for name in pair):
            raise ValueError("aliases: expected names")
        return FrameworkExport(str(entries["framework"]), str(entries["exporter"]), aliases=aliases, **names)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"the model's metadata entry {KEY!r} is damaged: {error}") from error


def _names(kind: str, found: object) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise ValueError(f"{kind}: expected a list of names")
    return tuple(found)

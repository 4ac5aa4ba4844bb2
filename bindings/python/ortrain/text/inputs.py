"""The inputs of a language model that take tokens, their mask and their positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain.inference_session import InferenceSession
from ortrain.trainer.checks import Form

Array = npt.NDArray[Any]

_USUAL = {
    "tokens": "input_ids",
    "mask": "attention_mask",
    "positions": "position_ids",
    "types": "token_type_ids",
}
_TYPES = {"tensor(int32)": "int32", "tensor(float)": "float32", "tensor(bool)": "bool"}


@dataclass(frozen=True)
class InputNames:
    """The names of the inputs of a language model, each ``[batch, tokens]``. Inputs that it does not have are None."""

    tokens: str = _USUAL["tokens"]
    """The input for the tokens."""
    mask: str | None = None
    """The input for the mask: 1 for tokens, 0 for padding."""
    positions: str | None = None
    """The input for the positions of the tokens, from 0."""
    types: str | None = None
    """The input for the segment of each token, always 0."""

    @classmethod
    def among(
        cls,
        inputs: Sequence[Form | str],
        *,
        tokens: str | None = None,
        mask: str | None = None,
        positions: str | None = None,
    ) -> InputNames:
        """Find out which input of a model is which.

        Inputs that are not named have their usual names: ``input_ids``, ``attention_mask``, ``position_ids`` and
        ``token_type_ids``. Without ``input_ids``, the tokens are the only other input of whole numbers ``[batch, tokens]``.

        Parameters
        ----------
        inputs : sequence of Form or str
            All inputs of the model, by their form, or by their name if that is all that is known.
        tokens, mask, positions : str, optional
            The names of inputs.

        Raises
        ------
        ValueError
            When the model has no such input, several that may be the tokens, or one that is neither of these.
        """
        forms = [Form(each, None) if isinstance(each, str) else each for each in inputs]
        given = {"tokens": tokens, "mask": mask, "positions": positions}
        found = {role: name for role, name in given.items() if name is not None}
        names = [form.name for form in forms]
        for role, name in found.items():
            if name not in names:
                raise ValueError(
                    f"--{role}: the model has no input {name!r}; its inputs are {', '.join(names)}"
                )
        if len(set(found.values())) < len(found):
            raise ValueError(
                "--tokens, --mask, --positions: expected an input for each, found "
                + ", ".join(f"--{role} {name}" for role, name in found.items())
            )
        free = [name for name in names if name not in found.values()]
        for role, name in _USUAL.items():
            if role not in found and name in free:
                found[role] = name
                free.remove(name)
        candidates = [form.name for form in forms if form.name in free and _may_be_tokens(form)]
        if "tokens" not in found and len(candidates) == 1:
            found["tokens"] = candidates[0]
            free.remove(candidates[0])
        if free or "tokens" not in found:
            raise ValueError(_unclear(forms, found, free))
        return cls(**found)

    def as_json(self) -> dict[str, str]:
        """Return the names as a checkpoint has them."""
        return {role: name for role, name in asdict(self).items() if name is not None}

    def arrays(self, ids: Array, mask: Array, positions: Array) -> dict[str, Array]:
        """Return what the model takes, by its names. All arrays are ``[batch, tokens]``."""
        values = {"tokens": ids, "mask": mask, "positions": positions, "types": np.zeros_like(ids)}
        return {name: values[role] for role, name in self.as_json().items()}


def forms_of(session: InferenceSession) -> list[Form]:
    """Return the forms of the inputs of a model."""
    # A shape without dimensions is unknown.
    return [
        Form(argument.name, np.dtype(_TYPES.get(argument.type, "int64")), argument.shape or None)
        for argument in session.get_inputs()
    ]


def shape_of(names: InputNames, inputs: Sequence[Form]) -> tuple[int | None, int | None]:
    """Return the batch size and the number of tokens that a model is limited to."""
    shape = next((form.shape for form in inputs if form.name == names.tokens), None)
    if shape is None or len(shape) < 2:
        return None, None
    batch, length = (dim if isinstance(dim, int) else None for dim in shape[:2])
    return batch, length


def _may_be_tokens(form: Form) -> bool:
    return (form.dtype is None or form.dtype.kind in "iu") and (form.shape is None or len(form.shape) == 2)


def _unclear(forms: Sequence[Form], found: Mapping[str, str], free: Sequence[str]) -> str:
    """Return why the inputs of a model are not clear."""
    advice = ""
    if any("past" in name for name in free):
        advice = "; ortrain.artifacts.without_cache removes the key-value cache"
    elif "tokens" in found:
        advice = f"; the purpose of {', '.join(free)} is unknown: name the input with --mask or --positions"
    elif any(_may_be_tokens(form) for form in forms):
        advice = "; --tokens, --mask and --positions say which input is which"
    shown = ", ".join(form.name if form.dtype is None else f"{form.name} {form.shown()}" for form in forms)
    usual = _USUAL.copy()
    return (
        f"expected a language model with the input {usual.pop('tokens')}, and perhaps {', '.join(usual.values())}, found the "
        f"inputs {shown}{advice}"
    )

"""Text that a causal language model writes token by token. Each token follows from all tokens before it.

Nothing is cached between tokens: each step computes the whole text again. Rows are padded to a multiple of some tokens, so that
the session compiles few shapes. The scores of a causal model do not depend on later tokens.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ortrain._support.counts import counted
from ortrain.adapters import LoraAdapter
from ortrain.errors import OrtrainError
from ortrain.inference_session import InferenceSession
from ortrain.options import RunOptions
from ortrain.text.inputs import InputNames, forms_of, shape_of
from ortrain.text.lines import Message
from ortrain.text.tokenizer import Tokenizer, check_tokenizer

Array = npt.NDArray[Any]

_STEP = 32  # tokens; rows are padded to a multiple of this number


class Predicts(Protocol):
    """A trainer, as far as writing needs it."""

    def prediction_inputs(self) -> list[str]:
        """Return the names of the inputs of the model."""

    def predict(self, data: Any) -> Any:
        """Return the outputs of the model."""


@dataclass(frozen=True)
class Generated:
    """The text that a model wrote."""

    text: str
    """The text without the prompt and without the token that ended it."""
    tokens: list[int]
    """The tokens of the text, with the token that ended it."""
    stopped: str
    """``"end"`` for a token that ends texts, ``"max_tokens"``, or ``"length"`` if the model takes no longer text."""


def generate(
    model: InferenceSession | Predicts,
    tokenizer: Tokenizer,
    prompt: str | Sequence[Message],
    *,
    max_tokens: int = 64,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    on_text: Callable[[str], None] | None = None,
    inputs: InputNames | None = None,
    logits: str | None = None,
    adapter: LoraAdapter | None = None,
) -> Generated:
    """Let a model continue a text, or answer in a chat.

    Parameters
    ----------
    model : InferenceSession or Trainer
        The model: an exported one in a session, or the trainer with its current parameters.
    tokenizer : Tokenizer
        Its tokenizer.
    prompt : str or sequence of mapping
        The text, or the messages of a chat, each with ``role`` and ``content``, which the chat template writes as text.
    max_tokens : int, default 64
        The maximum number of tokens to write.
    temperature : float, default 0.0
        Divisor of the scores before a token is drawn; 0 always takes the token with the highest score.
    top_k : int, default 0
        Draw only from this many tokens with the highest scores; 0 for all.
    top_p : float, default 1.0
        Draw only from the most probable tokens whose probabilities sum to this.
    seed : int, default 0
        Seed of the random draws.
    on_text : callable, optional
        Is called with each new piece of the text.
    inputs : InputNames, optional
        The names of the model's inputs. By default those that a checkpoint has, else what `InputNames.among` finds.
    logits : str, optional
        The output that has the scores, ``[batch, tokens, vocabulary]``; by default the first one.
    adapter : LoraAdapter, optional
        The values of the adapters that a model in a session takes as inputs. By default the model runs without adapters.

    Raises
    ------
    TypeError
        When the model or the tokenizer is a path, or a trainer is given an adapter.
    ValueError
        When a setting is wrong, the prompt is empty or too long, or the model has no such scores.
    OrtrainError
        When the model cannot be run.
    """
    if isinstance(model, str | os.PathLike):
        raise TypeError(
            f"model: expected an InferenceSession or a Trainer, found the path {os.fspath(model)!r}; InferenceSession(path) "
            "loads an exported model"
        )
    check_tokenizer(tokenizer)
    if max_tokens < 1:
        raise ValueError(f"max_tokens: expected 1 or more, found {max_tokens}")
    check_sampling(temperature, top_k, top_p)
    ids = _prompt_tokens(tokenizer, prompt)
    scores = _scores_of(model, inputs, logits, adapter)
    limit = min(number for number in (tokenizer.limit, scores.length, 1 << 30) if number)
    if len(ids) > limit:
        raise ValueError(f"prompt: the model takes {counted(limit, 'token')} at most, found {len(ids)}")
    rng = np.random.default_rng(seed)
    made: list[int] = []
    before, shown = tokenizer.decode(ids), ""
    stopped = "max_tokens"
    while len(made) < max_tokens:
        if len(ids) + len(made) > limit:
            stopped = "length"
            break
        try:
            last = scores.after([*ids, *made], limit, tokenizer.filler)
        except OrtrainError as error:
            if not made:
                tokens = counted(len(ids), "token")
                raise ValueError(f"prompt: the model does not take its {tokens}: {error}") from error
            scores.after(
                [*ids, *made[:-1]], limit, tokenizer.filler
            )  # fails for reasons other than the number of tokens
            stopped = "length"
            break
        made.append(_drawn(last, temperature, top_k, top_p, rng))
        if made[-1] in tokenizer.ends:
            stopped = "end"
            break
        if on_text is not None:
            text = _continuation(tokenizer, ids, made, before)
            if not text.endswith("\ufffd"):  # the token is only the beginning of a character
                on_text(text[len(shown) :])
                shown = text
    text = _continuation(tokenizer, ids, made[:-1] if stopped == "end" else made, before)
    if on_text is not None and len(text) > len(shown):
        on_text(text[len(shown) :])
    return Generated(text, made, stopped)


def _continuation(tokenizer: Tokenizer, ids: list[int], made: list[int], before: str) -> str:
    """Return the text of new tokens, with the space before their first word, which many tokenizers drop."""
    whole = tokenizer.decode([*ids, *made])
    return whole[len(before) :] if whole.startswith(before) else tokenizer.decode(made)


def check_sampling(temperature: float, top_k: int, top_p: float) -> None:
    """Reject settings with which no token can be drawn."""
    if not (np.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"temperature: expected 0 or more, found {temperature}")
    if top_k < 0:
        raise ValueError(f"top_k: expected 0 or more, found {top_k}")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p: expected more than 0 and at most 1, found {top_p}")


def probabilities(scores: Array, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Array:
    """Return the probabilities with which tokens are drawn.

    Parameters
    ----------
    scores : array
        The score of each token, ``[vocabulary]``.
    temperature, top_k, top_p
        As for `generate`; the temperature is above 0. They apply in this order.

    Returns
    -------
    array of float64
        ``[vocabulary]``.
    """
    scaled = scores.astype(np.float64) / temperature
    if 0 < top_k < len(scaled):
        scaled = np.where(scaled < np.partition(scaled, -top_k)[-top_k], -np.inf, scaled)
    shares = np.exp(scaled - scaled.max())
    shares /= shares.sum()
    if top_p < 1:
        order = np.argsort(-shares, kind="stable")
        before = np.cumsum(shares[order]) - shares[order]
        shares[order[before >= top_p]] = 0
        shares /= shares.sum()
    found: Array = shares
    return found


def _drawn(scores: Array, temperature: float, top_k: int, top_p: float, rng: np.random.Generator) -> int:
    """Return the next token."""
    if not np.isfinite(scores).any() or np.isnan(scores).any():
        raise ValueError("generate: expected finite scores of the next token, found NaN or no finite one")
    if temperature == 0:
        return int(scores.argmax())
    return int(rng.choice(len(scores), p=probabilities(scores, temperature, top_k, top_p)))


def _prompt_tokens(tokenizer: Tokenizer, prompt: str | Sequence[Message]) -> list[int]:
    if not isinstance(prompt, str):
        return tokenizer.encode(tokenizer.chat().text(prompt, asks=True), special=False).ids
    ids = tokenizer.encode(prompt).ids
    while ids and ids[-1] in tokenizer.ends:  # the tokenizer appends this token to each text
        ids.pop()
    if not ids:
        raise ValueError("prompt: expected a text with a token, found none")
    return ids


class _Scores:
    """The scores of the next token, by a function from inputs to scores.

    Parameters
    ----------
    names : InputNames
        The inputs of the model.
    run : callable
        Returns the scores of inputs, ``[batch, tokens, vocabulary]``.
    batch, length : int, optional
        The batch size and the number of tokens that the model is limited to.
    """

    def __init__(
        self,
        names: InputNames,
        run: Callable[[Mapping[str, Array]], Array],
        batch: int | None = None,
        length: int | None = None,
    ) -> None:
        self._names, self._run, self._batch, self.length = names, run, batch, length
        self._pads = length is None

    def after(self, tokens: Sequence[int], limit: int, filler: int) -> Array:
        """Return the scores of the token after the given ones.

        Rows are padded to few different lengths, because the session compiles a program for each. The maximum length of some
        models is known only from the error of a longer row; then rows are no longer padded.
        """
        count = len(tokens)
        padded = min(limit, -(-count // _STEP) * _STEP)
        if self._pads and padded > count:
            try:
                return self._of_row(tokens, padded, filler)
            except OrtrainError:
                self._pads = False
        return self._of_row(tokens, self.length or (padded if self._pads else count), filler)

    def _of_row(self, tokens: Sequence[int], size: int, filler: int) -> Array:
        """Return the scores after the last token of a row of a size."""
        count = len(tokens)
        shape = (self._batch or 1, size)
        ids, mask = np.full(shape, filler, np.int64), np.zeros(shape, np.int64)
        ids[:, :count], mask[:, :count] = tokens, 1
        found = self._run(self._names.arrays(ids, mask, np.tile(np.arange(size), (shape[0], 1))))
        if found.ndim != 3 or found.shape[1] != size:
            raise ValueError(
                f"generate: expected scores [batch, {size} tokens, vocabulary] as the first output of the model, or the name of "
                f"the output that has them (--logits), found an output of shape {list(found.shape)}"
            )
        scores: Array = found[0, count - 1]
        return scores


def _scores_of(
    model: InferenceSession | Predicts,
    names: InputNames | None,
    logits: str | None,
    adapter: LoraAdapter | None,
) -> _Scores:
    if isinstance(model, InferenceSession):
        return _scores_of_session(model, names, logits, adapter)
    if adapter is not None:
        raise TypeError(
            "adapter: expected an InferenceSession as the model, found a trainer, which has its adapters"
        )
    wanted = model.prediction_inputs()
    forms = [form for form in getattr(getattr(model, "inputs", None), "forms", ()) if form.name in wanted]
    names = names or _stored_names(model) or InputNames.among(forms or wanted)
    returned = list(getattr(model, "outputs", ()))
    if logits is not None and logits not in returned:
        raise ValueError(f"logits: the trainer returns no {logits!r}; its outputs are {', '.join(returned)}")
    place = 0 if logits is None else returned.index(logits)

    def predicted(values: Mapping[str, Array]) -> Array:
        found = model.predict(dict(values))
        return np.asarray(found[place] if isinstance(found, tuple) else found)

    return _Scores(names, predicted, *shape_of(names, forms))


def _stored_names(model: Predicts) -> InputNames | None:
    """Return the names of inputs that a trainer stored in a checkpoint."""
    stored = getattr(model, "preprocessing", None) or {}
    return InputNames(**stored["inputs"]) if "inputs" in stored else None


def _scores_of_session(
    model: InferenceSession, names: InputNames | None, logits: str | None, adapter: LoraAdapter | None
) -> _Scores:
    returned = [output.name for output in model.get_outputs()]
    if logits is not None and logits not in returned:
        raise ValueError(
            f"--logits: the model has no output {logits!r}; its outputs are {', '.join(returned)}"
        )
    forms = forms_of(model)
    types = {form.name: form.dtype for form in forms}
    names = names or InputNames.among(forms)
    options = RunOptions()
    if adapter is not None:
        options.add_active_adapter(adapter)

    def run(values: Mapping[str, Array]) -> Array:
        given: dict[str, Any] = {name: array.astype(types[name]) for name, array in values.items()}
        return np.asarray(model.run([logits or returned[0]], given, options)[0])

    return _Scores(names, run, *shape_of(names, forms))

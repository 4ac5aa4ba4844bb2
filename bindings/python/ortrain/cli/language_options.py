"""Options of `ortrain train` for a language model that is given instead of a folder of artifacts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from ortrain.cli.adapter_option import AdapterSettings, adapter_option, settings_options
from ortrain.cli.numbers import Integer

_NAMES = [
    click.option(
        "--tokens",
        metavar="NAME",
        help="input of a language model that takes tokens (default input_ids, else its only input of whole numbers)",
    ),
    click.option(
        "--mask", metavar="NAME", help="input that is 1 for tokens and 0 elsewhere (default attention_mask)"
    ),
    click.option(
        "--positions", metavar="NAME", help="input that takes the positions of tokens (default position_ids)"
    ),
    click.option(
        "--logits",
        metavar="NAME",
        help="with MODEL, output with scores [batch, tokens, vocabulary] (default the first)",
    ),
]
_OPTIONS = [
    adapter_option("lora", "with MODEL, "),
    *settings_options("twice the rank", "with MODEL, "),
    click.option(
        "--bits",
        type=click.Choice(["4", "8"]),
        help="with MODEL, quantize its weights to 4 or 8 bits, and train adapters (QLoRA)",
    ),
    click.option(
        "--float-embeddings",
        is_flag=True,
        default=None,
        help="with --bits, do not quantize the embedding table, which takes more memory",
    ),
    click.option(
        "--length",
        type=Integer(min=1),
        help="number of tokens in a row of text (default that of the longest example, at most 512)",
    ),
    click.option(
        "--pack", is_flag=True, help="fill each row of text with as many examples as fit, instead of one"
    ),
    click.option(
        "--loss-on",
        type=click.Choice(["completions", "all"]),
        help="tokens of text that count in the loss: those of completions and of the assistant's messages (default), "
        "or all",
    ),
    click.option(
        "--artifacts",
        type=click.Path(path_type=Path),
        help="with MODEL, the folder of the artifacts that are made from it (default ./artifacts)",
    ),
    *_NAMES,
]


@dataclass(frozen=True)
class LanguageOptions:
    """How a language model is trained. An option that was not given is None, so that it does not override a stored choice."""

    adapter: str | None = None
    rank: int | None = None
    alpha: float | None = None
    dropout: float | None = None
    bias: str | None = None
    rslora: bool | None = None
    bits: str | None = None
    float_embeddings: bool | None = None
    length: int | None = None
    pack: bool = False
    loss_on: str | None = None
    artifacts: Path | None = None
    tokens: str | None = None
    mask: str | None = None
    positions: str | None = None
    logits: str | None = None

    @property
    def folder(self) -> Path:
        """The folder of the artifacts that are made."""
        return self.artifacts or Path("artifacts")

    @property
    def of_new_adapters(self) -> AdapterSettings:
        """The settings of new adapters that are given."""
        return AdapterSettings(self.rank, self.alpha, self.dropout, self.bias, self.rslora)

    @property
    def of_the_model(self) -> dict[str, Any]:
        """The options that say how artifacts are made, if they are given."""
        options = {"--adapter": self.adapter, **self.of_new_adapters.given, "--bits": self.bits}
        options |= {"--float-embeddings": self.float_embeddings, "--logits": self.logits}
        return {name: value for name, value in options.items() if value is not None}

    @property
    def of_the_inputs(self) -> dict[str, str]:
        """The names of inputs that are given, by what the inputs take."""
        names = {"tokens": self.tokens, "mask": self.mask, "positions": self.positions}
        return {role: name for role, name in names.items() if name is not None}

    def need_a_model(self, given: Path | None) -> None:
        """Refuse options about making artifacts if no language model is given."""
        options = [*self.of_the_model, *(["--artifacts"] if self.artifacts is not None else [])]
        if not options:
            return
        if given is None:
            found = "no MODEL"
        elif (given / "training_model.onnx").exists():
            found = "a folder of artifacts; `ortrain artifacts --adapter lora` makes others"
        elif given.is_dir():
            found = f"{given}, a folder without model.onnx"
        else:
            found = f"{given}, which {'is not an ONNX model' if given.exists() else 'does not exist'}"
        raise click.UsageError(
            f"{options[0]} says how artifacts are made from a language model: expected its file or folder, found {found}"
        )


def language_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options, and as its argument ``language`` their values."""

    @functools.wraps(command)
    def with_language(*arguments: Any, **others: Any) -> int:
        chosen = LanguageOptions(**{each.name: others.pop(each.name) for each in fields(LanguageOptions)})
        return command(*arguments, language=chosen, **others)

    for option in reversed(_OPTIONS):
        with_language = option(with_language)
    return with_language


def input_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options that name inputs and outputs of a language model, and their values as ``names``."""

    @functools.wraps(command)
    def with_names(
        *arguments: Any,
        tokens: str | None,
        mask: str | None,
        positions: str | None,
        logits: str | None,
        **others: Any,
    ) -> int:
        chosen = LanguageOptions(tokens=tokens, mask=mask, positions=positions, logits=logits)
        return command(*arguments, names=chosen, **others)

    for option in reversed(_NAMES):
        with_names = option(with_names)
    return with_names

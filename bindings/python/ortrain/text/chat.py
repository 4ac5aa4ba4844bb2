"""Chats as text, by the template that comes with a tokenizer: a program of Jinja, which runs in a sandbox.

Templates come with models and are not trusted. The sandbox denies a template access to attributes of Python objects and changes
of its arguments. It does not limit the time that a template takes.
"""

from __future__ import annotations

import datetime
import importlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

Span = tuple[int, int]


class ChatTemplate:
    """A chat template.

    Parameters
    ----------
    source : str
        The program.
    variables : mapping of str to str
        What it knows besides the messages, such as ``bos_token``.
    where : str
        The file that has it, for messages.

    Raises
    ------
    ImportError
        When jinja2 is not installed.
    ValueError
        When it is not a template.
    """

    def __init__(self, source: str, variables: Mapping[str, str], where: str) -> None:
        try:
            sandbox: Any = importlib.import_module("jinja2.sandbox")
        except ImportError as error:
            raise ImportError("chats need jinja2: pip install 'ortrain[text]'") from error
        self._errors = importlib.import_module("jinja2").TemplateError
        environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _as_json
        environment.globals["raise_exception"] = self._refuse
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        self._variables, self._where = dict(variables), where
        try:
            self._template = environment.from_string(source)
        except self._errors as error:
            raise ValueError(
                f"--tokenizer: expected a chat template in {where}, found one that Jinja rejects: {error}"
            ) from error

    def _refuse(self, message: object) -> NoReturn:
        raise self._errors(str(message))

    def text(self, messages: Sequence[Mapping[str, str]], asks: bool = False) -> str:
        """Return the text of a chat.

        Parameters
        ----------
        messages : sequence of mapping
            Each with a ``role`` and a ``content``.
        asks : bool, default False
            Whether the text ends with what precedes the next answer.

        Raises
        ------
        ValueError
            When the template refuses the messages, or fails.
        """
        try:
            return str(
                self._template.render(
                    messages=[dict(message) for message in messages],
                    add_generation_prompt=asks,
                    **self._variables,
                )
            )
        except (self._errors, TypeError, ArithmeticError, LookupError) as error:
            raise ValueError(f"the chat template of {self._where} refuses the messages: {error}") from error

    def answers(self, messages: Sequence[Mapping[str, str]]) -> tuple[str, list[Span], int]:
        """Return the text of a chat, where in it the answers are, and how many answers of the chat were not found.

        An answer is a message of the assistant with what ends it. It is found because the text of the chat up to it is the
        beginning of the text of the whole chat. Some templates write earlier messages in another way than the last ones; then
        such answers are not found.
        """
        whole = self.text(messages)
        spans, missed = [], 0
        for place, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self.text(messages[:place], asks=True) if place else ""
            through = self.text(messages[: place + 1])
            if whole.startswith(through) and through.startswith(before) and len(before) < len(through):
                spans.append((len(before), len(through)))
            else:
                missed += 1
        return whole, spans, missed


def _as_json(value: object, indent: int | None = None) -> str:
    """Return JSON as templates expect it: without the escapes of HTML that the filter of Jinja writes."""
    return json.dumps(value, ensure_ascii=False, indent=indent)

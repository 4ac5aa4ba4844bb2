"""Text for causal language models: rows of tokens with labels, made from JSON lines, and text that a model writes.

Needs the package tokenizers, and jinja2 for chats: ``pip install 'ortrain[text]'``.
"""

from ortrain.text.generation import Generated, generate, probabilities
from ortrain.text.inputs import InputNames
from ortrain.text.lines import Example, read_lines
from ortrain.text.rows import TextRows, rows_of
from ortrain.text.speed import TokenSpeed
from ortrain.text.tokenizer import Tokenizer

__all__ = [
    "Example",
    "Generated",
    "InputNames",
    "TextRows",
    "TokenSpeed",
    "Tokenizer",
    "generate",
    "probabilities",
    "read_lines",
    "rows_of",
]

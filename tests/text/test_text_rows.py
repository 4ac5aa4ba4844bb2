"""JSON lines become rows of tokens whose labels are the tokens that follow."""

from __future__ import annotations

import json

import numpy as np
import pytest
from ortrain import text
from small_language_model import END, chats, prompts, write_lines, write_tokenizer


@pytest.fixture
def folder(tmp_path):
    write_tokenizer(tmp_path)
    return tmp_path


def made(folder, lines, **settings):
    path = write_lines(folder / "data.jsonl", lines)
    return text.rows_of(text.read_lines(path), text.Tokenizer(folder), path=path, **settings)


def learned(rows, folder):
    """The text of the labels that count, by the text of the row."""
    decode = text.Tokenizer(str(folder)).decode  # a path may be a string
    arrays = rows.arrays.values()
    return {
        decode(ids[mask == 1].tolist()): decode(labels[labels >= 0].tolist(), special=True)
        for ids, mask, labels in zip(*arrays, strict=True)
    }


def test_the_loss_is_on_completions(folder):
    rows = made(folder, prompts())
    assert learned(rows, folder)["The capital of Peru is Lima."] == f" Lima.{END}"
    assert len(rows.arrays["input_ids"]) == rows.examples == 8
    assert rows.counted == (rows.arrays["labels"] >= 0).sum()
    # The label of each token is the token that follows.
    ids, labels = rows.arrays["input_ids"], rows.arrays["labels"]
    counts = labels[:, :-1] >= 0
    within = counts & (rows.arrays["attention_mask"][:, 1:] == 1)
    np.testing.assert_array_equal(labels[:, :-1][within], ids[:, 1:][within])
    every = made(folder, prompts(), loss_on="all")
    assert every.counted == every.tokens == rows.tokens


def test_a_path_is_not_a_tokenizer_or_a_model(folder):
    path = folder / "tokenizer.json"
    with pytest.raises(
        TypeError, match=r"tokenizer: expected a Tokenizer, found the path '.*tokenizer.json'"
    ):
        text.rows_of([], path)
    with pytest.raises(
        TypeError, match=r"model: expected an InferenceSession or a Trainer, found the path 'a.onnx'"
    ):
        text.generate("a.onnx", text.Tokenizer(path), "The")


def test_a_text_counts_as_a_whole(folder):
    rows = made(folder, [{"text": "Paris is the capital"}])
    tokens = text.Tokenizer(folder).encode("Paris is the capital").ids
    end = text.Tokenizer(folder).ends[0]
    assert rows.arrays["input_ids"].tolist() == [tokens]
    assert rows.arrays["labels"].tolist() == [[*tokens[1:], end]]


def test_answers_of_a_chat_count(folder):
    pytest.importorskip("jinja2")
    lines = chats()[:1]
    lines[0]["messages"] += [{"role": "user", "content": "sure?"}, {"role": "assistant", "content": "yes"}]
    rows = made(folder, lines)
    assert list(learned(rows, folder).values()) == [f"Paris{END}yes{END}"]
    assert rows.missed == 0


def test_a_template_that_rewrites_earlier_answers_is_told(folder):
    pytest.importorskip("jinja2")
    write_tokenizer(
        folder,
        "{% for m in messages %}<|{{ m.role }}|>{% if loop.last and m.role == 'assistant' %}so: {% endif %}{{ m.content }}"
        "{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    )
    turns = (("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))
    rows = made(folder, [{"messages": [{"role": role, "content": content} for role, content in turns]}])
    assert list(learned(rows, folder).values()) == [f"so: d{END}"]
    assert rows.missed == 1
    assert any("1 earlier answer in chats does not count" in sentence for sentence in rows.shown())


def test_packed_rows_hold_several_examples(folder):
    names = ("input_ids", "attention_mask", "position_ids")
    rows = made(folder, prompts(), inputs=names, length=32, packed=True)
    padded = made(folder, prompts(), inputs=names, length=32)
    assert len(rows.arrays["input_ids"]) < 8 == len(padded.arrays["input_ids"])
    assert (rows.tokens, rows.counted) == (padded.tokens, padded.counted)
    starts = (rows.arrays["position_ids"] == 0) & (rows.arrays["attention_mask"] == 1)
    assert starts.sum() == 8
    assert rows.arrays["attention_mask"].sum() == rows.tokens
    # No label leads from an example to the next: the last label of each is the end.
    end = text.Tokenizer(folder).ends[0]
    lasts = np.roll(starts, -1, axis=1) & (rows.arrays["attention_mask"] == 1)
    assert set(rows.arrays["labels"][lasts].tolist()) <= {end}


def test_the_order_depends_on_the_seed_alone(folder):
    first, again, other = (made(folder, prompts(), seed=seed).arrays["input_ids"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert sorted(first.tolist()) == sorted(other.tolist())


def test_rows_need_an_example(folder):
    with pytest.raises(ValueError, match="examples: expected at least one, found none"):
        text.rows_of([], text.Tokenizer(folder))


def test_what_is_cut_is_counted(folder):
    lines = [*prompts(), {"prompt": "The capital of " * 9, "completion": "none"}]
    longest = max(len(text.Tokenizer(folder).encode(line["prompt"]).ids) for line in prompts())
    rows = made(folder, lines, length=longest)
    assert rows.left_out == 1
    assert rows.cut == rows.examples
    assert rows.lost > 0
    said = " ".join(rows.shown())
    assert f"lose {rows.lost} tokens" in said
    assert "1 example is left out" in said


BAD = {
    "no JSON": "{oops",
    "no object": "[1]",
    "no known key": json.dumps({"question": "?"}),
    "two kinds": json.dumps({"text": "a", "messages": []}),
    "no completion": json.dumps({"prompt": "a"}),
    "a number": json.dumps({"prompt": "a", "completion": 3}),
    "an empty completion": json.dumps({"prompt": "a", "completion": ""}),
    "half a surrogate pair": '{"text": "\\ud800"}',
    "messages without a role": json.dumps({"messages": [{"content": "a"}]}),
    "no messages": json.dumps({"messages": []}),
}


def test_every_bad_line_is_named(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(['{"text": "good"}', *BAD.values()]) + "\n")
    with pytest.raises(ValueError, match="10 of 11 lines cannot be used") as error:
        text.read_lines(path)
    assert str(path) in str(error.value)
    assert [f"line {number}: " in str(error.value) for number in range(2, 12)] == [True] * 10
    path.write_bytes(b'{"text": "\xff"}')
    with pytest.raises(ValueError, match="line 1: expected UTF-8, found the byte 0xff"):
        text.read_lines(path)


def test_chats_without_a_template_or_an_answer_are_errors(folder):
    pytest.importorskip("jinja2")
    lines = [{"messages": [{"role": "user", "content": "a"}]}]
    with pytest.raises(ValueError, match="line 1: expected a message of the assistant"):
        made(folder, lines)
    write_tokenizer(folder, None)
    with pytest.raises(
        ValueError, match=r"expected a chat_template in .*Data with prompt and completion need no template"
    ):
        made(folder, lines)


def test_a_template_runs_in_a_sandbox(folder):
    pytest.importorskip("jinja2")
    write_tokenizer(folder, "{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(ValueError, match=r"the chat template of .* refuses the messages"):
        made(folder, chats())


def test_a_model_with_a_cache_is_refused(folder):
    with pytest.raises(ValueError, match=r"ortrain\.artifacts\.without_cache removes the key-value cache"):
        made(folder, prompts(), inputs=("input_ids", "past_key_values.0.key"))

"""Texts that end a response, found token by token."""

import pytest
import torch
from rollout_engines import tokenizer

from dagrl.engines.rollout.stop_texts import StopTexts


def ends(stop, tokens, prompt="12+34="):
    """After which of the tokens the text is found: their count, or None."""
    own = tokenizer()
    texts = StopTexts(stop, [own.encode(prompt)], own)
    for count, token in enumerate(tokens, 1):
        found = texts.end_with(torch.tensor([0]), torch.tensor([token]), torch.tensor([False]))
        if bool(found):
            return count
    return None


@pytest.mark.parametrize(
    ("stop", "text", "after"),
    [
        (("3",), "123", 3),
        (("23",), "1235", 3),
        (("23", "12"), "1235", 2),
        (("4",), "123", None),
        (("112",), "1112", 4),
        (("12+34=",), "12", None),  # what the prompt says ends nothing
        ((), "12", None),
    ],
)
def test_where_a_text_is_found(stop, text, after):
    own = tokenizer()
    assert ends(stop, own.encode(text, add_special_tokens=False)) == after


def test_special_tokens_are_no_text():
    own = tokenizer()
    one, two = (own.encode(digit, add_special_tokens=False) for digit in "12")
    assert ends((own.eos_token,), [own.eos_token_id]) is None
    assert ends(("12",), [*one, own.eos_token_id, *two]) == 3


def test_rows_keep_their_own_texts_and_those_that_are_done_stay():
    own = tokenizer()
    one, two = (own.encode(digit, add_special_tokens=False)[0] for digit in "12")
    texts = StopTexts(("12",), [[5], [5], [5]], own)
    no = torch.tensor([False] * 3)
    assert texts.end_with(torch.arange(3), torch.tensor([one, two, one]), no).tolist() == [False] * 3
    rows, tokens = torch.tensor([2, 0]), torch.tensor([two, two])
    assert texts.end_with(rows, tokens, torch.tensor([False, True])).tolist() == [True, False]

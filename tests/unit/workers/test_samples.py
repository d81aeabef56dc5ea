import math

import numpy as np
import pytest
import torch

from dagrl.data.objects import object_array
from dagrl.data.reported import Sample
from dagrl.workers.frames import Rows
from dagrl.workers.samples import SampleKeeper


def rows(*numbers):
    ids = torch.tensor(numbers, dtype=torch.int64)
    return Rows(ids, ids // 4)


def texts(*values):
    return object_array(list(values))


def asked(*questions):
    return texts(*([{"role": "system", "content": "add"}, {"role": "user", "content": each}] for each in questions))


def keeper(numbers, responses=None):
    kept = SampleKeeper()
    kept.look(rows(*numbers), {"messages": asked(*(f"q{n}" for n in numbers)), "answers": texts(*map(str, numbers))})
    kept.look(rows(*numbers), {"response_text": texts(*(responses or [f"r{n}" for n in numbers]))})
    return kept


def test_a_sample_holds_the_texts_that_different_nodes_have_written():
    found = keeper([7]).look(rows(7), {"rewards": torch.tensor([0.5])})
    assert found == (Sample("q7", "r7", "7", 0.5),)


def test_nothing_is_sampled_before_rewards_are_written():
    kept = SampleKeeper()
    assert kept.look(rows(1), {"response_text": texts("a")}) == ()
    assert kept.look(rows(1), {"advantages": torch.zeros(1, 2)}) == ()


def test_rows_are_matched_by_id_not_by_place():
    found = keeper([1, 2, 3]).look(rows(3, 1, 2), {"rewards": torch.tensor([3.0, 1.0, 2.0])})
    assert [(each.response, each.reward) for each in found] == [("r3", 3.0), ("r2", 2.0), ("r1", 1.0)]


def test_highest_and_lowest_rewards_are_shown():
    numbers = list(range(8))
    found = keeper(numbers).look(rows(*numbers), {"rewards": torch.tensor([0.0, 5, 1, 1, 4, 1, -1, 1])})
    assert [each.response for each in found] == ["r1", "r4", "r0", "r6"]


def test_of_equal_rewards_the_first_rows_are_shown():
    numbers = list(range(8))
    found = keeper(numbers).look(rows(*numbers), {"rewards": torch.tensor([1.0, 0, 1, 0, 1, 0, 1, 0])})
    assert [each.response for each in found] == ["r0", "r2", "r1", "r3"]


def of_one_group_each(prompts, rewards):
    numbers = list(range(len(prompts)))
    kept = SampleKeeper()
    kept.look(rows(*numbers), {"messages": asked(*prompts), "response_text": texts(*(f"r{n}" for n in numbers))})
    return [each.response for each in kept.look(rows(*numbers), {"rewards": torch.tensor(rewards)})]


def test_prompts_are_not_shown_twice_while_there_are_others():
    assert of_one_group_each("aabbccdd", [1.0, 1, 1, 0, 0, 0, 0, 0]) == ["r0", "r2", "r4", "r6"]


def test_rows_of_one_prompt_are_shown_where_there_is_no_other():
    assert of_one_group_each("aaaaaa", [1.0, 0, 1, 0, 1, 0]) == ["r0", "r2", "r1", "r3"]


def test_fewer_rows_than_are_shown_are_shown_all():
    assert of_one_group_each("ab", [0.0, 1.0]) == ["r1", "r0"]
    assert of_one_group_each("aab", [0.0, 1.0, 0.5]) == ["r1", "r2", "r0"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_without_a_finite_reward_has_none(value):
    found = keeper([1, 2]).look(rows(1, 2), {"rewards": torch.tensor([value, 0.0])})
    assert {each.response: each.reward for each in found} == {"r1": None, "r2": 0.0}


def test_texts_are_kept_of_some_rows_only():
    numbers = list(range(1000))
    kept = keeper(numbers)
    assert len(kept._texts) <= 32
    found = kept.look(rows(*numbers), {"rewards": torch.arange(1000.0)})
    assert len(found) == 4
    assert all(int(each.answer) < 32 for each in found)


def test_long_texts_are_cut_in_the_middle():
    (found,) = keeper([1], ["a" * 50_000 + "z"]).look(rows(1), {"rewards": torch.ones(1)})
    assert len(found.response) < 450
    assert found.response.endswith("z")


def test_a_prompt_of_parts_shows_its_texts():
    kept = SampleKeeper()
    content = [{"type": "text", "text": "look"}, {"type": "image", "url": "x"}, {"type": "text", "text": "here"}]
    kept.look(rows(1), {"messages": texts([{"role": "user", "content": content}]), "response_text": texts("r")})
    (found,) = kept.look(rows(1), {"rewards": torch.ones(1)})
    assert found.prompt == "look here"


def test_no_rows():
    kept = SampleKeeper()
    assert kept.look(rows(), {"messages": np.empty(0, dtype=object)}) == ()
    assert kept.look(rows(), {"rewards": torch.zeros(0)}) == ()

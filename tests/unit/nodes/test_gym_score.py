"""`gym_score`: the task's own scoring of the answer that is found in a response."""

import math

import pytest
import torch

from dagrl import Pipeline
from dagrl.compiler import check_before_run, compile_pipelines
from dagrl.data.rows import open_rows
from dagrl.errors import CompileError, NodeError
from dagrl.nodes import gym_score, prompts, report

pytest.importorskip("reasoning_gym", exc_type=ImportError)

ROWS = open_rows("gym:chain_sum?min_terms=2&max_terms=2", "train")
FIELDS = [dict(ROWS[i].fields) for i in range(4)]
ANSWERS = [str(ROWS[i].answer) for i in range(4)]


def score(texts: list[str], **options):
    return gym_score(FIELDS[: len(texts)], texts, **options)


def test_the_answer_is_found_and_scored_by_the_task() -> None:
    rewards, metrics = score([f"It is {ANSWERS[0]}.", ANSWERS[1], "no idea", "1e"], answer_format="last_number")
    assert rewards.tolist() == [1, 1, 0, 0]
    assert metrics["gym/answered"].value == 0.75
    assert metrics["reward/failed_rows"].value == 0
    assert score([f"<answer>{ANSWERS[0]}</answer>", ANSWERS[1]], answer_format="tags")[0].tolist() == [1, 0]
    assert score([f" {ANSWERS[0]}\n"])[0].tolist() == [1]


def test_a_nearly_right_answer_gets_what_the_task_gives() -> None:
    rewards, _ = score([f"It is {ANSWERS[0]}."])
    assert 0 < rewards[0] < 1


def test_a_truncated_response_is_wrong_unless_allowed() -> None:
    cut = torch.tensor([True, False])
    assert gym_score(FIELDS[:2], ANSWERS[:2], cut)[0].tolist() == [0, 1]
    assert gym_score(FIELDS[:2], ANSWERS[:2], cut, allow_truncated=True)[0].tolist() == [1, 1]


def test_rows_without_any_answer_start_no_process() -> None:
    assert score(["", " "])[0].tolist() == [0, 0]
    assert score([])[0].shape == (0,)


def test_a_row_that_the_task_cannot_score_is_unscorable() -> None:
    broken = {**FIELDS[0], "answer": object}
    rewards, metrics = gym_score([broken, FIELDS[1]], ANSWERS[:2])
    assert math.isnan(rewards[0])
    assert rewards[1] == 1
    assert metrics["reward/failed_rows"].value == 1
    with pytest.raises(NodeError, match="no answer could be scored"):
        gym_score([broken], ANSWERS[:1])


def test_rows_of_other_data_are_refused() -> None:
    with pytest.raises(NodeError, match="row 1 of the data is of no gym task"):
        gym_score([FIELDS[0], {"prompt": "x"}], ANSWERS[:2])
    with Pipeline("p") as pipeline:
        batch = prompts(data="zoo:larger", batch_size=4)
        report(gym_score(batch, batch.rename(answers="response_text").only("response_text")))
    with pytest.raises(CompileError, match="its rows come from `zoo:larger`, which is no gym task"):
        check_before_run([pipeline], compile_pipelines([pipeline]))

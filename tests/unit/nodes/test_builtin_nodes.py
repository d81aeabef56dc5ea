"""What the built-in nodes write, called as plain functions: no graph, no model."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from dagrl import Mean, Sum
from dagrl.graph.roles import Samples, Sampling
from dagrl.nodes import generate, grpo_advantage, old_logprob, prompts, report, verify
from dagrl.nodes.generate import Rollout

WANTED = frozenset({"responses", "prompt_ids", "prompt_mask", "rollout_logprobs", "response_text"})


class Scripted:
    """A policy that says what it is told to: token ids are their own text, pad is 2, which is also an end token."""

    pad_token_id = 2

    def __init__(self, prompts: list[list[int]], responses: list[list[int]], truncated: list[bool]) -> None:
        self.prompts, self.responses, self.cut = prompts, responses, truncated
        self.asked: list[Sampling] = []
        self.decoded: list[list[int]] = []

    def apply_chat_template(self, messages) -> list[list[int]]:
        return self.prompts

    def decode(self, responses) -> list[str]:
        self.decoded = [list(row) for row in responses]
        return [" ".join(map(str, row)) for row in responses]

    def generate(self, prompts, seeds: Tensor, sampling: Sampling) -> Samples:
        self.asked.append(sampling)
        width = max((len(row) for row in self.responses), default=0)
        ids = torch.tensor([row + [2] * (width - len(row)) for row in self.responses]).reshape(len(prompts), width)
        lengths = torch.tensor([len(row) for row in self.responses], dtype=torch.int64)
        return Samples(ids, lengths, -ids.float() / 10, torch.tensor(self.cut, dtype=torch.bool))


def roll(policy: Scripted, *, wanted: frozenset[str] = WANTED, **options) -> Rollout:
    rows = len(policy.prompts)
    return generate(policy, [[]] * rows, torch.arange(rows), max_new_tokens=4, wanted=wanted, **options)


def test_generate_lays_out_prompts_left_and_responses_right_with_masks_from_lengths() -> None:
    """pad == eos == 2: a finished row, one cut by its length that ends in no eos, a full one, an empty one."""
    policy = Scripted([[7], [7, 8, 9], [7, 8], [7]], [[5, 2], [5, 6], [5, 6, 7, 8], []], [False, True, True, False])
    out = roll(policy)
    assert out.prompt_ids.tolist() == [[2, 2, 7], [7, 8, 9], [2, 7, 8], [2, 2, 7]]
    assert out.prompt_mask.int().tolist() == [[0, 0, 1], [1, 1, 1], [0, 1, 1], [0, 0, 1]]
    assert out.responses.tolist() == [[5, 2, 2, 2], [5, 6, 2, 2], [5, 6, 7, 8], [2, 2, 2, 2]]
    assert out.response_mask.int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]
    assert out.response_lengths.tolist() == [2, 2, 4, 0]
    assert out.truncated.tolist() == [False, True, True, False]
    assert out.input_ids.tolist()[0] == [2, 2, 7, 5, 2, 2, 2]
    assert out.attention_mask.int().tolist()[0] == [0, 0, 1, 1, 1, 0, 0]
    assert out.position_ids.tolist()[1] == [0, 1, 2, 3, 4, 4, 4]
    assert out.response_text == ["5 2", "5 6", "5 6 7 8", ""]
    assert policy.decoded == [[5, 2], [5, 6], [5, 6, 7, 8], []]
    assert torch.equal(out.rollout_logprobs, -out.responses.float() / 10)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
def test_generate_records_the_temperature_it_sampled_at(temperature: float) -> None:
    policy = Scripted([[7], [8]], [[5], [6]], [False, False])
    out = roll(policy, temperature=temperature)
    assert out.temperatures.tolist() == [temperature] * 2
    assert policy.asked == [Sampling(max_new_tokens=4, temperature=temperature)]


def test_generate_decodes_only_when_the_text_is_read() -> None:
    policy = Scripted([[7]], [[5]], [False])
    assert roll(policy, wanted=frozenset()).response_text is None
    assert policy.decoded == []


def test_verify_compares_the_whole_text_and_a_cut_answer_is_wrong() -> None:
    texts = np.array(["12", " 12\n", "123", "", "12", "1 2"], dtype=object)
    answers = ["12"] * 6
    cut = torch.tensor([False, False, False, False, True, False])
    assert verify(answers, texts, cut).tolist() == [1, 1, 0, 0, 0, 0]
    assert verify(answers, texts, cut, allow_truncated=True).tolist() == [1, 1, 0, 0, 1, 0]
    assert verify(answers, texts).tolist() == [1, 1, 0, 0, 1, 0]
    assert verify([], []).tolist() == []


def test_grpo_advantage_spreads_rows_over_their_tokens_and_counts_groups() -> None:
    rewards = torch.tensor([1.0, 0, 0, 0, 5, 3, 3, 1, math.nan])
    groups = torch.tensor([0, 0, 0, 0, 1, 2, 2, 3, 3])
    mask = torch.tensor([[True, False, True]] * 9)
    advantages, metrics = grpo_advantage(rewards, groups, mask)
    per_row = [1.5, -0.5, -0.5, -0.5, 0, 0, 0, 0, 0]
    expected = torch.tensor(per_row)[:, None] * mask
    assert torch.allclose(advantages, expected, atol=1e-5)
    assert metrics["group/uniform_share"] == Mean(1, 4)
    assert metrics["group/singletons"] == Sum(2)
    assert metrics["group/unscorable_rows"] == Sum(1)
    plain, _ = grpo_advantage(rewards, groups, mask, normalize_by_std=False)
    assert plain[:4, 0].tolist() == [0.75, -0.25, -0.25, -0.25]


def test_report_splits_by_data_source_and_leaves_unscorable_rows_out() -> None:
    rewards = torch.tensor([1.0, 0.0, math.nan, 1.0])
    metrics = report(rewards, ["a", "a", "a", "b"])
    assert metrics["reward/mean/a"] == Mean(1.0, 2.0)
    assert metrics["reward/mean/b"] == Mean(1.0, 1.0)
    assert dict(report(rewards)) == {}


def test_prompts_reads_each_position_and_repeats_agree() -> None:
    out = prompts(torch.tensor([3, 3, 1]), data="zoo:larger", batch_size=2, n=2)
    assert out.messages[0] == out.messages[1] != out.messages[2]
    assert out.answers[0] == out.answers[1]
    shown = out.messages[0][0]["content"].split()
    assert out.answers[0] == max(shown)


def test_old_logprob_asks_for_the_current_weights_in_the_given_micro_batches() -> None:
    seen = {}

    class Scorer:
        def compute_logprobs(self, tokens, *, micro_batch_size: int):
            seen.update(tokens=tokens, micro=micro_batch_size)
            return type("R", (), {"logprobs": torch.zeros(1, 2)})

    ids, mask = torch.ones(1, 3, dtype=torch.int64), torch.ones(1, 2, dtype=torch.bool)
    args = (ids, ids.bool(), ids, mask, torch.ones(1))
    assert old_logprob(Scorer(), *args, micro_batch_size=7).shape == (1, 2)
    assert seen["micro"] == 7
    assert seen["tokens"].response_mask is mask

"""Reference answers as responses: their columns, their loss, and a model from nothing that learns from them."""

import math
from pathlib import Path

import pytest
import torch

from dagrl import ResourcePool, WorkerGroup, adamw, policy
from dagrl.engines.parallel import SINGLE
from dagrl.errors import ConfigError, NodeError
from dagrl.graph.roles import TokenBatch
from dagrl.nodes import demonstrations, generate, sft_loss
from dagrl.workers.model_worker import make_worker
from dagrl.workers.policy import PolicyWorker


def start(**options: object) -> PolicyWorker:
    spec = policy("zoo:tiny", precision="fp32", optimizer=adamw(lr=1e-3), **options)
    group = WorkerGroup("actor", spec, pool=ResourcePool("main"))
    worker = make_worker(group, total_steps=10, rollout=True, parallel=SINGLE, seed=3)
    assert isinstance(worker, PolicyWorker)
    return worker


def asked(*questions: str) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": question}] for question in questions]


def test_the_answer_is_the_response_and_ends() -> None:
    worker = start()
    found = demonstrations(worker, asked("347 352", "12 9"), ["352", "12"])
    assert worker.decode(found.responses.tolist()) == ["352", "12"]
    assert found.response_lengths.tolist() == [4, 3]
    assert found.response_mask.tolist() == [[True] * 4, [True] * 3 + [False]]
    assert found.responses[0, 3] == found.responses[1, 2] == worker.tokenizer.eos_token_id
    assert not found.truncated.any()
    assert found.temperatures.tolist() == [1, 1]
    whole = worker.tokenizer("<bos>347 352=352<eos>", add_special_tokens=False)["input_ids"]
    assert found.input_ids[0][found.attention_mask[0]].tolist() == whole


def test_columns_are_laid_out_as_a_rollouts() -> None:
    worker = start()
    seeds = torch.arange(2)
    wanted = frozenset({"response_text"})
    rollout = generate(worker, asked("347 352", "12 9"), seeds, max_new_tokens=8, temperature=0.0, wanted=wanted)
    found = demonstrations(worker, asked("347 352", "12 9"), rollout.response_text)
    for name in ("input_ids", "attention_mask", "position_ids", "responses", "response_mask", "response_lengths"):
        assert torch.equal(getattr(found, name), getattr(rollout, name)), name


def test_a_long_answer_is_cut_and_has_no_end() -> None:
    found = demonstrations(start(), asked("1 2", "1 2"), ["12345", "1"], max_response_tokens=3)
    assert found.response_lengths.tolist() == [3, 2]
    assert found.truncated.tolist() == [True, False]


def test_a_prompt_without_tokens_has_nothing_to_follow() -> None:
    with pytest.raises(NodeError, match="the prompt of row 0 has no tokens"):
        demonstrations(start(chat_template="{{ '' }}"), asked("1 2"), ["1"])


def test_rows_beyond_the_models_context_are_not_scored() -> None:
    worker = start()
    for length, fine in ((120, True), (140, False)):
        found = demonstrations(worker, asked("1 2", "1"), ["1" * length, "2"])
        tokens = TokenBatch(*(getattr(found, name) for name in TokenBatch._fields))
        if fine:
            assert worker.compute_logprobs(tokens).logprobs.isfinite().all()
        else:
            with pytest.raises(NodeError, match=r"a row has 146 tokens, and .* has positions for 128"):
                worker.compute_logprobs(tokens)


def test_no_rows() -> None:
    found = demonstrations(start(), [], [])
    assert found.responses.shape == (0, 0)


def test_the_loss_is_the_negative_log_prob() -> None:
    logprobs = torch.tensor([[-1.0, -2.0, math.nan], [math.inf, -3.0, 0.0]], requires_grad=True)
    mask = torch.tensor([[True, True, False], [False, True, False]])
    losses, metrics = sft_loss(logprobs, mask)
    assert losses.tolist() == [[1, 2, 0], [0, 3, 0]]
    assert metrics.numbers() == {"actor/nll": 2.0}
    losses.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[-1, -1, 0], [0, -1, 0]]


def test_a_model_from_scratch_has_weights_of_its_own_from_the_seed() -> None:
    first, again, trained = start(from_scratch=True), start(from_scratch=True), start()
    name = "model.embed_tokens.weight"
    weights = [dict(worker.model.named_parameters())[name] for worker in (first, again, trained)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert float(weights[0].detach().std()) == pytest.approx(0.02, rel=0.1)


def test_a_model_from_scratch_needs_no_weights_but_a_config(tmp_path: Path) -> None:
    worker = start()
    worker.save(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    spec = policy(str(tmp_path / "model"), from_scratch=True)
    group = WorkerGroup("actor", spec, pool=ResourcePool("main"))
    assert make_worker(group, total_steps=1, rollout=True, parallel=SINGLE)
    (tmp_path / "model" / "config.json").unlink()
    with pytest.raises(ConfigError, match="config"):
        make_worker(group, total_steps=1, rollout=True, parallel=SINGLE)

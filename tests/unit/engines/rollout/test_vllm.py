"""Rollout by a real engine of vLLM: what it draws, its log-probs, syncs and states."""

import copy
import random

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")

from rollout_engines import (
    CONTEXT,
    PAD,
    STOPS,
    build_llama,
    gap,
    ragged_prompts,
    rows_of,
    shake,
    start,
    sync,
    tokenizer,
    trainer_logprobs,
)
from stream_cases import ALIVE, assert_ended, cases, open_stream

from dagrl.engines.rollout.hf import HFRollout
from dagrl.errors import ConfigError, EngineError
from dagrl.graph.roles import Samples, Sampling
from dagrl.graph.rollouts import vllm

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.05}
CASES = [(True, torch.float32), (False, torch.float32), (True, torch.bfloat16)]


NAMES = ["tied-fp32", "untied-fp32", "tied-bf16"]
on_each = pytest.mark.parametrize("started", CASES, indirect=True, ids=NAMES, scope="module")
on_fp32 = pytest.mark.parametrize("started", CASES[:1], indirect=True, ids=NAMES[:1], scope="module")


@pytest.fixture(scope="module")
def started(request):
    tied, dtype = request.param
    model = build_llama(tied=tied)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    threads = torch.set_num_threads
    engine = start(model, dtype)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert states[2] == np.random.get_state()[1].tolist()
    assert torch.set_num_threads is threads
    with pytest.raises(EngineError, match="before it was given weights"):
        engine.generate([[3]], torch.arange(1), Sampling(max_new_tokens=1))
    yield engine, model, dtype
    engine.close()
    with pytest.raises(EngineError, match="it was closed"):
        engine.generate([[3]], torch.arange(1), Sampling(max_new_tokens=1))


@pytest.fixture
def synced(started):
    """The engine with the model's first weights, whatever an earlier test has done to them."""
    engine, model, dtype = started
    model = copy.deepcopy(model)
    sync(engine, model, dtype)
    return engine, model, dtype


@on_each
@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
def test_logprobs_are_the_trainers(synced, temperature):
    engine, model, dtype = synced
    prompts = ragged_prompts(24)
    samples = engine.generate(prompts, torch.arange(24), Sampling(max_new_tokens=24, temperature=temperature))
    assert gap(model, prompts, samples, temperature or 1.0) < TOLERANCE[dtype]
    assert [x.dtype for x in samples] == [torch.int64, torch.int64, torch.float32, torch.bool]
    assert not any(x.is_inference() for x in samples)


@on_each
def test_two_syncs_in_a_row(synced):
    engine, model, dtype = synced
    prompts, seeds, sampling = ragged_prompts(24, seed=1), torch.arange(24), Sampling(max_new_tokens=24)
    for version in (2, 3):
        old = copy.deepcopy(model)
        shake(model, 0.05, seed=version)
        stale = engine.generate(prompts, seeds, sampling)
        assert gap(old, prompts, stale) < TOLERANCE[dtype], "the trained weights are the engine's own memory"
        sync(engine, model, dtype, version)
        assert engine.version == version
        samples = engine.generate(prompts, seeds, sampling)
        assert gap(model, prompts, samples) < TOLERANCE[dtype]
        assert gap(old, prompts, samples) > 4 * TOLERANCE[dtype]


@on_each
def test_a_sync_empties_the_prefix_cache(synced):
    engine, model, dtype = synced
    prompt = [3 + place % 70 for place in range(300)]
    sampling = Sampling(max_new_tokens=4)
    engine.generate([prompt], torch.arange(1), sampling)
    engine.generate([prompt], torch.arange(1), sampling)
    assert engine.cached_tokens == 256
    shake(model, 0.05, seed=5)
    sync(engine, model, dtype, 2)
    samples = engine.generate([prompt], torch.arange(1), sampling)
    assert engine.cached_tokens == 0
    assert gap(model, [prompt], samples) < TOLERANCE[dtype]


@on_fp32
def test_equal_rows_are_equal_and_seeds_tell_them_apart(synced):
    engine, _, _ = synced
    sampling = Sampling(max_new_tokens=12)
    seeds = torch.tensor([1, 1, 2, 3, -1, -(2**63), 2**63 - 1, 0])
    first, again = (engine.generate([[4, 5]] * 8, seeds, sampling) for _ in range(2))
    assert torch.equal(first.responses, again.responses)
    rows = [tuple(tokens) for tokens, _ in rows_of(first)]
    assert rows[0] == rows[1]
    assert len(set(rows)) == 7


@on_fp32
def test_one_prompt_four_times_gives_different_answers(synced):
    samples = synced[0].generate([[9, 10, 11]] * 4, torch.arange(4), Sampling(max_new_tokens=16))
    assert len({tuple(tokens) for tokens, _ in rows_of(samples)}) == 4


@on_fp32
def test_rows_ignore_order_and_mates(synced):
    engine, _, _ = synced
    prompts = ragged_prompts(20, seed=3)
    prompts, seeds = [*prompts, *prompts[:10]], torch.arange(30) * 1_000_003
    sampling = Sampling(max_new_tokens=16)
    whole = rows_of(engine.generate(prompts, seeds, sampling))
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0)).tolist()
    permuted = rows_of(engine.generate([prompts[i] for i in order], seeds[order], sampling))
    parts = [engine.generate(prompts[i : i + 7], seeds[i : i + 7], sampling) for i in range(0, 30, 7)]
    for other in ([permuted[order.index(row)] for row in range(30)], [row for part in parts for row in rows_of(part)]):
        assert [tokens for tokens, _ in other] == [tokens for tokens, _ in whole]
        for (_, got), (_, wanted) in zip(other, whole, strict=True):
            torch.testing.assert_close(got, wanted, atol=1e-4, rtol=0)


def hf(model):
    return HFRollout(model, stop_token_ids=STOPS, pad_token_id=PAD, context_length=CONTEXT, tokenizer=tokenizer())


@on_fp32
def test_greedy_rows_are_those_of_hf(synced):
    engine, model, _ = synced
    prompts = [prompt for prompt in ragged_prompts(12, seed=4) for _ in range(2)]
    sampling = Sampling(max_new_tokens=20, temperature=0)
    ours, theirs = (one.generate(prompts, torch.arange(24), sampling) for one in (hf(model), engine))
    assert torch.equal(ours.responses, theirs.responses)
    assert torch.equal(ours.truncated, theirs.truncated)
    torch.testing.assert_close(ours.logprobs, theirs.logprobs, atol=1e-4, rtol=0)


@on_fp32
@pytest.mark.parametrize("stop", [("1",), ("12", "= 3"), ("no such text",)])
def test_stop_texts_end_rows_where_hf_ends_them(synced, stop):
    engine, model, _ = synced
    prompts = ragged_prompts(48, seed=5)
    sampling = Sampling(max_new_tokens=20, temperature=0, stop=stop)
    ours, theirs = (one.generate(prompts, torch.arange(48), sampling) for one in (hf(model), engine))
    assert [tokens for tokens, _ in rows_of(ours)] == [tokens for tokens, _ in rows_of(theirs)]
    assert torch.equal(ours.truncated, theirs.truncated)


@on_fp32
def test_a_stop_text_stays_in_the_response(synced):
    engine, _, _ = synced
    prompts = ragged_prompts(64, seed=6)
    samples = engine.generate(prompts, torch.arange(64), Sampling(max_new_tokens=24, stop=("1",)))
    decode = tokenizer().decode
    ended = 0
    for (tokens, _), truncated in zip(rows_of(samples), samples.truncated.tolist(), strict=True):
        assert "1" not in decode(tokens[:-1], skip_special_tokens=True)
        ends = "1" in decode(tokens, skip_special_tokens=True)
        assert truncated == (not ends and tokens[-1] not in STOPS)
        ended += ends
    assert ended > 5


@on_fp32
def test_a_second_turn_begins_with_the_ids_of_the_first(synced):
    """Ids in, ids out: what a text of the first turn would be tokenised to is another prompt."""
    engine, model, _ = synced
    prompts, seeds = ragged_prompts(48, seed=10), torch.arange(48)
    first = [tokens for tokens, _ in rows_of(engine.generate(prompts, seeds, Sampling(max_new_tokens=12)))]
    one = tokenizer()
    again = [
        one(one.decode(tokens, skip_special_tokens=True), add_special_tokens=False)["input_ids"] for tokens in first
    ]
    turns, others = ([[*a, *b, 14, 5] for a, b in zip(prompts, each, strict=True)] for each in (first, again))
    rows = [row for row, turn in enumerate(turns) if turn != others[row]]
    assert len(rows) > 10
    for stop in ((), ("no such text",)):  # with stop texts vLLM makes text of the ids as well
        second = engine.generate(turns, seeds, Sampling(max_new_tokens=8, stop=stop))
        assert gap(model, turns, second) < 1e-3
        assert gap(model, others, second) > 0.05
        for (tokens, logprobs), turn in zip(rows_of(second), turns, strict=True):
            torch.testing.assert_close(logprobs, trainer_logprobs(model, turn, tokens), atol=1e-3, rtol=0)


@on_fp32
def test_stop_tokens_close_a_row_and_count(synced):
    engine, _, _ = synced
    samples = engine.generate(ragged_prompts(64, seed=7), torch.arange(64), Sampling(max_new_tokens=30))
    last = set()
    for (tokens, _), truncated in zip(rows_of(samples), samples.truncated.tolist(), strict=True):
        assert not STOPS & set(tokens[:-1])
        assert (tokens[-1] in STOPS) == (not truncated)
        last |= STOPS & {tokens[-1]}
    assert last == STOPS
    past = torch.arange(samples.responses.shape[1]) >= samples.lengths[:, None]
    assert samples.responses[past].unique().tolist() == [PAD]
    assert samples.logprobs[past].unique().tolist() == [0.0]


@on_fp32
@pytest.mark.parametrize(("top_p", "top_k"), [(0.7, 0), (1.0, 3), (0.6, 5), (1.0, 1000)])
def test_log_probs_of_what_top_p_and_top_k_leave(synced, top_p, top_k):
    engine, model, _ = synced
    prompts = ragged_prompts(16, seed=8)
    sampling = Sampling(max_new_tokens=8, temperature=0.8, top_p=top_p, top_k=top_k)
    samples = engine.generate(prompts, torch.arange(16), sampling)
    for prompt, (tokens, logprobs) in zip(prompts, rows_of(samples), strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + tokens]), use_cache=False).logits[0, len(prompt) - 1 : -1]
        for place, token in enumerate(tokens):
            ordered, ids = (logits[place].double() / 0.8).softmax(-1).sort(descending=True)
            ordered = ordered[: top_k or None]
            kept = ordered[ordered.cumsum(0) - ordered < top_p * ordered.sum()]
            assert token in ids[: len(kept)].tolist()
            share = float(ordered[ids.tolist().index(token)] / kept.sum())
            assert abs(float(logprobs[place]) - float(np.log(share))) < 1e-4


@on_fp32
def test_the_context_cuts_responses(synced):
    engine, _, _ = synced
    prompts = [[3] * (CONTEXT - 1), [4] * (CONTEXT - 3), [5, 6]]
    limits = Sampling(max_new_tokens=2)
    free = engine.generate(prompts, torch.arange(3), limits)
    assert free.lengths.tolist()[0] == 1
    for (tokens, _), truncated, limit in zip(rows_of(free), free.truncated.tolist(), (1, 2, 2), strict=True):
        assert len(tokens) <= limit
        assert truncated == (tokens[-1] not in STOPS)
    for length in (CONTEXT, CONTEXT + 1):
        with pytest.raises(ConfigError, match="leaves no room") as caught:
            engine.generate([[3], [3] * length], torch.arange(2), limits)
        assert f"row 1: {length} tokens" in str(caught.value)


@on_fp32
def test_no_rows_and_requests_that_cannot_be_drawn(synced):
    engine, _, _ = synced
    samples = engine.generate([], torch.zeros(0, dtype=torch.int64), Sampling(max_new_tokens=4))
    assert isinstance(samples, Samples)
    assert samples.responses.shape == samples.logprobs.shape == (0, 0)
    assert [x.dtype for x in samples] == [torch.int64, torch.int64, torch.float32, torch.bool]
    one, row = torch.arange(1), [[3]]
    for sampling, prompts, message in (
        (Sampling(max_new_tokens=0), row, "max_new_tokens"),
        (Sampling(max_new_tokens=1, temperature=2.5), row, "not at 2.5"),
        (Sampling(max_new_tokens=1, temperature=0.001), row, "not at 0.001"),
        (Sampling(max_new_tokens=1, stop=("",)), row, "empty text"),
        (Sampling(max_new_tokens=1), [[]], "without tokens"),
    ):
        with pytest.raises(ConfigError, match=message):
            engine.generate(prompts, one, sampling)


@on_fp32
def test_drawing_leaves_random_numbers_alone(synced):
    engine, _, _ = synced
    before = torch.get_rng_state()
    engine.generate(ragged_prompts(4), torch.arange(4), Sampling(max_new_tokens=4))
    assert torch.equal(before, torch.get_rng_state())


@on_fp32
def test_rows_come_as_they_finish(synced):
    engine, _, _ = synced
    prompts, seeds, sampling = ragged_prompts(32, seed=9), torch.arange(32), Sampling(max_new_tokens=40)
    rows = list(engine.stream(prompts, seeds, sampling))
    samples = engine.generate(prompts, seeds, sampling)
    lengths = [len(response.tokens) for _, response in rows]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]
    assert [response.tokens for _, response in sorted(rows)] == [tokens for tokens, _ in rows_of(samples)]


@on_fp32
def test_a_stream_that_nobody_ends_holds_up_no_other(synced):
    engine, model, dtype = synced
    stream = engine.stream(ragged_prompts(8), torch.arange(8), Sampling(max_new_tokens=64))
    next(stream)
    stream.close()
    assert not engine._llm.llm_engine.has_unfinished_requests()
    sync(engine, model, dtype, 2)
    assert len(engine.generate([[3]], torch.arange(1), Sampling(max_new_tokens=2)).responses) == 1


@on_fp32
@cases(ALIVE)
def test_a_stream_ends_once_the_engine_is_another(synced, change, message, begun):
    engine, model, _ = synced
    wanted = list(open_stream(engine, begun=False))
    rows = open_stream(engine, begun=begun, max_new_tokens=64)
    change(engine, model)
    assert_ended(rows, message)
    assert not engine._llm.llm_engine.has_unfinished_requests()
    engine.wake()
    assert list(open_stream(engine, begun=False)) == wanted


@on_fp32
def test_a_second_stream_waits_for_the_end_of_the_first(synced):
    engine, _, _ = synced
    wanted = dict(open_stream(engine, begun=False))
    first = open_stream(engine, begun=False)
    got = [next(first)]
    assert_ended(open_stream(engine, begun=False), "still draws the rows of another stream")
    assert dict([*got, *first]) == wanted
    assert dict(open_stream(engine, begun=False)) == wanted


def test_without_prefix_caching_equal_prompts_are_computed_anew():
    model = build_llama(tied=True)
    engine = start(model, torch.float32, spec=vllm(kv_cache_gib=0.1, prefix_caching=False))
    sync(engine, model, torch.float32)
    prompt = [3 + place % 70 for place in range(300)]
    for _ in range(2):
        samples = engine.generate([prompt] * 2, torch.arange(2), Sampling(max_new_tokens=4))
        assert engine.cached_tokens == 0
        assert gap(model, [prompt] * 2, samples) < TOLERANCE[torch.float32]
    engine.close()


@on_fp32
def test_sleeping_and_waking(synced):
    engine, model, dtype = synced
    request = ([[3, 4]], torch.arange(1), Sampling(max_new_tokens=4))
    wanted = engine.generate(*request)
    for _ in range(2):
        engine.sleep()
    with pytest.raises(EngineError, match="`weights` and `kv_cache` sleep"):
        engine.generate(*request)
    with pytest.raises(EngineError, match="wake them first"):
        sync(engine, model, dtype)
    engine.wake(["weights"])
    with pytest.raises(EngineError, match="its `kv_cache` sleep"):
        engine.generate(*request)
    sync(engine, model, dtype)
    for _ in range(2):
        engine.wake(["kv_cache"])
    assert torch.equal(engine.generate(*request).responses, wanted.responses)
    engine.sleep(2)
    engine.wake()
    with pytest.raises(EngineError, match="sync it first"):
        engine.generate(*request)
    with pytest.raises(EngineError, match="level 1 or 2, not 3"):
        engine.sleep(3)
    with pytest.raises(EngineError, match="no part 'kv'"):
        engine.wake(["kv"])
    sync(engine, model, dtype)
    assert torch.equal(engine.generate(*request).responses, wanted.responses)


@on_fp32
def test_weights_of_another_model_are_refused_before_any_is_loaded(synced):
    engine, model, _ = synced
    request = ([[3, 4]], torch.arange(1), Sampling(max_new_tokens=4))
    wanted = engine.generate(*request)

    class Other:
        def __init__(self, layout):
            self.layout = layout

        def __iter__(self):
            raise AssertionError("a tensor was asked for")

    whole = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    lacking = {name: shape for name, shape in whole.items() if name != "lm_head.weight"}
    faults = (
        (lacking, "missing: lm_head.weight"),
        (whole | {"model.extra": (3,)}, "not of the model: model.extra"),
        (whole | {"model.norm.weight": (3,)}, "of another shape: model.norm.weight: \\(3,\\) for \\(64,\\)"),
    )
    for layout, message in faults:
        with pytest.raises(EngineError, match=message):
            engine.load_weights(Other(layout), 2)
    assert engine.version == 1
    assert torch.equal(engine.generate(*request).responses, wanted.responses)


@on_each
def test_the_trainer_sees_the_same_tokens(synced):
    """One row by hand, so that no helper of these tests hides a shift by one."""
    engine, model, dtype = synced
    samples = engine.generate([[5, 6, 7]], torch.tensor([11]), Sampling(max_new_tokens=6))
    tokens, logprobs = rows_of(samples)[0]
    full = trainer_logprobs(model, [5, 6, 7], tokens)
    torch.testing.assert_close(logprobs, full, atol=4 * TOLERANCE[dtype], rtol=0)

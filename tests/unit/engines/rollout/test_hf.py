"""The rollout loop against plain loops without cache, padding or batch."""

import copy

import pytest
import torch
from stream_cases import ALIVE, DEADLY, assert_ended, cases, open_stream
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from dagrl.engines.rollout.hf import HFRollout
from dagrl.engines.sampling import token_uniforms
from dagrl.errors import ConfigError, EngineError, TrainingError
from dagrl.graph.roles import Samples, Sampling

VOCAB = 50
PAD = 0
STOPS = frozenset({2, 7, 11})
CONTEXT = 48


def build_llama(attention):
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            initializer_range=0.2,
            attn_implementation=attention,
        )
    )


def build_gpt2(attention):
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=CONTEXT,
            initializer_range=0.2,
            bos_token_id=1,
            eos_token_id=2,
            attn_implementation=attention,
        )
    )


@pytest.fixture(
    scope="module",
    params=[(build_llama, "eager"), (build_gpt2, "eager"), (build_llama, "sdpa")],
    ids=["llama-eager", "gpt2-eager", "llama-sdpa"],
)
def model(request):
    build, attention = request.param
    torch.manual_seed(7)
    return build(attention).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def gpt2():
    torch.manual_seed(7)
    return build_gpt2("eager").eval().requires_grad_(False)


def rollout(model, *, stops=STOPS, pad=PAD, context=CONTEXT):
    return HFRollout(model, stop_token_ids=frozenset(stops), pad_token_id=pad, context_length=context)


def ragged_prompts(count, seed=0):
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 12, (count,), generator=draw).tolist()
    return [torch.randint(1, VOCAB, (length,), generator=draw).tolist() for length in lengths]


def rows_of(samples):
    """Each row's tokens and log-probs, padding cut off."""
    return [
        (tokens[:length].tolist(), logprobs[:length])
        for tokens, logprobs, length in zip(samples.responses, samples.logprobs, samples.lengths.tolist(), strict=True)
    ]


def same_rows(got, wanted):
    assert [tokens for tokens, _ in got] == [tokens for tokens, _ in wanted]
    for (_, a), (_, b) in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=0)


@torch.no_grad()
def plain_response(model, prompt, seed, sampling, *, stops=STOPS, context=CONTEXT):
    """One row by whole forward passes and a scalar inverse CDF; returns tokens, log-probs, truncated."""
    tokens, logprobs = [], []
    while True:
        logits = model(input_ids=torch.tensor([prompt + tokens]), use_cache=False).logits[0, -1].double()
        dist = (logits / (sampling.temperature or 1.0)).log_softmax(-1)
        if sampling.temperature == 0:
            token = int(dist.argmax())
        else:
            uniform = float(token_uniforms(torch.tensor([seed]), len(tokens)))
            token, passed = 0, float(dist[0].exp())
            while passed <= uniform and token < VOCAB - 1:
                token += 1
                passed += float(dist[token].exp())
        tokens.append(token)
        logprobs.append(float(dist[token]))
        if token in stops:
            return tokens, torch.tensor(logprobs), False
        if len(tokens) == sampling.max_new_tokens or len(prompt) + len(tokens) == context:
            return tokens, torch.tensor(logprobs), True


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
def test_equals_a_plain_loop(model, temperature):
    prompts = ragged_prompts(18)
    prompts = prompts + prompts[::2] + prompts[:3]  # equal prompts, scattered
    seeds = torch.arange(len(prompts)) * 31 + 5
    sampling = Sampling(max_new_tokens=20, temperature=temperature)
    samples = rollout(model).generate(prompts, seeds, sampling)
    wanted = [
        plain_response(model, prompt, seed, sampling) for prompt, seed in zip(prompts, seeds.tolist(), strict=True)
    ]
    same_rows(rows_of(samples), [row[:2] for row in wanted])
    assert samples.truncated.tolist() == [row[2] for row in wanted]
    lengths = samples.lengths.tolist()
    if temperature:
        assert len(set(lengths)) > 5
        assert True in samples.truncated.tolist()
        assert False in samples.truncated.tolist()


def test_finished_rows_leave_the_batch(model, monkeypatch):
    prompts = ragged_prompts(32, seed=1)
    sizes = []
    inner = model.forward

    def counting(*args, **kwargs):
        sizes.append(len(kwargs["input_ids"]))
        return inner(*args, **kwargs)

    monkeypatch.setattr(model, "forward", counting)
    rollout(model).generate(prompts, torch.arange(32), Sampling(max_new_tokens=30))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] <= 8
    assert len(set(sizes)) >= 4


def test_equal_prompts_are_prefilled_once(model, monkeypatch):
    shapes = []
    inner = model.forward

    def counting(*args, **kwargs):
        shapes.append(tuple(kwargs["input_ids"].shape))
        return inner(*args, **kwargs)

    monkeypatch.setattr(model, "forward", counting)
    prompts = [[3, 4, 5], [6], [3, 4, 5], [6], [3, 4, 5]]
    samples = rollout(model, stops=()).generate(prompts, torch.arange(5), Sampling(max_new_tokens=3))
    assert shapes == [(2, 3), (5, 1), (5, 1)]
    assert len({tuple(row) for row in samples.responses[[0, 2, 4]].tolist()}) > 1


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logprobs_equal_a_full_forward(model, temperature):
    prompts = ragged_prompts(16, seed=2)
    samples = rollout(model).generate(prompts, torch.arange(16), Sampling(max_new_tokens=16, temperature=temperature))
    for prompt, (tokens, logprobs) in zip(prompts, rows_of(samples), strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + tokens]), use_cache=False).logits[0, len(prompt) - 1 : -1]
        full = (logits / temperature).log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
        torch.testing.assert_close(logprobs, full, atol=1e-4, rtol=0)


def test_rows_ignore_order_split_and_padding(model):
    prompts = ragged_prompts(20, seed=3)
    prompts = [*prompts, *prompts[:10]]
    seeds = torch.arange(30) * 1_000_003
    engine, sampling = rollout(model), Sampling(max_new_tokens=16)
    whole = rows_of(engine.generate(prompts, seeds, sampling))

    order = torch.randperm(30, generator=torch.Generator().manual_seed(0)).tolist()
    permuted = rows_of(engine.generate([prompts[i] for i in order], seeds[order], sampling))
    same_rows(permuted, [whole[i] for i in order])

    parts = [engine.generate(prompts[i : i + 7], seeds[i : i + 7], sampling) for i in range(0, 30, 7)]
    same_rows([row for part in parts for row in rows_of(part)], whole)

    wide = engine.generate([*prompts, [5] * 30], torch.cat([seeds, torch.tensor([9])]), sampling)
    same_rows(rows_of(wide)[:-1], whole)


def test_equal_rows_are_equal_and_seeds_tell_them_apart(model):
    engine, sampling = rollout(model, stops=()), Sampling(max_new_tokens=8)
    samples = engine.generate([[4, 5]] * 4, torch.tensor([1, 1, 2, 3]), sampling)
    rows = samples.responses.tolist()
    assert rows[0] == rows[1]
    assert len({tuple(row) for row in rows}) == 3
    torch.testing.assert_close(samples.logprobs[0], samples.logprobs[1])


def test_a_seed_does_not_repeat_its_number_at_each_place(model):
    with torch.no_grad():
        flat = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    logits_are_flat = type(model)(model.config).eval()
    logits_are_flat.load_state_dict(flat)
    engine = rollout(logits_are_flat, stops=())
    samples = engine.generate([[4]] * 200, torch.arange(200), Sampling(max_new_tokens=40))
    counts = torch.bincount(samples.responses.flatten(), minlength=VOCAB).double()
    expected = 200 * 40 / VOCAB
    assert float(((counts - expected) ** 2 / expected).sum()) < 49 + 4.5 * (2 * 49) ** 0.5
    assert bool((samples.responses[:, 0] != samples.responses[:, 1]).any())
    pairs = torch.corrcoef(samples.responses.double().T)
    assert float((pairs - torch.eye(40)).abs().max()) < 0.35


def test_frequencies_follow_the_model(gpt2):
    with torch.no_grad():
        probs = gpt2(input_ids=torch.tensor([[5, 6, 8]]), use_cache=False).logits[0, -1].double().softmax(-1)
    rows = 20_000
    samples = rollout(gpt2).generate([[5, 6, 8]] * rows, torch.arange(rows), Sampling(max_new_tokens=1))
    counts = torch.bincount(samples.responses[:, 0], minlength=VOCAB).double()
    expected = probs * rows
    assert float(expected.min()) > 5
    freedom = len(counts) - 1
    assert float(((counts - expected) ** 2 / expected).sum()) < freedom + 4.5 * (2 * freedom) ** 0.5


def test_greedy_equals_transformers_generate(model):
    prompts = [prompt for prompt in ragged_prompts(12, seed=4) for _ in range(2)]
    samples = rollout(model).generate(prompts, torch.arange(24), Sampling(max_new_tokens=12, temperature=0))
    for prompt, (tokens, _) in zip(prompts, rows_of(samples), strict=True):
        out = model.generate(
            input_ids=torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=sorted(STOPS),
            pad_token_id=PAD,
        )
        assert tokens == out[0, len(prompt) :].tolist()


def test_places_past_the_end_hold_pad_and_zero(model):
    samples = rollout(model, pad=33).generate(ragged_prompts(32, seed=5), torch.arange(32), Sampling(max_new_tokens=24))
    width = samples.responses.shape[1]
    past = torch.arange(width) >= samples.lengths[:, None]
    assert bool(past.any())
    assert samples.responses[past].unique().tolist() == [33]
    assert samples.logprobs[past].unique().tolist() == [0.0]
    assert bool((samples.logprobs[~past] < 0).all())
    assert width == int(samples.lengths.max())


def test_stop_tokens_close_a_row_and_count(model):
    samples = rollout(model).generate(ragged_prompts(64, seed=6), torch.arange(64), Sampling(max_new_tokens=24))
    last_tokens = set()
    for (tokens, _), truncated in zip(rows_of(samples), samples.truncated.tolist(), strict=True):
        assert not STOPS & set(tokens[:-1])
        assert (tokens[-1] in STOPS) == (not truncated)
        last_tokens |= STOPS & {tokens[-1]}
    assert last_tokens == STOPS


def test_width_is_the_longest_response(model):
    every = range(VOCAB)
    samples = rollout(model, stops=every).generate([[3], [4, 5]], torch.arange(2), Sampling(max_new_tokens=1000))
    assert samples.responses.shape == (2, 1)
    assert samples.lengths.tolist() == [1, 1]
    assert samples.truncated.tolist() == [False, False]


def test_a_stop_token_at_the_limit_is_not_truncated(model):
    engine = rollout(model)
    free = engine.generate(ragged_prompts(32, seed=8), torch.arange(32), Sampling(max_new_tokens=24))
    row = next(i for i, length in enumerate(free.lengths.tolist()) if length > 2 and not free.truncated[i])
    length = int(free.lengths[row])
    prompt = [ragged_prompts(32, seed=8)[row]]
    for limit, truncated in ((length, False), (length - 1, True)):
        samples = engine.generate(prompt, torch.tensor([row]), Sampling(max_new_tokens=limit))
        assert samples.lengths.tolist() == [limit]
        assert samples.truncated.tolist() == [truncated]


def test_pad_that_is_also_eos(model):
    prompts, seeds = ragged_prompts(32, seed=9), torch.arange(32)
    sampling = Sampling(max_new_tokens=10)
    apart = rollout(model, pad=0).generate(prompts, seeds, sampling)
    same = rollout(model, pad=2).generate(prompts, seeds, sampling)
    same_rows(rows_of(same), rows_of(apart))
    assert torch.equal(same.truncated, apart.truncated)
    cut = [tokens for (tokens, _), truncated in zip(rows_of(same), same.truncated.tolist(), strict=True) if truncated]
    assert cut
    assert all(tokens[-1] != 2 for tokens in cut)
    past = torch.arange(same.responses.shape[1]) >= same.lengths[:, None]
    assert same.responses[past].unique().tolist() == [2]


def test_no_stop_tokens_runs_to_the_limit(model):
    samples = rollout(model, stops=()).generate([[3], [4, 5]], torch.arange(2), Sampling(max_new_tokens=5))
    assert samples.lengths.tolist() == [5, 5]
    assert samples.truncated.tolist() == [True, True]


def test_the_context_cuts_responses(model):
    prompts = [[3] * (CONTEXT - 1), [4] * (CONTEXT - 3), [5, 6], [5] * (CONTEXT - 1)]
    samples = rollout(model, stops=()).generate(prompts, torch.arange(4), Sampling(max_new_tokens=9))
    assert samples.lengths.tolist() == [1, 3, 9, 1]
    assert samples.truncated.tolist() == [True] * 4
    sampling = Sampling(max_new_tokens=9)
    wanted = [plain_response(model, prompt, row, sampling, stops=())[:2] for row, prompt in enumerate(prompts)]
    same_rows(rows_of(samples), wanted)


def test_finished_rows_that_stay_do_not_pass_the_last_position(gpt2):
    # One row of eight ends at the context, too few to leave: it idles while the others go on.
    prompts = [[3] * (CONTEXT - 1)] + [[4, row] for row in range(7)]
    samples = rollout(gpt2, stops=()).generate(prompts, torch.arange(8), Sampling(max_new_tokens=6))
    assert samples.lengths.tolist() == [1] + [6] * 7


def test_unbounded_context(model):
    samples = rollout(model, stops=(), context=None).generate([[3] * 5], torch.arange(1), Sampling(max_new_tokens=4))
    assert samples.lengths.tolist() == [4]


def test_no_rows(model):
    samples = rollout(model).generate([], torch.zeros(0, dtype=torch.int64), Sampling(max_new_tokens=4))
    assert samples.responses.shape == samples.logprobs.shape == (0, 0)
    assert samples.lengths.shape == samples.truncated.shape == (0,)
    assert [x.dtype for x in samples] == [torch.int64, torch.int64, torch.float32, torch.bool]


def test_results_are_ordinary_tensors(model):
    samples = rollout(model).generate([[3], [4]], torch.arange(2), Sampling(max_new_tokens=4))
    assert isinstance(samples, Samples)
    assert not any(x.is_inference() for x in samples)
    assert all(x.is_contiguous() for x in samples)
    assert [x.dtype for x in samples] == [torch.int64, torch.int64, torch.float32, torch.bool]
    leaf = samples.logprobs.clone().requires_grad_()
    (leaf * samples.logprobs).sum().backward()


def test_inputs_are_left_alone(model):
    prompts, seeds = [[3, 4], [5]], torch.arange(2)
    rollout(model).generate(prompts, seeds, Sampling(max_new_tokens=6))
    assert prompts == [[3, 4], [5]]
    assert seeds.tolist() == [0, 1]


def test_dropout_is_off_and_the_modes_come_back(gpt2):
    prompts, seeds, sampling = ragged_prompts(8, seed=10), torch.arange(8), Sampling(max_new_tokens=8)
    quiet = rows_of(rollout(gpt2).generate(prompts, seeds, sampling))
    gpt2.train()
    gpt2.transformer.h[0].eval()
    before = [module.training for module in gpt2.modules()]
    try:
        same_rows(rows_of(rollout(gpt2).generate(prompts, seeds, sampling)), quiet)
        assert [module.training for module in gpt2.modules()] == before
    finally:
        gpt2.eval()


def test_new_weights_show_at_once():
    torch.manual_seed(0)
    model = build_llama("eager")
    engine, sampling = rollout(model), Sampling(max_new_tokens=8)
    first = rows_of(engine.generate([[3, 4, 5]], torch.arange(1), sampling))
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.2)
    second = rows_of(engine.generate([[3, 4, 5]], torch.arange(1), sampling))
    assert [tokens for tokens, _ in first] != [tokens for tokens, _ in second]
    same_rows(second, [plain_response(model, [3, 4, 5], 0, sampling)[:2]])


def test_prompts_that_do_not_fit_are_named(model):
    prompts = [[3], [4] * CONTEXT, [], [5] * (CONTEXT + 2)]
    with pytest.raises(ConfigError) as caught:
        rollout(model).generate(prompts, torch.arange(4), Sampling(max_new_tokens=4))
    text = str(caught.value)
    assert "2 problems" in text
    assert "row 2" in text
    assert f"row 1: {CONTEXT} tokens" in text
    assert f"row 3: {CONTEXT + 2} tokens" in text
    assert f"{CONTEXT} tokens, prompt and response together" in text


def test_many_bad_prompts_are_counted(model):
    with pytest.raises(ConfigError, match="and 15 more"):
        rollout(model).generate([[]] * 20, torch.arange(20), Sampling(max_new_tokens=4))


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (Sampling(max_new_tokens=0), "max_new_tokens must be 1 or more, not 0"),
        (Sampling(max_new_tokens=4, temperature=-0.5), "temperature must be 0 or more, not -0.5"),
        (Sampling(max_new_tokens=4, temperature=float("nan")), "temperature must be 0 or more, not nan"),
    ],
)
def test_sampling_values_are_checked(model, sampling, message):
    with pytest.raises(ConfigError, match=message):
        rollout(model).generate([[3]], torch.arange(1), sampling)


def test_seeds_must_match_the_prompts(model):
    with pytest.raises(ValueError, match="2 prompts need as many seeds"):
        rollout(model).generate([[3], [4]], torch.arange(3), Sampling(max_new_tokens=4))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_weights_that_are_not_finite_are_named(temperature):
    torch.manual_seed(0)
    model = build_gpt2("eager")
    with torch.no_grad():
        model.transformer.wpe.weight[2] = float("nan")  # met first by the second token of a two-token prompt's row
    sampling = Sampling(max_new_tokens=4, temperature=temperature)
    with pytest.raises(TrainingError, match="response token 1 of row 0"):
        rollout(model, stops=()).generate([[3, 4], [5]], torch.arange(2), sampling)


def test_streamed_rows_are_those_of_generate_in_the_order_they_finish(model):
    prompts, seeds, sampling = ragged_prompts(24, seed=11), torch.arange(24), Sampling(max_new_tokens=20)
    streamed = list(rollout(model).stream(prompts, seeds, sampling))
    samples = rollout(model).generate(prompts, seeds, sampling)
    lengths = [len(response.tokens) for _, response in streamed]
    assert lengths == sorted(lengths)
    assert sorted(row for row, _ in streamed) == list(range(24))
    by_row = dict(streamed)
    same_rows([(by_row[row].tokens, torch.tensor(by_row[row].logprobs)) for row in range(24)], rows_of(samples))
    assert [by_row[row].truncated for row in range(24)] == samples.truncated.tolist()
    assert list(rollout(model).stream([], torch.zeros(0, dtype=torch.int64), sampling)) == []


def test_between_streamed_rows_the_model_can_be_trained(gpt2):
    gpt2.train()
    stream = rollout(gpt2).stream(ragged_prompts(8), torch.arange(8), Sampling(max_new_tokens=20))
    next(stream)
    assert gpt2.training
    assert not torch.is_inference_mode_enabled()
    stream.close()
    gpt2.eval()


def test_streaming_names_the_row_whose_logits_are_not_finite(gpt2):
    broken = copy.deepcopy(gpt2)
    with torch.no_grad():
        broken.transformer.wte.weight[3] = float("nan")
    with pytest.raises(TrainingError, match="response token 0 of row 0"):
        list(rollout(broken).stream([[4], [3]], torch.arange(2), Sampling(max_new_tokens=4)))


def test_an_engine_that_sleeps_or_is_closed_draws_nothing(model):
    engine, request = rollout(model), ([[3]], torch.arange(1), Sampling(max_new_tokens=1))
    for _ in range(2):
        engine.sleep()
    with pytest.raises(EngineError, match="`weights` and `kv_cache` sleep"):
        engine.generate(*request)
    for _ in range(2):
        engine.wake()
    engine.generate(*request)
    engine.close()
    with pytest.raises(EngineError, match="it was closed"):
        engine.stream(*request)


@cases(ALIVE + DEADLY)
def test_a_stream_ends_once_the_engine_is_another(change, message, begun):
    torch.manual_seed(7)
    model = build_llama("eager")
    engine = rollout(model)
    rows = open_stream(engine, begun=begun)
    change(engine, model)
    assert_ended(rows, message)


def test_streams_of_one_engine_do_not_meet(model):
    engine = rollout(model)
    alone = list(open_stream(engine, begun=False))
    first, second = (open_stream(engine, begun=False) for _ in range(2))
    rows = list(zip(first, second, strict=True))
    assert [one for one, _ in rows] == [other for _, other in rows] == alone


def test_stop_texts_need_a_fast_tokenizer(model):
    with pytest.raises(ConfigError, match="need a fast tokenizer"):
        rollout(model).generate([[3]], torch.arange(1), Sampling(max_new_tokens=1, stop=("x",)))

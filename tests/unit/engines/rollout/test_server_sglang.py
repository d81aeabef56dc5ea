"""The HTTP engine by SGLang's protocol, against a stand-in that draws from the embedded model: its rows."""

import pytest
import torch
from rollout_engines import STOPS, gap, ragged_prompts, rows_of, tokenizer, trainer_logprobs
from sglang_server import FIELDS, ready, sglang_server, tiny

from dagrl.errors import ConfigError, EngineError
from dagrl.graph.roles import Sampling

SAMPLING = Sampling(max_new_tokens=12)


@pytest.fixture
def model():
    return tiny()


@pytest.fixture
def served():
    with sglang_server() as (url, server):
        yield url, server


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_the_trainers(served, model, temperature) -> None:
    url, _ = served
    prompts = ragged_prompts(16)
    samples = ready([url], model).generate(
        prompts, torch.arange(16), Sampling(max_new_tokens=12, temperature=temperature)
    )
    assert gap(model, prompts, samples, temperature) < 1e-5
    assert samples.truncated.any()
    assert not samples.truncated.all()


def test_a_row_depends_on_its_prompt_and_seed_alone(served, model) -> None:
    first, _ = served
    hot = Sampling(max_new_tokens=6, temperature=2.0)
    with sglang_server() as (second, other):
        engine = ready([first, second], model, concurrency=2)
        prompts, seeds = [[5, 6, 7]] * 10, torch.tensor([*range(9), 0]) - 4
        rows = [tokens for tokens, _ in rows_of(engine.generate(prompts, seeds, hot))]
        again = engine.generate(prompts[:5], seeds.flip(0)[:5], hot)
        assert other.rows
    assert rows[0] == rows[9]
    assert len({tuple(row) for row in rows}) > 5
    assert [tokens for tokens, _ in rows_of(again)] == rows[::-1][:5]


def test_all_of_the_sampling_is_asked_for_in_words_of_the_protocol(served, model) -> None:
    url, server = served
    ready([url], model).generate([[5]] * 4, torch.arange(4), Sampling(max_new_tokens=3, temperature=0.5, stop=("x",)))
    asked = server.rows[0]
    assert set(asked) == FIELDS
    assert (asked["temperature"], asked["top_k"], asked["top_p"], asked["stop"]) == (0.5, -1, 1.0, ["x"])
    assert (asked["stop_token_ids"], asked["ignore_eos"]) == (sorted(STOPS), False)
    assert len({row["seed"] for row in server.rows}) == 4


def test_the_stop_tokens_of_the_policy_end_a_response_and_are_in_it(served, model) -> None:
    url, _ = served
    stops = frozenset({2, *range(23, 49)})
    prompts, hot = ragged_prompts(12), Sampling(max_new_tokens=6, temperature=2.0)
    samples = ready([url], model, stops=stops).generate(prompts, torch.arange(12), hot)
    for (tokens, _), truncated in zip(rows_of(samples), samples.truncated.tolist(), strict=True):
        assert not stops & set(tokens[:-1])
        assert truncated == (tokens[-1] not in stops)
    assert len({tokens[-1] for tokens, _ in rows_of(samples)} & stops) > 1


@pytest.mark.parametrize("stop", [(), ("0", "1", "2", "4", "5", "6")])
def test_a_response_that_ends_with_its_last_token_is_not_truncated(served, model, stop) -> None:
    url, _ = served
    engine, prompts, seeds = ready([url], model), ragged_prompts(12), torch.arange(12)
    rows = rows_of(engine.generate(prompts, seeds, Sampling(max_new_tokens=8, stop=stop)))
    row = next(row for row, (tokens, _) in enumerate(rows) if len(tokens) > 1 and (tokens[-1] in STOPS) == (not stop))
    length = len(rows[row][0])
    for limit, truncated in ((length, False), (length - 1, True)):
        sampling = Sampling(max_new_tokens=limit, stop=stop)
        samples = engine.generate([prompts[row]], seeds[row : row + 1], sampling)
        assert samples.truncated.tolist() == [truncated]


def test_texts_end_a_response_and_their_tokens_stay(served, model) -> None:
    url, _ = served
    engine, prompts, texts = ready([url], model), ragged_prompts(10), tokenizer()
    whole = rows_of(engine.generate(prompts, torch.arange(10), Sampling(max_new_tokens=8)))
    samples = engine.generate(prompts, torch.arange(10), Sampling(max_new_tokens=8, stop=("1", "9")))
    cut = 0
    for (tokens, logprobs), (all_tokens, all_logprobs) in zip(rows_of(samples), whole, strict=True):
        assert tokens == all_tokens[: len(tokens)]
        assert logprobs.equal(all_logprobs[: len(tokens)])
        text = texts.decode(tokens, skip_special_tokens=True)
        assert not {"1", "9"} & set(text[:-1])
        cut += len(tokens) < len(all_tokens)
        assert len(tokens) == len(all_tokens) or text[-1] in "19"
    assert cut > 0


def test_greedy_responses_hold_the_likeliest_tokens_with_log_probs_at_temperature_1(served, model) -> None:
    url, _ = served
    prompts = ragged_prompts(4)
    greedy = Sampling(max_new_tokens=5, temperature=0.0, top_k=3, top_p=0.5)
    for prompt, (tokens, logprobs) in zip(
        prompts, rows_of(ready([url], model).generate(prompts, torch.arange(4), greedy)), strict=True
    ):
        logits = model(input_ids=torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == tokens
        torch.testing.assert_close(logprobs, trainer_logprobs(model, prompt, tokens), atol=1e-5, rtol=0)


@pytest.mark.parametrize("filters", [{"top_k": 5}, {"top_p": 0.9}])
def test_filters_whose_log_probs_the_server_does_not_give_are_refused(served, model, filters) -> None:
    url, server = served
    engine = ready([url], model)
    with pytest.raises(ConfigError, match="log-probs before top-k and top-p"):
        engine.generate([[5]], torch.tensor([1]), Sampling(max_new_tokens=3, **filters))
    assert server.rows == []
    assert len(engine.generate([[5]], torch.tensor([1]), SAMPLING).lengths) == 1


def test_a_row_that_is_broken_off_is_drawn_again(served, model) -> None:
    url, server = served
    engine = ready([url], model)
    rows = rows_of(engine.generate([[5]] * 4, torch.arange(4), SAMPLING))
    server.aborts = 2
    again = rows_of(engine.generate([[5]] * 4, torch.arange(4), SAMPLING))
    assert [tokens for tokens, _ in again] == [tokens for tokens, _ in rows]


def test_a_token_that_ends_a_response_there_alone_ends_the_run(served, model) -> None:
    url, server = served
    engine = ready([url], model)
    server.eos = {2, *range(4, 14)} - {7}
    with pytest.raises(EngineError, match=r"ended a response at token \d+.*Give the policy `stop_tokens` with \d+ too"):
        engine.generate(ragged_prompts(16), torch.arange(16), SAMPLING)


def test_the_stand_in_draws_and_loads_nothing_once_it_is_gone(model) -> None:
    with sglang_server() as (url, server):
        ready([url], model).generate([[5]], torch.tensor([1]), SAMPLING)
    drawn = list(server.rows)
    assert server.answer("POST", "/v1/completions", {}, drawn[0])[0] == 503
    assert server.answer("POST", "/update_weights_from_disk", {}, {})[0] == 503
    assert server.rows == drawn

"""The HTTP engine against vLLM's own server on loopback."""

import pytest
import torch
from rollout_engines import CONTEXT, VOCAB, build_llama, gap, ragged_prompts, rows_of, shake, tokenizer
from rollout_engines import start as start_in_process
from rollout_engines import sync as sync_in_process
from rollout_servers import start, vllm_server

from dagrl.engines.rollout.server import ServerRollout
from dagrl.engines.weights import TrainedWeights
from dagrl.errors import ConfigError, EngineError
from dagrl.graph.roles import Sampling

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
pytest.importorskip("vllm")

PROCESSED = ("--logprobs-mode", "processed_logprobs")
SAMPLING = Sampling(max_new_tokens=24)


def save(model, folder):
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def served(request, tmp_path_factory):
    """A model that is trained, and the address of a server that was started with its first weights."""
    folder = tmp_path_factory.mktemp("served")
    model = build_llama(tied=request.param)
    save(model, folder)
    with vllm_server(folder, *PROCESSED) as (url, _):
        yield model, url, folder


def sync(engine: ServerRollout, model, version=1) -> None:
    engine.load_weights(TrainedWeights(model, dtype=torch.float32), version)


@pytest.fixture
def engine(served):
    model, url, folder = served
    made = start([url], model, weights_folder=str(folder / "weights"))
    sync(made, model)
    return made


def test_it_draws_what_the_engine_in_this_process_draws(served, engine) -> None:
    model, _, _ = served
    prompts, seeds = ragged_prompts(24), torch.arange(24) - 5
    inside = start_in_process(model, torch.float32)
    sync_in_process(inside, model, torch.float32)
    for sampling in (
        SAMPLING,
        Sampling(max_new_tokens=24, temperature=0.5),
        Sampling(max_new_tokens=24, top_p=0.8, top_k=9),
        Sampling(max_new_tokens=24, temperature=0.0),
        Sampling(max_new_tokens=24, stop=("a", "1")),
    ):
        ours, theirs = (each.generate(prompts, seeds, sampling) for each in (engine, inside))
        assert ours.responses.equal(theirs.responses)
        assert ours.lengths.equal(theirs.lengths)
        assert ours.truncated.equal(theirs.truncated)
        torch.testing.assert_close(ours.logprobs, theirs.logprobs, atol=1e-4, rtol=0)
    inside.close()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probs_are_the_trainers(served, engine, temperature) -> None:
    model, _, _ = served
    prompts = ragged_prompts(16)
    samples = engine.generate(prompts, torch.arange(16), Sampling(max_new_tokens=20, temperature=temperature))
    assert gap(model, prompts, samples, temperature) < 1e-3
    assert samples.truncated.any()
    assert not samples.truncated.all()


def test_two_syncs_bring_the_new_weights_and_forget_the_old_keys_and_values(served, engine) -> None:
    model, _, folder = served
    draw = torch.Generator().manual_seed(3)
    prompts = [*ragged_prompts(6), torch.randint(3, VOCAB, (300,), generator=draw).tolist()]
    before = build_llama(tied=model.config.tie_word_embeddings)
    seeds = torch.arange(len(prompts))
    for version in (2, 3):
        before.load_state_dict(model.state_dict())
        engine.generate(prompts, seeds, SAMPLING)
        shake(model, 0.1, seed=version)
        sync(engine, model, version)
        samples = engine.generate(prompts, seeds, SAMPLING)
        assert gap(model, prompts, samples) < 1e-3
        assert gap(before, prompts, samples) > 0.05
    assert engine.version == 3
    assert list((folder / "weights").iterdir()) == []


def test_rows_of_one_prompt_differ_and_equal_seeds_do_not(engine) -> None:
    prompts = [[5, 6, 7]] * 4
    first, again = (engine.generate(prompts, torch.tensor([1, 2, 3, 1]), SAMPLING) for _ in range(2))
    rows = [tokens for tokens, _ in rows_of(first)]
    assert rows[0] == rows[3]
    assert len({tuple(row) for row in rows}) == 3
    assert first.responses.equal(again.responses)


def test_a_response_is_cut_by_the_context(engine) -> None:
    prompts = [[5] * (CONTEXT - 1), [6] * (CONTEXT - 3)]
    samples = engine.generate(prompts, torch.tensor([1, 2]), Sampling(max_new_tokens=30))
    assert samples.lengths.tolist()[0] == 1
    assert samples.lengths.tolist()[1] <= 3
    assert bool(samples.truncated[0]) or int(samples.responses[0, 0]) in (2, 7)
    with pytest.raises(ConfigError, match="leaves no room"):
        engine.generate([[5] * CONTEXT], torch.tensor([1]), SAMPLING)


def test_a_model_with_another_vocabulary_is_refused(served) -> None:
    model, url, _ = served
    for size in (VOCAB - 1, VOCAB + 1):
        with pytest.raises(ConfigError, match=f"another vocabulary than the {size} tokens"):
            start([url], model, vocab_size=size)


def test_a_name_that_is_not_served_is_refused(served) -> None:
    model, url, folder = served
    with pytest.raises(ConfigError, match=r"does not serve `other`") as caught:
        start([url], model, served_model="other")
    assert str(folder) in str(caught.value)


def test_log_probs_before_the_temperature_are_refused(tmp_path) -> None:
    model = build_llama(tied=True)
    save(model, tmp_path)
    with vllm_server(tmp_path) as (url, _), pytest.raises(ConfigError, match="--logprobs-mode processed_logprobs"):
        start([url], model)


def test_a_server_that_is_killed_in_the_middle_ends_the_run_and_is_named(tmp_path) -> None:
    model = build_llama(tied=True)
    save(model, tmp_path)
    with vllm_server(tmp_path, *PROCESSED) as (url, process):
        engine = start([url], model, weights_folder=str(tmp_path / "weights"), stops=frozenset({2}))
        sync(engine, model)
        many = 4000  # so many that the last is not drawn before the server is killed, however busy this machine is
        rows = engine.stream([[5, 6]] * many, torch.arange(many), Sampling(max_new_tokens=400))
        next(rows)
        process.kill()
        with pytest.raises(EngineError, match=f"no server is left that draws responses.*{url}"):
            list(rows)
        assert engine.is_dead


def test_a_sync_that_fails_never_leads_to_a_generation(tmp_path) -> None:
    """The server is left without weights: whoever asks it, it draws nothing."""
    model = build_llama(tied=True)
    save(model, tmp_path)
    with vllm_server(tmp_path, *PROCESSED) as (url, _):
        other = start([url], model)
        engine = start([url], wide(), weights_folder=str(tmp_path / "weights"))
        with pytest.raises(EngineError, match=f"the server {url} did not take the weights"):
            engine.load_weights(TrainedWeights(wide(), dtype=torch.float32), 1)
        with pytest.raises(EngineError, match="is dead"):
            engine.generate([[5]], torch.tensor([1]), SAMPLING)
        sync(other, model)
        with pytest.raises(EngineError, match=url):
            other.generate([[5]], torch.tensor([1]), SAMPLING)


def wide():
    """A model with the vocabulary of the others, and matrices of other shapes."""
    config = build_llama(tied=True).config
    config.hidden_size, config.intermediate_size = 128, 128
    return type(build_llama(tied=True))(config)

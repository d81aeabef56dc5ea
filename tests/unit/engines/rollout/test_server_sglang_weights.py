"""New weights for SGLang's servers, and what happens to those that lose them."""

import pytest
import torch
from rollout_engines import gap, ragged_prompts, shake
from rollout_servers import start
from sglang_server import CONTEXT, ready, sglang_server, sync, tiny

from dagrl.errors import EngineError, TrainingError
from dagrl.graph.roles import Sampling

SAMPLING = Sampling(max_new_tokens=12)


@pytest.fixture
def model():
    return tiny()


@pytest.fixture
def served():
    with sglang_server() as (url, server):
        yield url, server


def test_each_sync_brings_the_new_weights(served, model, tmp_path) -> None:
    url, server = served
    engine = ready([url], model, weights_folder=str(tmp_path))
    prompts, before = ragged_prompts(4), tiny()
    for version in (2, 3):
        before.load_state_dict(model.state_dict())
        shake(model, 0.05, seed=version)
        sync(engine, model, version)
        samples = engine.generate(prompts, torch.arange(4), SAMPLING)
        assert gap(model, prompts, samples) < 1e-5
        assert gap(before, prompts, samples) > 0.05
    assert engine.version == 3
    assert list(tmp_path.iterdir()) == []
    assert all(update["flush_cache"] for update in server.updates)
    assert len({update["weight_version"] for update in server.updates}) == 3


def test_a_server_that_was_started_again_draws_nothing_before_the_next_sync(served, model, tmp_path) -> None:
    first, one = served
    with sglang_server() as (second, two):
        engine = ready([first, second], model, weights_folder=str(tmp_path), concurrency=2)
        two.start()
        engine.generate([[5]] * 8, torch.arange(8), SAMPLING)
        assert (len(one.rows), len(two.rows)) == (8, 0)
        sync(engine, model, 2)
        engine.generate([[5]] * 8, torch.arange(8), SAMPLING)
        assert len(two.rows) > 0


def test_a_server_that_is_started_again_in_the_middle_is_lost(served, model, tmp_path) -> None:
    url, server = served
    engine = ready([url], model, weights_folder=str(tmp_path), concurrency=1)
    rows = engine.stream([[5]] * 40, torch.arange(40), SAMPLING)
    next(rows)
    server.start()
    with pytest.raises(EngineError, match=f"no server is left .*{url}: it has other weights than at the last sync"):
        list(rows)


def test_weights_that_someone_else_gave_are_noticed(served, model, tmp_path) -> None:
    url, _ = served
    engine, other = (ready([url], model, weights_folder=str(tmp_path)) for _ in range(2))
    with pytest.raises(EngineError, match="it has other weights than at the last sync"):
        engine.generate([[5]], torch.tensor([1]), SAMPLING)
    assert len(other.generate([[5]], torch.tensor([1]), SAMPLING).lengths) == 1


def test_a_failed_sync_names_the_server_and_never_leads_to_a_generation(served, model, tmp_path) -> None:
    url, server = served
    engine = start([url], model, context=CONTEXT, weights_folder=str(tmp_path))
    del server.model.model.layers[3:]
    with pytest.raises(EngineError, match=f"the server {url} did not take the weights: 400: Failed to update weights"):
        sync(engine, model)
    with pytest.raises(EngineError, match="is dead: loading weights failed"):
        engine.generate([[5]], torch.tensor([1]), SAMPLING)
    assert list(tmp_path.iterdir()) == []


def test_an_answer_without_success_is_a_failed_sync(served, model, tmp_path) -> None:
    url, server = served
    engine = start([url], model, context=CONTEXT, weights_folder=str(tmp_path))
    server._update = lambda body: (200, {}, {"success": False, "message": "paused"})
    with pytest.raises(EngineError, match=r"did not take the weights: 200: .*paused"):
        sync(engine, model)


def test_weights_that_diverged_are_not_finite(served, model) -> None:
    url, server = served
    engine = ready([url], model)
    server.model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(TrainingError, match="not finite"):
        engine.generate([[5]], torch.tensor([1]), SAMPLING)

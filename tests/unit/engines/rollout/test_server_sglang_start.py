"""Which of SGLang's servers are refused, and for how much they have room."""

import pytest
import torch
from rollout_servers import recorded_server, start
from sglang_server import CONTEXT, ready, sglang_server, tiny

from dagrl.errors import ConfigError
from dagrl.graph.roles import Sampling

SAMPLING = Sampling(max_new_tokens=12)


@pytest.fixture
def model():
    return tiny()


@pytest.fixture
def served():
    with sglang_server() as (url, server):
        yield url, server


def test_a_response_stays_inside_the_bound_of_the_server(served, model) -> None:
    url, _ = served
    engine = ready([url], model)
    assert engine.context_length == CONTEXT - 6
    samples = engine.generate([[5] * (CONTEXT - 7)], torch.tensor([1]), SAMPLING)
    assert samples.lengths.tolist() == [1]
    with pytest.raises(ConfigError, match="leaves no room"):
        engine.generate([[5] * (CONTEXT - 6)], torch.tensor([1]), SAMPLING)


def _unseeded(server):
    server.deterministic = False


def _original(server):
    server.original_logprobs = True


def _old(server):
    server.token_ids = False


def _locked(server):
    server.takes_weights = False


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_unseeded, r"draws without the seeds of rows(.|\n)*start it with `--enable-deterministic-inference`"),
        (_original, r"log-probs before the temperature(.|\n)*without SGLANG_RETURN_ORIGINAL_LOGPROB"),
        (_old, r"an answer without token ids and log-probs; SGLang's server gives them from its versions of July 2026"),
        (_locked, r"takes no new weights(.|\n)*/update_weights_from_disk"),
    ],
)
def test_a_server_that_was_started_otherwise_is_refused(served, model, tmp_path, change, message) -> None:
    url, server = served
    change(server)
    with pytest.raises(ConfigError, match=message) as caught:
        start([url], model, context=CONTEXT, weights_folder=str(tmp_path))
    assert url in str(caught.value)


@pytest.mark.parametrize("difference", [-1, 1])
def test_another_vocabulary_is_refused(served, model, difference) -> None:
    url, _ = served
    size = model.config.vocab_size + difference
    with pytest.raises(ConfigError, match=f"another vocabulary than the {size} tokens"):
        start([url], model, context=CONTEXT, vocab_size=size)


def test_the_name_of_a_model_means_nothing_there(served, model) -> None:
    url, _ = served
    with pytest.raises(ConfigError, match=r"changes its name with each sync(.|\n)*leave `served_model` out"):
        start([url], model, context=CONTEXT, served_model="tiny")


def test_servers_of_two_kinds_would_draw_different_rows(served, model) -> None:
    url, _ = served
    with (
        recorded_server() as (other, _),
        pytest.raises(ConfigError, match=f"{url} is one of SGLang, and {other}"),
    ):
        start([other, url], model, context=CONTEXT)

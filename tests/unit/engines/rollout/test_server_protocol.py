"""The HTTP engine against small recorded servers: how rows are spread, tried again, given up, and what is refused."""

import threading
import time
from contextlib import ExitStack

import pytest
import torch
from rollout_engines import CONTEXT, STOPS, VOCAB, build_llama, rows_of
from rollout_servers import free_port, recorded_server, start
from stream_cases import ALIVE, DEADLY, assert_ended, cases, open_stream

from dagrl.engines.rollout.base import request_seeds
from dagrl.engines.rollout.server import ServerRollout
from dagrl.engines.rollout.server_start import find_servers
from dagrl.engines.weights import TrainedWeights, layout_of
from dagrl.errors import ConfigError, EngineError
from dagrl.graph.roles import Sampling
from dagrl.graph.rollouts import server

SAMPLING = Sampling(max_new_tokens=6)
#: More rows than one server has at once, so that each server has some.
MANY = 100


@pytest.fixture(scope="module")
def model():
    return build_llama(tied=True)


@pytest.fixture
def recorded():
    with recorded_server() as (url, one):
        yield url, one


def weights(model):
    return TrainedWeights(model, dtype=torch.float32)


def ready(urls, model, **options):
    engine = start(urls, model, **options)
    engine.load_weights(weights(model), 1)
    return engine


def impatient(urls, model, seconds, **options):
    """An engine that gives up a failing server after so many seconds."""
    spec = server(urls, **options)
    found = find_servers(spec, vocab_size=VOCAB, takes_weights=spec.weights_folder is not None)
    engine = ServerRollout(
        spec,
        found._replace(context_length=CONTEXT),
        layout=layout_of(model),
        stop_token_ids=STOPS,
        pad_token_id=0,
        hands_over=True,
        patience_seconds=seconds,
    )
    engine.load_weights(weights(model), 1)
    return engine


def seeds_of(count):
    return torch.arange(1, count + 1)


def draw(engine, count, sampling=SAMPLING):
    return engine.generate([[3 + row % 5, 4] for row in range(count)], seeds_of(count), sampling)


def expected(count, limit=6):
    return [[3 + int(digit) for digit in str(seed)][:limit] for seed in request_seeds(seeds_of(count))]


def test_each_row_is_a_request_with_its_own_seed_and_all_of_its_sampling(recorded, model) -> None:
    url, one = recorded
    sampling = Sampling(max_new_tokens=5, temperature=0.7, top_p=0.9, top_k=12, stop=("end",))
    samples = draw(ready([url], model), 9, sampling)
    assert [tokens for tokens, _ in rows_of(samples)] == expected(9, 5)
    assert samples.truncated.all()
    assert samples.logprobs.eq(-0.5).all()
    assert sorted(row["seed"] for row in one.rows) == sorted(request_seeds(seeds_of(9)))
    asked = one.rows[0]
    assert (asked["temperature"], asked["top_p"], asked["top_k"], asked["stop"]) == (0.7, 0.9, 12, ["end"])
    assert asked["include_stop_str_in_output"]
    assert asked["ignore_eos"]
    assert asked["return_token_ids"]
    assert asked["stop_token_ids"] == sorted(STOPS)
    assert (asked["model"], asked["logprobs"], asked["max_tokens"]) == ("tiny", 0, 5)


def test_rows_are_spread_over_the_servers_a_few_at_once(model) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(recorded_server()) for _ in range(2)]
        for _, one in servers:
            one.delay = 0.02
        samples = draw(ready([url for url, _ in servers], model, concurrency=3), 24)
        assert [tokens for tokens, _ in rows_of(samples)] == expected(24)
        assert all(len(one.rows) >= 6 and one.most_at_once == 3 for _, one in servers)


@pytest.mark.parametrize("fault", [(503, {}), (429, {"Retry-After": "0"}), (500, {}), (0, {})])
def test_a_failed_row_is_tried_again_with_the_same_seed(recorded, model, fault) -> None:
    url, one = recorded
    engine = ready([url], model)
    one.faults = [fault, fault]
    samples = draw(engine, 4)
    assert [tokens for tokens, _ in rows_of(samples)] == expected(4)
    assert len(one.rows) == 6
    assert len({row["seed"] for row in one.rows}) == 4


def test_a_server_that_asks_for_a_wait_gets_it(recorded, model) -> None:
    url, one = recorded
    engine = ready([url], model)
    one.faults = [(429, {"Retry-After": "1"})]
    began = time.monotonic()
    draw(engine, 1)
    assert 1 <= time.monotonic() - began < 15


def test_a_server_that_fails_only_is_lost_and_the_others_draw_its_rows(model) -> None:
    with recorded_server() as (good, _), recorded_server() as (bad, failing):
        engine = impatient([bad, good], model, seconds=0.1)
        failing.faults = [(500, {})] * 100
        samples = draw(engine, 12)
        assert [tokens for tokens, _ in rows_of(samples)] == expected(12)


@pytest.mark.timeout(60)
def test_rows_that_a_lost_server_still_has_are_drawn_by_the_others(model) -> None:
    with recorded_server() as (good, _), recorded_server() as (bad, hanging):
        engine = impatient([bad, good], model, seconds=0.0)
        hanging.faults, hanging.delay = [(500, {})], 2.0
        assert [tokens for tokens, _ in rows_of(draw(engine, MANY))] == expected(MANY)
        assert len(hanging.rows) > 1


def test_a_row_that_fails_everywhere_ends_the_run(recorded, model) -> None:
    url, one = recorded
    engine = ready([url], model)
    one.faults = [(500, {})] * 100
    with pytest.raises(EngineError, match=rf"row 0 failed 6 times, at last on the server {url}: it answered 500"):
        draw(engine, 1)
    assert engine.is_dead


def test_without_a_server_the_run_ends_in_time_and_names_it(model) -> None:
    with recorded_server() as (url, _):
        engine = impatient([url], model, seconds=0.5)
    began = time.monotonic()
    with pytest.raises(EngineError, match=rf"no server is left .*{url}: no connection"):
        draw(engine, 3)
    assert time.monotonic() - began < 20
    with pytest.raises(EngineError, match="is dead"):
        draw(engine, 1)


def test_a_server_that_never_answers_is_lost_after_the_timeout(model) -> None:
    with recorded_server() as (good, _), recorded_server() as (bad, hanging):
        engine = ready([bad, good], model, timeout_s=0.4)
        hanging.delay = 30.0
        began = time.monotonic()
        assert [tokens for tokens, _ in rows_of(draw(engine, 8))] == expected(8)
        assert time.monotonic() - began < 20


def test_a_row_that_is_refused_ends_the_run_at_once(recorded, model) -> None:
    url, one = recorded
    engine = ready([url], model)
    one.faults = [(422, {})]
    with pytest.raises(EngineError, match=f"the server {url} refused a row: 422: a fault"):
        draw(engine, 3)


def test_whoever_stops_listening_leaves_no_row_behind(recorded, model) -> None:
    url, one = recorded
    engine = ready([url], model, concurrency=2)
    one.delay = 0.1
    rows = engine.stream([[3]] * 40, torch.arange(40), SAMPLING)
    next(rows)
    rows.close()
    time.sleep(0.2)
    asked = len(one.rows)
    time.sleep(0.3)
    assert len(one.rows) == asked < 10
    assert len(draw(engine, 2).lengths) == 2


@cases([*ALIVE, DEADLY[1]])
def test_a_stream_ends_once_the_engine_is_another(recorded, model, change, message, begun) -> None:
    url, one = recorded
    engine = ready([url], model, concurrency=1)
    one.delay = 0.02
    rows = open_stream(engine, begun=begun)
    change(engine, model)
    assert_ended(rows, message)
    time.sleep(0.1)
    asked = len(one.rows)
    time.sleep(0.1)
    assert len(one.rows) == asked < 8
    assert (asked > 0) == begun


def test_no_rows_ask_nothing(recorded, model) -> None:
    url, one = recorded
    assert draw(ready([url], model), 0).responses.shape == (0, 0)
    assert one.rows == []


def test_responses_stay_inside_the_smaller_context(recorded, model) -> None:
    url, one = recorded
    one.max_model_len = 16
    engine = ready([url], model)
    assert engine.context_length == 16
    engine.generate([[3] * 12], torch.tensor([1]), Sampling(max_new_tokens=9))
    assert one.rows[-1]["max_tokens"] == 4
    with pytest.raises(ConfigError, match="leaves no room"):
        engine.generate([[3] * 16], torch.tensor([1]), SAMPLING)


def test_a_key_is_sent(recorded, model) -> None:
    url, one = recorded
    one.api_key = "secret"
    assert len(draw(ready([url], model, api_key="secret"), 2).lengths) == 2
    with pytest.raises(ConfigError, match="401: Unauthorized") as caught:
        start([url], model, api_key="other")
    assert "secret" not in str(caught.value)
    assert "check `api_key`" in str(caught.value)


def test_a_log_prob_that_is_no_number_is_not_finite(recorded, model) -> None:
    url, one = recorded
    engine = ready([url], model)
    one._drawn = lambda tokens, logprobs: {
        "choices": [{"finish_reason": "stop", "token_ids": [3], "logprobs": {"token_logprobs": [None]}}]
    }
    with pytest.raises(Exception, match="not finite"):
        draw(engine, 1)


def _raw(one):
    one.certain = -0.4


def _larger(one):
    one.vocab_size = VOCAB + 1


def _smaller(one):
    one.vocab_size = VOCAB - 1


def _several(one):
    one.models = ["a", "b"]


def _no_ids(one):
    one.token_ids = False


def _long(one):
    one.max_model_len = "64"


def _draws(tokens, logprobs):
    def change(one):
        choice = {"finish_reason": "length", "token_ids": tokens, "logprobs": {"token_logprobs": logprobs}}
        one._drawn = lambda *_: {"choices": [choice]}

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_long, "says that its `max_model_len` is '64'"),
        (_draws([], []), "an answer without a token to a question for one"),
        (_draws(["a"], [0.0]), r"token ids that are none: \['a'\]"),
        (_draws([2**31], [0.0]), "token ids that are none"),
        (_draws([-1], [0.0]), "token ids that are none"),
        (_draws([3], ["x"]), r"log-probs that are none: \['x'\]"),
        (_raw, r"log-probs before temperature(.|\n)*--logprobs-mode processed_logprobs"),
        (_larger, "another vocabulary than the 82 tokens of this one: it has more"),
        (_smaller, "another vocabulary than the 82 tokens of this one: 400: Token id 81"),
        (_several, r"serves 2 models(.|\n)*served_model=\.\.\.\)`: a, b"),
        (_no_ids, "an answer without token ids"),
    ],
)
def test_what_cannot_draw_for_the_model_is_refused_at_the_start(recorded, model, change, message) -> None:
    url, one = recorded
    change(one)
    with pytest.raises(ConfigError, match=message) as caught:
        start([url], model)
    assert url in str(caught.value)


def test_every_address_without_a_server_is_named_within_seconds(recorded, model) -> None:
    url, _ = recorded
    nobody = [f"http://127.0.0.1:{free_port()}/v1" for _ in range(2)]
    began = time.monotonic()
    with pytest.raises(ConfigError, match="2 problems") as caught:
        start([url, *nobody], model)
    assert time.monotonic() - began < 10
    assert all(other in str(caught.value) for other in nobody)
    assert url not in str(caught.value)


def test_one_of_several_models_is_asked_for_by_name(recorded, model) -> None:
    url, one = recorded
    one.models = ["a", "b"]
    draw(ready([url], model, served_model="b"), 1)
    assert one.rows[0]["model"] == "b"
    with pytest.raises(ConfigError, match=r"does not serve `c`(.|\n)*it serves a, b"):
        start([url], model, served_model="c")


def test_a_sync_writes_the_weights_has_all_servers_read_them_and_empties_their_caches(model, tmp_path) -> None:
    with recorded_server() as (first, one), recorded_server() as (second, two):
        engine = ready([first, second], model, weights_folder=str(tmp_path / "new"))
        for server_ in (one, two):
            paths = [path for path, body in server_.calls if body or path != "/collective_rpc"]
            assert paths == ["/collective_rpc", "/reset_prefix_cache"]
            assert server_.calls[-2][1]["method"] == "reload_weights"
            assert server_.loaded == ["model-00000.safetensors"]
    assert engine.version == 1
    assert list((tmp_path / "new").iterdir()) == []


def test_a_rank_that_hands_nothing_over_walks_through_the_weights(recorded, model, tmp_path) -> None:
    url, one = recorded
    engine = ready([url], model, weights_folder=str(tmp_path), hands_over=False)
    assert engine.version == 1
    assert [body for path, body in one.calls if body] == []
    assert len(draw(engine, 3).lengths) == 3


def test_a_cache_that_is_in_use_for_a_moment_is_emptied_after_it(recorded, model, tmp_path) -> None:
    url, one = recorded
    one.busy_resets = 2
    engine = ready([url], model, weights_folder=str(tmp_path))
    assert [path for path, _ in one.calls].count("/reset_prefix_cache") == 3
    one.busy_resets = 1000
    with pytest.raises(EngineError, match="could not be emptied"):
        engine.load_weights(weights(model), 2)


def test_a_failed_sync_names_the_server_and_never_leads_to_a_generation(model, tmp_path) -> None:
    with recorded_server() as (good, _), recorded_server() as (bad, failing):
        engine = start([good, bad], model, weights_folder=str(tmp_path))
        failing._call = lambda path, body: (500, {}, {"error": {"message": "Worker failed"}})
        with pytest.raises(EngineError, match=f"the server {bad} did not take the weights: it answered 500: Worker"):
            engine.load_weights(weights(model), 1)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(EngineError, match="is dead: loading weights failed"):
        draw(engine, 1)


def test_weights_of_another_model_are_refused_and_nothing_is_sent(recorded, model, tmp_path) -> None:
    url, one = recorded
    engine = ready([url], model, weights_folder=str(tmp_path))
    calls = len(one.calls)
    other = weights(model)
    other.layout = {**other.layout, "model.norm.weight": (3,)}
    with pytest.raises(EngineError, match="of another shape"):
        engine.load_weights(other, 2)
    assert len(one.calls) == calls
    assert engine.version == 1


def test_weights_need_a_server_that_takes_them(recorded, model, tmp_path) -> None:
    url, one = recorded
    one.dev_mode = False
    with pytest.raises(ConfigError, match=r"takes no new weights(.|\n)*VLLM_SERVER_DEV_MODE=1"):
        start([url], model, weights_folder=str(tmp_path))
    assert len(draw(ready([url], model), 2).lengths) == 2


def test_a_server_that_was_started_again_draws_nothing_before_the_next_sync(model, tmp_path) -> None:
    with recorded_server() as (first, one), recorded_server() as (second, two):
        engine = ready([first, second], model, weights_folder=str(tmp_path))
        two.born = 2.0
        draw(engine, MANY)
        assert (len(one.rows), len(two.rows)) == (MANY, 0)
        engine.load_weights(weights(model), 2)
        draw(engine, MANY)
        assert len(two.rows) > 0


def port_of(url):
    return int(url.rsplit(":", 1)[1].removesuffix("/v1"))


def test_a_server_that_is_gone_has_lost_its_weights_until_the_next_sync(model, tmp_path) -> None:
    """Who comes back there has the weights it was started with."""
    with recorded_server() as (first, one):
        one.delay = 0.02
        with recorded_server() as (second, _):
            engine = impatient([first, second], model, seconds=20, weights_folder=str(tmp_path))
        began = time.monotonic()
        assert [tokens for tokens, _ in rows_of(draw(engine, MANY))] == expected(MANY)
        assert time.monotonic() - began < 15
        with recorded_server(port_of(second)) as (_, again):
            draw(engine, MANY)
            assert again.rows == []
            engine.load_weights(weights(model), 2)
            draw(engine, MANY)
            assert len(again.rows) > 0


def test_a_server_with_weights_of_its_own_may_come_back(model) -> None:
    with ExitStack() as stack:
        with recorded_server() as (url, _):
            engine = impatient([url], model, seconds=20)
        timer = threading.Timer(0.4, lambda: stack.enter_context(recorded_server(port_of(url))))
        timer.start()
        assert [tokens for tokens, _ in rows_of(draw(engine, 3))] == expected(3)
        timer.join()


def test_it_sleeps_and_wakes_as_any_engine(recorded, model) -> None:
    url, _ = recorded
    engine = start([url], model)
    with pytest.raises(EngineError, match="before it was given weights"):
        draw(engine, 1)
    engine.load_weights(weights(model), 1)
    engine.sleep()
    engine.sleep()
    with pytest.raises(EngineError, match="wake it"):
        draw(engine, 1)
    engine.wake()
    engine.wake()
    assert len(draw(engine, 1).lengths) == 1
    engine.close()
    with pytest.raises(EngineError, match="it was closed"):
        draw(engine, 1)

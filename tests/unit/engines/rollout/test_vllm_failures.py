"""What an engine of vLLM does when weights do not come as they should, by vLLM's own protocol of weight updates."""

import copy

import pytest
import torch

pytest.importorskip("vllm")

from rollout_engines import build_llama, gap, ragged_prompts, shake, start, sync
from stream_cases import assert_ended, open_stream

from dagrl.engines.rollout.hf import HFRollout
from dagrl.engines.weights import TrainedWeights
from dagrl.errors import EngineError, TrainingError
from dagrl.graph.roles import Sampling

FP32 = torch.float32


class Faulty:
    """Weights of which one does not come as it was announced."""

    def __init__(self, model, change):
        self._weights = TrainedWeights(model, dtype=FP32)
        self.layout = self._weights.layout
        self._change = change

    def __iter__(self):
        for name, tensor in self._weights:
            yield from self._change(name, tensor)


def skipping(name, tensor):
    return [] if name == "model.layers.1.mlp.up_proj.weight" else [(name, tensor)]


def cut(name, tensor):
    return [(name, tensor[:-1] if name == "model.norm.weight" else tensor)]


def twice(name, tensor):
    return [(name, tensor)] * (2 if name == "model.norm.weight" else 1)


def breaking(name, tensor):
    if name == "model.norm.weight":
        raise RuntimeError("a peer is gone")
    return [(name, tensor)]


FAULTS = [
    (skipping, "1 tensor did not come: model.layers.1.mlp.up_proj.weight"),
    (cut, "`model.norm.weight` came with the shape \\(63,\\)"),
    (twice, "`model.norm.weight` came"),
    (breaking, "a peer is gone"),
]


@pytest.fixture(scope="module")
def model():
    return build_llama(tied=True)


def test_a_failed_load_kills_the_engine_after_native_updates_that_work(model):
    engine, trained = start(model, FP32, native=True), copy.deepcopy(model)
    prompts, seeds, sampling = ragged_prompts(12), torch.arange(12), Sampling(max_new_tokens=16)
    for version in (1, 2):
        shake(trained, 0.05, seed=version)
        sync(engine, trained, FP32, version)
        assert gap(trained, prompts, engine.generate(prompts, seeds, sampling)) < 1e-3
    streams = open_streams(engine)
    with pytest.raises(EngineError, match="1 tensor did not come"):
        engine.load_weights(Faulty(trained, skipping), 3)
    assert_dead(engine, trained, streams)


@pytest.mark.long
@pytest.mark.parametrize(("change", "message"), FAULTS, ids=[change.__name__ for change, _ in FAULTS])
def test_every_fault_of_a_reload_kills_the_engine(model, change, message):
    engine = start(model, FP32)
    sync(engine, model, FP32)
    streams = open_streams(engine)
    with pytest.raises(EngineError, match=message):
        engine.load_weights(Faulty(model, change), 2)
    assert_dead(engine, model, streams)


def open_streams(engine):
    return [open_stream(engine, begun=begun) for begun in (True, False)]


def assert_dead(engine, model, streams):
    assert engine.is_dead
    assert engine.version is None
    for rows in streams:
        assert_ended(rows, "is dead: loading weights failed")
    for call in (
        lambda: engine.generate([[3]], torch.arange(1), Sampling(max_new_tokens=1)),
        lambda: sync(engine, model, FP32, 3),
        engine.sleep,
        engine.wake,
    ):
        with pytest.raises(EngineError, match="is dead: loading weights failed"):
            call()
    engine.close()
    engine.close()


def test_weights_that_have_diverged_are_named(model):
    engine, diverged = start(model, FP32), copy.deepcopy(model)
    with torch.no_grad():
        diverged.model.norm.weight[3] = float("nan")
    sync(engine, diverged, FP32)
    with pytest.raises(TrainingError, match="not finite: first for the response token 0 of row 0"):
        engine.generate([[3, 4], [5]], torch.arange(2), Sampling(max_new_tokens=4))
    sync(engine, model, FP32, 2)
    assert len(engine.generate([[3]], torch.arange(1), Sampling(max_new_tokens=2)).responses) == 1
    engine.close()


@pytest.mark.parametrize(("change", "message"), FAULTS, ids=[change.__name__ for change, _ in FAULTS])
def test_hf_dies_of_the_same_faults(model, change, message):
    engine = HFRollout(copy.deepcopy(model), stop_token_ids=frozenset({2}), pad_token_id=0, context_length=64)
    with pytest.raises(EngineError, match=message):
        engine.load_weights(Faulty(model, change), 2)
    with pytest.raises(EngineError, match="is dead: loading weights failed"):
        engine.generate([[3]], torch.arange(1), Sampling(max_new_tokens=1))

"""What vLLM's engine is started with, where there is a GPU and where there is none; what it leaves when it ends."""

import weakref

import pytest
import torch
from rollout_engines import build_llama, start, sync

from dagrl import vllm
from dagrl.engines.rollout.vllm_options import engine_options
from dagrl.engines.rollout.vllm_start import _refused, _wiring
from dagrl.graph.rollouts import RolloutSpec

GIB = 2**30


def options(spec: RolloutSpec, **given):
    return engine_options(spec, torch.bfloat16, 512, **{"weight_bytes": 3 * GIB, "gpu_bytes": 80 * GIB} | given)


def test_an_engine_on_a_gpu_sleeps_and_compiles():
    made = options(vllm(kv_cache_gib=2))
    assert made["enable_sleep_mode"]
    assert not made["enforce_eager"]
    assert made["kv_cache_memory_bytes"] == 2 * GIB
    assert options(vllm(enforce_eager=True))["enforce_eager"]


def test_an_engine_on_a_cpu_does_neither():
    made = options(vllm(), gpu_bytes=None)
    assert not made["enable_sleep_mode"]
    assert made["enforce_eager"]
    assert "gpu_memory_utilization" not in made


def test_an_engine_wants_its_own_weights_and_cache_of_the_gpu_and_no_more():
    assert options(vllm(kv_cache_gib=2))["gpu_memory_utilization"] == pytest.approx(5 / 80)
    shared = options(vllm(kv_cache_gib=2, tensor_parallel=3))
    assert shared["gpu_memory_utilization"] == pytest.approx(3 / 80)
    assert shared["tensor_parallel_size"] == 3
    assert options(vllm(kv_cache_gib=200))["gpu_memory_utilization"] == 1


def test_a_gpu_without_room_is_said_to_have_none():
    text = "Free memory on device cuda:0 (3.1/80.0 GiB) on startup is less than desired GPU memory utilization"
    problem = _refused(vllm(kv_cache_gib=2), build_llama(tied=True), ValueError(text))
    assert "`vllm(kv_cache_gib=...)` less than 2" in problem.fix
    assert "offload=True" in problem.fix


def test_an_engine_of_several_gpus_finds_the_group_of_its_processes(monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setenv("RANK", "")
    wiring = _wiring(vllm(tensor_parallel=2), on_cpu=False, native=False)
    assert wiring == {"distributed_executor_backend": "external_launcher"}
    assert _wiring(vllm(), on_cpu=False, native=False) == {}


def test_weights_come_by_the_transfer_of_this_process():
    pytest.importorskip("vllm")
    from dagrl.engines.rollout import vllm_transfer

    assert _wiring(vllm(), on_cpu=False, native=True)["weight_transfer_config"].backend == vllm_transfer.NAME


def test_the_process_group_is_kept_for_others_and_goes_with_the_engines_that_made_it():
    pytest.importorskip("vllm")
    model = build_llama(tied=True)
    engines = [start(model, torch.float32) for _ in range(2)]
    assert torch.distributed.is_initialized()
    for engine in engines:
        engine.close()
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("native", [False, True])
def test_a_closed_engine_leaves_no_weights_in_memory(native):
    pytest.importorskip("vllm")
    trained = build_llama(tied=True)
    engine = start(trained, torch.float32, native=native)
    sync(engine, trained, torch.float32)
    held = weakref.ref(engine._llm.apply_model(lambda model: model)[0])
    assert held() is not None
    engine.close()
    assert held() is None

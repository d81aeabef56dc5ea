"""The order of calls in which vLLM is given weights and put to sleep, as a recorder notes them."""

import sys
from types import ModuleType

import pytest
import torch

from dagrl.engines.rollout.vllm import VllmRollout
from dagrl.engines.rollout.vllm_loading import NativeUpdate, Reload, buckets, make_loader
from dagrl.engines.rollout.vllm_start import ScannableModules, Started
from dagrl.errors import EngineError


class Recorder:
    """Stands for vLLM's `LLM`: notes what its worker is asked for, and fails where it is told to."""

    def __init__(self, fails_at: str = ""):
        self.calls: list[tuple[str, object]] = []
        self._fails_at = fails_at

    def collective_rpc(self, method, *, kwargs):
        if "weights_iterator" in kwargs:  # as vLLM does, in the call
            kwargs = kwargs | {"weights_iterator": list(kwargs["weights_iterator"])}
        self.calls.append((method, kwargs))
        if method == self._fails_at:
            raise RuntimeError("out of memory")
        return [None]

    def reset_prefix_cache(self):
        self.calls.append(("reset_prefix_cache", None))
        return self._fails_at != "reset_prefix_cache"

    def sleep(self, *, level):
        self.calls.append(("sleep", level))

    def wake_up(self, *, tags):
        self.calls.append(("wake_up", tags))


class Five:
    """The five weights, as a trainer offers them."""

    layout = {"a": (10,), "b": (20,), "c": (4,), "d": (100,), "e": (1,)}  # noqa: RUF012

    def __iter__(self):
        return weights()


def rollout(recorder, *, accelerator=True):
    started = Started(recorder, context_length=64, can_sleep=accelerator, native_updates=accelerator)
    return VllmRollout(started, layout=Five.layout, stop_token_ids=frozenset({2}), pad_token_id=0)


def weights(events=None):
    for name, size in (("a", 10), ("b", 20), ("c", 4), ("d", 100), ("e", 1)):
        if events is not None:
            events.append(name)
        yield name, torch.zeros(size)


def sent(recorder):
    updates = [given for method, given in recorder.calls if method == "update_weights"]
    return [[name for name, _ in given["update_info"]["weights"]] for given in updates]


def test_a_native_update_starts_sends_buckets_and_finishes():
    recorder = Recorder()
    make_loader(recorder, native=True).load(weights())
    assert [method for method, _ in recorder.calls] == ["start_weight_update", "update_weights", "finish_weight_update"]
    assert sent(recorder) == [["a", "b", "c", "d", "e"]]


def test_buckets_are_sent_as_they_fill():
    recorder = Recorder()
    NativeUpdate(recorder, bucket_bytes=4 * 34).load(weights())
    methods = [method for method, _ in recorder.calls]
    assert methods == ["start_weight_update", *["update_weights"] * 3, "finish_weight_update"]
    assert sent(recorder) == [["a", "b", "c"], ["d"], ["e"]]


@pytest.mark.parametrize("method", ["start_weight_update", "update_weights"])
def test_a_failed_update_is_never_finished(method):
    recorder = Recorder(fails_at=method)
    with pytest.raises(RuntimeError, match="out of memory"):
        NativeUpdate(recorder).load(weights())
    assert "finish_weight_update" not in [name for name, _ in recorder.calls]


def test_a_reload_is_one_call():
    recorder = Recorder()
    loader = make_loader(recorder, native=False)
    assert isinstance(loader, Reload)
    loader.load(weights())
    (method, given), *others = recorder.calls
    assert (method, given["is_checkpoint_format"], others) == ("reload_weights", True, [])
    assert [name for name, _ in given["weights_iterator"]] == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("size", [1, 40, 135, 136, 137, 10_000])
def test_buckets_hold_every_weight_once_and_no_more_bytes_than_they_may(size):
    found = list(buckets(weights(), size))
    assert [name for bucket in found for name, _ in bucket] == ["a", "b", "c", "d", "e"]
    assert all(len(bucket) == 1 or sum(tensor.nbytes for _, tensor in bucket) <= size for bucket in found)
    assert list(buckets(iter(()), size)) == []


def test_a_bucket_is_sent_before_the_next_is_gathered():
    events: list[str] = []
    events.extend(f"sent {len(bucket)}" for bucket in buckets(weights(events), 4 * 34))
    assert events == ["a", "b", "c", "d", "sent 3", "e", "sent 1", "sent 1"]


def test_a_step_of_the_hybrid_engine_on_an_accelerator():
    recorder = Recorder()
    engine = rollout(recorder)
    engine.load_weights(Five(), 0)
    recorder.calls.clear()
    for _ in range(2):
        engine.sleep(2)
    for _ in range(2):
        engine.wake(["weights"])
    engine.load_weights(Five(), 1)
    for _ in range(2):
        engine.wake(["kv_cache"])
    named = [(method, None if method == "update_weights" else given) for method, given in recorder.calls]
    assert named == [
        ("sleep", 2),
        ("wake_up", ["weights"]),
        ("start_weight_update", {}),
        ("update_weights", None),
        ("finish_weight_update", {}),
        ("reset_prefix_cache", None),
        ("wake_up", ["kv_cache"]),
    ]
    assert engine.version == 1


def test_all_wakes_part_by_part_and_the_weights_first():
    recorder = Recorder()
    engine = rollout(recorder)
    engine.sleep()
    engine.wake()
    assert recorder.calls == [("sleep", 1), ("wake_up", ["weights"]), ("wake_up", ["kv_cache"])]


def test_a_processor_is_never_put_to_sleep():
    recorder = Recorder()
    engine = rollout(recorder, accelerator=False)
    engine.sleep()
    engine.wake(["weights"])
    engine.load_weights(Five(), 0)
    assert [method for method, _ in recorder.calls] == ["reload_weights", "reset_prefix_cache"]


@pytest.mark.parametrize(
    "method", ["start_weight_update", "update_weights", "finish_weight_update", "reset_prefix_cache"]
)
def test_an_engine_dies_wherever_its_update_fails(method):
    recorder = Recorder(fails_at=method)
    engine = rollout(recorder)
    with pytest.raises(EngineError, match="could not load weights"):
        engine.load_weights(Five(), 0)
    assert engine.is_dead
    before = list(recorder.calls)
    for call in (lambda: engine.load_weights(Five(), 1), engine.sleep, engine.wake):
        with pytest.raises(EngineError, match="is dead"):
            call()
    assert recorder.calls == before


class OutOfContext:
    """A proxy as web frameworks have them: whatever is asked of it, it raises."""

    @property
    def __dict__(self):
        raise RuntimeError("working outside of application context")


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of old names in torch
def test_modules_with_attributes_that_raise_are_not_shown_to_vllm(monkeypatch):
    odd = ModuleType("odd")
    odd.request = OutOfContext()
    monkeypatch.setitem(sys.modules, "odd", odd)
    shown = ScannableModules()
    assert odd not in shown.values()
    assert torch in shown.values()
    assert shown["odd"] is odd

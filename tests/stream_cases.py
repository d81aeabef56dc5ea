"""What may happen to an engine between the rows of a stream, and what its next row then is."""

import pytest
import torch
from faulty_weights import NoWeights

from dagrl.engines.weights import TrainedWeights
from dagrl.errors import EngineError
from dagrl.graph.roles import Sampling

PROMPTS = [[3 + (7 * row + place) % 40 for place in range(1 + row)] for row in range(8)]


def loads(engine, model):
    engine.load_weights(TrainedWeights(model, dtype=torch.float32), 9)


def sleeps(engine, model):
    engine.sleep()


def sleeps_and_wakes(engine, model):
    engine.sleep()
    engine.wake()


def fails_to_load(engine, model):
    with pytest.raises(EngineError, match="did not come"):
        engine.load_weights(NoWeights(model), 9)


def closes(engine, model):
    engine.close()


ALIVE = [
    (loads, "was given weights or slept after"),
    (sleeps, "`weights` and `kv_cache` sleep"),
    (sleeps_and_wakes, "was given weights or slept after"),
]
DEADLY = [(fails_to_load, "is dead: loading weights failed"), (closes, "is dead: it was closed")]


def cases(changes):
    """For pytest: the change, what is said, and whether the stream had begun."""
    return pytest.mark.parametrize(
        ("change", "message", "begun"),
        [
            pytest.param(change, message, begun, id=f"{change.__name__}-{'begun' if begun else 'opened'}")
            for change, message in changes
            for begun in (False, True)
        ],
    )


def open_stream(engine, *, begun, max_new_tokens=20):
    rows = engine.stream(PROMPTS, torch.arange(8), Sampling(max_new_tokens=max_new_tokens))
    if begun:
        next(rows)
    return rows


def assert_ended(rows, message):
    """It says so instead of a row, and gives none afterwards."""
    with pytest.raises(EngineError, match=message):
        next(rows)
    assert list(rows) == []

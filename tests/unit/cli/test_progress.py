"""The line of a step and of an evaluation."""

from dagrl.cli.progress import ProgressLines
from dagrl.trainer.records import Record


def step(number: int, seconds: float = 2.0, **metrics: float) -> Record:
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    return Record("grpo", number, named, seconds, {"generate": 1.0, "verify": 0.001, "update": 0.5, "ref": 0.25})


def test_a_step_shows_known_metrics_the_slowest_ops_and_what_is_left() -> None:
    line = ProgressLines("grpo", 10).line(step(4, reward__mean=0.5, actor__ref_kl=0.01, unknown=3.0))
    assert line == "step 4/10 reward 0.500 kl 0.0100 2.00 s (generate 1000 update 500 ref 250 ms) eta 12s"


def test_what_is_left_follows_the_last_twenty_steps() -> None:
    progress = ProgressLines("grpo", 100)
    progress.line(step(1, seconds=1000.0))
    for number in range(2, 22):
        line = progress.line(step(number, seconds=1.0))
    assert line.endswith("eta 79s")


def test_an_evaluation_shows_every_reward() -> None:
    metrics = {"reward/mean": 0.75, "reward/mean/easy": 0.5, "response_length/mean": 3.0}
    line = ProgressLines("grpo", 10).line(Record("eval", 5, metrics, 0.5, {}))
    assert line == "eval after step 5: reward 0.750 easy 0.500 0.50 s"

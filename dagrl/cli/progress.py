"""One plain line for each step and evaluation."""

from dagrl.cli.output import say
from dagrl.errors import counted
from dagrl.executor.events import Event, OpPrinted
from dagrl.trainer.records import Record, Start

#: Shown on the line of a training step, if the step has them: label and metric.
_SHOWN = (
    ("reward", "reward/mean", ".3f"),
    ("kl", "actor/ref_kl", ".4f"),
    ("entropy", "actor/entropy", ".3f"),
    ("len", "response_length/mean", ".1f"),
    ("gap", "rollout/logprob_gap", ".4f"),
)
_SLOWEST = 3


def start_line(training: str, seed: int, start: Start) -> str:
    """The first line of a run: what it is, where, and where it goes on."""
    line = f"{training}: {counted(start.steps, 'step')}, seed {seed}, run folder {start.folder}"
    if start.resumed_from is not None:
        return f"{line}, goes on after step {start.resumed_from}"
    return f"{line}, starts again: nothing in it was saved" if start.again else line


class ProgressLines:
    """Formats records; keeps the time of the last steps for the estimate of what is left."""

    def __init__(self, training: str, num_steps: int) -> None:
        self._training = training
        self._num_steps = num_steps
        self._recent: list[float] = []

    def line(self, record: Record) -> str:
        """The line of a record."""
        if record.pipeline != self._training:
            return self._evaluation(record)
        self._recent = [*self._recent[-19:], record.seconds]
        shown = [f"{label} {record.metrics[name]:{form}}" for label, name, form in _SHOWN if name in record.metrics]
        slowest = sorted(record.op_seconds.items(), key=lambda item: -item[1])[:_SLOWEST]
        times = " ".join(f"{op} {seconds * 1000:.0f}" for op, seconds in slowest)
        left = (self._num_steps - record.step) * sum(self._recent) / len(self._recent)
        head = f"step {record.step}/{self._num_steps} {' '.join(shown)}"
        return f"{head} {record.seconds:.2f} s ({times} ms) eta {left:.0f}s"

    def _evaluation(self, record: Record) -> str:
        rewards = {name: value for name, value in record.metrics.items() if name.startswith("reward/mean")}
        labels = {name: name.removeprefix("reward/mean/").replace("reward/mean", "reward") for name in rewards}
        shown = " ".join(f"{labels[name]} {value:.3f}" for name, value in rewards.items())
        return f"{record.pipeline} after step {record.step}: {shown} {record.seconds:.2f} s"


def show_prints(event: Event) -> None:
    """Show what a node printed in another process, each line with the node and its rank."""
    if isinstance(event, OpPrinted):
        for line in event.text.splitlines():
            say(f"[{event.op} rank {event.rank}] {line}")

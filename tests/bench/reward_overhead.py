"""``python -m tests.bench.reward_overhead``: milliseconds a step that calling a trivial function in processes costs.

Warm, 512 rows, by shape; the whole node is timed. Prints one JSON line last: the median of the steps, and CPU time,
which a neighbour's load changes less.
"""

import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import psutil

CODE = """
def columns(*, response_text, answers):
    return [float(text == answer) for text, answer in zip(response_text, answers)]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str == ground_truth)

def with_details(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": 1.0, "acc": solution_str == ground_truth}

def trl(prompts, completions, answer, **kwargs):
    return [float(text == expected) for text, expected in zip(completions, answer)]
"""

SHAPES = ("columns", "compute_score", "with_details", "trl")


def reward_overhead(num_rows: int = 512, rounds: int = 30, steps: int = 5) -> dict[str, dict[str, float]]:
    """For each shape the median milliseconds of a warm step, and CPU milliseconds a step of the run and its processes.

    The shapes take turns, so that a neighbour's load meets all of them alike.
    """
    from dagrl.nodes import reward_function
    from dagrl.rewards.pool import close_pools

    texts = [f"the answer is {row % 97}" for row in range(num_rows)]
    answers = [f"the answer is {row % 89}" for row in range(num_rows)]
    chats = [[{"role": "user", "content": f"question {row // 4}"}] for row in range(num_rows)]
    fields = [{"prompt": f"question {row // 4}", "answer": answers[row]} for row in range(num_rows)]
    sources = ["bench"] * num_rows
    walls: dict[str, list[float]] = {name: [] for name in SHAPES}
    spent: dict[str, float] = dict.fromkeys(SHAPES, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trivial_rewards.py"
        file.write_text(CODE)
        for turn in range(-2, rounds):
            for name in SHAPES:
                before = _cpu_seconds()
                for _ in range(steps):
                    started = time.perf_counter()
                    reward_function(chats, texts, answers, sources, fields, function=f"{file}:{name}")
                    if turn >= 0:
                        walls[name].append(time.perf_counter() - started)
                spent[name] += _cpu_seconds() - before if turn >= 0 else 0.0
    close_pools()
    return {
        name: {
            "ms": round(1000 * statistics.median(walls[name]), 2),
            "cpu_ms": round(1000 * spent[name] / (rounds * steps), 2),
        }
        for name in SHAPES
    }


def _cpu_seconds() -> float:
    """CPU seconds of this process and all below it."""
    one = psutil.Process()
    times = [process.cpu_times() for process in one.children(recursive=True)]
    return time.process_time() + sum(each.user + each.system for each in times)


def main() -> None:
    """Measure and print."""
    report = {"bench": "reward_overhead", "rows": 512, "load1": os.getloadavg()[0], "per_step": reward_overhead()}
    print(json.dumps(report))


if __name__ == "__main__":
    main()

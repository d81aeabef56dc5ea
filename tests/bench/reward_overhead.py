"""``python -m tests.bench.reward_overhead``: milliseconds a step that calling a trivial function in processes costs.

Warm, 512 rows, by shape; the whole node is timed. Prints one JSON line last. A quiet machine gives the figure: the
least of the medians of several rounds, since a neighbour's load only adds.
"""

import json
import os
import statistics
import tempfile
import time
from pathlib import Path

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


def reward_overhead(num_rows: int = 512, rounds: int = 5, steps: int = 30) -> dict[str, float]:
    """Milliseconds of a warm step for each shape: the least of the rounds' medians."""
    from dagrl.nodes import reward_function
    from dagrl.rewards.pool import close_pools

    texts = [f"the answer is {row % 97}" for row in range(num_rows)]
    answers = [f"the answer is {row % 89}" for row in range(num_rows)]
    chats = [[{"role": "user", "content": f"question {row // 4}"}] for row in range(num_rows)]
    fields = [{"prompt": f"question {row // 4}", "answer": answers[row]} for row in range(num_rows)]
    sources = ["bench"] * num_rows
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trivial_rewards.py"
        file.write_text(CODE)
        for name in ("columns", "compute_score", "with_details", "trl"):

            def step(function: str = f"{file}:{name}") -> float:
                started = time.perf_counter()
                reward_function(chats, texts, answers, sources, fields, function=function)
                return time.perf_counter() - started

            for _ in range(5):
                step()
            medians = [statistics.median(step() for _ in range(steps)) for _ in range(rounds)]
            found[name] = round(1000 * min(medians), 2)
    close_pools()
    return found


def main() -> None:
    """Measure and print."""
    report = {"bench": "reward_overhead", "rows": 512, "load1": os.getloadavg()[0], "ms_per_step": reward_overhead()}
    print(json.dumps(report))


if __name__ == "__main__":
    main()

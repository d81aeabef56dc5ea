"""Built-in losses and algorithm nodes say where they are from."""

import re

import pytest

from dagrl import nodes
from dagrl.graph.losses import Loss
from dagrl.graph.node import Node
from dagrl.ops.aggregate import AGG_MODES, aggregate

#: An arXiv id, a page, or an author with a year.
SOURCE = re.compile(r"arXiv \d{4}\.\d{4,5}|\b[a-z.]+\.(net|xyz|site)/\S+|[A-Z]\w+( et al\.)? (19|20)\d\d\b")
#: Nodes that are no algorithm of anyone's: rows, forward passes, updates, rewards by rule.
PLAIN = {
    *("prompts", "short_prompts", "generate", "old_logprob", "old_logprob_squares", "ref_logprob", "teacher_topk"),
    *("values", "update_policy", "update_critic", "report", "sum_rewards", "stack_rewards", "place_rewards"),
    *("verify", "math_verify", "gym_score", "format_reward", "reward_function", "reward_model_score"),
}
DECLARED = {name: one for name in nodes.__all__ if isinstance(one := getattr(nodes, name), Node | Loss)}


@pytest.mark.parametrize("name", sorted(DECLARED.keys() - PLAIN))
def test_an_algorithm_names_its_source(name: str) -> None:
    doc = DECLARED[name].function.__doc__ or ""
    assert SOURCE.search(doc), doc


def test_plain_nodes_are_nodes() -> None:
    assert all(isinstance(DECLARED[name], Node) for name in PLAIN)


@pytest.mark.parametrize("mode", AGG_MODES)
def test_an_aggregation_names_its_source(mode: str) -> None:
    lines = re.findall(rf"- ``{mode}``: (.*?)(?=\n    - |\n\n)", aggregate.__doc__ or "", re.DOTALL)
    assert len(lines) == 1
    assert SOURCE.search(" ".join(lines[0].split()))

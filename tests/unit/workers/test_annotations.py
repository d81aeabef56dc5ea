"""What a role computes is a named range in the traces of a run."""

import inspect

import pytest

from dagrl.graph.roles import Critic, Policy, RewardModel
from dagrl.workers.critic import CriticWorker
from dagrl.workers.policy import PolicyWorker
from dagrl.workers.reward_model import RewardModelWorker

#: Methods of roles that only read and write text.
TEXT = {"apply_chat_template", "decode", "tokenize_responses"}
ROLES = [(Policy, PolicyWorker), (Critic, CriticWorker), (RewardModel, RewardModelWorker)]


@pytest.mark.parametrize(("role", "worker"), ROLES, ids=lambda one: one.__name__)
def test_every_method_of_a_role_that_computes_is_annotated(role, worker) -> None:
    methods = {name for name, _ in inspect.getmembers(role, inspect.isfunction) if not name.startswith("_")} - TEXT
    assert methods
    bare = [name for name in methods if inspect.unwrap(getattr(worker, name)) is getattr(worker, name)]
    assert bare == [], "needs `@DistProfiler.annotate()`"

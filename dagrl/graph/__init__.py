"""The step graph: node and loss contracts, Pipeline, specs of pools, groups and models, role protocols.

Never tensors, processes or files: a graph is data that the compiler reads.
"""

from dagrl.graph.losses import Loss, LossTerms, loss
from dagrl.graph.node import Node, node
from dagrl.graph.pipeline import Edge, Pipeline
from dagrl.graph.refill import refill
from dagrl.graph.roles import Critic, LossColumns, Policy, RewardModel
from dagrl.graph.rollouts import RolloutSpec, server, vllm
from dagrl.graph.specs import ModelSpec, ResourcePool, WorkerGroup, adamw, critic, policy, reward_model

__all__ = [
    "Critic",
    "Edge",
    "Loss",
    "LossColumns",
    "LossTerms",
    "ModelSpec",
    "Node",
    "Pipeline",
    "Policy",
    "ResourcePool",
    "RewardModel",
    "RolloutSpec",
    "WorkerGroup",
    "adamw",
    "critic",
    "loss",
    "node",
    "policy",
    "refill",
    "reward_model",
    "server",
    "vllm",
]

"""Reward functions that users bring: found by name, called in their own shape, run in processes that can be killed.

Knows rows as plain lists and nothing of graphs, tensors or models. What runs in the children (``child``, ``loading``,
``guard``, ``shapes``, ``scores``, ``board``) imports the standard library alone.
"""

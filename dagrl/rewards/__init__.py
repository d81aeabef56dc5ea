"""Reward functions that users bring: found by name, called in their own shape, run in processes that can be killed.

Knows rows as plain lists and nothing of graphs, tensors or models. The run (``scoring``, ``pool``, ``processes``) asks
a fork server (``server``) for processes, each below a ``keeper`` that ends whatever it starts. What runs in them
(``child``, ``loading``, ``guard``, ``scores``, ``board``, ``frames``, ``tree``) imports the standard library alone.
"""

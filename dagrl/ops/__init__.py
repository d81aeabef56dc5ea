"""Pure tensor math: masks, advantages, KL, policy losses, log-probs, aggregation. Never columns, models or processes.

A loss that reduces a row before the engine aggregates it uses `row_mean`.
"""

from dagrl.ops.masks import row_mean

__all__ = ["row_mean"]

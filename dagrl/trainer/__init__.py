"""The step loop: data order, steps, evaluation, metrics, the final model. Never how a node runs."""

"""Training and rollout engines on torch: models, scoring, training, sampling, rollout. They obey; the plan decides."""

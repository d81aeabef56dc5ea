"""How far the trainer's log-probs have drifted from those of the engine that sampled."""

from typing import NamedTuple

from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.data.metrics import Mean
from dagrl.ops.masks import mean_metric, row_mean, where_masked
from dagrl.ops.rollout_weights import log_ratios


class Drift(NamedTuple):
    """Statistics of trainer against rollout, parts of which merge exactly; rho = trainer / rollout probability."""

    trainer_ppl: Mean
    rollout_ppl: Mean
    ppl_ratio: Mean
    kl: Mean
    kl_k3: Mean
    chi2_token: Mean
    chi2_sequence: Mean


def drift(
    old_logprobs: Float32[Tensor, "B T"], rollout_logprobs: Float32[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Drift:
    """Perplexities, KL and chi-square divergences of the trained tokens, in float64.

    - ``trainer_ppl``, ``rollout_ppl``: mean over rows of exp(-row mean of log-probs); ``ppl_ratio``: mean over rows
      of their quotient, trainer over rollout
    - ``kl``: KL(rollout || trainer) in nats by k1, the mean of -log rho; ``kl_k3`` by k3, the mean of
      rho - 1 - log rho
    - ``chi2_token``: chi^2(trainer || rollout), the mean of rho^2 - 1; ``chi2_sequence``: the mean over rows of
      (product of rho)^2 - 1

    Degenerate cases: equal log-probs give 0, and a ratio of 1; a row without a trained token counts nowhere; masked
    places may hold NaN or inf. An overflow is shown as inf, never clamped away.
    """
    log_rho = log_ratios(old_logprobs, rollout_logprobs, mask)
    rows = mask.any(dim=1)
    trainer, rollout = (
        row_mean(where_masked(x.detach().double(), mask), mask) for x in (old_logprobs, rollout_logprobs)
    )
    return Drift(
        trainer_ppl=mean_metric((-trainer).exp(), rows),
        rollout_ppl=mean_metric((-rollout).exp(), rows),
        ppl_ratio=mean_metric((rollout - trainer).exp(), rows),
        kl=mean_metric(-log_rho, mask),
        kl_k3=mean_metric(log_rho.expm1() - log_rho, mask),
        chi2_token=mean_metric((2 * log_rho).expm1(), mask),
        chi2_sequence=mean_metric((2 * log_rho.sum(dim=1)).expm1(), rows),
    )

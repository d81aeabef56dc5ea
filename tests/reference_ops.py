"""Scalar float64 references for `dagrl.ops`: plain Python numbers and loops, no tensors, no autograd.

A mask is a row of bools, a batch a list of rows. Gradients are written out by hand.
"""

from math import exp, fsum, isnan, log, sqrt

Rows = list[list[float]]
Mask = list[list[bool]]


def trained(row, mask_row):
    return [value for value, keep in zip(row, mask_row, strict=True) if keep]


def row_mean(values: Rows, mask: Mask) -> list[float]:
    means = []
    for row, mask_row in zip(values, mask, strict=True):
        kept = trained(row, mask_row)
        means.append(fsum(kept) / len(kept) if kept else 0.0)
    return means


def position_ids(attention_mask: Mask) -> list[list[int]]:
    positions = []
    for row in attention_mask:
        seen, out = 0, []
        for present in row:
            seen += present
            out.append(max(seen - 1, 0))
        positions.append(out)
    return positions


def groups_of(rewards, group_ids) -> dict[int, list[float]]:
    groups: dict[int, list[float]] = {}
    for reward, group in zip(rewards, group_ids, strict=True):
        groups.setdefault(group, [])
        if not isnan(reward):
            groups[group].append(reward)
    return groups


def unbiased_std(values: list[float]) -> float:
    mean = fsum(values) / len(values)
    return sqrt(fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def grpo_advantages(rewards, group_ids, *, normalize_by_std=True, eps=1e-6) -> list[float]:
    groups = groups_of(rewards, group_ids)
    advantages = []
    for reward, group in zip(rewards, group_ids, strict=True):
        others = groups[group]
        if isnan(reward) or len(others) < 2 or max(others) == min(others):
            advantages.append(0.0)
            continue
        centred = reward - fsum(others) / len(others)
        advantages.append(centred / (unbiased_std(others) + eps) if normalize_by_std else centred)
    return advantages


def group_statistics(rewards, group_ids) -> dict[str, float]:
    groups = groups_of(rewards, group_ids).values()
    stds = [unbiased_std(group) for group in groups if len(group) >= 2]
    return {
        "num_groups": len(groups),
        "num_singletons": sum(len(group) == 1 for group in groups),
        "num_uniform": sum(len(group) >= 2 and len(set(group)) == 1 for group in groups),
        "num_unscorable": sum(isnan(reward) for reward in rewards),
        "std_sum": fsum(stds),
        "std_count": len(stds),
    }


def kl(logprob: float, ref: float, kind: str) -> tuple[float, float]:
    """The estimate and its derivative in ``logprob``."""
    d = logprob - ref
    if kind == "k1":
        return d, 1.0
    if kind == "k2":
        return 0.5 * d * d, d
    return exp(-d) - 1 + d, 1 - exp(-d)


def ppo(logprob, old, advantage, *, eps_low=0.2, eps_high=None, dual_clip=None) -> tuple[float, float, bool]:
    """The loss, its derivative in ``logprob``, and whether the lower or upper bound took the gradient."""
    high = 1 + (eps_low if eps_high is None else eps_high)
    low = 1 - eps_low
    ratio = exp(logprob - old)
    limited = low if ratio < low else high if ratio > high else ratio
    plain, bounded = -ratio * advantage, -limited * advantage
    clipped = bounded > plain
    loss, slope = (bounded, 0.0) if clipped else (plain, plain)
    if dual_clip is not None and advantage < 0 and loss > -dual_clip * advantage:
        loss, slope = -dual_clip * advantage, 0.0
    return loss, slope, clipped


def softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    weights = [exp(value - top) for value in logits]
    return [weight / fsum(weights) for weight in weights]


def log_softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    total = top + log(fsum(exp(value - top) for value in logits))
    return [value - total for value in logits]


def entropy(logits: list[float]) -> float:
    return -fsum(p * log(p) for p in softmax(logits) if p > 0)


def token_logprobs(logits, target: int, temperature: float) -> tuple[float, float]:
    scaled = [value / temperature for value in logits]
    return log_softmax(scaled)[target], entropy(scaled)


def token_logprobs_gradient(logits, target, temperature, on_logprob, on_entropy) -> list[float]:
    """Of on_logprob * logprob + on_entropy * entropy, in the logits."""
    scaled = [value / temperature for value in logits]
    p, h = softmax(scaled), entropy(scaled)
    gradient = []
    for j, p_j in enumerate(p):
        of_entropy = -p_j * (log(p_j) + h) if p_j > 0 else 0.0
        gradient.append((on_logprob * ((j == target) - p_j) + on_entropy * of_entropy) / temperature)
    return gradient


def token_weights(mask: Mask, mode: str, norm_length: int = 1) -> Rows:
    """What each trained token's loss is multiplied by before everything is summed; 0 elsewhere."""
    lengths = [sum(row) for row in mask]
    tokens, rows = sum(lengths), sum(length > 0 for length in lengths)
    weights = []
    for row, length in zip(mask, lengths, strict=True):
        weight = {
            "token-mean": lambda: 1 / tokens,
            "token-sum": lambda: 1.0,
            "seq-mean-token-sum": lambda: 1 / rows,
            "seq-mean-token-mean": lambda length=length: 1 / (rows * length),
            "seq-mean-token-sum-norm": lambda: 1 / (rows * norm_length),
        }[mode]
        weights.append([weight() if keep else 0.0 for keep in row])
    return weights


def aggregate(losses: Rows, mask: Mask, mode: str, norm_length: int = 1) -> float:
    weights = token_weights(mask, mode, norm_length)
    return fsum(
        weight * loss
        for weight_row, loss_row, mask_row in zip(weights, losses, mask, strict=True)
        for weight, loss, keep in zip(weight_row, loss_row, mask_row, strict=True)
        if keep
    )


def rloo_advantages(rewards, group_ids) -> list[float]:
    groups = groups_of(rewards, group_ids)
    advantages = []
    for reward, group in zip(rewards, group_ids, strict=True):
        scored = groups[group]
        if isnan(reward) or len(scored) < 2:
            advantages.append(0.0)
            continue
        others = (fsum(scored) - reward) / (len(scored) - 1)
        advantages.append(reward - others)
    return advantages


def gspo(logprobs, old, advantage: float, mask, *, eps=3e-4, eps_high=4e-4) -> tuple[float, list[float], bool]:
    """One row: its loss, the derivative in each of its log-probs (0 at masked ones), and whether it was clipped."""
    ratios = [new - before for new, before, keep in zip(logprobs, old, mask, strict=True) if keep]
    if not ratios:
        return 0.0, [0.0] * len(mask), False
    s = exp(fsum(ratios) / len(ratios))
    limited = min(max(s, 1 - eps), 1 + eps_high)
    plain, bounded = -s * advantage, -limited * advantage
    clipped = bounded > plain
    slope = 0.0 if clipped else plain / len(ratios)
    return max(plain, bounded), [slope if keep else 0.0 for keep in mask], clipped


def overlong(length: int, max_length: int, buffer: int, penalty: float) -> float:
    """Equation 13 of DAPO times ``penalty``."""
    if length <= max_length - buffer:
        return 0.0
    if length <= max_length:
        return penalty * ((max_length - buffer) - length) / buffer
    return -penalty

"""Clip-Cov, KL-Cov and distillation, value by value in float64: what the tensor code is held against."""

from math import exp, fsum, inf, log

Tokens = list[list[float]]
Mask = list[list[bool]]
Place = tuple[int, int]


def trained(mask: Mask) -> list[Place]:
    return [(row, place) for row, flags in enumerate(mask) for place, flag in enumerate(flags) if flag]


def covariances(logprobs: Tokens, advantages: Tokens, mask: Mask) -> dict[Place, float]:
    places = trained(mask)
    mean_logprob = fsum(logprobs[b][t] for b, t in places) / len(places)
    mean_advantage = fsum(advantages[b][t] for b, t in places) / len(places)
    return {(b, t): (logprobs[b][t] - mean_logprob) * (advantages[b][t] - mean_advantage) for b, t in places}


def count_of(share: float, mask: Mask) -> int:
    return max(1, int(share * len(trained(mask))))


def is_clipped(logprob: float, old: float, advantage: float, low: float, high: float) -> bool:
    ratio = exp(logprob - old)
    return (advantage > 0 and ratio > 1 + high) or (advantage < 0 and ratio < 1 - low)


def clip_cov_selected(
    logprobs: Tokens, old: Tokens, advantages: Tokens, mask: Mask, uniform: Tokens,
    *, eps: float, eps_high: float, share: float, low: float, high: float,
) -> set[Place]:  # fmt: skip
    found = covariances(logprobs, advantages, mask)
    candidates = [
        (uniform[b][t], (b, t))
        for (b, t), value in found.items()
        if low < value < high and not is_clipped(logprobs[b][t], old[b][t], advantages[b][t], eps, eps_high)
    ]
    return {place for _, place in sorted(candidates)[: count_of(share, mask)]}


def kl_cov_selected(logprobs: Tokens, advantages: Tokens, mask: Mask, uniform: Tokens, *, share: float) -> set[Place]:
    found = covariances(logprobs, advantages, mask)
    ranked = sorted(found, key=lambda place: (-found[place], uniform[place[0]][place[1]]))
    return set(ranked[: count_of(share, mask)])


def clip_cov(
    logprob: float, old: float, advantage: float, *, selected: bool, eps: float, eps_high: float
) -> tuple[float, float]:
    """Loss and its derivative by the log-prob."""
    if selected:
        return 0.0, 0.0
    ratio = exp(logprob - old)
    if is_clipped(logprob, old, advantage, eps, eps_high):
        return -min(max(ratio, 1 - eps), 1 + eps_high) * advantage, 0.0
    return -ratio * advantage, -ratio * advantage


def kl_cov(logprob: float, old: float, advantage: float, *, selected: bool, coef: float) -> tuple[float, float]:
    """Loss and its derivative by the log-prob."""
    ratio, distance = exp(logprob - old), logprob - old
    sign = (distance > 0) - (distance < 0)
    penalty = (coef * abs(distance), coef * sign) if selected else (0.0, 0.0)
    return -ratio * advantage + penalty[0], -ratio * advantage + penalty[1]


def sampled_reverse_kl(logprob: float, old: float, teacher: float) -> tuple[float, float]:
    """Value and derivative by the log-prob, the difference held constant."""
    value = exp(logprob - old) * (logprob - teacher)
    return value, value


def log_softmax(logits: list[float]) -> list[float]:
    highest = max(logits)
    total = highest + log(fsum(exp(logit - highest) for logit in logits))
    return [logit - total for logit in logits]


def topk_kl(logits: list[float], ids: list[int], teacher: list[float], kind: str, tail: str) -> float:
    student_all = log_softmax(logits)
    student = [student_all[token] for token in ids]
    target = list(teacher)
    if tail == "renormalize":
        student = [value - log(fsum(map(exp, student))) for value in student]
        target = [value - log(fsum(map(exp, teacher))) for value in teacher]
    if tail == "bucket" and len(ids) < len(logits):
        student.append(log(fsum(exp(value) for token, value in enumerate(student_all) if token not in ids)))
        left = 1 - fsum(map(exp, teacher))
        target.append(log(left) if left > 0 else -inf)
    if kind == "forward":
        return fsum(exp(t) * (t - s) for s, t in zip(student, target, strict=True) if t > -inf)
    return fsum(exp(s) * (s - t) for s, t in zip(student, target, strict=True) if s > -inf)


def full_kl(first: list[float], second: list[float]) -> float:
    """KL between two distributions given as log-probs over the whole vocabulary."""
    return fsum(exp(p) * (p - q) for p, q in zip(first, second, strict=True))

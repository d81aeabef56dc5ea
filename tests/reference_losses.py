"""Scalar float64 references of losses, KL penalties and rollout corrections: plain numbers and loops, one row a time.

A row is a list of its trained tokens. Each policy loss gives the loss of every token and whether it counts as clipped.
``frozen`` stands for the log-probs at places that carry no gradient, so the derivative of a loss is the one in ``new``
with ``frozen`` held: `derivative` takes it by central differences.
"""

from collections.abc import Callable
from math import exp, expm1, fsum, inf, log, log1p

Row = list[float]
TokenLosses = tuple[Row, list[bool]]


def derivative(loss: Callable[[Row], Row], new: Row, coefficients: Row, step: float = 1e-5) -> Row:
    """Of sum(coefficient * loss) over the row's tokens, in each of ``new``."""

    def total(at: Row) -> float:
        return fsum(c * x for c, x in zip(coefficients, loss(at), strict=True))

    slopes = []
    for place in range(len(new)):
        up, down = list(new), list(new)
        up[place] += step
        down[place] -= step
        slopes.append((total(up) - total(down)) / (2 * step))
    return slopes


def ppo_token(log_ratio, advantage, *, eps=0.2, eps_high=None, dual_clip=None) -> tuple[float, bool]:
    ratio = exp(log_ratio)
    limited = min(max(ratio, 1 - eps), 1 + (eps if eps_high is None else eps_high))
    plain, bounded = -ratio * advantage, -limited * advantage
    loss = max(plain, bounded)
    if dual_clip is not None and advantage < 0:
        loss = min(loss, -dual_clip * advantage)
    return loss, bounded > plain


def ppo_clip(new: Row, frozen: Row, old: Row, rollout: Row, advantages: Row, **options) -> TokenLosses:
    tokens = [ppo_token(n - o, a, **options) for n, o, a in zip(new, old, advantages, strict=True)]
    return [loss for loss, _ in tokens], [clipped for _, clipped in tokens]


def decoupled_ppo(
    new: Row,
    frozen: Row,
    old: Row,
    rollout: Row,
    advantages: Row,
    *,
    weight_cap=5.0,
    over_cap="truncate",
    **options,
) -> TokenLosses:
    losses, clipped = ppo_clip(new, frozen, old, rollout, advantages, **options)
    for place, (proximal, behaviour) in enumerate(zip(old, rollout, strict=True)):
        weight = exp(proximal - behaviour)
        if weight_cap is not None and weight > weight_cap:
            weight = weight_cap if over_cap == "truncate" else 0.0
        losses[place] *= weight
    return losses, clipped


def gspo(new: Row, frozen: Row, old: Row, rollout: Row, advantages: Row, *, eps=3e-4, eps_high=4e-4) -> TokenLosses:
    log_s = fsum(f - o for f, o in zip(frozen, old, strict=True)) / len(new)
    own = [n - f for n, f in zip(new, frozen, strict=True)]  # 0, with the gradient of the token alone
    tokens = [ppo_token(log_s + moved, a, eps=eps, eps_high=eps_high) for moved, a in zip(own, advantages, strict=True)]
    return [loss for loss, _ in tokens], [clipped for _, clipped in tokens]


def gmpo(new: Row, frozen: Row, old: Row, rollout: Row, advantages: Row, *, eps=0.4, eps_high=0.4) -> TokenLosses:
    held, clipped = [], []
    for f, o, a in zip(frozen, old, advantages, strict=True):
        log_ratio = f - o
        limited = min(log_ratio, eps_high) if a > 0 else max(log_ratio, -eps) if a < 0 else log_ratio
        held.append(limited)
        clipped.append(limited != log_ratio)
    product = 1.0
    for value in held:
        product *= exp(value)
    mean = product ** (1 / len(held))
    own = [1.0 if stopped else exp(n - f) for n, f, stopped in zip(new, frozen, clipped, strict=True)]
    return [-mean * moved * a for moved, a in zip(own, advantages, strict=True)], clipped


def gmpo_objective(new: Row, old: Row, advantage: float, *, eps=0.4, eps_high=0.4) -> float:
    """The objective of arXiv 2507.20673 for one row, negative; nothing in it is held constant."""
    sign = 1 if advantage > 0 else -1
    most = exp(eps_high if sign > 0 else eps)
    product = 1.0
    for n, o in zip(new, old, strict=True):
        product *= min(exp(n - o) ** sign, most) ** sign
    return -(product ** (1 / len(new))) * advantage


def reinforce(new: Row, frozen: Row, old: Row, rollout: Row, advantages: Row) -> TokenLosses:
    return [-a * n for n, a in zip(new, advantages, strict=True)], [False] * len(new)


def cispo(new: Row, frozen: Row, old: Row, rollout: Row, advantages: Row, *, eps=None, eps_high=4.0) -> TokenLosses:
    losses, clipped = [], []
    for n, f, o, a in zip(new, frozen, old, advantages, strict=True):
        ratio = exp(f - o)
        weight = min(ratio, 1 + eps_high) if eps is None else min(max(ratio, 1 - eps), 1 + eps_high)
        losses.append(-weight * a * n)
        clipped.append(weight != ratio)
    return losses, clipped


def topr(new: Row, frozen: Row, old: Row, rollout: Row, advantages: Row, *, length_normalized=False) -> TokenLosses:
    ratio = 1.0
    for f, o in zip(frozen, old, strict=True):
        ratio *= exp(f - o)
    if length_normalized:
        ratio = ratio ** (1 / len(new))
    weights = [min(ratio, 1.0) if a < 0 else 1.0 for a in advantages]
    return [-w * a * n for w, a, n in zip(weights, advantages, new, strict=True)], [False] * len(new)


def sapo(
    new: Row, frozen: Row, old: Row, rollout: Row, advantages: Row, *, tau_positive=1.0, tau_negative=1.05
) -> TokenLosses:
    losses = []
    for n, o, a in zip(new, old, advantages, strict=True):
        tau = tau_positive if a > 0 else tau_negative
        losses.append(-a * 4 / tau / (1 + exp(-tau * (exp(n - o) - 1))))
    return losses, [False] * len(new)


def binary_kl(mu: float, pi: float) -> float:
    return mu * log(mu / pi) + (1 - mu) * (log1p(-mu) - log1p(-pi))


def dppo(divergence: str, default: float):
    """The loss of one divergence with its default threshold."""

    def loss(
        new: Row,
        frozen: Row,
        old: Row,
        rollout: Row,
        advantages: Row,
        *,
        delta=default,
        delta_high=None,
        ratio_cap=None,
    ) -> TokenLosses:
        losses, masked = [], []
        for n, f, behaviour, a in zip(new, frozen, rollout, advantages, strict=True):
            mu, pi = exp(behaviour), exp(f)
            distance = abs(mu - pi) if divergence == "tv" else binary_kl(mu, pi)
            limit = delta_high if delta_high is not None and a > 0 else delta
            stop = distance > limit and ((a > 0 and pi > mu) or (a < 0 and pi < mu))
            weight = 0.0 if stop else min(pi / mu, inf if ratio_cap is None else ratio_cap)
            losses.append(-weight * a * (1 + n - f))
            masked.append(stop)
        return losses, masked

    return loss


dppo_tv, dppo_kl = dppo("tv", 0.15), dppo("kl", 0.05)


def dro(new: Row, frozen: Row, old: Row, rollout: Row, advantages: Row, *, beta=0.1) -> TokenLosses:
    losses = [-a * n + beta / 2 * (n - o) ** 2 for n, o, a in zip(new, old, advantages, strict=True)]
    return losses, [False] * len(new)


def value_clip(value: float, old: float, target: float, *, eps=0.2) -> tuple[float, float, bool]:
    """The loss, its derivative in ``value``, and whether the clip took the gradient."""
    plain = (value - target) ** 2
    if eps is None:
        return plain / 2, value - target, False
    limited = min(max(value, old - eps), old + eps)
    bounded = (limited - target) ** 2
    return (bounded / 2, 0.0, True) if bounded > plain else (plain / 2, value - target, False)


def kl_value(logprob: float, ref: float, kind: str) -> float:
    d = logprob - ref
    return {"k1": d, "k2": d * d / 2, "k3": expm1(-d) + d, "abs": abs(d)}[kind]


def kl(logprob: float, ref: float, kind: str) -> tuple[float, float]:
    """The estimate and the derivative in ``logprob`` that it is given; "k1+" and "k3+" have that of k2."""
    d = logprob - ref
    slope = {"k1": 1.0, "k2": d, "k3": -expm1(-d), "abs": float((d > 0) - (d < 0))}
    return kl_value(logprob, ref, kind.removesuffix("+")), d if kind.endswith("+") else slope[kind]


def penalized(reward: float, logprobs: Row, refs: Row, mask: list[bool], beta: float, kind: str) -> tuple[Row, float]:
    """The token rewards of one row, and the row's KL."""
    tokens = [0.0] * len(mask)
    kl = 0.0
    for place, keep in enumerate(mask):
        if keep:
            cost = kl_value(logprobs[place], refs[place], kind)
            kl += cost
            tokens[place] = -beta * cost
    trained = [place for place, keep in enumerate(mask) if keep]
    if trained:
        tokens[trained[-1]] += reward
    return tokens, kl


def adapted_beta(beta: float, measured: float, target: float, num_rows: int, horizon: int) -> float:
    """The controller of arXiv 1909.08593: each row moves it by a part of what the step's error says."""
    error = (measured - target) / target
    error = 0.2 if error > 0.2 else -0.2 if error < -0.2 else error
    factor = 1.0
    for _ in range(num_rows):
        factor += error / horizon
    return beta * factor


def sft(new: Row) -> Row:
    """The loss of each trained token of a row."""
    return [-logprob for logprob in new]


def row_drift(old: Row, rollout: Row, kind: str, over: str) -> Row:
    """What each trained token of the row is judged by."""
    drifts = [kl_value(r, o, kind) for o, r in zip(old, rollout, strict=True)]
    if over == "token" or not drifts:
        return drifts
    judged = {"row-mean": fsum(drifts) / len(drifts), "row-sum": fsum(drifts), "row-max": max(drifts)}[over]
    return [judged] * len(drifts)


def correction(olds: list[Row], rollouts: list[Row], options: dict) -> tuple[list[Row], float, int]:
    """The weights of each row's trained tokens; the effective sample size and of how many."""
    level, high = options.get("level", "token"), options.get("high", 2.0)
    high = inf if high is None else high
    low, outside = options.get("low", 0.0), options.get("outside", "truncate")
    weights = []
    for old, rollout in zip(olds, rollouts, strict=True):
        logs = [o - r for o, r in zip(old, rollout, strict=True)]
        raw = {"token": logs, "sequence": [fsum(logs)] * len(logs), "none": [0.0] * len(logs)}[level]
        row = []
        for rho in map(exp, raw):
            inside = low <= rho <= high
            row.append(rho if inside else 0.0 if outside == "mask" else min(max(rho, low), high))
        if options.get("reject_by"):
            above, below = options.get("reject_above", inf), options.get("reject_below", -inf)
            judged = row_drift(old, rollout, options["reject_by"], options.get("reject_over", "row-mean"))
            row = [0.0 if drift > above or drift < below else weight for weight, drift in zip(row, judged, strict=True)]
        weights.append(row)
    tokens = [weight for row in weights for weight in row]
    units = [fsum(row) / len(row) for row in weights if row] if level == "sequence" else tokens
    squares = fsum(unit * unit for unit in units)
    size = fsum(units) ** 2 / squares if squares else 0.0
    mean = fsum(units) / len(units) if units else 0.0
    if options.get("normalize") and mean:
        weights = [[weight / mean for weight in row] for row in weights]
    return weights, size, len(units)


def drift(olds: list[Row], rollouts: list[Row]) -> dict[str, float]:
    """The drift metrics over all trained tokens, or rows that have one."""
    pairs = [(old, rollout) for old, rollout in zip(olds, rollouts, strict=True) if old]
    rows = [(fsum(old) / len(old), fsum(rollout) / len(rollout)) for old, rollout in pairs]
    logs = [[o - r for o, r in zip(old, rollout, strict=True)] for old, rollout in pairs]
    tokens = [value for row in logs for value in row]

    def mean(values: Row) -> float:
        return fsum(values) / len(values)

    return {
        "trainer_ppl": mean([exp(-trainer) for trainer, _ in rows]),
        "rollout_ppl": mean([exp(-sampler) for _, sampler in rows]),
        "ppl_ratio": mean([exp(sampler - trainer) for trainer, sampler in rows]),
        "kl": mean([-value for value in tokens]),
        "kl_k3": mean([exp(value) - 1 - value for value in tokens]),
        "chi2_token": mean([exp(value) ** 2 - 1 for value in tokens]),
        "chi2_sequence": mean([exp(fsum(row)) ** 2 - 1 for row in logs]),
    }

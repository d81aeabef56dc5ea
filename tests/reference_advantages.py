"""Scalar float64 references for `dagrl.ops.advantages`: plain Python numbers, loops and explicit sums, no tensors.

A mask is a row of bools, a batch a list of rows, an unscorable reward NaN, and groups are told by their ids.
"""

from itertools import combinations
from math import exp, fsum, isnan, nan, sqrt

from reference_ops import groups_of, grpo_advantages, unbiased_std

Row = list[float]


def trained_places(mask_row) -> list[int]:
    return [place for place, keep in enumerate(mask_row) if keep]


def placed(rewards: Row, mask) -> list[Row]:
    """Each reward on the last trained token of its row."""
    rows = []
    for reward, mask_row in zip(rewards, mask, strict=True):
        row = [0.0] * len(mask_row)
        for place in trained_places(mask_row)[-1:]:
            row[place] = reward
        rows.append(row)
    return rows


def reward_to_go(rewards: list[Row], mask, gamma: float) -> list[Row]:
    """Every trained token's sum over the trained tokens from it on, each power of gamma written out."""
    rows = []
    for row, mask_row in zip(rewards, mask, strict=True):
        places, out = trained_places(mask_row), [0.0] * len(row)
        for first, place in enumerate(places):
            out[place] = fsum(gamma**step * row[later] for step, later in enumerate(places[first:]))
        rows.append(out)
    return rows


def gae(rewards: list[Row], values: list[Row], mask, gamma: float, lam: float) -> list[Row]:
    """Equation 16 of GAE: the exponentially weighted sum of one-step errors, over trained tokens alone."""
    rows = []
    for reward_row, value_row, mask_row in zip(rewards, values, mask, strict=True):
        places, out = trained_places(mask_row), [0.0] * len(mask_row)
        errors = []
        for number, place in enumerate(places):
            after = value_row[places[number + 1]] if number + 1 < len(places) else 0.0
            errors.append(reward_row[place] + gamma * after - value_row[place])
        for number, place in enumerate(places):
            out[place] = fsum((gamma * lam) ** step * error for step, error in enumerate(errors[number:]))
        rows.append(out)
    return rows


def whiten(values: list[Row], mask, *, normalize_by_std: bool = True, eps: float = 1e-6) -> list[Row]:
    kept = [
        value for row, keeps in zip(values, mask, strict=True) for value, keep in zip(row, keeps, strict=True) if keep
    ]
    if len(kept) < 2 or max(kept) == min(kept):
        return [[0.0] * len(row) for row in values]
    mean = fsum(kept) / len(kept)
    scale = unbiased_std(kept) + eps if normalize_by_std else 1.0
    return [
        [(value - mean) / scale if keep else 0.0 for value, keep in zip(row, keeps, strict=True)]
        for row, keeps in zip(values, mask, strict=True)
    ]


def without(mask, rows_out) -> list[list[bool]]:
    """The mask with whole rows taken out."""
    return [[keep and not out for keep in row] for row, out in zip(mask, rows_out, strict=True)]


def reinforce_pp(rewards: Row, mask, gamma: float) -> list[Row]:
    scored = [0.0 if isnan(reward) else reward for reward in rewards]
    return whiten(reward_to_go(placed(scored, mask), mask, gamma), without(mask, [isnan(r) for r in rewards]))


def reinforce_pp_of_tokens(rewards: list[Row], mask, gamma: float) -> list[Row]:
    """Of rewards on tokens: a row with a NaN at a trained one is unscorable."""
    out = [any(isnan(row[place]) for place in trained_places(keeps)) for row, keeps in zip(rewards, mask, strict=True)]
    scored = [[0.0] * len(row) if gone else row for row, gone in zip(rewards, out, strict=True)]
    return whiten(reward_to_go(scored, mask, gamma), without(mask, out))


def remax(rewards: Row, baselines: Row, mask) -> list[Row]:
    """An outcome reward less that of the greedy answer, at every trained token."""
    rows = []
    for reward, baseline, mask_row in zip(rewards, baselines, mask, strict=True):
        lead = 0.0 if isnan(reward) or isnan(baseline) else reward - baseline
        rows.append([lead if keep else 0.0 for keep in mask_row])
    return rows


def remax_of_tokens(rewards: list[Row], baselines: Row, mask) -> list[Row]:
    """The reward of a token and all trained ones after it, less that of the greedy answer."""
    rows = []
    for row, baseline, mask_row in zip(rewards, baselines, mask, strict=True):
        places, out = trained_places(mask_row), [0.0] * len(row)
        for place in [] if isnan(baseline) else places:
            out[place] = fsum(row[later] for later in places if later >= place) - baseline
        rows.append(out)
    return rows


def reinforce_pp_baseline(rewards: Row, group_ids, mask) -> list[Row]:
    groups = groups_of(rewards, group_ids)
    spread, out = [], []
    for reward, group, row in zip(rewards, group_ids, mask, strict=True):
        scored = groups[group]
        void = isnan(reward) or len(scored) < 2
        out.append(void)
        spread.append([0.0 if void else reward - fsum(scored) / len(scored)] * len(row))
    return whiten(spread, without(mask, out))


def maxrl(rewards: Row, group_ids) -> Row:
    groups, advantages = groups_of(rewards, group_ids), []
    for reward, group in zip(rewards, group_ids, strict=True):
        scored = groups[group]
        mean = fsum(scored) / len(scored) if scored else 0.0
        advantages.append(0.0 if isnan(reward) or len(scored) < 2 or mean == 0 else (reward - mean) / mean)
    return advantages


def opo(rewards: Row, group_ids, lengths) -> Row:
    advantages = []
    for reward, group in zip(rewards, group_ids, strict=True):
        rows = [
            (length, other)
            for length, other, its in zip(lengths, rewards, group_ids, strict=True)
            if its == group and not isnan(other)
        ]
        scored = [other for _, other in rows]
        if isnan(reward) or max(scored) == min(scored):
            advantages.append(0.0)
            continue
        total = fsum(length for length, _ in rows)
        advantages.append(reward - (fsum(length * other for length, other in rows) / total if total else 0.0))
    return advantages


def gpg(rewards: Row, group_ids, trained: list[bool], *, normalize_by_std: bool) -> Row:
    groups = groups_of(rewards, group_ids)
    rows = valid = 0
    for reward, group, its_trained in zip(rewards, group_ids, trained, strict=True):
        if its_trained:
            rows += 1
            valid += not isnan(reward) and max(groups[group]) != min(groups[group])
    plain = grpo_advantages(rewards, group_ids, normalize_by_std=normalize_by_std)
    return [rows / valid * a if valid and its_trained else 0.0 for a, its_trained in zip(plain, trained, strict=True)]


def pass_at_k(rewards: Row, group_ids, k: int, eps: float = 1e-6) -> Row:
    """Every subset of k rows of a group, written out."""
    advantages = [0.0] * len(rewards)
    for group in set(group_ids):
        rows = [i for i, its in enumerate(group_ids) if its == group and not isnan(rewards[i])]
        if len(rows) <= k or len({rewards[i] for i in rows}) == 1:
            continue
        best = {subset: max(rewards[i] for i in subset) for subset in combinations(rows, k)}
        mean = fsum(best.values()) / len(best)
        std = sqrt(fsum((value - mean) ** 2 for value in best.values()) / len(best))
        for i in rows:
            mine = [value for subset, value in best.items() if i in subset]
            advantages[i] = (fsum(mine) / len(mine) - mean) / (std + eps)
    return advantages


def grpo_passk(rewards: Row, group_ids, *, normalize_by_std: bool, eps: float = 1e-6) -> Row:
    """The best of each group gets its lead over the second, both found by sorting."""
    advantages = [0.0] * len(rewards)
    for group in set(group_ids):
        rows = [i for i, its in enumerate(group_ids) if its == group and not isnan(rewards[i])]
        if len(rows) < 2:
            continue
        first, second = sorted(rows, key=lambda i: -rewards[i])[:2]
        lead = rewards[first] - rewards[second]
        advantages[first] = lead / (unbiased_std([rewards[i] for i in rows]) + eps) if normalize_by_std else lead
    return advantages


def gdpo(components: list[Row], group_ids, weights: Row) -> Row:
    """``components`` holds the rewards of each row."""
    out = [any(isnan(reward) for reward in row) for row in components]
    summed = [0.0] * len(components)
    for number, weight in enumerate(weights):
        column = [nan if gone else row[number] for row, gone in zip(components, out, strict=True)]
        for i, advantage in enumerate(grpo_advantages(column, group_ids)):
            summed[i] += weight * advantage
    first = [nan if gone else 0.0 for gone in out]
    sizes = {group: len(scored) for group, scored in groups_of(first, group_ids).items()}
    mask = [[not gone and sizes[group] >= 2] for gone, group in zip(out, group_ids, strict=True)]
    return [row[0] for row in whiten([[value] for value in summed], mask)]


def score_norm(logprobs: Row, chosen: int) -> float:
    """|e_chosen - p|^2, entry by entry of the vocabulary."""
    return fsum(((entry == chosen) - exp(logprob)) ** 2 for entry, logprob in enumerate(logprobs))


def otb(returns: list[Row], norms: list[Row], group_ids, mask, scorable) -> list[Row]:
    out = [[0.0] * len(row) for row in mask]
    for group in set(group_ids):
        rows = [i for i, its in enumerate(group_ids) if its == group and scorable[i]]
        places = {i: trained_places(mask[i]) for i in rows}
        for t in range(max((len(found) for found in places.values()), default=0)):
            here = [i for i in rows if len(places[i]) > t]
            gains = [returns[i][places[i][t]] for i in here]
            if max(gains) == min(gains):
                continue
            weights = [fsum(norms[i][place] for place in places[i][: t + 1]) for i in here]
            if fsum(weights) > 0:
                baseline = fsum(w * g for w, g in zip(weights, gains, strict=True)) / fsum(weights)
            else:
                baseline = fsum(gains) / len(gains)
            for i, gain in zip(here, gains, strict=True):
                out[i][places[i][t]] = gain - baseline
    return out

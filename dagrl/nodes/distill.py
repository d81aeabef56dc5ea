"""Distillation from a teacher: its log-probs of the responses, and losses that draw the policy towards it."""

from typing import NamedTuple

from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl.data.metrics import Metrics
from dagrl.graph import Policy, loss, node
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.graph.roles import TokenBatch
from dagrl.nodes.logprob import needs_sampling
from dagrl.nodes.losses.shared import weighted
from dagrl.nodes.refusals import below
from dagrl.ops.distill import DistillKind, Tail, sampled_reverse_kl, topk_kl
from dagrl.ops.masks import mean_metric, where_masked

_TOPK = frozenset({"teacher_topk_ids", "teacher_topk_logprobs"})


class TeacherLogProbs(NamedTuple):
    """What the teacher says of each place of a response; 0 where nothing is trained."""

    teacher_logprobs: Float32[Tensor, "B T"]
    teacher_topk_ids: Int64[Tensor, "B T K"] | None
    teacher_topk_logprobs: Float32[Tensor, "B T K"] | None


def _frozen_teacher(call: CallView) -> list[Refusal]:
    group, refusals = call.group, needs_sampling(call)
    if group is not None and group.model.optimizer is not None:
        fix = "pass a worker group whose policy has no optimizer"
        refusals.append((f"its teacher is `{group.name}`, which trains", fix))
    return [*refusals, *below(call, "k", 1), *below(call, "micro_batch_size")]


@node(check=_frozen_teacher)
def teacher_topk(
    teacher: Policy,
    input_ids: Int64[Tensor, "B S"],
    attention_mask: Bool[Tensor, "B S"],
    position_ids: Int64[Tensor, "B S"],
    response_mask: Bool[Tensor, "B T"],
    temperatures: Float32[Tensor, " B"],
    *,
    k: int = 32,
    micro_batch_size: int = 0,
    wanted: frozenset[str],
) -> TeacherLogProbs:
    """Log-probs of the responses under a frozen teacher, and its ``k`` likeliest tokens at each place.

    At the sampling temperature and over the teacher's whole vocabulary, which must be the student's; logits exist a
    chunk at a time. The top-k is computed only where it is read.
    """
    tokens = TokenBatch(input_ids, attention_mask, position_ids, response_mask, temperatures)
    if not wanted & _TOPK:
        scored = teacher.compute_logprobs(tokens, micro_batch_size=micro_batch_size)
        return TeacherLogProbs(scored.logprobs, None, None)
    return TeacherLogProbs(*teacher.compute_topk(tokens, k, micro_batch_size=micro_batch_size))


@loss()
def reverse_kl_distill(
    new_logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    teacher_logprobs: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    rollout_weights: Float32[Tensor, "B T"] | None = None,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """On-policy distillation: an estimate of KL(policy || teacher) at each sampled token, with the KL's own gradient.

    r * (new - teacher), r = new / old, the difference held constant: the reverse KL of arXiv 2306.13649 (GKD), as a
    policy gradient with the advantage teacher - new at each token and no discount (Thinking Machines, On-Policy
    Distillation, 2025, which keeps old in place of new: equal on the first step after sampling). Needs no reward.
    The estimate is that of tokens drawn by old; ``rollout_weights`` make up for a rollout that drew them otherwise.
    """
    losses = sampled_reverse_kl(new_logprobs, old_logprobs, teacher_logprobs, response_mask)
    losses = weighted(losses, rollout_weights, response_mask)
    return losses, Metrics({"distill/reverse_kl": mean_metric(losses.detach(), response_mask)})


def teacher_kl(
    new_logits: Float32[Tensor, "N V"],
    teacher_topk_ids: Int64[Tensor, "N K"],
    teacher_topk_logprobs: Float32[Tensor, "N K"],
    *,
    kind: DistillKind,
    tail: Tail,
) -> Float32[Tensor, " N"]:
    """The divergence at each token; see ``dagrl.ops.distill.topk_kl``."""
    return topk_kl(new_logits, teacher_topk_ids, teacher_topk_logprobs, kind=kind, tail=tail)


@loss(project=teacher_kl)
def topk_distill(
    teacher_kl: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    *,
    kind: DistillKind = "forward",
    tail: Tail = "bucket",
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """The KL between policy and teacher at each place of the response, over the teacher's top-k (arXiv 2306.13649).

    ``kind="forward"`` is KL(teacher || policy), which covers all that the teacher would say; ``"reverse"`` is
    KL(policy || teacher), which keeps to what it finds likely. Mass outside the top-k is one more event
    (``tail="bucket"``: at most the full KL), or left out with both distributions renormalised over the top-k
    (``"renormalize"``), or left out as it is (``"drop"``: may be negative). Nothing is sampled, so there is no ratio.
    """
    losses = where_masked(teacher_kl, response_mask)
    return losses, Metrics({f"distill/topk_{kind}_kl": mean_metric(losses.detach(), response_mask)})

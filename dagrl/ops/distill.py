"""Divergences of a student from a teacher: estimated from sampled tokens, or over the teacher's top-k."""

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl.ops.masks import where_masked
from dagrl.ops.ppo_clip import teaches_nothing

DistillKind = Literal["forward", "reverse"]
Tail = Literal["bucket", "renormalize", "drop"]
#: A teacher's tail mass below it is not told from 0 by sums of float32 probabilities.
TAIL_FLOOR = 1e-6
#: A log-prob whose exp is 0 in float32; -inf is raised to it, because 0 * -inf would be NaN.
_WEIGHTLESS = -150.0


def sampled_reverse_kl(
    logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    teacher_logprobs: Float32[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
) -> Float32[Tensor, "B T"]:
    """Estimate KL(student || teacher) at each token that the old student sampled, with the gradient of the KL.

    r * d, with r = exp(logprobs - old_logprobs) and d = logprobs - teacher_logprobs held constant: in expectation over
    the old student both value and gradient, r * d * d logprob, are those of the KL. A masked token gives 0 and may hold
    NaN. Degenerate case: student equal to teacher gives 0 with gradient 0, however large r.
    """
    student = where_masked(logprobs, mask)
    log_ratio = student - where_masked(old_logprobs.detach(), mask)
    difference = student.detach() - where_masked(teacher_logprobs.detach(), mask)
    return log_ratio.masked_fill(teaches_nothing(log_ratio, difference), 0.0).exp() * difference


def topk_kl(
    logits: Float32[Tensor, "N V"],
    ids: Int64[Tensor, "N K"],
    teacher: Float32[Tensor, "N K"],
    *,
    kind: DistillKind,
    tail: Tail,
) -> Float32[Tensor, " N"]:
    """KL between the student's distribution softmax(logits) and a teacher known by its ``ids``' log-probs, in nats.

    ``forward`` is KL(teacher || student) = sum p_t (log p_t - log p_s), ``reverse`` KL(student || teacher). The mass
    outside the K ids is, by ``tail``:

    - ``bucket``: one event more, so that both distributions add up to 1. By the data processing inequality the
      result is between 0 and the full KL.
    - ``renormalize``: left out, both distributions scaled to add up to 1 over the K ids. Never negative; how much
      the student puts elsewhere is not trained.
    - ``drop``: left out, the sum of the K terms as they are. May be negative.

    Differentiable in ``logits`` only. Degenerate cases: with K = V there is no tail and all three are the full KL; a
    teacher's tail below 1e-6 has the log-prob of 1e-6 in the bucket's term; a token that the student cannot draw
    (logit -inf) adds 0 to the reverse KL and makes the forward KL inf.

    Raises:
        ValueError: for an unknown kind or tail, or an id outside the student's vocabulary.
    """
    _check(logits, ids, kind, tail)
    total = logits.logsumexp(1, keepdim=True)
    student = logits.gather(1, ids) - total
    teacher = teacher.detach()
    if tail == "renormalize":
        student = student - student.logsumexp(1, keepdim=True)
        teacher = teacher - teacher.logsumexp(1, keepdim=True)
    mass = teacher.exp()
    if tail == "bucket" and ids.shape[1] < logits.shape[1]:
        outside = logits.scatter(1, ids, -torch.inf).logsumexp(1, keepdim=True) - total
        left = (1 - mass.sum(1, keepdim=True)).clamp(min=0)
        student, mass = torch.cat([student, outside], 1), torch.cat([mass, left], 1)
        teacher = torch.cat([teacher, left.clamp(min=TAIL_FLOOR).log()], 1)
    return _divergence(student, teacher, mass, kind)


def _divergence(
    student: Float32[Tensor, "N K"], teacher: Float32[Tensor, "N K"], mass: Float32[Tensor, "N K"], kind: DistillKind
) -> Float32[Tensor, " N"]:
    """The sum of the terms; one of mass 0 is 0."""
    if kind == "forward":
        return (mass * (teacher - student)).masked_fill(mass == 0, 0.0).sum(1)
    student = student.clamp(min=_WEIGHTLESS)
    return (student.exp() * (student - teacher)).masked_fill(student == _WEIGHTLESS, 0.0).sum(1)


def _check(logits: Tensor, ids: Tensor, kind: str, tail: str) -> None:
    if kind not in get_args(DistillKind) or tail not in get_args(Tail):
        raise ValueError(f"kind={kind!r} and tail={tail!r} are not both known")
    if ids.numel() and int(ids.max()) >= logits.shape[1]:
        raise ValueError(
            f"the teacher has a token {int(ids.max())}, the student's vocabulary {logits.shape[1]} tokens: "
            "distillation needs one tokenizer for both"
        )

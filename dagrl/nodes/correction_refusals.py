"""What an update refuses where its rows were not drawn from the policy that it trains, term by term of its loss."""

from dagrl.graph import LossTerms
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.graph.losses import LossTerm
from dagrl.nodes.logprob import sampling_option

#: What to do with a term that cannot be corrected as it is.
_REPLACED = "take a loss that reads `rollout_weights`, such as `ppo_clip`, in its place"


def uncorrected(call: CallView) -> list[Refusal]:
    """Refuse a correction that not all of the loss applies, and rows drawn from some tokens alone without one."""
    terms: LossTerms = call.options["loss"]
    if "rollout_weights" not in call.columns():
        return _drawn_from_some(call, terms)
    if not any("rollout_weights" in _reads(term) for term in terms.live):
        what = "`rollout_weights` arrive, but no term of its loss reads them"
        return [(what, "drop the call that writes them, or take a loss that reads them, such as `ppo_clip`")]
    fix = f"drop the call that writes them, or {_REPLACED}"
    return [
        (f"`rollout_weights` arrive, but `{term.contract.name}` in its loss learns from samples without them", fix)
        for term in _uncompared(terms)
        if "rollout_weights" not in _reads(term)
    ]


def _drawn_from_some(call: CallView, terms: LossTerms) -> list[Refusal]:
    """Refuse rows that were drawn from some tokens alone, for each term that takes them for the policy's own."""
    drawn = [("top_p", value, source) for source, value in sampling_option(call, "top_p") if value < 1]
    drawn += [("top_k", value, source) for source, value in sampling_option(call, "top_k") if value > 0]
    return [
        (
            f"`{source}` has {name}={value}: its rows come from another distribution than the one that is trained, "
            f"and `{term.contract.name}` in its loss does not make up for it",
            f"{_correction_of(term)}, or sample with top_p=1 and top_k=0",
        )
        for term in _uncompared(terms)
        for name, value, source in drawn
    ]


def _correction_of(term: LossTerm) -> str:
    return "pass a `rollout_correction` of the rows too" if "rollout_weights" in _reads(term) else _REPLACED


def _uncompared(terms: LossTerms) -> list[LossTerm]:
    """The live terms that learn from samples and do not compare the policy with ``rollout_logprobs`` themselves."""
    learning = [term for term in terms.live if _reads(term) & {"old_logprobs", "advantages"}]
    return [term for term in learning if "rollout_logprobs" not in _reads(term)]


def _reads(term: LossTerm) -> set[str]:
    return {read.name for read in term.contract.reads}

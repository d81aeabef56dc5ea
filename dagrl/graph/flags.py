"""What a declaration says beside its signature, `@node(needs=, mutates=, ...)`, and whether it fits."""

from dataclasses import dataclass, field
from typing import get_args

from dagrl.data.columns import ENGINE_OUTPUTS
from dagrl.graph.contract import (
    CANARY_OPTIONS,
    MINIBATCH_OPTIONS,
    NO_EXAMPLES,
    SOURCE_OPTIONS,
    Check,
    Examples,
    Needs,
    Rows,
    Split,
    Write,
)
from dagrl.graph.draft import Draft


@dataclass(frozen=True, kw_only=True)
class NodeFlags:
    """The arguments of ``@node(...)``."""

    writes: str | None = None
    needs: Needs | None = None
    mutates: bool = False
    split: Split = "row"
    rows: Rows = "same"
    alias_of: str | None = None
    check: Check | None = None
    before_run: Check | None = None
    examples: Examples = field(default_factory=lambda: NO_EXAMPLES)


def check_flags(draft: Draft, flags: NodeFlags, written: tuple[Write, ...]) -> None:
    """Note flags that are unknown, or that do not go with each other or with the signature."""
    _check_choices(draft, flags)
    _check_role_flags(draft, flags)
    _check_row_flags(draft, flags)
    if flags.alias_of is not None and (flags.alias_of not in ENGINE_OUTPUTS or len(written) != 1 or flags.mutates):
        draft.fault(
            f"alias_of={flags.alias_of!r} needs one written column and an engine output",
            f"the engine's outputs are {', '.join(sorted(ENGINE_OUTPUTS))}",
        )
    check_examples(draft, flags.examples)


def _check_choices(draft: Draft, flags: NodeFlags) -> None:
    choices = {
        "needs": (flags.needs, (None, *get_args(Needs))),
        "split": (flags.split, get_args(Split)),
        "rows": (flags.rows, get_args(Rows)),
    }
    for flag, (value, known) in choices.items():
        if value not in known:
            draft.fault(f"{flag}={value!r} is unknown", f"choose one of {', '.join(repr(choice) for choice in known)}")


def _check_role_flags(draft: Draft, flags: NodeFlags) -> None:
    if draft.role is None and (flags.needs or flags.mutates):
        draft.fault("it has needs= or mutates= but no role", "take a role first, e.g. `actor: Policy`")
    if flags.mutates and flags.needs == "rollout":
        draft.fault('it mutates with needs="rollout"', "only the training weights can be mutated")
    if draft.loss_columns is not None and not flags.mutates:
        draft.fault("it takes LossColumns but does not mutate", "declare mutates=True")


def _check_row_flags(draft: Draft, flags: NodeFlags) -> None:
    if draft.state is not None and flags.split != "batch":
        draft.fault("a node with state sees the whole batch", 'declare split="batch"')
    if flags.rows == "source":
        _require_options(draft, "source", SOURCE_OPTIONS)
    if (flags.rows == "source") != (draft.positions is not None):
        draft.fault('`positions` and rows="source" go together', "a source reads rows at `positions`")
    if flags.split == "minibatch":
        _require_options(draft, "mini-batch", MINIBATCH_OPTIONS)
    if "canary" in draft.executor_keywords:
        _require_options(draft, "`canary`", CANARY_OPTIONS)


def _require_options(draft: Draft, kind: str, needed: tuple[str, ...]) -> None:
    names = {option.name for option in draft.options}
    missing = [name for name in needed if name not in names]
    if missing:
        draft.fault(
            f"a {kind} node needs the options {', '.join(f'`{name}`' for name in missing)}", "add them after `*`"
        )


def check_examples(draft: Draft, examples: Examples) -> None:
    """Note examples of what the function neither reads nor takes."""
    known = {option.name for option in draft.options} | {read.name for read in draft.reads}
    known |= {"state"} if draft.state is not None else set()
    for name in examples:
        if name not in known:
            draft.fault(f"examples= names `{name}`, which it neither reads nor takes as an option", "mend the name")

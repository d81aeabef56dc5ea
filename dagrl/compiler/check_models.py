"""Model problems: what the files of a group's model say against loading it, or against a call on it."""

from collections.abc import Iterator

from dagrl.errors import Problem
from dagrl.graph.model_files import Fault, code_fault, end_token_fault, pickle_fault, template_fault
from dagrl.graph.models import model_fault
from dagrl.graph.options import type_fault
from dagrl.graph.pipeline import Call
from dagrl.graph.specs import ModelSpec

_MESSAGES = "messages"


def folder_fault(spec: ModelSpec) -> Fault | None:
    """Why the model's folder is not loaded: there is none that is whole, or reading it could run code."""
    return (
        model_fault(spec.model, weights=not spec.from_scratch)
        or code_fault(spec.model, trust_remote_code=spec.trust_remote_code)
        or (None if spec.from_scratch else pickle_fault(spec.model, allow_pickle=spec.allow_pickle))
    )


def call_model_problems(call: Call) -> Iterator[Problem]:
    """What the model lacks for a call that makes prompts of messages."""
    spec = call.group.model if call.group is not None else None
    reads_messages = any(read.name == _MESSAGES for read in call.contract.reads)
    if spec is None or not reads_messages or type_fault(spec.model, str) is not None:
        return
    if model_fault(spec.model, weights=False) is not None:
        return
    faults = (
        None if spec.chat_template is not None else template_fault(spec.model, spec.maker),
        None if spec.stop_tokens is not None else end_token_fault(spec.model),
    )
    yield from (Problem(fault[0], spec.at, fix=fault[1]) for fault in faults if fault is not None)

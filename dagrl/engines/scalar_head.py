"""Hugging Face models whose head gives one number for each token: critics and reward models.

Token and sequence classification models with one label are both that: a linear layer over the last hidden state.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from dagrl.engines.models import check_weights, load_as, refusing
from dagrl.engines.modules import as_module
from dagrl.errors import ConfigError, Problem
from dagrl.graph.models import SCORING_HEADS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: The auto class of each kind of head, and the families that have it; the first that has it gets a new head.
_CLASSES: dict[str, tuple[Any, Any]] = dict(
    zip(
        SCORING_HEADS,
        (
            (AutoModelForTokenClassification, MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING),
            (AutoModelForSequenceClassification, MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING),
        ),
        strict=True,
    )
)
_ONE_LABEL = "name a sequence- or token-classification model with one label (`num_labels=1`)"


def load_scalar_model(
    folder_or_name: str,
    *,
    dtype: torch.dtype,
    attn_implementation: str,
    new_head: bool,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> PreTrainedModel:
    """A model that gives one number for each token, from a folder or the hub, in evaluation mode.

    A classification model keeps its own head. With ``new_head`` any causal language model serves too: its head is
    new and zero, so that it gives exactly 0 everywhere until it has learned, on every rank and whatever the seed. Other
    frameworks draw it at random, and advantages then carry that noise until the critic has unlearned it.

    Raises:
        ConfigError: where there is no model, it cannot be read, its weights do not fill its config, its head gives
            several numbers or reads its tokens in another way than one by one, or it sees tokens that come later.
    """
    with refusing("model", folder_or_name):
        config: Any = AutoConfig.from_pretrained(folder_or_name, trust_remote_code=trust_remote_code)
    own = _own_head(config)
    if own is None and not new_head:
        raise _error("has no head that gives a score", folder_or_name, _ONE_LABEL)
    if own is not None and config.num_labels != 1:
        raise _error(f"has a head that gives {config.num_labels} numbers, not one", folder_or_name, _ONE_LABEL)
    auto_class = _CLASSES[own or _head_of_family(folder_or_name, config)][0]
    model, report = load_as(
        auto_class,
        folder_or_name,
        dtype=dtype,
        attn_implementation=attn_implementation,
        trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle,
        num_labels=1,
    )
    check_weights(
        folder_or_name,
        report,
        model.state_dict(),
        kind="a classification model" if own else "a causal language model",
        may_lack=_head_weights(model) if own is None else (),
    )
    if not _reads_one_by_one(model):
        what = f"is a `{type(model).__name__}`, whose head does not read tokens one by one, each after those before it"
        fix = "name a model with the body of a causal language model and one linear layer over it"
        raise _error(what, folder_or_name, fix)
    if own is None:
        for parameter in scalar_head(model).parameters():
            nn.init.zeros_(parameter)
    return model


def scalar_head(model: PreTrainedModel) -> nn.Linear:
    """The layer that turns a hidden state into one number."""
    (head,) = _linear_layers(model)
    return head


def _linear_layers(model: PreTrainedModel) -> list[nn.Linear]:
    """Those over the model's body."""
    return [child for child in as_module(model).children() if isinstance(child, nn.Linear)]


def _own_head(config: Any) -> str | None:
    """The kind of head that a checkpoint holds, by the class that wrote it."""
    (name,) = (config.architectures or [""])[:1]
    return next((kind for kind in SCORING_HEADS if name.endswith(kind)), None)


def _head_of_family(reference: str, config: Any) -> str:
    kinds = [kind for kind, (_, families) in _CLASSES.items() if type(config) in families]
    if not kinds:
        what = f"is of the family `{config.model_type}`, for which transformers has no model with a scalar head"
        raise _error(what, reference, "name a model of a family with token or sequence classification")
    return kinds[0]


def _head_weights(model: PreTrainedModel) -> Collection[str]:
    body = f"{model.base_model_prefix}."
    return [name for name in model.state_dict() if not name.startswith(body)]


@torch.no_grad()
def _reads_one_by_one(model: PreTrainedModel) -> bool:
    """Whether the head reads hidden states one by one, and none of them depends on a later token.

    Asked of the model itself: encoders see both ways, and some families pool or scale on the way.
    """
    if model.config.is_encoder_decoder or len(_linear_layers(model)) != 1:
        return False
    first, *others = [token for token in range(4) if token != model.config.pad_token_id][:3]
    ids = torch.tensor([[first, other] for other in others])
    hidden = model.base_model(input_ids=ids).last_hidden_state
    expected = scalar_head(model)(hidden)[:, -1, 0].float()
    own = torch.stack([model(input_ids=row[None]).logits.flatten()[-1] for row in ids]).float()
    is_plain = torch.allclose(own, expected, rtol=1e-3, atol=1e-5)
    return is_plain and torch.allclose(hidden[0, 0], hidden[1, 0], rtol=1e-3, atol=1e-5)


def _error(what: str, reference: str, fix: str) -> ConfigError:
    return ConfigError([Problem(f"the model {what}", facts=(("model", repr(reference)),), fix=fix)])

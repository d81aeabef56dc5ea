"""The contract suite: holds a node or loss against what its declaration promises, on made-up rows.

It works from the declaration alone: inputs come from the column legend, options from their defaults and
``examples=``, a role is played by the packaged tiny model. Never a user's model or data, and never a pipeline.
"""

from dagrl.contracts.loss_rules import check_loss
from dagrl.contracts.node_rules import check_node
from dagrl.contracts.violation import Violation

__all__ = ["Violation", "check_loss", "check_node"]

"""What can be wrong with a reward function as a whole; a row that cannot be scored is no exception but a count."""

from dagrl.errors import DagrlError


class RewardReferenceError(DagrlError):
    """A reference that leads to no function, or to one of no known shape; the text is one sentence with its fix."""


class RewardProcessError(DagrlError):
    """A reward function that cannot be loaded, or processes that do not start."""

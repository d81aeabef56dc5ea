"""What processes report of a walk for people to read: plain records, which events carry as they are."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """A row that was scored: texts, cut where they are long, and the reward, None where it has none."""

    prompt: str
    response: str
    answer: str
    reward: float | None


@dataclass(frozen=True)
class RankMemory:
    """Bytes on a rank: of weights, optimizer state and the columns held now; in use and there in all.

    Where the rank has a GPU, all of them are the GPU's.
    """

    weights: int
    optimizer: int
    columns: int
    used: int
    total: int

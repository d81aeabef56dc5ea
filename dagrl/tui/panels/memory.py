"""What the ranks hold in memory, and how much of it there is."""

from __future__ import annotations

from rich.text import Text

from dagrl.data.reported import RankMemory
from dagrl.errors import counted
from dagrl.tui.canvas import box, fit, join, line
from dagrl.tui.formats import num_bytes, of_bytes
from dagrl.tui.glyphs import FRAME, LABEL
from dagrl.tui.run_info import RunInfo
from dagrl.tui.state import RunState
from dagrl.tui.text import cut, pad, pad_left, safe

#: Fill, style and label of each part, told apart without colour too.
_PARTS = (("█", "cyan", "weights"), ("▓", "magenta", "optimizer"), ("▒", "yellow", "columns"), ("░", "", "other"))
_RANK, _POOL_RANK, _USED = 8, 13, 15


def memory_panel(state: RunState, info: RunInfo, width: int, height: int, now: float) -> list[Text]:
    """A bar for each rank, the fullest first where they do not all fit, in a box."""
    return box("memory by rank", memory_lines(state, width - 4, height - 2), width, height)


def memory_lines(state: RunState, width: int, height: int) -> list[Text]:
    """A bar for each rank, and what its parts are."""
    ranks = [(pool, rank, each) for pool, held in state.memory.items() for rank, each in enumerate(held)]
    if not ranks:
        return [line(("not told yet", LABEL))]
    if len(ranks) >= height:
        ranks = sorted(ranks, key=lambda item: -_share(item[2]))
    shown = ranks[: max(1, height - 2)] if len(ranks) >= height else ranks
    several = len(state.memory) > 1
    label = _POOL_RANK if several else _RANK
    lines = [_rank(safe(pool) if several else "rank", label, rank, memory, width) for pool, rank, memory in shown]
    if len(shown) < len(ranks):
        lines.append(line((f"{counted(len(ranks) - len(shown), 'more rank')}, none fuller", LABEL)))
    return [*lines, *_legend(shown[0][2], width, height - len(lines))]


def _rank(name: str, label_width: int, rank: int, memory: RankMemory, width: int) -> Text:
    """Parts and the rest in use as shares of what there is."""
    label = f"{cut(name, label_width - 4)} {rank}"
    room = max(0, width - label_width - _USED)
    total = max(memory.total, memory.used, 1)
    lengths = [max(0, int(part / total * room + 0.5)) for part in _parts(memory)]
    pieces: list[tuple[str, str]] = []
    left = room
    for (fill, style, _), length in zip(_PARTS, lengths, strict=True):
        pieces.append((fill * min(length, left), style))
        left -= min(length, left)
    used = pad_left(of_bytes(memory.used, memory.total), _USED)
    return fit(line((pad(label, label_width), LABEL), *pieces, ("·" * left, FRAME), used), width)


def _legend(memory: RankMemory, width: int, height: int) -> list[Text]:
    """What the fills mean, with the sizes of the first rank shown: a line for each where there is room."""
    entries = [
        line((fill, style), (f" {label:<9}", LABEL), f"{num_bytes(size):>9}  ")
        for (fill, style, label), size in zip(_PARTS, _parts(memory), strict=True)
    ]
    columns = max(1, width // 24)
    rows = [join(*entries[start : start + columns]) for start in range(0, len(entries), columns)]
    if len(rows) <= height:
        return rows
    return [line(*((f"{fill} {label} ", LABEL) for fill, _, label in _PARTS))]


def _parts(memory: RankMemory) -> tuple[int, int, int, int]:
    known = memory.weights + memory.optimizer + memory.columns
    return memory.weights, memory.optimizer, memory.columns, max(0, memory.used - known)


def _share(memory: RankMemory) -> float:
    return memory.used / memory.total if memory.total > 0 else 0.0

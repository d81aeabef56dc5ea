"""Columns and their legend, metrics, DataProto. Never algorithms, never I/O of runs.

``columns`` and ``metrics`` are plain Python. DataProto loads tensordict, so it is imported on first use.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagrl.data.proto import DataProto, DataProtoItem

__all__ = ["DataProto", "DataProtoItem"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    from dagrl.data import proto

    return getattr(proto, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

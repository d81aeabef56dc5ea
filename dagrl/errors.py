"""Every exception a user can meet, and how its message is laid out.

A message says what is wrong, where in the user's files, what was there, and how to fix it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """``1 row``, ``3 rows``; a plural that takes more than an s is given."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def with_article(noun: str) -> str:
    """``a list``, ``an int``."""
    return f"{'an' if noun.startswith(tuple('aeioAEIO')) else 'a'} {noun}"


def sentence(text: str) -> str:
    """The text with one full stop at its end, also where it quotes a text that had one already."""
    bare = text.rstrip().rstrip(".")
    if text.rstrip().endswith("..."):
        return f"{bare}..."
    return bare if bare.endswith(("?", "!", ":")) else f"{bare}."


@dataclass(frozen=True)
class Location:
    """A line of a user's file."""

    file: str
    line: int

    def __str__(self) -> str:
        path = Path(self.file)
        here = Path.cwd()
        shown = path.relative_to(here) if path.is_relative_to(here) else path
        return f"{shown}:{self.line}"


def short_place(at: Location) -> str:
    """The line without its folder, so that what is made of it does not depend on where the file lies."""
    return f"{at.file.rsplit('/', 1)[-1]}:{at.line}"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: a sentence, the place, labelled facts, and the fix."""

    what: str
    at: Location | None = None
    facts: tuple[tuple[str, str], ...] = ()
    fix: str | None = None

    def lines(self) -> list[str]:
        """The problem as lines, those of the sentence without label."""
        labelled = [("at", str(self.at))] if self.at else []
        labelled += self.facts
        labelled += [("fix", self.fix)] if self.fix else []
        width = max((len(label) for label, _ in labelled), default=0) + 2
        shown = sentence(self.what).split("\n")
        for label, text in labelled:
            first, *rest = text.split("\n")
            shown.append(f"{label:<{width}}{first}")
            shown += [" " * width + line for line in rest]
        return shown


class DagrlError(Exception):
    """Base of every error that dagrl raises on purpose."""


class UserError(DagrlError):
    """The user's input is wrong: no traceback is shown and the exit code is 2.

    The message lists every problem that was found, numbered when there are several.
    """

    title = "invalid input"

    def __init__(self, problems: Sequence[Problem], subject: str = "") -> None:
        self.problems = tuple(problems)
        self.subject = subject
        super().__init__(self.message())

    def headline(self) -> str:
        """The first line, without the number of problems."""
        return f"{self.subject}: {self.title}" if self.subject else self.title

    def message(self) -> str:
        """The whole message, without the class name."""
        shown = [f"{self.headline()}, {counted(len(self.problems), 'problem')}:"]
        for number, problem in enumerate(self.problems, 1):
            mark = f"  {number}. "
            first, *rest = problem.lines()
            shown.append(mark + first)
            shown += [" " * len(mark) + line for line in rest]
        return "\n".join(shown)

    def __reduce__(self):
        return type(self), (self.problems, self.subject)


class CompileError(UserError):
    """Pipelines that cannot be planned; ``subject`` names them, separated by commas."""

    def headline(self) -> str:
        """The pipeline, or the pipelines separated by commas, and that they do not compile."""
        names = [f"`{name}`" for name in self.subject.split(",")]
        return (
            f"pipeline {names[0]} does not compile"
            if len(names) == 1
            else f"pipelines {', '.join(names)} do not compile"
        )


class ConfigError(UserError):
    """Values for `Config`, command-line options or model and data references that do not fit."""

    title = "the configuration is not valid"


class ResumeError(ConfigError):
    """A checkpoint of a run whose settings, data or pipelines were others."""

    title = "the run has changed since it was saved"


class DataChangedError(ConfigError):
    """A data file that is no longer what it was when a run opened it."""

    title = "the data is not what it was"


class PipelineFileError(UserError):
    """A pipeline file that cannot be loaded or built."""

    title = "the pipeline file cannot be used"


class ContractError(UserError):
    """A node or loss whose signature is not a contract; raised where it is defined."""

    title = "the declaration is not valid"


class ContractViolationError(UserError):
    """Nodes or losses that do not keep what their declaration promises, as `dagrl check` found out."""

    title = "the declaration is not kept"


class NodeError(DagrlError):
    """A node failed, or returned something its contract does not allow, while a step ran."""


class TrainingError(DagrlError):
    """Training cannot go on: a gradient that is not finite, weights that do not load."""


class EngineError(DagrlError):
    """A rollout engine that cannot do what it was asked: it sleeps, is dead, or was given another model's weights."""


class CheckpointError(DagrlError):
    """A checkpoint that is damaged, or does not hold what the run needs."""


class DataError(DagrlError, ValueError):
    """A batch, or parts of one, that do not fit together; the message names the column and the part."""


class MissingColumnError(DataError, KeyError):
    """A column or meta_info key that the batch does not have."""

    def __str__(self) -> str:
        return str(self.args[0])


class DataTypeError(DataError, TypeError):
    """A value of a type that cannot be a column or choose rows."""


class RowIndexError(DataError, IndexError):
    """A row outside the batch."""


class ClusterError(UserError):
    """Resources that the cluster does not have, or a cluster that cannot be reached."""

    title = "the cluster cannot run this"


class DispatchError(DagrlError, TypeError):
    """A call on a worker group whose arguments or results do not fit its dispatch mode."""


class WorkerEnvironmentError(DagrlError):
    """Environment variables of a worker that are missing, malformed or not to be set."""


class WorkerError(DagrlError):
    """A method of a worker raised an error; its worker group is torn down.

    ``original`` is the error itself where it could travel, ``worker_traceback`` its traceback as text.
    """

    def __init__(
        self,
        *,
        group: str,
        method: str,
        rank: int,
        node_ip: str,
        error_type: str = "",
        error_message: str = "",
        worker_traceback: str = "",
        original: BaseException | None = None,
    ) -> None:
        self.group = group
        self.method = method
        self.rank = rank
        self.node_ip = node_ip
        self.error_type = error_type
        self.error_message = error_message
        self.worker_traceback = worker_traceback
        self.original = original
        super().__init__(self.message())

    def where(self) -> str:
        """The rank, its group and its node."""
        return f"rank {self.rank} of worker group `{self.group}` (node {self.node_ip})"

    def message(self) -> str:
        """The whole message, without the class name."""
        return f"`{self.method}` failed on {self.where()}: {self.error_type}: {self.error_message}"

    def __reduce__(self):
        return _rebuilt, (type(self), dict(vars(self)))


class WorkerLostError(WorkerError):
    """The process of a worker ended during a call; ``error_message`` is its exit cause."""

    def message(self) -> str:
        """The whole message, without the class name."""
        return f"the process of {self.where()} was lost during `{self.method}`: {self.error_message}"


class WorkerTimeoutError(WorkerError, TimeoutError):
    """A worker had not returned in time; ``rank`` is the first such rank."""

    def message(self) -> str:
        """The whole message, without the class name."""
        return f"`{self.method}` on {self.where()} {self.error_message}"


def _rebuilt(kind: type[WorkerError], fields: dict[str, Any]) -> WorkerError:
    known = {name: value for name, value in fields.items() if not name.startswith("__")}
    return kind(**known)

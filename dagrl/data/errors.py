"""What can be wrong with a batch. Each error is also the builtin that a caller would expect."""

from dagrl.errors import DagrlError


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

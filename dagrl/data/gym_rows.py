"""Rows of prompts from a reasoning-gym task: ``prompts(data="gym:chain_sum?max_terms=3", ...)``."""

from dagrl.data.file_rows import PromptRows
from dagrl.data.row_shapes import PromptRow, answer_text
from dagrl.zoo.gym_tasks import open_gym_task

#: The field of a data row that says which task its other fields belong to.
TASK_FIELD = "gym"


class GymRows(PromptRows):
    """The rows of one split: the question is the prompt; the whole entry, which scoring needs, the data row."""

    def __init__(self, reference: str, split: str) -> None:
        self._task = open_gym_task(reference, split)
        if self._task.entry(0)["answer"] is None:
            self.unanswered = f"the rows of `{reference}` have no one answer: score them with `gym_score`"

    def __len__(self) -> int:
        return self._task.size

    def __getitem__(self, index: int) -> PromptRow:
        entry = self._task.entry(range(len(self))[index])
        answer = None if entry["answer"] is None else answer_text("answer", entry["answer"])
        fields = {**entry, TASK_FIELD: self._task.reference}
        return PromptRow([{"role": "user", "content": entry["question"]}], answer, self._task.name, fields)

"""Rows of reasoning-gym tasks: made the same way each time, apart by split, their options checked."""

import pytest

from dagrl.data.rows import open_rows
from dagrl.errors import ConfigError

pytest.importorskip("reasoning_gym", exc_type=ImportError)

TASK = "gym:chain_sum?min_terms=2&max_terms=3&max_digits=2"


def test_a_row_depends_on_task_options_seed_split_and_index_alone() -> None:
    rows = open_rows(TASK, "train")
    assert len(rows) == 10_000
    again = open_rows(f"{TASK}&size=10&seed=0", "train")
    assert [rows[i].messages for i in (5, 3)] == [again[i].messages for i in (5, 3)]
    first = rows[0]
    assert first.messages[0]["content"] == first.fields["question"]
    assert first.answer == first.fields["answer"]
    assert first.data_source == "chain_sum"
    assert first.fields["metadata"]["source_dataset"] == "chain_sum"
    assert first.fields["metadata"]["num_terms"] in {2, 3}
    assert [rows[i].answer for i in range(20)] != [open_rows(f"{TASK}&seed=1000", "train")[i].answer for i in range(20)]


def test_test_rows_are_others_than_training_rows() -> None:
    task = "gym:chain_sum?min_digits=6&max_digits=6&size=300&test_size=200"
    train, test = open_rows(task, "train"), open_rows(task, "test")
    assert (len(train), len(test)) == (300, 200)
    asked = [{rows[i].fields["question"] for i in range(len(rows))} for rows in (train, test)]
    assert not asked[0] & asked[1]


def test_an_index_outside_the_split_is_none() -> None:
    with pytest.raises(IndexError):
        open_rows(f"{TASK}&size=4", "train")[4]


@pytest.mark.parametrize(
    ("data", "split", "says"),
    [
        ("gym:chain_summ", "train", "did you mean `chain_sum`?"),
        ("gym:", "train", "use one of ab, acre"),
        ("gym:chain_sum?min_term=2", "train", "did you mean `min_terms`?"),
        ("gym:chain_sum?min_terms=x", "train", "`min_terms=x` of the gym task `chain_sum` is no such value"),
        ("gym:chain_sum?min_terms=5&max_terms=3", "train", "max_terms must be >= min_terms"),
        ("gym:chain_sum?size=0", "train", "`size` of a gym task is 0"),
        ("gym:chain_sum?seed=-1", "train", "`seed` of a gym task is -1"),
        ("gym:chain_sum?seed=2147483647", "train", "leaves no room"),
        ("gym:chain_sum?min_terms", "train", "no list of OPTION=VALUE"),
        ("gym:chain_sum", "dev", "no split of a gym task named `dev`"),
    ],
)
def test_a_faulty_reference_is_named(data: str, split: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_rows(data, split)
    assert says in str(caught.value)


def test_a_task_has_splits_of_its_own() -> None:
    with pytest.raises(ConfigError, match="has splits of its own"):
        open_rows(TASK, "train", 0.1)

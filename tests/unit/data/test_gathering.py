"""Every rank gets the rows of all, in rank order; processes are real."""

from gathering_cases import gather
from ranks import run_on_ranks


def test_every_rank_gets_all_rows(tmp_path):
    found = run_on_ranks(gather, 3, tmp_path)
    for rank, each in enumerate(found):
        assert each["same"]
        assert each["rows"] == [0, 10, 11, 20, 21, 22]
        assert each["whole"]
        assert each["objects"] == [0, 1, 2]
        assert each["paired"] == ([0, 10, 11] if rank < 2 else [20, 21, 22])
        assert "column `x0` is missing in part 2; part 0 has it" in each["error"]

from dagrl import Progress
from dagrl.graph.progress import progress_heard


def test_progress_adds_up_and_never_passes_its_total():
    heard = []
    with progress_heard(lambda *told: heard.append(told)):
        progress = Progress(10, "pages")
        progress.advance(4)
        progress.advance()
        progress.advance(100)
    assert heard == [(4, 10, "pages"), (5, 10, "pages"), (10, 10, "pages")]


def test_nobody_need_hear():
    Progress(3).advance()


def test_the_hearer_of_a_block_is_not_heard_after_it():
    heard = []
    with progress_heard(lambda *told: heard.append("outer")):
        with progress_heard(lambda *told: heard.append("inner")):
            Progress(1).advance()
        Progress(1).advance()
    Progress(1).advance()
    assert heard == ["inner", "outer"]

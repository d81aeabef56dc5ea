"""Where a step's time went, against a reference that tries every chain."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_run import plans, state_of, until_step_finished

from dagrl.tui.critical_path import Span, best_to_halve, covered, longest_path, spans_of, step_time
from dagrl.tui.walk_state import OpRun, Sync, Walk

Graph = tuple[dict[str, float], dict[str, tuple[str, ...]]]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Up to eight ops, some of them without a time, each needing some of those before it."""
    names = [f"op{number}" for number in range(draw(st.integers(0, 8)))]
    needs = {name: tuple(draw(st.sets(st.sampled_from(names[:i])))) if i else () for i, name in enumerate(names)}
    timed = {name: draw(st.integers(0, 20) | st.none()) for name in names}
    return {name: float(value) for name, value in timed.items() if value is not None}, needs


def every_chain(needs: dict[str, tuple[str, ...]]) -> list[tuple[str, ...]]:
    chains: list[tuple[str, ...]] = []
    for op, needed in needs.items():
        chains += [(op,), *((*chain, op) for chain in list(chains) if chain[-1] in needed)]
    return chains


@given(graphs())
def test_the_longest_path_is_the_longest_of_all_chains(graph: Graph) -> None:
    seconds, needs = graph
    chains = every_chain(needs)
    lengths = {chain: sum(seconds.get(op, 0.0) for op in chain) for chain in chains}
    path, length, slack = longest_path(seconds, needs)
    assert length == max(lengths.values(), default=0.0)
    assert sum(seconds[op] for op in path) == length
    assert set(slack) == set(seconds) - set(path)
    for op, spare in slack.items():
        assert spare == length - max(lengths[chain] for chain in chains if op in chain)


@given(graphs(), st.data())
def test_an_op_may_take_its_slack_longer_and_no_more(graph: Graph, data: st.DataObject) -> None:
    seconds, needs = graph
    _, length, slack = longest_path(seconds, needs)
    if slack:
        op = data.draw(st.sampled_from(sorted(slack)))
        assert longest_path({**seconds, op: seconds[op] + slack[op]}, needs)[1] == length
        assert longest_path({**seconds, op: seconds[op] + slack[op] + 1}, needs)[1] == length + 1


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=12))
def test_covered_time_counts_overlaps_once(pairs: list[tuple[int, int]]) -> None:
    spans = [Span(start, start + length) for start, length in pairs]
    ticks = {tick for start, length in pairs for tick in range(start, start + length)}
    assert covered(spans) == len(ticks)


def test_the_recorded_step_is_the_sum_of_its_parts() -> None:
    walk = state_of(until_step_finished(4)).last_walk
    assert walk is not None
    times = step_time(walk, plans()[0])
    assert times.seconds == pytest.approx(times.path_seconds + times.turns + times.between)
    assert times.path[:4] == ("prompts", "generate", "ref_logprob", "update_policy")
    assert set(times.slack) == {"verify", "grpo_advantage"}
    spans = spans_of(walk, plans()[0])
    assert times.turns == pytest.approx(spans["verify"].seconds + spans["grpo_advantage"].seconds)
    assert times.turn_pools == ("main",)


#: The first half of a step, in seconds.
SCORED = {"prompts": (0, 1), "generate": (1, 5), "verify": (5, 9), "grpo_advantage": (9, 10)}


def walk_of(**spans: tuple[float, float]) -> Walk:
    """The training walk with these ops at these times, its sync right behind the update."""
    runs = {op: OpRun(start, "done", end, end - start) for op, (start, end) in spans.items()}
    end = max(end for _, end in spans.values())
    return Walk("grpo", 1, 0.0, ops=runs, begun=set(runs), syncs=[Sync("actor", end, end)], seconds=end, ended_at=end)


def test_ops_that_run_side_by_side_take_no_turns() -> None:
    walk = walk_of(
        **SCORED,
        ref_logprob=(5, 10),
        update_policy=(10, 20),
    )
    plan = plans()[0]
    times = step_time(walk, plan)
    assert (times.turns, times.between, times.path_seconds) == (0.0, 0.0, 20.0)
    assert best_to_halve(spans_of(walk, plan), plan) == ("update_policy", 5.0)


def test_a_chain_beside_the_longest_limits_what_its_ops_can_save() -> None:
    walk = walk_of(**SCORED, ref_logprob=(5, 16), update_policy=(16, 17))
    plan = plans()[0]
    slack = step_time(walk, plan).slack
    assert (slack["verify"], slack["grpo_advantage"]) == (6.0, 6.0)
    assert best_to_halve(spans_of(walk, plan), plan) == ("ref_logprob", 5.5)
    walk = walk_of(**SCORED, ref_logprob=(5, 11), update_policy=(11, 12))
    assert best_to_halve(spans_of(walk, plan), plan) == ("generate", 2.0)  # ref_logprob saves 1.0 at most


def test_where_ops_take_turns_each_of_them_counts() -> None:
    walk = walk_of(
        **SCORED,
        ref_logprob=(11, 16),
        update_policy=(16, 26),
    )
    plan = plans()[0]
    times = step_time(walk, plan)
    assert (times.turns, times.between) == (5.0, 1.0)
    assert best_to_halve(spans_of(walk, plan), plan) == ("update_policy", 5.0)
    slow = {**SCORED, "verify": (5, 25), "grpo_advantage": (25, 26)}
    walk = walk_of(**slow, ref_logprob=(26, 47), update_policy=(47, 50))
    assert best_to_halve(spans_of(walk, plan), plan) == ("ref_logprob", 10.5)  # though verify takes nearly as long


def test_a_step_without_ops_has_no_path() -> None:
    times = step_time(Walk("grpo", 1, 0.0, seconds=0.0), plans()[0])
    assert (times.path, times.path_seconds, times.turns) == ((), 0.0, 0.0)
    empty = replace(plans()[0], ops=())
    assert step_time(Walk("grpo", 1, 0.0), empty).seconds == 0.0
    assert best_to_halve({}, empty) == (None, 0.0)

"""Whatever events come in whatever order with whatever text: a frame has its size, and nothing in it is obeyed."""

import math
import unicodedata
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded_run import events, info, state_of
from rich.cells import cell_len

from dagrl.data.reported import RankMemory, Sample
from dagrl.executor.events import EVENTS, Event
from dagrl.tui.frame import frame
from dagrl.tui.lines import Lines
from dagrl.tui.run_info import RunInfo
from dagrl.tui.state import RunState
from dagrl.tui.summary import summary_text

HOSTILE = [
    "[red]markup[/red] [/] [link=x]",
    "\x1b[31mred\x1b[2J\x1b]0;title\x07\x9b2J",
    "".join(map(chr, [*range(32), *range(127, 160)])),
    "\u202eleft\u202c \u2066x\u2069 \u200f",
    "日本語の長い名前" * 50,
    "e" + "\u0301" * 500,
    "👨\u200d👩\u200d👧\u200d👦 🇩🇪 👍🏽 ❤\ufe0f",
    "x" * 1000,
    "\ud800\udfff\ufffe\U0010ffff",
    "a\nb\r\nc\td\u2028e",
    "",
]
NAMES = ["grpo", "eval", "prompts", "generate", "verify", "ref_logprob", "update_policy", "actor", "main"]
TEXTS = st.sampled_from([*NAMES * 3, *HOSTILE]) | st.text(max_size=30)
INTS = st.integers(-3, 50) | st.integers(-(2**63), 2**63)
FLOATS = st.floats(-10, 5000) | st.floats()
VALUES = FLOATS | st.none()
BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "float": FLOATS,
    "int": INTS,
    "str": TEXTS,
    "int | None": INTS | st.none(),
    "tuple[str, ...]": st.lists(TEXTS, max_size=3).map(tuple),
    "Mapping[str, float]": st.dictionaries(
        TEXTS | st.sampled_from(["reward/mean", "actor/loss", "a/actor/loss"]), VALUES, max_size=6
    ),
    "tuple[Sample, ...]": st.lists(st.builds(Sample, TEXTS, TEXTS, TEXTS, VALUES), max_size=4).map(tuple),
    "tuple[RankMemory, ...]": st.lists(st.builds(RankMemory, INTS, INTS, INTS, INTS, INTS), max_size=4).map(tuple),
}


def type_name(given: Any) -> str:
    text = given.__name__ if isinstance(given, type) else str(given)
    return text.replace("collections.abc.", "").replace("dagrl.data.reported.", "")


def any_of(kind: type[Event]) -> st.SearchStrategy[Event]:
    named = {"outcome": st.sampled_from(["done", "stopped", "failed"]) | TEXTS}
    return st.builds(
        kind, **{f.name: named.get(f.name, BY_TYPE.get(type_name(f.type), st.nothing())) for f in fields(kind)}
    )


ANY_EVENT = st.one_of([any_of(kind) for kind in EVENTS.values()])
#: The beginning of a run that happened, and then anything.
SEQUENCES = st.builds(
    lambda count, rest: [*events()[:count], *rest],
    st.integers(0, len(events())),
    st.lists(st.sampled_from(events()) | ANY_EVENT, max_size=25),
)
INFOS = st.sampled_from([info(), RunInfo()]) | st.builds(
    lambda *texts: replace(
        info(), title=texts[0], models=texts[1:2], executor=texts[2], folder=texts[3], resume=texts[4]
    ),
    *[TEXTS] * 5,
)
SIZES = st.sampled_from([(120, 40), (80, 24), (40, 15), (20, 5), (200, 50)]) | st.tuples(
    st.integers(1, 220), st.integers(1, 70)
)


def assert_harmless(text: str) -> None:
    assert not [each for each in text if unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


def assert_fits(state: RunState, given: RunInfo, width: int, height: int, now: float, *, keys: bool, page: int) -> None:
    lines = frame(state, given, width, height, now, keys=keys, sample_page=page)
    assert len(lines) == height
    for each in lines:
        assert cell_len(each.plain) == width, repr(each.plain)
        assert_harmless(each.plain)
        assert all(0 <= span.start <= span.end <= len(each.plain) for span in each.spans)
    for each in summary_text(state, given).splitlines():
        assert_harmless(each)


def test_every_field_of_every_event_is_made_up() -> None:
    assert {type_name(f.type) for kind in EVENTS.values() for f in fields(kind)} <= set(BY_TYPE)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SEQUENCES, INFOS, SIZES, FLOATS, st.booleans(), INTS)
def test_any_events_in_any_order_make_a_frame(
    taken: list[Event], given_info: RunInfo, size: tuple[int, int], now: float, keys: bool, page: int
) -> None:
    assert_fits(state_of(taken), given_info, *size, now, keys=keys, page=page)


@settings(max_examples=100, deadline=None)
@given(st.lists(ANY_EVENT, max_size=30))
def test_any_events_make_harmless_lines(taken: list[Event]) -> None:
    lines = Lines("grpo", 10)
    for event in taken:
        for line in lines.lines(event):
            assert_harmless(line)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("text", [*HOSTILE, "x" * 100_000, "日" * 100_000, "e\u0301" * 50_000, "\x1b[0m\n" * 20_000])
def test_hostile_text_in_every_field_of_a_whole_run(text: str, known: bool) -> None:
    """With metrics that the view knows, or only such that it does not.

    Names keep being told apart, so the state is that of a run; every free text is the hostile one.
    """
    state = RunState()
    for event in events():
        hostile: dict[str, Any] = {
            f.name: text if f.name in ("error", "text", "by", "unit") else getattr(event, f.name) for f in fields(event)
        }
        if "op" in hostile:
            hostile["op"] = f"{hostile['op']}{text}"
        if "samples" in hostile:
            hostile["samples"] = tuple(Sample(text, text, text, each.reward) for each in hostile["samples"])
        if "metrics" in hostile:
            hostile["metrics"] = {**(hostile["metrics"] if known else {}), text: math.nan, f"x{text}": 1.0}
        state.apply(type(event)(**hostile))
    for kind in ("Warned", "OpFailed", "OpPrinted", "ConsoleWritten", "StopRequested"):
        values = {
            "at": 2000.0,
            "pipeline": "grpo",
            "step": 6,
            "op": text,
            "error": text,
            "rank": 0,
            "text": text,
            "by": text,
        }
        state.apply(EVENTS[kind](**{f.name: values[f.name] for f in fields(EVENTS[kind])}))
    given_info = replace(info(), title=text, models=(text,), executor=text, folder=text, resume=text)
    for width, height in ((200, 50), (120, 40), (80, 24), (40, 15), (20, 5), (7, 3)):
        for one in (given_info, replace(given_info, plans=())):
            assert_fits(state, one, width, height, 2001.0, keys=False, page=0)

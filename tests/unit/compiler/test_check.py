"""What a whole graph shows to be wrong; every problem has its place, and all come at once in file order."""

import functools
import inspect

import pytest
from jaxtyping import Float32, Int64
from torch import Tensor

from dagrl import Metrics, Pipeline, ResourcePool, WorkerGroup, adamw, loss, node, policy
from dagrl.compiler import Machine, compile_pipelines
from dagrl.compiler.check import problems_so_far
from dagrl.errors import CompileError
from dagrl.graph.checks import CallView, view

Rewards = Float32[Tensor, " B"]
Tokens = Float32[Tensor, "B T"]


@node(writes="rewards")
def whole_rewards(tokens: Tokens) -> Int64[Tensor, " B"]: ...


@node(writes="rewards")
def token_rewards(tokens: Tokens) -> Tokens: ...


@loss()
def by_row(new_logprobs: Tokens, advantages: Float32[Tensor, " B"], *, eps: float = 0.1) -> tuple[Tokens, Metrics]: ...


@loss()
def by_token(new_logprobs: Tokens, advantages: Tokens) -> tuple[Tokens, Metrics]: ...


@loss()
def of_rows(new_logprobs: Tokens, tokens: Float32[Tensor, " B"]) -> tuple[Tokens, Metrics]: ...


def test_missing_column(toy) -> None:
    with Pipeline("p") as p:
        tokens = toy.draw(toy.group("actor"), toy.source())
        toy.report(tokens)
    with pytest.raises(CompileError) as error:
        compile_pipelines([p])
    (problem,) = error.value.problems
    assert problem.what == "`report` reads `rewards: f32[B]`, but no edge into it carries that column."
    assert ("inputs", "draw (tokens)") in problem.facts
    assert problem.fix is not None
    assert problem.fix.startswith("`rewards` is written by ")


def test_the_writer_of_a_missing_column_is_found_above_and_below(toy) -> None:
    with Pipeline("p") as p:
        tokens = toy.draw(toy.group("actor"), toy.source())
        rewards = toy.judge(tokens)
        toy.report(tokens, name="early")
        toy.report(rewards)
    with pytest.raises(CompileError) as error:
        compile_pipelines([p])
    assert error.value.problems[0].fix == "`judge` writes `rewards`: pass its output to `early`"
    with Pipeline("q") as q:
        tokens = toy.draw(toy.group("actor"), toy.source())
        toy.report(tokens, name="early")
        toy.report(toy.judge(tokens))
    with pytest.raises(CompileError) as error:
        compile_pipelines([q])
    assert "call it before `early`" in (error.value.problems[0].fix or "")


def test_a_column_that_nobody_knows(toy) -> None:
    @node()
    def odd(zebra: Float32[Tensor, " B"]) -> None: ...

    with Pipeline("p") as p:
        odd(toy.source())
    with pytest.raises(CompileError) as error:
        compile_pipelines([p])
    assert "no built-in node writes `zebra`" in (error.value.problems[0].fix or "")


def test_two_writers_name_both(toy) -> None:
    with Pipeline("p") as p:
        tokens = toy.draw(toy.group("actor"), toy.source())
        toy.report(toy.judge(tokens), toy.judge(tokens))
    with pytest.raises(CompileError) as error:
        compile_pipelines([p])
    (problem,) = error.value.problems
    assert problem.what == "`report` reads `rewards`, and 2 edges into it carry that column."
    assert "`judge`" in dict(problem.facts)["writers"]
    assert "`judge#2`" in dict(problem.facts)["writers"]
    assert ".only(" in (problem.fix or "")


def test_one_writer_passed_twice_and_two_writers_of_an_unread_column_are_fine(toy) -> None:
    with Pipeline("q") as q:
        tokens = toy.draw(toy.group("actor"), toy.source())
        rewards = toy.judge(tokens)
        toy.report(rewards, rewards)
        toy.report(rewards, toy.judge(tokens).rename(rewards="unread"), toy.judge(tokens).rename(rewards="unread"))
    toy.plan_of(q)


@pytest.mark.parametrize(("writer", "shown"), [(whole_rewards, "i64[B]"), (token_rewards, "f32[B T]")])
def test_wrong_dtype_or_rank(toy, writer, shown: str) -> None:
    with Pipeline("p") as p:
        toy.report(writer(toy.draw(toy.group("actor"), toy.source())))
    (what,) = toy.problems_of(p)
    assert what == f"`report` reads `rewards: f32[B]`, but `{writer.__name__}` writes it as `{shown}`."


def test_an_optional_read_of_the_wrong_type_is_wrong_too(toy) -> None:
    with Pipeline("p") as p:
        tokens = toy.draw(toy.group("actor"), toy.source())
        rewards = toy.judge(tokens)
        toy.report(rewards, tokens.rename(tokens="advantages"))
    (what,) = toy.problems_of(p)
    assert "reads `advantages: f32[B]`, but `draw` writes it as `f32[B T]`" in what


def test_edges_of_two_sources_are_reported_once(toy) -> None:
    with Pipeline("p") as p:
        actor = toy.group("actor")
        first = toy.draw(actor, toy.source())
        joined = toy.judge(first, toy.source())
        toy.report(joined)
    (what,) = toy.problems_of(p)
    assert what.startswith("`judge` joins edges of different `prompts` calls")


def test_a_dead_call_an_unattended_filter_and_no_root(toy) -> None:
    with Pipeline("p") as p:
        rewards = toy.judge(toy.draw(toy.group("actor"), toy.source()))
        toy.keep(rewards)
        toy.center(rewards)
    whats = toy.problems_of(p)
    assert whats == [
        "pipeline `p` ends in no call with an effect.",
        "nobody takes the output of `keep`, and it changes nothing by itself.",
        "nobody takes the output of `center`, and it changes nothing by itself.",
    ]


def test_no_calls_and_no_rows(toy) -> None:
    with Pipeline("p") as p:
        pass
    assert toy.problems_of(p) == ["pipeline `p` has no calls."]

    @node()
    def lonely(rewards: Float32[Tensor, " B"] | None = None) -> None: ...

    with Pipeline("q") as q:
        lonely()
    assert toy.problems_of(q) == ["`lonely` takes no edge, so it has no rows."]


def learning(toy, terms) -> Pipeline:
    with Pipeline("p") as p:
        actor = toy.group("actor")
        tokens = toy.draw(actor, toy.source())
        toy.learn(actor, tokens, toy.old(actor, tokens), toy.center(toy.judge(tokens)), loss=terms)
    return p


def test_loss_faults_are_collected(toy) -> None:
    assert toy.problems_of(learning(toy, toy.ratio(epz=1))) == ["`ratio` has no option `epz`."]
    dead = toy.problems_of(learning(toy, 0 * toy.ratio() + 0 * toy.distance()))
    assert dead == ["`learn` has the loss `0 * ratio() + 0 * distance()`, in which every coefficient is 0."]
    assert toy.problems_of(learning(toy, toy.ratio() + 0 * by_row(eps="x")))[0].startswith("`by_row` got")


@pytest.mark.parametrize("flip", [False, True])
def test_loss_terms_must_agree_on_a_column(toy, flip: bool) -> None:
    terms = (by_token() + toy.ratio()) if flip else (toy.ratio() + by_token())
    whats = toy.problems_of(learning(toy, terms))
    assert any("loss term `by_token()` reads `advantages: f32[B T]`" in what for what in whats), whats


def test_a_loss_must_agree_with_its_node(toy) -> None:
    whats = toy.problems_of(learning(toy, toy.ratio() + of_rows()))
    assert "`learn` reads `tokens: f32[B T]`, but loss term `of_rows()` reads `tokens: f32[B]`." in whats


def test_a_check_function_refuses_with_the_calls_line(toy) -> None:
    seen: list[CallView] = []

    def refuse(call: CallView) -> list[str]:
        seen.append(call)
        return [f"`{name}` has n={value}" for name, value in call.upstream_option("n")]

    @node(check=refuse)
    def picky(rewards: Float32[Tensor, " B"], *, size: int = 3) -> None: ...

    with Pipeline("p") as p:
        tokens = toy.draw(toy.group("actor"), toy.source(n=5))
        picky(toy.judge(tokens))
    assert toy.problems_of(p) == ["`picky`: `source` has n=5."]
    (call,) = seen
    assert (call.name, call.options, call.group) == ("picky", {"size": 3}, None)
    assert call.columns() == {"rewards"}
    assert [above.name for above in call.upstream()] == ["judge", "draw", "source"]
    assert view(p.call("draw"), p, is_step=True).group == toy.group("actor")


def test_a_check_function_is_not_asked_about_wrong_options(toy) -> None:
    def refuse(call: CallView) -> list[str]:
        return ["too small"] if call.options["size"] < 9 else []

    @node(check=refuse)
    def sized(rewards: Float32[Tensor, " B"], *, size: int) -> None: ...

    with Pipeline("p") as p:
        rewards = toy.judge(toy.draw(toy.group("actor"), toy.source()))
        sized(rewards, size="x")
        sized(rewards)
        sized(rewards, size=1)
    whats = toy.problems_of(p)
    assert [what for what in whats if "too small" in what] == ["`sized#3`: too small."]
    assert len(whats) == 3


def reporting(toy, group: WorkerGroup, **knobs) -> Pipeline:
    with Pipeline("p", **knobs) as p:
        toy.report(toy.judge(toy.draw(group, toy.source())))
    return p


@pytest.mark.parametrize(
    ("knobs", "what"),
    [
        ({"steps": "ten"}, "has steps='ten'"),
        ({"steps": True}, "has steps=True"),
        ({"steps": 0}, "has steps=0"),
        ({"steps": -3}, "has steps=-3"),
        ({"every": 0}, "has every=0"),
        ({"every": -1}, "has every=-1"),
        ({"every": "k"}, "has every='k'"),
        ({"every": 2.0}, "has every=2.0"),
    ],
)
def test_steps_and_every(toy, knobs: dict[str, object], what: str) -> None:
    found = toy.problems_of(reporting(toy, toy.group("actor"), **knobs))
    assert what in found[0]


@pytest.mark.parametrize(
    ("optimizer", "what"),
    [
        ({"lr": 0}, "lr=0"),
        ({"lr": float("nan")}, "lr=nan"),
        ({"lr": float("inf")}, "lr=inf"),
        ({"lr": "1e-4"}, "lr='1e-4'"),
        ({"warmup": -1}, "warmup=-1"),
        ({"warmup": 1.5}, "warmup=1.5"),
        ({"decay": "sine"}, "decay='sine'"),
        ({"min_lr_ratio": 2}, "min_lr_ratio=2"),
        ({"min_lr_ratio": "x"}, "min_lr_ratio='x'"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"betas": 0.9}, "betas=0.9"),
        ({"betas": (0.9,)}, "betas=(0.9,)"),
        ({"eps": 0}, "eps=0"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1"),
        ({"max_grad_norm": 0}, "max_grad_norm=0"),
    ],
)
def test_optimizer_values(toy, optimizer: dict[str, object], what: str) -> None:
    spec = policy("zoo:tiny", optimizer=adamw(**{"lr": 0.1, **optimizer}))
    (found,) = toy.problems_of(reporting(toy, WorkerGroup("actor", spec, pool=toy.POOL)))
    assert found.startswith("`adamw` got ")
    assert what in found


@pytest.mark.parametrize(
    ("model", "options", "what"),
    [
        ("zoo:tiyn", {}, "no model named `tiyn`"),
        ("./gone", {}, "no model folder `./gone`"),
        ("", {}, "empty"),
        (3, {}, "`model=3`"),
        ("zoo:tiny", {"precision": "fp8"}, "`precision='fp8'`"),
        ("zoo:tiny", {"micro_batch_tokens": 0}, "micro_batch_tokens=0"),
        ("zoo:tiny", {"micro_batch_tokens": "x"}, "micro_batch_tokens='x'"),
        ("zoo:tiny", {"optimizer": "adamw"}, "`optimizer='adamw'`"),
        ("zoo:tiny", {"dropout": 0.1}, "`dropout=0.1`"),
        ("zoo:tiny", {"parallel": "fdsp"}, "`parallel='fdsp'`"),
    ],
)
def test_model_values(toy, model: object, options: dict[str, object], what: str) -> None:
    (found,) = toy.problems_of(reporting(toy, WorkerGroup("actor", policy(model, **options), pool=toy.POOL)))
    assert what in found


@pytest.mark.parametrize(
    ("sizes", "fits"),
    [([0], True), ([1], True), ([2], False), ([1, 1], False), ([], False), ([-1], False), ([True], False)],
)
def test_pools_against_the_machine(toy, sizes: list[int], fits: bool) -> None:
    pool = ResourcePool("main", sizes)
    p = reporting(toy, WorkerGroup("actor", policy("zoo:tiny"), pool=pool))
    if fits:
        toy.plan_of(p)
    else:
        (what,) = toy.problems_of(p)
        assert "resource pool `main`" in what


def test_a_larger_machine_takes_a_larger_pool(toy) -> None:
    p = reporting(toy, WorkerGroup("actor", policy("zoo:tiny"), pool=ResourcePool("main", [4, 4])))
    (plan,) = compile_pipelines([p], Machine("big", (2,), 8))
    assert [(pool.name, pool.process_on_nodes) for pool in plan.pools] == [("main", (4, 4))]
    with pytest.raises(CompileError, match=r"need 8 processes \(`main` 8\), the big executor has 7"):
        compile_pipelines([p], Machine("big", (2,), 7))


def test_pools_have_processes_of_their_own(toy) -> None:
    with Pipeline("p") as p:
        batch = toy.source()
        for name in ("actor", "other"):
            group = WorkerGroup(name, policy("zoo:tiny"), pool=ResourcePool(f"pool-{name}"))
            toy.report(toy.judge(toy.draw(group, batch)), name=f"report-{name}")
    (plan,) = compile_pipelines([p], Machine("big", (3,), 6))
    assert [pool.num_processes for pool in plan.pools] == [3, 3]
    assert {op.call: op.pool for op in plan.runs}["report-other"] == "pool-other"
    with pytest.raises(
        CompileError, match=r"need 6 processes \(`pool-actor` 3, `pool-other` 3\), the big executor has 5"
    ):
        compile_pipelines([p], Machine("big", (3,), 5))


def test_names_that_clash(toy) -> None:
    other_pool = ResourcePool("main", [1])
    with Pipeline("p") as p:
        batch = toy.source()
        toy.report(toy.judge(toy.draw(toy.group("actor"), batch)))
        toy.report(toy.judge(toy.draw(WorkerGroup("actor", policy("zoo:tiny"), pool=other_pool), batch)))
    with Pipeline("p") as again:
        toy.report(toy.judge(toy.draw(toy.group("actor"), toy.source())))
    whats = toy.problems_of(p, again)
    assert any("two different worker groups are named `actor`" in what for what in whats)
    assert any("two different resource pools are named `main`" in what for what in whats)
    assert any("two pipelines are named `p`" in what for what in whats)


def test_problems_of_all_pipelines_and_resources_come_in_file_order(toy) -> None:
    def line() -> int:
        frame = inspect.currentframe()
        assert frame is not None
        assert frame.f_back is not None
        return frame.f_back.f_lineno

    start = line()
    bad = WorkerGroup("actor", policy("zoo:nothing"), pool=toy.POOL)
    with Pipeline("p", every=0) as p:
        toy.report(toy.draw(bad, toy.source()))
    with Pipeline("q") as q:
        toy.report(toy.draw(bad, toy.source(), colour="red"))
    with pytest.raises(CompileError) as error:
        compile_pipelines([q, p])
    lines = [problem.at.line - start for problem in error.value.problems if problem.at]
    assert lines == [1, 2, 3, 5, 5]
    assert "`p`" in error.value.message().split("\n")[0]
    assert "`q`" in error.value.message().split("\n")[0]


def test_a_width_that_the_node_cannot_know_is_refused(toy) -> None:
    @node(writes="advantages")
    def spread(rewards: Rewards) -> Tokens: ...

    @node(writes="advantages")
    def spread_well(rewards: Rewards, tokens: Tokens) -> Tokens: ...

    @node()
    def end(advantages: Tokens) -> Metrics: ...

    with Pipeline("p") as p:
        tokens = toy.draw(toy.group("actor"), toy.source())
        end(spread(toy.judge(tokens)))
    (what,) = toy.problems_of(p)
    assert what == "`spread` writes `advantages: f32[B T]`, but reads no column that is as wide."
    with Pipeline("q") as q:
        tokens = toy.draw(toy.group("actor"), toy.source())
        end(spread_well(toy.judge(tokens), tokens))
    assert compile_pipelines([q])


def test_an_evaluation_trains_nothing_and_a_step_has_no_every(toy) -> None:
    def both(first: dict[str, int], second: dict[str, int]) -> list[str]:
        step = reporting(toy, toy.group("actor"), **first)
        with Pipeline("held_out", **second) as evaluation:
            actor = toy.group("actor")
            tokens = toy.draw(actor, toy.source())
            toy.nudge(actor, tokens)
        with pytest.raises(CompileError) as error:
            compile_pipelines([step, evaluation])
        return [problem.what for problem in error.value.problems]

    whats = both({"every": 3}, {"steps": 4})
    assert any("comes first, so it is the step, but has every=3" in what for what in whats)
    assert any("comes after the step, so it evaluates, but has steps=4" in what for what in whats)
    assert any("`nudge` changes a model, but pipeline `held_out` only evaluates" in what for what in whats)


@pytest.mark.parametrize("coefficient", [float("nan"), float("inf"), -float("inf")])
def test_coefficients_are_finite(toy, coefficient: float) -> None:
    whats = toy.problems_of(learning(toy, coefficient * toy.ratio()))
    assert any("has a coefficient that is no number" in what for what in whats)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda call: 1 / 0, "the `check=` of `picky` raised ZeroDivisionError: division by zero."),
        (lambda call: None, "the `check=` of `picky` returned None."),
        (lambda call: "no", "the `check=` of `picky` returned 'no'."),
        (lambda call: [3], "the `check=` of `picky` returned [3]."),
        (lambda call: [("what", None)], "the `check=` of `picky` returned [('what', None)]."),
        (lambda call: [("what",)], "the `check=` of `picky` returned [('what',)]."),
    ],
)
def test_a_check_function_that_fails_is_a_problem_among_the_others(toy, answer, said: str) -> None:
    def checks(call: CallView) -> list[str]:
        return answer(call)

    @node(check=checks)
    def picky(rewards: Rewards) -> Metrics: ...

    with Pipeline("p") as p:
        tokens = toy.draw(toy.group("actor"), toy.source())
        picky(toy.judge(tokens))
        toy.judge(tokens)
    whats = toy.problems_of(p)
    assert said in whats
    assert any("nobody takes the output of `judge#2`" in what for what in whats)


def test_a_check_function_gives_a_sentence_or_a_sentence_with_its_fix(toy) -> None:
    @node(check=lambda call: ["too small", ("too green.", "paint it red")])
    def picky(rewards: Rewards) -> Metrics: ...

    with Pipeline("p") as p:
        picky(toy.judge(toy.draw(toy.group("actor"), toy.source())))
    with pytest.raises(CompileError) as error:
        compile_pipelines([p])
    assert [(problem.what, problem.fix) for problem in error.value.problems] == [
        ("`picky`: too small.", None),
        ("`picky`: too green.", "paint it red"),
    ]


def test_a_check_function_knows_the_step_from_an_evaluation(toy) -> None:
    seen: dict[str, list[bool]] = {}

    def note(call: CallView) -> list[str]:
        seen[call.name] = [call.is_step, *(above.is_step for above in call.upstream())]
        return []

    @node(check=note)
    def noted(rewards: Rewards) -> Metrics: ...

    def noting(name: str) -> Pipeline:
        with Pipeline(name) as p:
            noted(toy.judge(toy.draw(toy.group("actor"), toy.source())), name=f"in_{name}")
        return p

    compile_pipelines([noting("step"), noting("held_out")])
    assert seen == {"in_step": [True] * 4, "in_held_out": [False] * 4}


def test_rows_are_worked_out_once_for_each_pipeline(toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's passes share them: anew for each op they would cost the square of the calls."""
    walked: list[str] = []
    calls = Pipeline.calls.fget

    def counting(self: Pipeline):
        walked.append(self.name)
        return calls(self)

    def cost(length: int) -> int:
        with Pipeline("p") as p:
            tokens = toy.draw(toy.group("actor"), toy.source())
            for _ in range(length):
                toy.report(toy.judge(tokens))
        walked.clear()
        compile_pipelines([p])
        return len(walked)

    monkeypatch.setattr(Pipeline, "calls", property(counting))
    short, long = cost(4), cost(40)
    assert long - short <= 3 * 36


def test_what_a_failed_build_has_recorded_is_checked_as_far_as_the_rest_cannot_mend_it(toy) -> None:
    with Pipeline("whole") as whole:
        toy.judge(toy.draw(toy.group("actor"), toy.source()))
    part = Pipeline("part", every=0)

    def fail_halfway() -> None:
        with part:
            tokens = toy.draw(toy.group("actor"), toy.source())
            toy.report(tokens)
            toy.judge(tokens)  # somebody may yet have taken it
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_halfway()
    whats = [problem.what for problem in problems_so_far([whole, part])]
    assert whats == [
        "pipeline `whole` ends in no call with an effect.",
        "nobody takes the output of `judge`, and it changes nothing by itself.",
        "pipeline `part` has every=0.",
        "`report` reads `rewards: f32[B]`, but no edge into it carries that column.",
    ]


@pytest.mark.parametrize("check", ["no function", functools.partial(lambda call, limit: 1 / 0, limit=3)])
def test_a_check_that_has_no_name_of_its_own_is_told_as_well(toy, check) -> None:
    @node(check=check)
    def picky(rewards: Rewards) -> Metrics: ...

    with Pipeline("p") as p:
        picky(toy.judge(toy.draw(toy.group("actor"), toy.source())))
    (what,) = toy.problems_of(p)
    assert "the `check=` of `picky` raised" in what

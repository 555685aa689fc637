"""Readings and commands keep their order, and equal seeds give equal plans."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from embodied_env.timing.delay_model import DelayDistribution, DelayModel, DelaySchedule, parse_model
from embodied_env.timing.latency_profile import MeasuredStepDelays

PERIOD_NS = 50_000_000
STEPS = 15

delays_s = st.floats(0.0, 0.3)
draws = st.one_of(
    st.builds(lambda value: DelayDistribution(kind="constant", values=(value,)), delays_s),
    st.builds(
        lambda values: DelayDistribution(kind="empirical", values=tuple(values)),
        st.lists(delays_s, min_size=1, max_size=5),
    ),
    st.builds(
        lambda median, sigma: DelayDistribution(kind="lognormal", values=(median, sigma)), delays_s, st.floats(0.0, 1.0)
    ),
)
ns = st.integers(0, 300_000_000)
rows = st.tuples(ns, ns, ns, st.none() | ns)
steps = st.builds(
    lambda blocks: MeasuredStepDelays(sensors=("slow", "any"), blocks_ns=tuple(map(tuple, blocks))),
    st.lists(st.lists(rows, min_size=1, max_size=4), min_size=1, max_size=4),
)
orders = st.sampled_from(["keep", "as_drawn"])
models = st.one_of(
    st.builds(
        lambda slow, other, inference, actuation, order: DelayModel(
            sensors={"slow": slow, "any": other}, inference=inference, actuation=actuation, order=order
        ),
        draws,
        draws,
        st.none() | draws,
        st.none() | draws,
        orders,
    ),
    st.builds(
        lambda actuation, steps, order: DelayModel(actuation=actuation, steps=steps, order=order),
        st.none() | draws,
        steps,
        orders,
    ),
)
origins = st.integers(0, 10**12)


def plans(model, seed, origin_ns, upto=STEPS):
    schedule = DelaySchedule(model, period_ns=PERIOD_NS, intervals_ns={"slow": 2e8})
    schedule.begin(seed, origin_ns)
    return [schedule.plan(k) for k in range(upto)]


@given(models, st.integers(0, 2**53), origins)
def test_readings_keep_their_order_within_the_episode(model, seed, origin_ns):
    found = plans(model, seed, origin_ns)
    for plan in found:
        assert all(origin_ns <= taken_ns <= plan.frozen_ns for taken_ns in plan.taken_ns.values())
        assert all(plan.taken_ns[name] == origin_ns for name in plan.early)
    for earlier, later in pairwise(found):
        assert all(later.taken_ns[name] >= earlier.taken_ns[name] for name in model.names)


@given(models, st.integers(0, 2**53), origins)
def test_commands_never_act_early_or_out_of_order(model, seed, origin_ns):
    found = plans(model, seed, origin_ns)
    assert all(plan.inference_ns >= 0 and plan.actuation_ns >= 0 for plan in found)
    if model.order == "keep":
        assert all(later.acts_ns >= earlier.acts_ns for earlier, later in pairwise(found))


@given(models, st.integers(0, 2**53), origins)
def test_plans_do_not_depend_on_lookahead(model, seed, origin_ns):
    assert plans(model, seed, origin_ns) == plans(model, seed, origin_ns, upto=2 * STEPS)[:STEPS]


@given(models, st.integers(0, 2**53))
def test_lookahead_covers_every_future_reading(model, seed):
    schedule = DelaySchedule(model, period_ns=PERIOD_NS, intervals_ns={})
    schedule.begin(seed, 0)
    for k in range(STEPS):
        beyond = schedule.plan(k + schedule.ahead + 1)
        last = schedule.plan(k + schedule.ahead)
        for name in model.names:
            new = beyond.taken_ns[name] > last.taken_ns[name]
            assert not new or beyond.taken_ns[name] > k * PERIOD_NS


@given(models)
def test_delay_model_round_trips(model):
    assert parse_model(model.as_mapping()) == model

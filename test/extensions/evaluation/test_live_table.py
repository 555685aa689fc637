import numpy as np
from shipped_contracts import changed_contract

import embodied_env
from embodied_env.core.code_table import CODES
from embodied_env.extensions.evaluation.evaluation import evaluate
from embodied_env.extensions.evaluation.live_table import LiveAccount, LiveTable

ARM = embodied_env.load_contract("arm_reach")


def info(step=1, episode=0, *, period_s=0.05, codes=(), end="", missed=None, clipped=False):
    paced = {} if missed is None else {"missed_deadlines": missed}
    return {
        "backend": "real",
        "world": "dry run",
        "episode_index": episode,
        "step_index": step,
        "end_reason": end,
        "action_clipped": clipped,
        "safety": {
            "code": np.array([CODES[code] for code in codes] + [0] * 3, dtype=np.int16),
            "joints": {"j1": 0, "j2": CODES["track.error"]},
        },
        "latency": {"period_s": period_s, "quality": {"period_s": 0}, **paced},
    }


def rows(*infos, episodes=3):
    account = LiveAccount(ARM, episodes)
    for each in infos:
        account.add(each)
    return dict(account.rows())


def test_live_table_shows_episode_and_step():
    found = rows(info(step=17, episode=1))
    assert (found["world"], found["episode"]) == ("real (dry run)", "2 of 3, step 17 of 200")


def test_rate_is_shown_with_nominal_rate_if_paced():
    assert rows(info(period_s=0.05), info(period_s=0.0625))["rate"] == "17.78 Hz"
    assert rows(info(period_s=0.05, missed=0))["rate"] == "20.00 Hz, nominal 20.00 Hz"


def test_gates_are_counted_by_code():
    found = rows(info(codes=["vel.limit"]), info(codes=["vel.limit", "obs.stale"]))
    assert found["gates"] == "vel.limit 2, obs.stale 1"


def test_an_operator_finds_gate_estops_ages_and_success():
    aged = info(codes=["estop.active"])
    aged["latency"]["capture_age_s"] = {"joints": 0.002, "tcp": 0.0125, "target": 0.0}
    aged["latency"]["quality"]["capture_age_s"] = {"joints": 0, "tcp": 0, "target": 8}
    found = rows(info(codes=["vel.limit"], end="success"), info(end="time_limit"), aged)
    assert (found["gate now"], found["steps under an e-stop"]) == ("estop.active", "1")
    assert found["sensor ages, ms"] == "tcp 12.5, joints 2.0"
    assert found["success so far"] == "1 of 2 ended (50 %)"
    assert rows(info())["gate now"] == "open"
    assert rows(info(codes=["track.error"]))["gate now"] == "track.error j2"


def test_missed_deadlines_accumulate_over_episodes():
    story = [info(missed=1), info(missed=4, end="success"), info(missed=0), info(missed=2)]
    assert rows(*story)["missed deadlines"] == "6"


class EventLog:
    """An observer that stores its events."""

    def __init__(self):
        self.events = []

    def resetting(self):
        self.events.append("resetting")

    def stepped(self, info):
        self.events.append("step")

    def ended(self, count):
        self.events.append(f"ended {count}")


def test_observer_receives_each_reset_step_and_end(tmp_path):
    observer = EventLog()
    short = changed_contract(ARM, {"episode.horizon_steps": 3})
    evaluate(short, "hold", backend="fake", episodes=2, record=tmp_path, observer=observer)
    assert observer.events == ["resetting", *["step"] * 3, "ended 1", "resetting", *["step"] * 3, "ended 2"]


def test_display_goes_to_stderr_and_ends_with_last_state(capsys):
    with LiveTable(ARM, "hold", 1, 1) as view:
        view.stepped(info(step=200, end="time_limit"))
        view.ended(1)
    output = capsys.readouterr()
    assert output.out == ""
    assert "time_limit 1" in output.err


def test_display_pauses_during_reset_of_a_robot(capsys):
    with LiveTable(ARM, "hold", 2, 2) as view:
        view.stepped(info(missed=0))
        assert view.is_drawing
        view.resetting()
        assert not view.is_drawing


def test_a_redirected_display_prints_a_line_every_period(capsys):
    now_s = 0.0
    with LiveTable(ARM, "hold", 2, 2, clock=lambda: now_s) as view:
        for step in range(1, 26):
            now_s += 1.0
            view.stepped(info(step=step, end="time_limit" if step == 15 else ""))
            if step == 15:
                view.ended(1)
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("arm_reach")]
    assert lines == [
        "arm_reach · hold: 0 of 2 episodes; episode 1 of 2, step 10 of 200; success so far 0 of 0 ended, 10 s",
        "arm_reach · hold: 1 of 2 episodes; episode 1 of 2, step 20 of 200; success so far 0 of 1 ended (0 %), 20 s",
    ]

"""Intervals of an identification contain the parameters of robots that it does not see, over many robots.

The small edition is in `test_identification.py`.
"""

from dataclasses import replace

import numpy as np
import pytest
import two_links
from delay_models import constant
from identified_arm import identified_model

from embodied_env.contract.contract_loader import dump_contract
from embodied_env.extensions.calibration.excitation import record_excitation
from embodied_env.extensions.calibration.planned_moves import brisk_moves
from embodied_env.extensions.identification.identification import identify
from embodied_env.extensions.identification.rollouts import Parameter
from embodied_env.processes.child_process import Child, simulator
from embodied_env.sim.identified_parameters import IdentifiedParameter, write_identified
from embodied_env.timing.delay_model import DelayModel

PARAMETERS = tuple(two_links.MODEL)
NAMESPACE = "/identified"
REPEATS, AMPLITUDE = 3, 0.2  # of the excitation: about 45 s
HOST_S = 0.003  # of the delay on the emulator: a command over ROS 2, from its publication to its arrival
CLOSE, NARROW = 0.05, 0.15  # of a value: error, and half of an interval
WEAK = {  # a robot with weak servos
    **two_links.MODEL,
    "gain.shoulder": 36.0,
    "gain.elbow": 24.0,
    "damping.shoulder": 4.2,
    "damping.elbow": 2.1,
    "friction_loss.shoulder": 0.45,
    "armature.shoulder": 0.07,
    "mass.forearm": 0.7,
    "command_delay": 0.03,
}
LOCKSTEP_SEEDS, EMULATOR_SEEDS = range(18), range(18, 20)


def parameter(name):
    kind, _, of = name.partition(".")
    return Parameter(kind=kind, of=(of,) if of else ())


def delays_of(robot, truth):
    """Return the delay of commands alone."""
    none = {name: constant(0.0) for name in robot.sensors}
    return DelayModel(sensors=none, inference=constant(0.0), actuation=constant(truth["command_delay"]))


def record_in_lockstep(robot, truth, moves, seed, folder):
    """Record a simulator with the parameters and the delay of the robot."""
    options: dict = {"backend": "mujoco", "delay_profile": delays_of(robot, truth)}
    return record_excitation(robot, moves, record=folder, seed=seed, **options).path


def record_on_emulator(robot, own, moves, seed, folder):
    """Record the emulator of a robot by the contract of the arm, as a user does."""
    spec = simulator("-", namespace=NAMESPACE, source=robot.source, free_running=True)
    child = Child(spec, first_line=dump_contract(robot))
    try:
        options: dict = {"backend": "real", "emulator": True, "namespace": NAMESPACE}
        return record_excitation(own, moves, record=folder, seed=seed, **options).path
    finally:
        child.stop()


def fit_robot(seed, folder, *, on_emulator):
    """Return value, low and high by name of the parameters that a fit determines, and the truth."""
    truth = two_links.drawn_parameters(seed)
    own, robot = two_links.contract_in(folder / "own"), two_links.robot_in(folder / "robot", truth)
    moves = brisk_moves(own, ["shoulder", "elbow"], amplitude=AMPLITUDE, repeats=REPEATS, seed=seed)
    if on_emulator:
        run = record_on_emulator(robot, own, moves, seed, folder / "runs")
    else:
        run = record_in_lockstep(robot, truth, moves, seed, folder / "runs")
    model = identify([run], own, [parameter(name) for name in PARAMETERS], seed=seed).model
    return {".".join((each.kind, *each.of)): (each.value, each.low, each.high) for each in model.parameters}, truth


def is_inside(name, fitted, truth, added_s):
    """Return whether an interval contains the truth, or for a delay the truth plus at most `added_s`."""
    _, low, high = fitted
    return low <= truth[name] + (added_s if name == "command_delay" else 0.0) and truth[name] <= high


def is_useful(name, fitted, truth, added_s):
    """Return whether a value is within 5 % of the truth, or its interval is narrow and contains it."""
    value, low, high = fitted
    is_narrow = max(value - low, high - value) <= NARROW * value
    is_close = abs(value - truth[name]) <= CLOSE * truth[name]
    return is_close or (is_narrow and is_inside(name, fitted, truth, added_s))


@pytest.mark.needs("comparison", "evaluation")
def test_comparison_with_a_robot_shows_its_response_until_the_model_is_identified(tmp_path):
    from embodied_env import evaluate
    from embodied_env.extensions.comparison.run_comparison import compare_runs

    own, robot = two_links.contract_in(tmp_path / "own"), two_links.robot_in(tmp_path / "robot", WEAK)
    found = [
        IdentifiedParameter(kind=each.kind, of=each.of, value=WEAK[name], low=WEAK[name], high=WEAK[name], model=before)
        for name, before in two_links.MODEL.items()
        for each in [parameter(name)]
    ]
    write_identified(identified_model(tuple(found)), tmp_path / "own" / "arm.identified.yaml")
    world = {**own.backends["mujoco"], "identified": {"file": "arm.identified.yaml"}}
    fitted = replace(own, backends={**own.backends, "mujoco": world})
    runs = [
        evaluate(contract, "scripted", backend="mujoco", episodes=5, record=tmp_path / "runs", **options)
        .results[0]
        .path
        for contract, options in ((robot, {"delay_profile": delays_of(robot, WEAK)}), (own, {}), (fitted, {}))
    ]
    comparisons = [compare_runs(run, runs[0]) for run in runs[1:]]
    assert comparisons[0].findings[0].startswith("B differs from A most in response delay of ")
    assert comparisons[1].findings[0].startswith("No difference that matters was found")
    for kind in ("delay", "tracking"):
        before, after = (
            max(abs(found.difference) for found in each.differences if found.name.kind == kind) for each in comparisons
        )
        assert after < 0.1 * before


def print_table(fits):
    """Print a row for each parameter, and return the number of fits by parameter whose interval contains the truth."""
    print("\n| parameter | in its interval | useful | error, median | half interval, median |\n|---|---|---|---|---|")
    covered = {}
    for name in PARAMETERS:
        rows = [(name, found[name], truth, added_s) for found, truth, added_s in fits if name in found]
        covered[name] = sum(is_inside(*row) for row in rows)
        useful = sum(is_useful(*row) for row in rows)
        error = np.median([abs(fitted[0] / truth[name] - 1.0) for _, fitted, truth, _ in rows])
        half = np.median([0.5 * (high - low) / value for _, (value, low, high), _, _ in rows])
        counts = f"{covered[name]} of {len(rows)} | {useful} of {len(fits)}"
        print(f"| {name} | {counts} | {100 * error:.1f} % | {100 * half:.1f} % |")
    print(f"in their interval: {sum(covered.values())} of {sum(len(found) for found, *_ in fits)}")
    return covered


@pytest.mark.long
@pytest.mark.ros
@pytest.mark.realtime
def test_intervals_contain_the_parameters_of_twenty_robots(tmp_path, domain_id):
    fits = []
    for seed in (*EMULATOR_SEEDS, *LOCKSTEP_SEEDS):
        on_emulator = seed in EMULATOR_SEEDS
        fit = fit_robot(seed, tmp_path / str(seed), on_emulator=on_emulator)
        fits.append((*fit, HOST_S if on_emulator else 0.0))
    covered = print_table(fits)
    assert sum(covered.values()) >= 0.9 * len(fits) * len(PARAMETERS)
    assert min(covered.values()) >= 16
    for found, truth, added_s in fits:
        useful = [name for name in found if is_useful(name, found[name], truth, added_s)]
        assert len(useful) >= len(PARAMETERS) - 2, set(PARAMETERS) - set(useful)

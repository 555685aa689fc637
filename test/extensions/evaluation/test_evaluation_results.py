from pathlib import Path

import embodied_env
from embodied_env.extensions.evaluation.evaluation_results import Evaluation, PolicyResult


def test_an_evaluation_is_a_line_for_each_policy_in_a_notebook():
    result = PolicyResult(
        policy="hold", path=Path("runs/a"), summary={"successes": 1, "rated": 5}, problem="cut off", where={}
    )
    found = Evaluation(contract=embodied_env.load_contract("arm_reach"), backend="fake", results=(result, result))
    line = "<PolicyResult hold: 1 of 5 episodes successful, runs/a, problem: cut off>"
    assert repr(found) == f"<Evaluation of arm_reach on fake\n  {line}\n  {line}>"

"""For launch_test, run the simulator, which prints its contract, and an evaluation.

Both exit with 0 when the end of the test interrupts them.
"""

import sys
import unittest
from pathlib import Path

import launch_testing
import launch_testing.asserts
from launch_testing.actions import ReadyToTest

sys.path.insert(0, str(Path(__file__).parent))

from launched import including


def generate_test_description():
    description = including("sim", {"contract": "arm_reach", "policy": "hold", "episodes": "1000"})
    description.add_action(ReadyToTest())
    return description


class WhileItRuns(unittest.TestCase):
    def test_its_contract_is_printed(self, proc_output):
        proc_output.assertWaitFor("simulating arm_reach in namespace /", timeout=60, stream="stdout")


@launch_testing.post_shutdown_test()
class Afterwards(unittest.TestCase):
    def test_exits_cleanly(self, proc_info):
        launch_testing.asserts.assertExitCodes(proc_info)

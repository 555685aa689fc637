"""An action stage with two values for the six joints of ``arm_reach``."""

import numpy as np
from gymnasium import spaces

from embodied_env.core.action_stage import StagedAction


class RepeatingStage:
    """Command three joints by each value."""

    action_space = spaces.Box(-1.0, 1.0, (2,), np.float64)

    def reset(self):
        pass

    def apply(self, action, snapshot, commanded):
        return StagedAction(action=np.repeat(action, 3))

    def close(self):
        pass

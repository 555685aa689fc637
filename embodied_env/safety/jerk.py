"""A bound on jerk, kept as far as the joint limits let it: those win.

With a fixed step dt, last velocity v and acceleration a of a joint with limits V, A, J, the next acceleration lies in
[a - J dt, a + J dt], and below the barrier (J / A) (V - v) and above its mirror image: so that the acceleration can
still be brought to zero when V is reached. (The barrier is that of libfranka's rate limiter.) The same barrier stands
at the velocity that is asked for: without it a robot that is told to stop goes through zero and comes back
(ros_controllers #359). It is kept through zero where A = D. With a step that varies nothing is promised.
"""

from __future__ import annotations

import numpy as np

from embodied_env.contract import EffectiveLimits, FloatArray

_ROUNDING = 1e-9


def limit_jerk(
    desired: FloatArray, velocities: FloatArray, accelerations: FloatArray, limits: EffectiveLimits, dt_s: float
) -> FloatArray:
    """Return the velocities nearest to `desired` that keep the jerk, shape (n_joints,); where it is unlimited, those.

    Args:
        desired: the velocities asked for, in units/s.
        velocities: the last published velocities.
        accelerations: the last published accelerations, in units/s^2.
        limits: after margins.
        dt_s: the step, > 0.
    """
    is_limited = np.isfinite(limits.jerk)
    if not is_limited.any():
        return desired
    jerk = np.where(is_limited, limits.jerk, 0.0)
    slope = jerk / np.minimum(limits.acceleration, limits.deceleration)
    highest = np.minimum(accelerations + jerk * dt_s, slope * (limits.velocity - velocities))
    lowest = np.maximum(accelerations - jerk * dt_s, -slope * (limits.velocity + velocities))
    ahead = desired - velocities
    reach = np.maximum(slope * np.abs(ahead), jerk * dt_s)  # what one step can undo may be gone at once
    highest = np.where(ahead >= 0.0, np.minimum(highest, reach), highest)
    lowest = np.where(ahead <= 0.0, np.maximum(lowest, -reach), lowest)
    highest = np.maximum(highest, accelerations - jerk * dt_s)  # never outside of what the jerk itself allows
    lowest = np.minimum(lowest, accelerations + jerk * dt_s)
    kept = np.clip(desired, velocities + lowest * dt_s, velocities + highest * dt_s)
    fastest = np.clip(kept, -limits.velocity, limits.velocity)
    kept = np.where(np.abs(kept - fastest) <= _ROUNDING * limits.velocity, fastest, kept)  # of v + a dt
    return np.where(is_limited & (np.abs(kept - desired) > _ROUNDING * limits.velocity), kept, desired)


def keeps_jerk(changes: FloatArray, limits: EffectiveLimits, dt_s: float) -> bool:
    """Tell whether these changes of acceleration, shape (n_joints,), keep the jerk of every joint that is limited."""
    is_limited = np.isfinite(limits.jerk)
    allowed = np.where(is_limited, limits.jerk * dt_s, np.inf) + 2.0 * _ROUNDING * limits.velocity / dt_s
    return bool(is_limited.any() and (np.abs(changes) <= allowed).all())

"""The options of environments, declared once for Python, command line and reference.

A key of a TypedDict has its type and, as an `Option`, all else. Importing this module imports no environment, because
the help of the command line needs it. Types of other modules are therefore in quotes.
"""

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypedDict, TypeVar, cast

from embodied_env.plugins.plugin_table import BUILT_IN

if TYPE_CHECKING:
    from embodied_env.backends.backend_registry import BackendName
    from embodied_env.core.action_stage import ActionStage
    from embodied_env.core.types import Observer
    from embodied_env.record.run import Run
    from embodied_env.timing.clock import Clock
    from embodied_env.timing.delay_model import DelayModel
    from embodied_env.timing.latency_profile import LatencyProfile

_BACKENDS = dict.fromkeys(name.partition(".")[0] for name in BUILT_IN["backends"])
_Function = TypeVar("_Function", bound=Callable[..., Any])
_WIDTH = 112  # of a line in a docstring

_OVER_ROS = "all over ROS 2"
_SECONDS: Mapping[str, Any] = {"type": float, "metavar": "S"}
_ON: Mapping[str, Any] = {"action": "store_true"}
_OFF: Mapping[str, Any] = {"action": "store_false"}


class Option(NamedTuple):
    """Declare the meaning of an option and its argument on the command line."""

    meaning: str  # a noun phrase with its unit; of a flag, what it does
    otherwise: str = ""  # the default in words; "": as `default`
    default: Any = None
    backends: str = ""  # those that take it; "": all
    argument: Mapping[str, Any] = {}  # for `ArgumentParser.add_argument`
    flag: str = ""  # on the command line; "": its name without a unit

    def describe(self) -> str:
        """Return the meaning in Python, with the default."""
        if self.argument in (_ON, _OFF):
            return f"{self.argument == _ON}: {self.meaning}"
        return self.meaning + (f" (default: {shown})" if (shown := self.otherwise or self.default) else "")

    def help(self, default: object) -> str:
        """Return the help of the command line, which appends a `default` other than None itself."""
        repeatable = "; repeatable" if self.argument.get("action") == "append" else ""
        words = f" (default: {self.otherwise})" if self.otherwise and default is None else ""
        return self.meaning + repeatable + words


class BackendOptions(TypedDict, total=False):
    """Options of the backends of this package, for type checkers and editors.

    The factory of a backend declares and checks its own. Options of third parties' backends are passed as ``**{...}``.
    """

    step_timeout_s: Annotated[
        float | None,
        Option(
            "maximum duration of a step in seconds, or on `real` maximum time without a reading",
            "from the profile",
            backends="all but `replay`",
        ),
    ]
    reset_timeout_s: Annotated[
        float | None,
        Option("maximum duration of a reset in seconds", "from the profile", backends=f"{_OVER_ROS}, `fake`"),
    ]
    namespace: Annotated[
        str | None,
        Option("absolute ROS 2 namespace of the robot or simulator", "set by the backend", backends=_OVER_ROS),
    ]
    domain_id: Annotated[int | None, Option("ROS domain", "`ROS_DOMAIN_ID`, or 0", backends=_OVER_ROS)]
    spawn: Annotated[
        bool,
        Option(
            "attach to a running simulator instead of starting one",
            default=True,
            backends="`mujoco_ros`",
            argument=_OFF,
            flag="--attach",
        ),
    ]
    delays: Annotated[
        "DelayModel | None",
        Option(
            "delays that are injected in lockstep; `delay_profile` also takes a file",
            "none",
            backends="`mujoco`, `mujoco_ros`",
        ),
    ]
    launch: Annotated[
        bool | Mapping[str, str], Option("start the server: True, or its arguments", default=False, backends="`gazebo`")
    ]
    connect_timeout_s: Annotated[
        float | None,
        Option(
            "time in seconds that topics or services of the robot may be missing",
            "from the profile",
            backends="`real`",
            argument=_SECONDS,
        ),
    ]
    armed: Annotated[
        bool,
        Option(
            "run all checks on the robot without sending commands",
            default=True,
            backends="`real`",
            argument=_OFF,
            flag="--dry-run",
        ),
    ]
    emulator: Annotated[
        bool,
        Option(
            "drive the robot emulator (embodied-env sim --free-running), which resets itself by the seed",
            default=False,
            backends="`real`",
            argument=_ON,
        ),
    ]
    relay: Annotated[
        bool | None,
        Option("send commands through the relay of the robot, overriding its profile", backends="`real`", argument=_ON),
    ]
    confirm_chosen: Annotated[
        bool,
        Option(
            "accept the chosen values of the robot file that the contract does not confirm",
            default=False,
            backends="`real`",
            argument=_ON,
        ),
    ]
    ignore_inputs: Annotated[
        Sequence[str],
        Option(
            "safety inputs to move without, because their message packages are not installed",
            default=(),
            backends="`real`",
            argument={"action": "append", "metavar": "NAME"},
            flag="--ignore-input",
        ),
    ]
    node_name: Annotated[str, Option("name of the node", default="environment", backends="`real`")]
    ros_args: Annotated[
        Sequence[str], Option("arguments after `--ros-args` for this node alone", "none", backends="`real`")
    ]
    frames: Annotated[Any, Option("source of transforms", "tf2", backends="`real`")]
    on_sample: Annotated[
        Callable[[Any], None] | None,
        Option("function that receives each reading as it arrives, in the receiving thread", "none", backends="`real`"),
    ]
    run: Annotated[
        "str | Path | Run", Option("run directory, or what `read_run` returns; required", backends="`replay`")
    ]
    task: Annotated[str | Path | None, Option("file of the task", "none", backends="`replay`")]
    trust_task: Annotated[
        bool, Option("load the task that the run names", default=False, backends="`replay`", argument=_ON)
    ]
    faults: Annotated[Sequence[Any], Option("scripted faults, for tests", "none", backends="`fake`")]
    free_running: Annotated[
        bool, Option("simulate a world that does not wait, for tests", default=False, backends="`fake`", argument=_ON)
    ]


class SharedOptions(BackendOptions, total=False):
    """The options that every environment takes."""

    backend: Annotated[
        "BackendName | str",
        Option(f"name of the backend: {', '.join(_BACKENDS)}, or that of a plug-in", default="mujoco"),
    ]
    render_mode: Annotated[
        str | None, Option("rgb_array, rgb_array_list or human, where the backend offers it", "none")
    ]
    clock: Annotated[
        "str | Clock | None",
        Option("clock of the time stamps: steady, or virtual for reproducible ones in lockstep", "steady"),
    ]
    host_timing: Annotated[
        bool | None,
        Option(
            "return durations of the host in `info`, which a record and observers always receive",
            "in real time only, so that in lockstep equal seeds give equal infos",
        ),
    ]
    evaluator_info: Annotated[
        bool, Option("show sensors with `visibility: evaluator` in `info`", default=False, argument=_ON)
    ]


class EnvOptions(SharedOptions, total=False):
    """The options of `EmbodiedEnv`."""

    pacing: Annotated[
        str | None,
        Option(
            "pacing of the backend: lockstep, in which the world waits for the agent, or realtime", "set by the backend"
        ),
    ]
    view: Annotated[
        bool | str | None,
        Option(
            "show the steps in Rerun: its viewer (True, or no VALUE), web[:PORT], FILE.rrd or "
            "rerun+http://HOST:PORT/proxy; or in Foxglove: foxglove[:PORT] or FILE.mcap. It delays no step: those that "
            "it is too slow for are dropped and counted",
            "none",
            argument={"nargs": "?", "const": True, "metavar": "VALUE"},
        ),
    ]
    observers: Annotated[
        "Sequence[str | Observer]",
        Option(
            "objects whose method `observe` receives every transition, or names of the entry-point group "
            "`embodied_env.observers`, as NAME or NAME:TARGET",
            "none",
            default=(),
        ),
    ]
    action_stages: Annotated[
        "Sequence[str | ActionStage] | None",
        Option(
            "what may replace or translate an action before the safety gate, in order: names of the entry-point group "
            "`embodied_env.action_stages`, or objects with the methods of `ActionStage`; None: not even those of the "
            "contract, for an environment that only plays recorded episodes",
            "those of the contract",
            default=(),
        ),
    ]
    fifo_priority: Annotated[
        int | None,
        Option("SCHED_FIFO priority of the stepping thread, 1 to 99", "none", argument={"type": int, "metavar": "N"}),
    ]
    switch_interval_s: Annotated[
        float | None,
        Option(
            "thread switch interval of Python in seconds, for policies in threads", "that of Python", argument=_SECONDS
        ),
    ]
    delay_profile: Annotated[
        "str | Path | LatencyProfile | DelayModel | None",
        Option(
            "latency profile whose delays mujoco or mujoco_ros injects in lockstep",
            "none",
            argument={"metavar": "FILE"},
        ),
    ]


class RecordedOptions(EnvOptions, total=False):
    """The options of an environment, and those of its record."""

    record_messages: Annotated[bool, Option("record the raw ROS 2 messages too", default=False, argument=_ON)]
    compression: Annotated[str, Option("compression of the recorded files: zstd, lz4 or none", default="zstd")]


class MakeOptions(RecordedOptions, total=False):
    """The options of `make`."""

    record: Annotated[
        str | Path | None,
        Option("folder in which the run is recorded into a new run directory", "not recorded", flag="--out"),
    ]
    max_episode_steps: Annotated[
        int | None,
        Option("steps after which an outer `TimeLimit` ends an episode", "the contract's horizon, its maximum"),
    ]


OPTIONS: Mapping[str, Option] = {name: hint.__metadata__[0] for name, hint in MakeOptions.__annotations__.items()}

_OF_OTHERS = BackendOptions.__optional_keys__ - {"spawn", "namespace"}

DEFAULTS = cast(
    "EnvOptions", {name: OPTIONS[name].default for name in EnvOptions.__annotations__ if name not in _OF_OTHERS}
)


def with_documented_options(*names: str) -> Callable[[_Function], _Function]:
    """Return a decorator that adds the meaning of options to a docstring before ``**options``."""

    def add(function: _Function) -> _Function:
        text, mark = inspect.cleandoc(function.__doc__ or ""), "    **options: "
        lines = [
            textwrap.fill(
                f"{name}: {OPTIONS[name].describe()}", _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8
            )
            for name in names
        ]
        function.__doc__ = text.replace(mark, "\n".join([*lines, mark]), 1)
        return function

    return add

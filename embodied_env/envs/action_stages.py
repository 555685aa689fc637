"""Apply the action stages of an environment, in order, before the safety gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from embodied_env.contract import Contract
from embodied_env.contract.bounded_json import plain_copy
from embodied_env.core.action_stage import ActionStage, StagedAction, TranslatingStage
from embodied_env.core.plugin_loading import foreign_code, load_plugin
from embodied_env.core.policy import NoAction
from embodied_env.core.types import CommandState, Snapshot
from embodied_env.envs.transition_builder import copy_action
from embodied_env.errors import UsageError, described
from embodied_env.plugins.plugin_lookup import get_plugin
from embodied_env.processes.signals import Terminated
from embodied_env.record.json_values import to_json_types

_MOST_CHARACTERS = 16384  # length of a stage's account as JSON


class ActionStages:
    """The action stages of one environment, with the space of the first that has its own."""

    def __init__(self, stages: Mapping[str, ActionStage]) -> None:
        self._stages, self.names = stages, tuple(stages)
        translating = [stage for stage in stages.values() if isinstance(stage, TranslatingStage)]
        self.action_space = translating[0].action_space if translating else None

    def reset(self) -> None:
        """Begin an episode in every stage, or raise UsageError for one that cannot."""
        self.check_live()
        for name, stage in self._stages.items():
            with foreign_code(_error_of(f"action stage {name!r} failed in reset()")):
                stage.reset()

    def check_live(self) -> None:
        """Raise UsageError where the stages cannot act in an episode without a recorded start."""

    def apply(self, action: Any, snapshot: Snapshot, commanded: CommandState) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401
        """Return the action for the gate, and the account of the stages that acted.

        After a stage that fails the action is `NoAction`, and no other stage follows. A stage receives copies of the
        snapshot and of the last command, because the gate judges and limits by the originals.
        """
        current, accounts, (copied, last) = action, {}, deepcopy((snapshot, commanded))
        for name, stage in self._stages.items():
            try:
                staged = stage.apply(copy_action(current), copied, last)
                if staged is None:
                    continue
                if not isinstance(staged, StagedAction):
                    raise TypeError(f"{type(staged).__name__} (expected None or a StagedAction)")  # noqa: TRY301
                account = plain_copy(dict(staged.account), max_characters=_MOST_CHARACTERS)
            except Terminated:
                raise
            except (Exception, SystemExit) as error:  # noqa: BLE001 - of other packages; the robot must hold, not crash
                current = NoAction(f"action stage {name} failed: {described(error)}")
                accounts[name] = {"failed": current.reason}
                break
            current, accounts[name] = staged.action, account
        return current, {"given": to_json_types(action), "stages": accounts} if accounts else {}

    def close(self) -> None:
        """Close every stage, also after an error of one, which is raised as UsageError."""
        failed = None
        for name, stage in self._stages.items():
            try:
                with foreign_code(_error_of(f"action stage {name!r} failed in close()")):
                    stage.close()
            except UsageError as error:
                failed = failed or error
        if failed is not None:
            raise failed


class PlayedStages(ActionStages):
    """The stages of an environment that only plays recorded episodes, of which none is made."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__({})
        self.names = tuple(names)

    def check_live(self) -> None:
        """Raise UsageError, since an episode without a recorded start needs the stages."""
        problem = f"action stages not made: {', '.join(self.names)} (expected start_from() before this reset)"
        raise UsageError(f"{problem}; omit action_stages=None")


def make_action_stages(contract: Contract, given: Sequence[str | ActionStage]) -> ActionStages:
    """Return the stages given by name or as objects, in order.

    A name is that of a factory ``(contract) -> ActionStage`` in the group ``embodied_env.action_stages``. Raises
    UsageError for an unknown name, a factory that fails, or an object that is no stage.
    """
    stages: dict[str, ActionStage] = {}
    for each in given:
        name, made = (each, _make(each, contract)) if isinstance(each, str) else (type(each).__name__, each)
        if not isinstance(made, ActionStage):
            raise UsageError(f"invalid action stage: {made!r:.80} (expected the methods reset, apply and close)")
        if name in stages:
            raise UsageError(f"action stage given twice: {name!r} (expected each once)")
        stages[name] = made
    return ActionStages(stages)


def _make(name: str, contract: Contract) -> Any:  # noqa: ANN401 - of another package
    factory = load_plugin(get_plugin("action_stages", name), f"the action stage {name!r}")
    with foreign_code(_error_of(f"action stage {name!r} cannot be made")):
        return factory(contract)


def _error_of(problem: str) -> Any:  # noqa: ANN401 - of `foreign_code`
    return lambda what: UsageError(f"{problem}: {what}")

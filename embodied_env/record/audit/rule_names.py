"""The rules of the audit by their stable names. The documentation lists them from here."""

from __future__ import annotations

from collections.abc import Mapping

RULES: Mapping[str, str] = {
    # the form of a row
    "line.broken": "A line is JSON, in UTF-8.",
    "row.object": "A row is an object.",
    "row.schema": "A row of a run names the schema of a reset or of a transition.",
    "row.number": "The rows of a run are numbered from 0 without a gap.",
    "row.made_up": "A row has the environment's own account: no outer wrapper invented the step or the reset.",
    "row.shape": "Fields, types, codes and gates are those of the row's schema and of `info.schema.json`.",
    "field.missing": "A transition has its six fields, and info has `latency_ms`, `action_clipped`, `wrapper_version`.",
    "field.type": "These fields have their types; the reward is a finite number, a latency is not negative.",
    "array.missing": "Every array that a row refers to is in the log, with its hash.",
    # the outside and the inside
    "outside.observation": "The agent saw the observation that the environment returned.",
    "outside.action": "The environment received the action that the agent gave.",
    "outside.reward": "The agent got the reward that the environment gave.",
    "outside.terminated": "`terminated` is what the environment returned.",
    "outside.truncated": "`truncated` is what the environment returned: no outer time limit.",
    # the ending
    "ending.both": "A transition is not terminated and truncated at once.",
    "ending.flags": "Each flag agrees with the end reason: success, failure and horizon terminate, others truncate.",
    "ending.reason": "`end_reason` is the first of the reasons to end.",
    "ending.order": "The reasons to end are in their order of precedence.",
    "ending.success": "`is_success` is true when the end reason is success, and only then.",
    "time_limit.early": "The time limit ends an episode at its horizon, not before.",
    "time_limit.missed": "An episode does not go on at its horizon.",
    "time_limit.kind": "The end reason at the horizon is the one for the kind of the episode.",
    "time_limit.remaining": "`time_remaining` is the share of the horizon that is left.",
    # the action and the gates
    "gates.account": "Severity, code and disposition follow from the findings.",
    "gates.code": "A gate has a code when it fired, and only then.",
    "clipping.said": "`action_clipped` and `intervened` agree with the disposition.",
    "clipping.hidden": "If no gate fired, the requested action was applied.",
    "clipping.idle": "If a gate limited the action, something changed.",
    "action.account": "The action in info is the one in the report of the gates.",
    "action.observed": "The applied actions in the observation end with the one of this step.",
    "limits.position": "The applied action is within the position limits, where that was guaranteed.",
    "limits.velocity": "The applied action follows the previous command within the velocity limits, where guaranteed.",
    # latency and clocks
    "stamps.order": "The stamps of a step are in the order of the step.",
    "stamps.chain": "The stamps of the previous step are those of the previous row.",
    "latency.stage": "Each stage is the difference of its stamps, to the nanosecond.",
    "latency.sensor": "Each stage of a sensor is the difference of its stamps.",
    "latency.quality": "A measured stage is present and not negative, and each stage has a quality.",
    "latency.total": "`latency_ms` is the time from observation to command, the sum of its parts.",
    "clock.steady": "The steady clock does not go back from one episode to the next.",
    "clock.world": "The world's time does not go back in an episode, unless a clock was set and that was recorded.",
    "clock.origin": "All stamps of an episode count from its reset.",
    "period.lockstep": "A lockstep world advances by exactly one control period at each step.",
    "period.drift": "A paced world keeps to the grid of the control period, except for `overrun_s`.",
    # readings
    "sensor.account": "A sensor in info agrees with its sample, at one instant for all sensors.",
    "sensor.stale": "A reading of quality OK is no older than `max_age_s`.",
    "sensor.future": "A reading of quality OK is not stamped after now.",
    "sensor.mask": "The mask of a sensor marks whether its reading is current.",
    "frame.back": "The stamps of a sensor do not go back in an episode.",
    "frame.repeated": "A reading with a new number has a new stamp.",
    "frame.seq": "The numbers of a sensor's readings do not go back in an episode.",
    "frame.held": "Without a usable reading, the last usable one is held, bit for bit.",
    # resets and episodes
    "reset.leak": "The readings of a reset are newer than its start.",
    "reset.kept": "A world reset by a seed does not start with the last observation of the previous episode.",
    "reset.latched": "A STOP of the previous episode is not latched in this one.",
    "reset.solved": "`info.reset` has the verdict of the task on the reset snapshot: judged or not, solved or not.",
    "episode.reset_missing": "Every episode starts with a reset.",
    "episode.after_end": "There is no step after an end.",
    "episode.step": "`step_index` goes up by one: every step is recorded.",
    "episode.index": "`episode_index` is 0 after a seed, and goes up otherwise.",
    # the contract and the run
    "contract.fingerprint": "A row is of the contract that it is checked against.",
    "space.observation": "The observation is in the contract's space, unless its quality gives a reason.",
    "space.action": "The action has the space's shape, or a gate refused it.",
    "evaluator.leak": "Nothing that the agent sees equals a reading of the evaluator for 20 steps in which it varies.",
    "evaluator.told": "info has nothing of the evaluator's sensors and options, unless requested.",
    "version.changed": "All rows are of one version.",
    "run.unclean": "The run was closed, its log is whole, and its rows have the hash that the manifest names.",
    "run.empty": "There is at least one transition.",
    "manifest.shape": "The manifest has the fields of its schema, with their types.",
    "manifest.contract": "The manifest has the text of a contract that can be read.",
    "manifest.fingerprint": "The text of the contract has the fingerprint that the manifest names.",
    "manifest.backend_fingerprint": "The profile of the backend has the fingerprint that the manifest names.",
    "manifest.backend": "Rows are of the backend that the manifest names.",
    "manifest.version": "Rows are of the versions that the manifest names.",
    "manifest.task": "The terms of the task are those that the manifest names.",
    "manifest.seeds": "The seeds of resets are those that the manifest lists.",
    "manifest.wrappers": "The recorder was the outermost wrapper.",
    "first.differs": "`first_transition.json` of a run that was closed is the first transition of the log.",
    "summary.missing": "A run that was closed has its summary.",
    "summary.differs": "The summary agrees with the rows: episodes, successes, ends, steps, returns.",
}
"""Rules that fail an audit."""

WARNINGS: Mapping[str, str] = {
    "frame.frozen": "A picture stays the same over 100 readings while the robot moves.",
    "episode.gap": "Episodes are missing between two others: resets failed, or are not in the record.",
    "reset.solved_in_place": "An episode that was solved at its reset, which moved nothing (level `none`).",
}
"""Findings that fail no audit."""

"""Checks of recorded runs by the extensions audit and replay, where they are installed."""

from embodied_env.core.plugin_loading import find_extension

AUDIT_RUN = "embodied_env.extensions.audit.run_audit:audit_run"
AUDIT_TRANSITION = "embodied_env.extensions.audit.transition_audit:audit_transition"
REPLAY_RUN = "embodied_env.extensions.replay.run_replay:replay_run"


def assert_sound(path, *, warnings=None, transitions=None):
    """Check that the audit of a run finds nothing, and no warning but `warnings` if given."""
    if (audit_run := find_extension(AUDIT_RUN)) is not None:
        report = audit_run(path)
        assert (report.problems, report.sound) == ((), True)
        assert transitions in (None, report.transitions)
        assert warnings is None or {found.rule for found in report.warnings} <= set(warnings)


def assert_transitions_sound(rows, contract=None):
    """Check that the audit of each of these transitions finds nothing."""
    if (audit_transition := find_extension(AUDIT_TRANSITION)) is not None:
        assert [problem for row in rows for problem in audit_transition(row, contract)] == []


def assert_finds(path, problem):
    """Check that the audit of a run names a problem."""
    if (audit_run := find_extension(AUDIT_RUN)) is not None:
        report = audit_run(path)
        assert not report.sound
        assert problem in {*report.problems, *report.counts}


def assert_replays(path, *, transitions=None, reconstructed=None, verified=True, **options):
    """Check that a run replays bit for bit, with its task unless not `verified`."""
    if (replay_run := find_extension(REPLAY_RUN)) is not None:
        replay = replay_run(path, **options)
        assert (replay.difference, replay.equal, replay.sound) == (None, True, verified)
        assert transitions in (None, replay.transitions)
        assert reconstructed in (None, replay.reconstructed)

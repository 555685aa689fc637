"""Short recorded runs, and changes of their files that are consistent except for the intended change."""

import json
from collections.abc import Mapping
from pathlib import Path

from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.record import RecordTransitions
from embodied_env.record.arrays import encode_array, references
from embodied_env.record.mcap_file import McapRecords
from embodied_env.record.row_log import CHANNELS, LOG_TIME, PREVIOUS, LogReader, LogWriter, start_of_chain
from embodied_env.record.row_types import RESET, TRANSITION


def record(folder, actions, contract="arm_reach", *, seed=3, wrap=lambda env: env, **options) -> Path:
    """Record an episode per list of actions, in which None is a sample of the action space."""
    env = RecordTransitions(wrap(EmbodiedEnv(contract, **{"backend": "fake", **options})), folder)
    env.action_space.seed(0)
    with env:
        for episode, each in enumerate(actions):
            env.reset(seed=seed if episode == 0 else None)
            for action in each:
                *_, terminated, truncated, _ = env.step(env.action_space.sample() if action is None else action)
                if terminated or truncated:
                    break
    return env.path


def change_manifest(path: Path, **values) -> None:
    file = path / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def rewrite_log(path: Path, rows) -> None:
    """Replace the log of the run by `rows` without arrays, and their hashes and copies in other files."""
    rows = list(rows)
    log, manifest = path / "transitions.mcap", json.loads((path / "manifest.json").read_text())
    log.unlink(missing_ok=True)
    writer, steps = LogWriter(log, start=start_of_chain(manifest)), []
    is_linked = all(isinstance(row, dict) for row in rows)
    for row in rows:
        named = row if isinstance(row, dict) else {}
        topic = "reset" if named.get("schema") == RESET else "transition"
        data = json.dumps(unlinked(named) or row).encode()
        if is_linked:
            data = writer.chain.link(data, 0)
        writer.append(topic, data, number=0, log_time_ns=0)  # including rows that a recorder never writes
        if named.get("schema") == TRANSITION:
            steps.append(json.loads(data))
    writer.close()
    if steps:
        (path / "first_transition.json").write_text(json.dumps(steps[0]))
    seal(path)


def relink(path: Path) -> None:
    """Rewrite the log of the run at `path` under its changed manifest."""
    rewrite_log(path, LogReader(path / "transitions.mcap"))


def unlinked(row: Mapping) -> dict:
    """Return a row without the fields that link it to the previous one."""
    return {key: value for key, value in row.items() if key not in (PREVIOUS, LOG_TIME)}


def with_a_chunk_per_row(path: Path) -> Path:
    """Write each row of the run at `path` in a chunk of its own, so that a cut loses few, and return the log."""
    log = path / "transitions.mcap"
    reader, stored = LogReader(log), list(McapRecords(log).messages())
    found = [(reference, reader.array(reference)) for row in reader for _, reference in references(row)]
    arrays = [(reference, encode_array(array)) for reference, array in found]
    log.unlink()
    writer = LogWriter(log)
    for reference, message in arrays:
        writer.put(reference, message, log_time_ns=0)
    rows = [each for each in stored if each.channel.topic in CHANNELS]
    for number, each in enumerate(rows):
        data, ns = each.record.data, each.record.log_time
        writer.append(each.channel.topic, data, number=number, log_time_ns=ns)
        writer.flush()
    writer.close()
    return log


def seal(path: Path) -> None:
    """Write the hashes of the rows to the manifest, as a forger does."""
    file, content = path / "manifest.json", LogReader(path / "transitions.mcap").content
    hashes = {"chain": content.chain.as_json()} if content.chain.start else {"rows_sha256": content.rows_sha256}
    manifest = {key: value for key, value in json.loads(file.read_text()).items() if key != "chain"}
    file.write_text(json.dumps({**manifest, **hashes}))

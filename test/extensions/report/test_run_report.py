"""Reports of valid runs, and of truncated, empty, foreign and hostile ones."""

import base64
import importlib.util
import io
import json
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
from identified_arm import identified_arm
from report_pages import HOSTILE, Html, record, rows_of
from row_logs import RowLog
from run_files import with_a_chunk_per_row
from shipped_contracts import changed_contract, changed_text

from embodied_env.cli.main import main
from embodied_env.core.code_types import Quality
from embodied_env.core.terminal import Progress
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.extensions.report import html_pages
from embodied_env.extensions.report.episode_traces import EpisodeTraces
from embodied_env.extensions.report.html_pages import POLICY
from embodied_env.extensions.report.key_frames import MOST_FRAMES, KeyFrames, jpeg_base64
from embodied_env.extensions.report.run_report import RunStatistics, write_report
from embodied_env.record import RecordTransitions, read_run
from embodied_env.record.row_types import RESET, TRANSITION
from embodied_env.record.summary import MOST_REASONS, OTHER, EpisodeOutcome, Outcomes, Rate

pytest.importorskip("jinja2", reason="pages need jinja2, of the extra `report`")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return record(tmp_path_factory.mktemp("runs"))


def collect_rows(rows, contract=None):
    statistics = RunStatistics(contract)
    for row in rows:
        statistics.add(row)
    statistics.episodes.close()
    return statistics


@pytest.fixture(scope="module")
def source(recorded, tmp_path_factory):
    page = tmp_path_factory.mktemp("pages") / "report.html"
    assert main(["report", str(recorded), "-o", str(page)]) == 0
    return page.read_text(encoding="utf-8")


# ---------------------------------------------------------------------------------------------------------------- page


def test_page_loads_nothing(source):
    page = Html(source)
    assert [load for load in page.loads if not load.startswith(("data:image/jpeg;base64,", "#"))] == []
    assert not page.of("link")
    assert not page.of("iframe")
    assert not re.search(r"url\(|@import", "".join(page.styles))


def test_page_is_small_and_its_policy_forbids_loading(source):
    assert len(source.encode()) < 400_000
    assert f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">' in source
    assert "http" not in POLICY
    assert POLICY.startswith("default-src 'none'")


def test_links_lead_to_episodes_of_the_page_and_everything_has_a_name(source):
    page = Html(source)
    links = page.of("a")
    assert {link["href"] for link in links} == {"#episode-1", "#episode-2"}
    assert {"episode-1", "episode-2"} <= {article["id"] for article in page.of("article")}
    assert [article["class"] for article in page.of("article")].count("episode default") == 1
    assert all(drawing["aria-label"] for drawing in page.of("svg"))
    assert all(image["alt"] for image in page.of("img"))
    assert [tag for tag, _ in page.elements if tag in ("h1", "h2", "h3", "h4")][:4] == ["h1", "h2", "h2", "h3"]


def test_every_measured_stage_is_in_the_table(source, recorded):
    summary = json.loads((recorded / "summary.json").read_text())
    for stage in summary["latency"]:
        name, _, sensor = stage.partition("[")
        label = name.removesuffix("_s").replace("_", " ") + (f" · {sensor.rstrip(']')}" if sensor else "")
        assert label in Html(source).words


def test_page_is_reproducible(source, recorded, tmp_path):
    assert main(["report", str(recorded), "-o", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == source


# -------------------------------------------------------------------------------------------------------------- numbers


def test_outcomes_and_percentiles_equal_the_summary(recorded):
    found = collect_rows(rows_of(recorded))
    summary = json.loads((recorded / "summary.json").read_text())
    sample, latency = found.stages.samples["gate_s", ""].percentiles(), summary["latency"]["gate_s"]
    assert [sample.count, sample.p50, sample.p95, sample.p99, sample.most] == [
        latency[key] for key in ("count", "p50_s", "p95_s", "p99_s", "max_s")
    ]
    del summary["record"]  # failed writes are in no row
    assert found.outcomes.as_json("") | {"contract_fingerprint": "", "latency": {}} == {
        **summary,
        "contract_fingerprint": "",
        "latency": {},
    }


def test_unmeasured_stages_are_counted_by_quality(recorded):
    rows = rows_of(recorded)
    for row in rows[1:5]:
        row["info"]["latency"]["quality"]["policy_s"] = 9
    account = collect_rows(rows)
    assert account.stages.unmeasured[("policy_s", ""), 9].count >= 4


def test_null_value_of_a_measured_stage_is_not_counted(recorded):
    rows = rows_of(recorded)
    rows[1]["info"]["latency"] |= {"obs_skew_s": None}
    account = collect_rows(rows)
    assert account.stages.unmeasured[("obs_skew_s", ""), 0].count == 1
    assert account.stages.samples["obs_skew_s", ""].count == 23


def test_age_of_a_reading_in_a_lost_world_is_not_counted(recorded):
    rows = rows_of(recorded)
    rows[1]["info"]["sensors"]["joints"]["quality"] = int(Quality.LOST)
    account = collect_rows(rows)
    assert account.sensors.by_name["joints"].ages.count == 23


def test_a_suspect_odometry_is_counted_with_its_newest_reason(recorded):
    rows = rows_of(recorded)
    for row, problem in zip(rows[1:5], ("first", "", "second", ""), strict=True):
        row["info"]["sensors"]["joints"]["suspect_motion"] = problem
    sensor = collect_rows(rows).sensors.by_name["joints"]
    assert (sensor.suspect_steps.count, sensor.suspect_motion) == (2, "second")


def test_steps_added_by_an_outer_wrapper_count_in_the_outcome_only(recorded):
    rows = rows_of(recorded)
    rows[1] |= {"inner": None, "info": {"anything": 1}}
    account = collect_rows(rows)
    assert (account.unaccounted, account.unreadable, account.steps) == (1, 0, 24)
    assert account.outcomes.as_json("")["steps"] == 24
    assert account.stages.samples["gate_s", ""].count == 23


def test_kinds_of_resets_are_counted(recorded):
    row: Any = rows_of(recorded)[0]
    row["info"]["reset"] |= {"level": "robot", "routine": "home", "confirmed_by": "prompt", "options_ignored": ""}
    outcomes = Outcomes()
    outcomes.add(row)
    assert dict(outcomes.reset_kinds) == {"robot, by home, confirmed by prompt": 1}


def test_excess_end_reasons_are_counted_together(recorded):
    reset, step = rows_of(recorded)[:2]
    outcomes = Outcomes()
    for number in range(MOST_REASONS + 50):
        outcomes.add(reset)
        info = {**step["info"], "end_reason": f"failure:{number}" * 99}
        ended: Any = {**step, "terminated": True, "info": info}
        outcomes.add(ended)
    reasons = outcomes.as_json("")["end_reasons"]
    assert reasons[OTHER] == 50
    assert max(map(len, reasons)) < 300


# ----------------------------------------------------------------------------------------------- runs that fail the audit


def report(path, capsys):
    status = main(["report", str(path)])
    assert "Traceback" not in capsys.readouterr().err
    return status, Html((path / "report.html").read_text(encoding="utf-8")).words


def truncate(path):
    log = with_a_chunk_per_row(path)
    log.write_bytes(log.read_bytes()[: log.stat().st_size * 2 // 3])


@pytest.mark.parametrize(
    ("damage", "problems"),
    [
        (None, ["Not sound evidence", "no transition", "The run has no reset, so no episode."]),
        (truncate, ["truncated, because its writer was stopped", "episode was cut off before the end"]),
        (lambda path: (path / "transitions.mcap").unlink(), ["cannot be read"]),
    ],
    ids=["empty", "truncated", "no log"],
)
def test_page_of_a_run_that_is_not_sound_reports_failure(tmp_path, capsys, damage, problems):
    if damage is None:
        env = RecordTransitions(EmbodiedEnv("arm_reach", backend="fake"), tmp_path)
        path = shutil.copytree(env.path, tmp_path / "killed")
        env.close()
    else:
        damage(path := record(tmp_path, steps=6, resets=1))
    status, words = report(path, capsys)
    assert status == 1
    assert [problem for problem in problems if problem not in words] == []


def test_names_from_a_run_are_escaped(tmp_path, capsys):
    path = record(tmp_path, steps=2, resets=1)
    file = path / "manifest.json"
    manifest = json.loads(file.read_text())
    hostile = {
        "policy": HOSTILE,
        "backend": HOSTILE,
        "versions": {HOSTILE: HOSTILE},
        "seeds": [HOSTILE],
        "host": HOSTILE,
    }
    file.write_text(json.dumps({**manifest, **hostile, "contract": {**manifest["contract"], "name": HOSTILE}}))
    status = main(["report", str(path)])
    source = (path / "report.html").read_text()
    assert (status, "evil.example" in source, "<img src=//evil" in source, "<script>alert" in source) == (
        1,  # the audit rejects it too
        True,
        False,
        False,
    )
    assert HOSTILE in Html(source).words


EVERY_BLOCK = """
{% from "blocks.html" import card, counted, fact, fact_code, facts, details, listed, note, num, rate_card %}
{% from "blocks.html" import rates_table, section, table, td, td_bar, td_code, verdict, warning %}
{% call section(hostile, hostile) %}
{{ verdict(true, hostile, hostile) }}
{{ card(hostile, hostile, hostile) }} {{ rate_card(hostile, rate, hostile) }} {{ rates_table([(hostile, rate)]) }}
{% call(row) table([hostile], [hostile]) %}{{ td(row) }}{{ num(row) }}{{ td_code(row) }}{{ td_bar(0.5, 0.4, 0.6) }}{% endcall %}
{% call facts() %}{{ fact(hostile, hostile) }}{{ fact_code(hostile, hostile) }}{% endcall %}
{{ note(hostile) }} {{ warning("x " ~ hostile) }} {{ listed([hostile, hostile]) }} {{ counted(counter) }}
{% call details(hostile) %}{{ hostile }}{% endcall %}
{% endcall %}
"""


def test_every_block_escapes_its_texts():
    counter = Counter({HOSTILE: 2})
    made = template_of(EVERY_BLOCK).render(hostile=HOSTILE, rate=Rate.of(1, 2), counter=counter)
    page = Html(made)
    assert page.words.count(HOSTILE) == 24
    assert not {"img src=//evil", "script>alert"} & {tag for tag, _ in page.elements}
    assert "<img src=//evil" not in made
    assert "<script>alert" not in made
    assert page.loads == []


def template_of(source):
    pytest.importorskip("jinja2", reason="pages need jinja2")
    from embodied_env.extensions.report.html_pages import _environment

    return _environment().from_string(source)


@pytest.mark.parametrize("source", ["{{ missing }}", "{{ {}.missing }}"])
def test_a_missing_value_is_an_error(source):
    with pytest.raises(sys.modules["jinja2"].UndefinedError):
        template_of(source).render()


@pytest.mark.parametrize(
    "row",
    [
        None, 3, [], {}, {"schema": TRANSITION}, {"schema": RESET},
        {"schema": TRANSITION, "info": None, "inner": 4, "observation": 5, "reward": "x"},
        {"schema": TRANSITION, "info": {"latency": {"quality": {"gate_s": "x", "hold_s": {"a": None}}}, "safety": {"severity": 3}}},
        {"schema": TRANSITION, "info": {"sensors": {"a": None}, "action": {"requested": {}, "applied": [[1]], "applied_si": {"j": 1}}}},
        {"schema": TRANSITION, "info": {"latency": {"clock": {"mode": 3, "rtf": None, "epoch": "many"}, "missed_deadlines": "x"}}},
        {"schema": TRANSITION, "inner": {"findings": [None, {"joints": 3, "severity": "GRAVE"}]}, "terminated": "yes"},
        {"schema": TRANSITION, "reward": 10**400, "info": {"safety": {"disposition": 99}, "end_reason": ["x"]}},
    ],
)  # fmt: skip
def test_invalid_row_is_counted_and_skipped(row):
    account = collect_rows([row, row])
    assert (account.unreadable, account.steps, account.outcomes.resets) == (2, 0, 0)


def test_every_row_advances_the_audit_and_the_reading(recorded, tmp_path):
    class Counted(Progress):
        def __init__(self):
            self.parts = {}

        def start(self, task, total):
            self.task = task
            self.parts[task] = 0

        def advance(self, parts=1):
            self.parts[self.task] += parts

    progress = Counted()
    write_report(recorded, tmp_path / "report.html", progress=progress)
    rows = len(rows_of(recorded))
    assert progress.parts == {"audit": rows, "reading": rows, "drawing": 0}


def test_no_run_or_an_unwritable_page_is_a_one_line_error(recorded, tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 1
    assert "not a run directory" in capsys.readouterr().err
    assert main(["report", str(recorded), "-o", str(tmp_path / "nowhere" / "page.html")]) == 2
    assert "expected a file in an existing directory" in capsys.readouterr().err


def test_json_output_has_path_and_outcome(recorded, tmp_path, capsys):
    assert main(["report", str(recorded), "-o", str(tmp_path / "page.html"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["path"], found["transitions"], found["sound"]) == (str(tmp_path / "page.html"), 24, True)


def test_missing_package_names_the_extra_to_install(recorded, monkeypatch, capsys):
    html_pages._environment.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["report", str(recorded)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert 'pip install "embodied_env[report]"' in error


@pytest.mark.needs("evaluation")
def test_evaluate_writes_the_report_into_the_run_directory(tmp_path, capsys):
    short = tmp_path / "short.yaml"
    short.write_text(changed_text("arm_reach", {"episode.horizon_steps": 3}))
    arguments = ["--backend", "fake", "--policy", "hold", "--episodes", "1", "--out", str(tmp_path), "--json"]
    main(["evaluate", str(short), *arguments, "--report"])
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert "Success rate" in (tmp_path / run["path"] / "report.html").read_text()


# ---------------------------------------------------------------------------------------------------------- key frames


def seen(sha):
    return {"observation": {"eye": {"sha256": sha, "dtype": "uint8", "shape": [4, 4, 3]}}}


def frames_of(shas):
    frames = KeyFrames()
    for step, sha in enumerate(shas):
        frames.add(step, seen(sha))
    return frames.frames()["eye"]


@pytest.mark.parametrize("steps", [1, MOST_FRAMES, 50, 1000])
def test_key_frames_are_spread_from_the_first_to_the_last_step(steps):
    found = [step for step, _ in frames_of([str(step) for step in range(steps)])]
    assert (found[0], found[-1]) == (0, steps - 1)
    assert len(found) == min(steps, MOST_FRAMES)
    assert max(np.diff(found), default=0) <= 2 * steps / (MOST_FRAMES - 1)


def test_unchanged_image_is_shown_once():
    assert [step for step, _ in frames_of("aaa")] == [0]


@pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="images need Pillow")
@pytest.mark.parametrize(
    "image",
    [
        np.zeros((4, 900, 3), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.full((4, 4, 1), np.nan, np.float32),
        np.array([[[np.inf], [1.0]], [[2.0], [3.0]]], np.float32),
        np.zeros((3, 3, 1), np.uint16),
        np.zeros((2, 4, 4, 3), np.uint8),
    ],
)
def test_any_image_becomes_a_small_jpeg(image):
    jpeg, _ = jpeg_base64(image)
    assert jpeg.startswith("/9j/")
    assert len(jpeg) < 20_000


@pytest.mark.parametrize("encoding", ["rgb8", "bgr8"])
def test_picture_has_the_colours_of_the_camera(encoding):
    image = pytest.importorskip("PIL.Image", reason="images need Pillow")
    red = np.full((8, 8, 3), [200, 0, 0] if encoding == "rgb8" else [0, 0, 200], np.uint8)
    reset: Any = {"observation": {"camera_image": {"sha256": "a", "dtype": "uint8", "shape": [8, 8, 3]}}}
    traces = EpisodeTraces(changed_contract("door_open", {"sensors.camera.encoding": encoding}))
    traces.begin(EpisodeOutcome(number=1, seed=None, solved=None), reset)
    traces.close()
    (picture,) = traces.kept[0].frames.pictures(lambda _: red)["camera_image"]
    pixel = image.open(io.BytesIO(base64.b64decode(picture.jpeg))).getpixel((4, 4))
    assert np.allclose(pixel, [200, 0, 0], atol=5)


def test_missing_image_is_reported(recorded):
    pytest.importorskip("PIL", reason="images need Pillow")
    frames = KeyFrames()
    frames.add(1, seen("a" * 64))
    (picture,) = frames.pictures(read_run(recorded).array)["eye"]
    assert picture.jpeg == ""
    assert "the image cannot be shown" in picture.note


# -------------------------------------------------------------------------------------------------------------- memory


def varied(recorded):
    rng = np.random.default_rng(4)
    rows = [row for row in rows_of(recorded) if row["schema"] == TRANSITION]
    for row in rows:
        row["info"]["latency"]["gate_s"] = float(rng.lognormal(-7, 1))
    return [json.dumps(row) for row in rows]


def long_run(folder, recorded, count):
    """Write a run of `count` transitions in episodes of 500, from rows written by the environment."""
    manifest = json.loads((recorded / "manifest.json").read_text())
    made = rows_of(recorded)
    resets = [row for row in made if row["schema"] == RESET]
    steps = [json.loads(row) for row in varied(recorded)]
    path = folder / "long"
    path.mkdir()
    log = RowLog(path / "transitions.mcap")
    log.rows_per_chunk = 20  # each chunk of a log takes 0.7 kB
    number = 0
    for step in range(count):
        if step % 500 == 0:
            log.write("reset", {**resets[0], "row": number}, log_time_ns=number)
            number += 1
        row = {**steps[step % len(steps)], "row": number, "terminated": step % 500 == 499}
        log.write("transition", row, log_time_ns=number)
        number += 1
    log.close()
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def reported(path):
    """Write a report in a separate process, and return its peak memory, MB, and the size of the page, bytes."""
    script = (
        "import resource, sys\n"
        "from embodied_env.cli.main import main\n"
        f"status = main(['report', {str(path)!r}])\n"
        "assert status in (0, 1)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1]), (path / "report.html").stat().st_size


def test_page_names_identified_parameters_with_their_hash(tmp_path):
    contract = identified_arm(tmp_path)
    env = RecordTransitions(EmbodiedEnv(contract, backend="mujoco"), tmp_path / "runs")
    env.reset(seed=0)
    env.close()
    (run,) = (tmp_path / "runs").iterdir()
    page = write_report(run).path.read_text(encoding="utf-8")
    assert f"arm.identified.yaml, SHA-256 {contract.backends['mujoco']['identified']['sha256']}" in page


def test_the_report_of_a_playback_draws_its_deviations(recorded, tmp_path):
    path = shutil.copytree(recorded, tmp_path / "run")
    column = {"worst": 0.1, "diverged_s": 0.0, "difference": [0.1, 0.0]}
    content = {"control_period_s": 0.1, "episodes": [{"columns": {"command linear.x": column}}]}
    (path / "playback.json").write_text(json.dumps(content))
    page = write_report(path).path.read_text(encoding="utf-8")
    assert "Deviations from the played run" in page
    assert "episode 1: command linear.x" in page


@pytest.mark.long
def test_report_of_100000_transitions_has_bounded_memory(recorded, tmp_path):
    (tmp_path / "few").mkdir()
    few_mb, _ = reported(long_run(tmp_path / "few", recorded, 2_000))
    begin = time.perf_counter()
    path = long_run(tmp_path, recorded, 100_000)
    many_mb, page_bytes = reported(path)
    (path / "transitions.mcap").unlink()  # 600 MB
    print(f"{few_mb:.0f} MB for 2 000, {many_mb:.0f} MB for 100 000, {page_bytes / 1e6:.2f} MB, "
          f"{time.perf_counter() - begin:.0f} s")  # fmt: skip
    assert many_mb < few_mb + 60
    assert page_bytes < 3_000_000

"""How a server's process sees a self-benchmark to its end, with everything that can be missing or wrong."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from bench_client import Client, Clock, leave_files, order

from forwardpass.artifact.engine import PENDING
from forwardpass.bench.handover import Handover, OnFailure, Order, Outcome, Verdict
from forwardpass.config.settings import Sources
from forwardpass.engines.vllm.bench_conclude import Conclusion

PROBE, DISABLE, RELEASE = "fpm_engine_probe", "fpm_disable_cudagraph_metrics", "fpm_gc_stop"
FREEZE = {"DYN_FPM_GC_POLICY": "freeze"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the base of the files."""
    return tmp_path / "bench.json"


def reach(
    client: Client, wanted: Order, folder: Path, *, stop: bool = False, **variables: str
) -> tuple[Outcome, Any]:
    """Reach the end; return how it was and the document to serve."""
    handover = Handover(folder)
    if stop:
        handover.ask_to_stop()
    end = Conclusion(client, handover, wanted, Clock(), Sources(variables))
    outcome, served = asyncio.run(end.reach())
    return outcome, None if served is None else json.loads(served)


def test_a_complete_run_is_merged_asked_about_and_served(path: Path, tmp_path: Path) -> None:
    """BVLLM-42, BVLLM-43, BVLLM-44, PIT-39, PIT-42: Merge, then the workers, then statistics off; the verdict
    is applied.
    """
    client = Client()
    leave_files(path)
    (tmp_path / "bench_merged.json").write_text("of an earlier run")
    written = path.read_bytes()

    outcome, served = reach(client, order(path), tmp_path)

    assert (outcome.verdict, outcome.serving, outcome.points) == (Verdict.COMPLETE, True, 3)
    assert client.calls == [PROBE, DISABLE]
    assert path.read_bytes() == written
    assert served["engine"]["resolution"] == "worker_probe_partial"  # made up: sizes unknown
    assert json.loads((tmp_path / "bench_merged.json").read_bytes())["engine"]["resolution"] == PENDING
    assert outcome.worker_probe == str(tmp_path / "bench_merged_worker_probe.json")
    assert client.vllm_config.observability_config.cudagraph_metrics is False
    assert [each.cudagraph_logging for each in client.loggers] == [None, None]


def test_statistics_that_were_on_before_stay_on(path: Path, tmp_path: Path) -> None:
    """BVLLM-44: What the operator turned on is left alone."""
    client = Client()
    leave_files(path)

    reach(client, order(path, cudagraph_metrics_auto_enabled=False), tmp_path)

    assert client.calls == [PROBE]
    assert client.vllm_config.observability_config.cudagraph_metrics is True
    assert None not in [each.cudagraph_logging for each in client.loggers]


@pytest.mark.parametrize(("on_failure", "serving"), [(OnFailure.STOP, False), (OnFailure.SERVE, True)])
def test_a_failed_rank(path: Path, tmp_path: Path, on_failure: OnFailure, serving: bool) -> None:
    """BVLLM-45, BVLLM-44, PIT-41: The reason is the file's; statistics are turned off all the same."""
    client = Client()
    leave_files(path, status="failed", error="BenchError: it was too hot")
    for name in ("bench_merged.json", "bench_merged_worker_probe.json"):
        (tmp_path / name).write_text("of an earlier run")

    outcome, served = reach(client, order(path, on_failure=on_failure), tmp_path)

    assert (outcome.verdict, outcome.serving, served) == (Verdict.FAILED, serving, None)
    assert "it was too hot" in outcome.message
    assert outcome.rank_files == (str(path),)
    assert client.calls == [DISABLE]
    assert list(tmp_path.glob("bench*.json")) == [path]


def test_a_skipped_point_makes_a_run_useless(path: Path, tmp_path: Path) -> None:
    """BVLLM-45: One point without a result is enough, as for the reference's loader."""
    leave_files(path)
    document = json.loads(path.read_bytes())
    document["coverage"] |= {"skipped_points": 1, "completed_points": 2}
    path.write_text(json.dumps(document))

    outcome, _ = reach(Client(), order(path), tmp_path)

    assert (outcome.verdict, outcome.serving) == (Verdict.FAILED, False)
    assert "do not merge" in outcome.message


def test_a_file_that_does_not_come(path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """BVLLM-45, PIT-44: One warning at the limit; 90 s later the missing files are named, whatever is to
    happen.
    """
    leave_files(path)
    wanted = order(path, timeout_seconds=50.0, on_failure=OnFailure.SERVE)

    outcome, _ = reach(Client(size=2), wanted, tmp_path)

    assert (outcome.verdict, outcome.serving) == (Verdict.FAILED, False)
    assert outcome.message.endswith(str(tmp_path / "bench_dp1.json"))
    assert "no file after 140 s" in outcome.message
    assert [record.message for record in caplog.records] == ["the self-benchmark takes longer than its 50 s"]


def test_an_engine_that_ends(path: Path, tmp_path: Path) -> None:
    """BVLLM-45: It is noticed at once, told with how far the ranks were, and nobody is asked anything."""
    client = Client(size=2)
    client.errored = True

    outcome, _ = reach(client, order(path, on_failure=OnFailure.SERVE), tmp_path)

    assert (outcome.verdict, outcome.serving) == (Verdict.FAILED, False)
    assert "ended before every rank had written its file (no rank had begun)" in outcome.message
    assert client.calls == []


@pytest.mark.parametrize(
    ("reply", "resolution"),
    [(TimeoutError(), "probe_failed: TimeoutError"), ([], "probe_failed: no worker replied")],
)
def test_workers_that_do_not_answer(path: Path, tmp_path: Path, reply: Any, resolution: str) -> None:
    """PROBE-01, BVLLM-43, PIT-40: The result is served; what is missing is said in it, by the name of the
    error where it has no text.
    """
    client = Client()
    client.replies[PROBE] = reply
    leave_files(path)

    outcome, served = reach(client, order(path), tmp_path)

    assert outcome.serving
    assert served["engine"]["resolution"] == resolution


def test_workers_with_a_class_of_the_users_own(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """BVLLM-40: They are not asked anything; one warning for each call that is left out."""
    client = Client()
    leave_files(path)
    wanted = order(path, user_worker_extension_cls="somebody.Extension", worker_extension_installed=False)

    outcome, served = reach(client, wanted, tmp_path)

    assert outcome.serving
    assert client.calls == []
    assert served["engine"]["resolution"].startswith("probe_skipped: ")
    assert [each.cudagraph_logging for each in client.loggers] == [None, None]
    assert sum("somebody.Extension" in record.message for record in caplog.records) == 2


def test_a_worker_that_goes_on_recording_is_told_of(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """BVLLM-44: An answer that is not the expected one is a warning."""
    client = Client()
    client.replies[DISABLE] = [{"cudagraph_metrics": False}, {"cudagraph_metrics": True}]
    leave_files(path)

    outcome, _ = reach(client, order(path), tmp_path)

    assert outcome.serving
    assert "may go on recording" in caplog.text


def test_workers_let_go_of_their_garbage_collectors(path: Path, tmp_path: Path) -> None:
    """BCONF-15, BVLLM-44: With the policy they are told after the probe and before the last restoration, also
    after a run that failed, and not if they have a class of the user's own.
    """
    client = Client()
    leave_files(path)
    outcome, _ = reach(client, order(path), tmp_path, **FREEZE)
    assert (outcome.serving, client.calls) == (True, [PROBE, RELEASE, DISABLE])

    failed = Client()
    leave_files(path, status="failed", error="something")
    reach(failed, order(path), tmp_path, **FREEZE)
    assert failed.calls == [RELEASE, DISABLE]

    foreign = Client()
    leave_files(path)
    reach(foreign, order(path, user_worker_extension_cls="somebody.Extension"), tmp_path, **FREEZE)
    assert foreign.calls == []


@pytest.mark.parametrize("reply", [[{"gc_held": True}], [{"gc_held": False}, None], TimeoutError()])
def test_a_worker_that_holds_on_is_not_served(path: Path, tmp_path: Path, reply: Any) -> None:
    """BCONF-15, BVLLM-44, PIT-15: A worker that would never collect its garbage while it serves ends the
    server; if the run itself had failed, that stays the reason.
    """
    client = Client()
    client.replies[RELEASE] = reply
    leave_files(path)
    outcome, served = reach(client, order(path, on_failure=OnFailure.SERVE), tmp_path, **FREEZE)
    assert (outcome.verdict, outcome.serving, served) == (Verdict.FAILED, False, None)
    assert "could not be put back" in outcome.message

    leave_files(path, status="failed", error="something")
    outcome, _ = reach(client, order(path), tmp_path, **FREEZE)
    assert "something" in outcome.message


def test_what_cannot_be_put_back_is_not_served(path: Path, tmp_path: Path) -> None:
    """BVLLM-44: A server whose engine is not as it was before does not answer."""
    client = Client()
    client.logger_manager = _Broken()
    leave_files(path)

    outcome, served = reach(client, order(path, on_failure=OnFailure.SERVE), tmp_path)

    assert (outcome.verdict, outcome.serving, served) == (Verdict.FAILED, False, None)
    assert "could not be put back" in outcome.message


class _Broken:
    @property
    def stat_loggers(self) -> list[Any]:
        raise RuntimeError("no loggers")


def test_a_run_that_was_told_to_end_is_not_served(path: Path, tmp_path: Path) -> None:
    """BVLLM-46: Whatever its files say, and although they are merged."""
    leave_files(path)

    outcome, served = reach(Client(), order(path), tmp_path, stop=True)

    assert (outcome.verdict, outcome.serving, served) == (Verdict.INTERRUPTED, False, None)
    assert (tmp_path / "bench_merged.json").exists()


@pytest.mark.parametrize("balancer", ["external", "hybrid"])
def test_a_launcher_waits_for_its_own_ranks(path: Path, tmp_path: Path, balancer: str) -> None:
    """BVLLM-42: A launcher with one rank of two waits for that, and names its files after it."""
    leave_files(path, ranks=2)
    path.unlink()

    outcome, _ = reach(Client(size=2, first=1, **{balancer: True}), order(path), tmp_path)

    assert outcome.merged == str(tmp_path / "bench_dp1_merged.json"), outcome.message
    assert outcome.rank_files == (str(tmp_path / "bench_dp1.json"),)


def test_an_engine_that_was_not_prepared(path: Path, tmp_path: Path) -> None:
    """BVLLM-40: Without the plugin nothing measures; it is said at once instead of after the time limit."""
    outcome, _ = reach(Client(), order(path, prepared=False), tmp_path)

    assert (outcome.verdict, outcome.serving) == (Verdict.FAILED, False)
    assert "plugin" in outcome.message

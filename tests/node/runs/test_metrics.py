"""Changes of the Prometheus textfile outside of runs."""

from pathlib import Path

from localpuppet.base.formats.prometheus import parse_samples
from localpuppet.node.runs import metrics_file
from localpuppet.node.runs.run import Outcome, RunState
from tests.rigs.recorded import Recorded

NAME = "localpuppet_confirmation_overdue"


def test_the_metric_of_an_overdue_confirmation_survives_a_run_until_it_is_settled(
    tmp_path: Path,
) -> None:
    path = tmp_path / "metrics.prom"
    metrics_file.note_confirmation(path, late=False)
    assert not path.exists()  # most nodes never have this metric
    metrics_file.note_confirmation(path, late=True)
    recorded = Recorded(tmp_path)
    run = recorded.records.create(recorded.clock)
    status = recorded.status(run, state=RunState.FINISHED, outcome=Outcome.CHANGED)
    metrics_file.update(path, status, holds=1, rollback=None, now=recorded.clock.now())
    samples = parse_samples(path.read_text())
    assert (samples[NAME], samples["localpuppet_last_run_success"]) == ("1", "1")
    assert f"# TYPE {NAME} gauge" in path.read_text()
    metrics_file.note_confirmation(path, late=False)
    assert parse_samples(path.read_text())[NAME] == "0"

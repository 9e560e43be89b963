"""What a pipeline tells Prometheus of its ticks."""

from prometheus_client import generate_latest

from ister.pipeline.status import PipelineMetrics, Status, TopicStatus
from ister.pipeline.topic_writer import CommitAttempt, MicroBatch


def test_commits_are_told_with_how_long_they_took_and_what_came_between():
    metrics = PipelineMetrics()
    topic = TopicStatus(table="default.a", upto=7, next=10, lag_s=1.5, undecoded=2, error="")
    status = Status(1, 1, 0.0, {"/default/a": topic})
    metrics.note(
        MicroBatch(
            rows=5,
            commits=1,
            attempts=[CommitAttempt(0.02, 1, 0), CommitAttempt(3.0, 2, 1)],
            failed={"/default/b": "why"},
        ),
        status,
    )
    metrics.note(MicroBatch(), status)
    lines = generate_latest(metrics.registry).decode().splitlines()
    for line in (
        "ister_pipeline_ticks_total 2.0",
        "ister_pipeline_commits_total 1.0",
        "ister_pipeline_commit_seconds_count 2.0",
        "ister_pipeline_commit_seconds_sum 3.02",
        "ister_pipeline_commit_conflicts_total 3.0",
        "ister_pipeline_commit_unknowns_total 1.0",
        "ister_pipeline_topics_failing 0.0",
        'ister_pipeline_lag_messages{topic="/default/a"} 3.0',
    ):
        assert line in lines, line

"""`ister pipeline run --once`: what it says and its exit code; without Spark."""

from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from ister.cli.commands.pipeline import write_summary
from ister.cli.exit_codes import exit_code
from ister.config import load
from ister.pipeline.task import Verdict
from ister.runtime import pipeline
from ister.runtime.pipeline import NotCarriedError, RunOptions
from parts.writer import FakeBroker, FakeLake, FakeWriter


@pytest.fixture
def once(tmp_path, monkeypatch):
    """Runs once, over a broker and tables that are not there; `verdicts` are given to the writer."""
    monkeypatch.delenv(pipeline.SECRETS_VARIABLE, raising=False)

    def run(verdicts, **rows):
        broker = FakeBroker(**rows)
        broker.close = lambda: None
        writer = FakeWriter(broker, FakeLake())
        writer.verdicts = verdicts
        spark = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1), stop=lambda: None)
        monkeypatch.setattr(pipeline, "export_secrets", lambda config: None)
        monkeypatch.setattr(pipeline, "open_session", lambda *_, **__: spark)
        monkeypatch.setattr(pipeline, "BrokerClient", lambda *_: broker)
        monkeypatch.setattr(pipeline, "LakeCatalog", SimpleNamespace(open=lambda *_, **__: None))
        monkeypatch.setattr(pipeline, "TopicWriter", lambda *_: writer)
        monkeypatch.setattr(pipeline, "Wakeups", lambda *_: SimpleNamespace(start=lambda: None))
        with capture_logs():
            pipeline.run(load(None, tmp_path, {}), RunOptions("127.0.0.1:1", "local[1]", True, (), None), write_summary)

    return run


def test_all_topics_that_were_carried_are_a_success(once, capsys):
    once({}, a=10, b=10)
    assert capsys.readouterr().out == "20 rows in 2 files and 2 commits.\n"


def test_topics_that_were_not_carried_are_named_and_are_no_success(once, capsys):
    """K12."""
    with pytest.raises(NotCarriedError, match="/default/b: corrupt: it was told so") as found:
        once({"/default/b": Verdict.CORRUPT}, a=10, b=10)
    assert list(found.value.causes) == ["/default/b"]
    assert exit_code(found.value) == 3
    assert capsys.readouterr().out == "10 rows in 1 file and 1 commit.\n"

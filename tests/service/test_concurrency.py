"""Many writers and readers at once: nothing is lost, nothing is stored twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from evidence_builders import ENGINE, LAYOUT, SOURCE, TARGET, make_run
from sqlalchemy import func, select

from compat_service.store.models import DecisionRow, RunRow
from sglang_xver.client import CompatClient

pytestmark = pytest.mark.service
WRITERS = 24
RUNS_PER_WRITER = 10


class TestConcurrentWriters:
    def test_every_acknowledged_run_is_there_once(self, server, database):
        def write(writer: int) -> list[str]:
            with CompatClient(str(server.endpoint), timeout_s=60.0) as client:
                keys = [f"writer-{writer}-{i}" for i in range(RUNS_PER_WRITER)]
                return [client.record_run(make_run(), request_id=key).run_id for key in keys]

        with ThreadPoolExecutor(WRITERS) as pool:
            acknowledged = [run_id for ids in pool.map(write, range(WRITERS)) for run_id in ids]
        with database.reading() as session:
            stored = list(session.scalars(select(RunRow.run_id)))
            revisions = list(session.scalars(select(RunRow.evidence_revision)))
        assert len(stored) == WRITERS * RUNS_PER_WRITER
        assert sorted(stored) == sorted(acknowledged)
        assert sorted(revisions) == list(range(1, len(stored) + 1))

    def test_one_key_from_many_threads_stores_one_run(self, client):
        with ThreadPoolExecutor(WRITERS) as pool:
            answers = list(
                pool.map(lambda _: client.record_run(make_run(), request_id="same"), range(WRITERS))
            )
        assert len({answer.run_id for answer in answers}) == 1
        assert sum(not answer.already_recorded for answer in answers) == 1

    def test_answers_and_recordings_do_not_disturb_each_other(self, server, database):
        def work(worker: int) -> str:
            with CompatClient(str(server.endpoint), timeout_s=60.0) as client:
                if worker % 2:
                    return client.record_run(make_run(), request_id=f"run-{worker}").run_id
                answer = client.check_compat(SOURCE, TARGET, layout=LAYOUT, engine=ENGINE)
                return answer.decision_id

        with ThreadPoolExecutor(WRITERS) as pool:
            identifiers = list(pool.map(work, range(80)))
        assert len(set(identifiers)) == 80
        with database.reading() as session:
            assert session.scalar(select(func.count()).select_from(DecisionRow)) == 40
            assert session.scalar(select(func.count()).select_from(RunRow)) == 40

"""Earlier answers stand in for a service that is out of reach, for a while."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sglang_xver import ask as ask_module
from sglang_xver.ask import LastGoodAnswers
from sglang_xver.report import UpdateReport, parse_message
from tests.unit.core.answers import answer, rule

ANSWER = answer(rule(0, 512), rule(512, None))


class TestLastGood:
    def test_young_answer_is_used(self) -> None:
        kept = LastGoodAnswers(None, 60)
        kept.put("q", ANSWER)
        assert kept.get("q") == ANSWER
        assert kept.get("another question") is None

    def test_old_answer_is_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kept = LastGoodAnswers(None, 60)
        kept.put("q", ANSWER)
        now = time.time()
        monkeypatch.setattr(ask_module.time, "time", lambda: now + 61)
        assert kept.get("q") is None

    def test_answer_from_the_future_is_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kept = LastGoodAnswers(None, 60)
        kept.put("q", ANSWER)
        now = time.time()
        monkeypatch.setattr(ask_module.time, "time", lambda: now - 3600)
        assert kept.get("q") is None

    def test_zero_age_keeps_none(self) -> None:
        kept = LastGoodAnswers(None, 0)
        kept.put("q", ANSWER)
        assert kept.get("q") is None

    def test_old_answers_are_dropped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kept = LastGoodAnswers(None, 60)
        for number in range(5):
            kept.put(f"q{number}", ANSWER)
        now = time.time()
        monkeypatch.setattr(ask_module.time, "time", lambda: now + 120)
        kept.put("last", ANSWER)
        assert len(kept._answers) == 1

    def test_survives_a_restart(self, tmp_path: Path) -> None:
        LastGoodAnswers(tmp_path / "last.json", 60).put("q", ANSWER)
        assert LastGoodAnswers(tmp_path / "last.json", 60).get("q") == ANSWER
        assert [file.name for file in tmp_path.iterdir()] == ["last.json"]

    @pytest.mark.parametrize("content", ["", "{", "[]", '{"q": {"answer": 1}}', '{"q": null}'])
    def test_damaged_file_is_done_without(self, tmp_path: Path, content: str) -> None:
        path = tmp_path / "last.json"
        path.write_text(content)
        kept = LastGoodAnswers(path, 60)
        assert kept.get("q") is None
        kept.put("q", ANSWER)
        assert LastGoodAnswers(path, 60).get("q") == ANSWER

    def test_unwritable_folder_is_done_without(self, tmp_path: Path) -> None:
        kept = LastGoodAnswers(tmp_path / "missing" / "last.json", 60)
        kept.put("q", ANSWER)
        assert kept.get("q") == ANSWER


def test_words_of_a_service_cannot_break_the_reply() -> None:
    report = UpdateReport("EVICT", "BAD] reason", "dec id", evicted_tokens=3)
    fields = parse_message(report.to_message())
    assert fields["reason"] == "BAD__reason"
    assert fields["evicted_tokens"] == "3"


def test_report_survives_the_reply() -> None:
    report = UpdateReport("KEEP", "ALL_CRITERIA_PASS", "dec_1", kept_tokens=7, blocked_tokens=2)
    fields = parse_message(f"Succeeded. {report.to_message()} Weight version updated to x.")
    assert fields["action"] == "KEEP"
    assert fields["decision_id"] == "dec_1"
    assert (fields["kept_tokens"], fields["blocked_tokens"]) == ("7", "2")
    assert parse_message("Succeeded.") == {}

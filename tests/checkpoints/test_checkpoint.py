"""The name of a checkpoint shows itself without its files, and without a login."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from cojoin import Snapshot


def test_a_checkpoint_shows_itself() -> None:
    assert repr(Snapshot("s3a://me:opensesame@lake/c", 3)) == "Snapshot(path='s3a://***@lake/c', at=3)"
    page = Snapshot("s3a://me:opensesame@lake/<c>", 3)._repr_html_()
    assert "Snapshot s3a://***@lake/&lt;c&gt;, batch 3" in page
    noon = datetime(2026, 1, 15, 12, tzinfo=timezone(timedelta(hours=2)))
    assert "the last one at or before 2026-01-15 10:00:00.000000 UTC" in Snapshot("/lake/c", noon)._repr_html_()

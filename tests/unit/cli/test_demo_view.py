"""What a running demonstration shows."""

import io
import re

import pytest

from forwardpass.cli.demo_view import (
    Board,
    PlainProgress,
    RankNow,
    TerminalProgress,
    choose_progress,
    plain_line,
)
from forwardpass.wire.codec import encode
from forwardpass.wire.frames import Frames
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

MIXED = ForwardPassMetrics(
    wall_time=0.0125,
    scheduled_requests=ScheduledRequestMetrics(2, 1800, 0.0, 64, 31, 20_000, 0.0),
    queued_requests=QueuedRequestMetrics(4, 900, 0.0, 1, 300, 0.0),
)
DECODES = ForwardPassMetrics(
    wall_time=0.5, scheduled_requests=ScheduledRequestMetrics(0, 0, 0.0, 0, 3, 9, 0.0)
)


def test_the_board_keeps_the_newest_message_of_each_rank():
    """Every message counts; only the last one is decoded, and a rank without one has none."""
    board = Board(2)
    for seq, metrics in enumerate((DECODES, MIXED)):
        board.note(1, Frames(b"", seq, encode(metrics)))

    assert board.ranks() == [RankNow(0, 0, None), RankNow(1, 2, MIXED)]


def test_what_is_no_message_or_of_no_rank_is_not_shown():
    """Garbage counts as a message and shows nothing; a stream without a rank has no place on the board."""
    board = Board(1)
    board.note(0, Frames(b"", 0, b"junk"))
    board.note(None, Frames(b"", 0, encode(MIXED)))

    assert board.ranks() == [RankNow(0, 1, None)]


def test_one_line_says_time_rows_and_each_ranks_newest_pass():
    """The line that a pipe gets."""
    ranks = [
        RankNow(0, 5, MIXED),
        RankNow(1, 5, DECODES),
        RankNow(2, 1, ForwardPassMetrics()),
        RankNow(3, 0, None),
    ]

    assert plain_line(4.2, ranks, 1234) == (
        "   4 s  1,234 rows on disk; rank 0: 1,800 prefill tokens + 31 decodes in 12.5 ms, 5 waiting; "
        "rank 1: 3 decodes in 500 ms, 0 waiting; rank 2: idle; rank 3: nothing yet"
    )


def test_plain_progress_goes_to_stderr(capsys: pytest.CaptureFixture[str]):
    """Words are no data."""
    progress = PlainProgress()
    progress.show(2.0, [RankNow(0, 5, MIXED)], 7)
    progress.close()
    captured = capsys.readouterr()

    assert captured.out == ""
    assert captured.err.startswith("   2 s  7 rows on disk; rank 0: ")


class Screen(io.StringIO):
    """A terminal of 80 columns."""

    def isatty(self) -> bool:
        return True


def test_the_terminal_page_fits_eighty_columns_and_goes_away(monkeypatch: pytest.MonkeyPatch):
    """The page has every number in full, is redrawn in place and leaves the cursor visible."""
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    for name, text in {"COLUMNS": "80", "LINES": "24", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, text)
    progress = TerminalProgress(12.0)
    progress.show(3.0, [RankNow(0, 12_345, MIXED), RankNow(1, 0, None)], 1234)
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    progress.close()

    assert isinstance(choose_progress(12.0), TerminalProgress)
    assert screen.getvalue().count("\x1b[?25l") == screen.getvalue().count("\x1b[?25h") == 1
    assert "3 of 12 s, 1,234 rows on disk" in drawn
    assert all(word in drawn for word in ("12,345", "12.5 ms", "1,800", "20,000", "preempted"))
    assert max(len(line) for line in drawn.splitlines()) <= 80


def test_closing_an_unused_page_does_nothing(capsys: pytest.CaptureFixture[str]):
    """A run that ended before the first look leaves no trace on the terminal."""
    TerminalProgress(12.0).close()

    assert capsys.readouterr() == ("", "")

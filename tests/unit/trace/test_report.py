"""What a report of trace files says."""

from __future__ import annotations

from forwardpass.trace.report import (
    MAX_PROBLEMS,
    MAX_RANGES,
    ByteRange,
    FileReport,
    Problem,
    ProblemKind,
    TraceReport,
)


def problem(kind: ProblemKind = ProblemKind.BAD_JSON) -> Problem:
    """Return some problem."""
    return Problem("a", kind, "because")


def test_neighbouring_ranges_of_one_state_are_one() -> None:
    """Sound members next to each other are one range, and so are damaged lines of one kind."""
    report = FileReport("a", size=12)
    for start, end, damage in (
        (0, 4, None),
        (4, 6, None),
        (6, 6, None),
        (6, 8, ProblemKind.GARBAGE),
        (8, 12, None),
    ):
        report.add_range(start, end, damage)

    assert report.ranges == [ByteRange(0, 6), ByteRange(6, 8, ProblemKind.GARBAGE), ByteRange(8, 12)]
    assert report.damaged_bytes == 2
    assert report.covered_bytes == 12


def test_ranges_are_bounded_and_still_add_up() -> None:
    """A file of endless little damages is listed up to a limit; the rest is one range, counted exactly."""
    report = FileReport("a")
    pieces = MAX_RANGES * 2
    for number in range(pieces):
        report.add_range(number, number + 1, ProblemKind.GARBAGE if number % 2 else None)

    assert len(report.ranges) == MAX_RANGES + 1
    assert report.ranges[-1] == ByteRange(MAX_RANGES, pieces, ProblemKind.UNLISTED)
    assert sum(part.end - part.start for part in report.ranges) == pieces
    assert report.damaged_bytes == pieces // 2


def test_problems_are_kept_while_few_and_counted_always() -> None:
    """A report does not grow with the number of problems."""
    report = FileReport("a")
    for _ in range(MAX_PROBLEMS + 50):
        report.add_problem(problem())
    report.add_problem(problem(ProblemKind.TORN_ROW))

    assert len(report.problems) == MAX_PROBLEMS
    assert report.problem_counts == {ProblemKind.BAD_JSON: MAX_PROBLEMS + 50, ProblemKind.TORN_ROW: 1}
    assert not report.intact


def test_a_report_sums_its_files_up() -> None:
    """Rows, sizes and health of a trace are those of its files."""
    sound = FileReport("a", size=10, rows=3, text_bytes=100)
    broken = FileReport("b", size=5, rows=1, text_bytes=20)
    broken.add_problem(problem())
    report = TraceReport([sound, broken])

    assert (report.rows, report.size, report.text_bytes, report.problem_count()) == (4, 15, 120, 1)
    assert (report.intact, sound.intact, TraceReport([sound]).intact) == (False, True, True)
    assert list(report.problems()) == broken.problems


def test_a_problem_names_its_place() -> None:
    """A line is named ``path:line``; damage by its bytes."""
    assert str(Problem("f", ProblemKind.BAD_JSON, "not JSON", line=3)) == "f:3: not JSON"
    assert str(Problem("f", ProblemKind.GARBAGE, "junk", 5, 9)) == "f: junk (bytes 5 to 9)"

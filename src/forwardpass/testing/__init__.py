"""Fakes, helpers and conformance suites for tests of code that uses this package."""

from forwardpass.testing.conformance_plane import check_plane as check_plane

__all__ = ["check_plane"]

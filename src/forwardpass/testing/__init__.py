"""Fakes, helpers and conformance suites for tests of code that uses this package."""

from forwardpass.testing.conformance_driver import check_driver as check_driver
from forwardpass.testing.conformance_plane import check_plane as check_plane

__all__ = ["check_driver", "check_plane"]

"""Fakes and helpers for tests of code that uses this package."""

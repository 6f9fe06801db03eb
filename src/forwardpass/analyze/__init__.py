"""Numbers read off traces: pure functions from records to frozen results."""

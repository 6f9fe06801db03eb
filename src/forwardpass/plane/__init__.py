"""Event planes: how payloads travel from a relay to whoever subscribes. One module per kind of plane."""

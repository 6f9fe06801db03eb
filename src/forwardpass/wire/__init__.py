"""The wire: schema, codec, frames, exact tallies and port arithmetic. No socket, file, thread or clock."""

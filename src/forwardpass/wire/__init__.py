"""The wire: schema, codec, frames, numbering, exact tallies and port arithmetic. No socket, file or clock."""

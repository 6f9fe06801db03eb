"""Discovery: how publishers on a network, and the workers behind them, are found. One module per backend."""

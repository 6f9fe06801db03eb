"""Settings: one table of variables, one place that reads the environment, frozen values handed down."""

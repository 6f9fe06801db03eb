"""The command line. Data goes to stdout, words to stderr."""

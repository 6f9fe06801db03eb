"""``python -m forwardpass`` is the command line."""

from forwardpass.cli.main import main

if __name__ == "__main__":
    main()

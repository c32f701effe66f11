"""`python -m triolet` runs the command line."""

from triolet.cli.main import main

if __name__ == "__main__":
    main()

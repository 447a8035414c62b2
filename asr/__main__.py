"""`python -m asr` is the same as `asr`."""

from asr.cli.main import main

if __name__ == "__main__":
    main()

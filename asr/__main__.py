"""`python -m asr` is the same as `asr`."""

if __name__ == "__main__":
    try:
        from asr.cli.main import main

        main()
    except KeyboardInterrupt:  # Ctrl-C while the imports still run
        raise SystemExit(130) from None

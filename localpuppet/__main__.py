"""`python -m localpuppet` is the console script."""

from localpuppet.main import main

if __name__ == "__main__":
    raise SystemExit(main())

"""`python -m tests.dst`: see `sweep`, which lies beside it so that the processes that it starts can import it."""

import sys

from tests.dst.sweep import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.dst`: see the `sweep` module, which is separate so that its worker processes can import it."""

import sys

from tests.dst.sweep import main

if __name__ == "__main__":
    sys.exit(main())

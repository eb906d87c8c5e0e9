"""`python -m gpq_agent.node --spool DIR`."""

import sys

from gpq_agent.node.main import main

if __name__ == "__main__":
    sys.exit(main())

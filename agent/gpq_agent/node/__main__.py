"""`python -m gpq_agent.node --spool DIR`."""

import sys

if __name__ == "__main__":
    # a server compiles all that it imports at each start, and a transfer needs little of it
    if "--send" in sys.argv or "--receive" in sys.argv:
        from gpq_agent.node.files import transfer

        transfer.main()
    elif "--attach" in sys.argv:
        from gpq_agent.node.console import relay

        relay.main()
    else:
        from gpq_agent.node.main import main

        sys.exit(main())

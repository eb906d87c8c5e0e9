"""`python -m gpq_agent.gpucheck PART DEVICE...`"""

from .checks import main

if __name__ == "__main__":
    main()

"""Shell completion."""


def answer(argv: list[str]) -> int:
    return 0

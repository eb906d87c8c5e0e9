"""How the texts of gpq read. `python -m tests.words` measures them, `tests/docs/test_words.py` holds
them to the rules of docs/contributing/style.md. `texts.py` says what counts as a text: open it first.
"""

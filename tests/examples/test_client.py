import ast

from tests.examples.example import FOLDER, load


def test_the_client_loads_and_has_thirty_lines() -> None:
    """It runs against `characters up`; here only its imports and its size are looked at."""
    assert callable(load("client").main)
    code = ast.parse((FOLDER / "client.py").read_text()).body[1:]  # without the docstring
    assert sum((node.end_lineno or 0) - node.lineno + 1 for node in code) <= 30

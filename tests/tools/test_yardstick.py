"""The yardstick counts what a reader would count by hand."""

import pytest

from tests.support import REPOSITORY
from tools.yardstick import count_file, find_shared_names, main, measure_readability

SOURCE = '''"""What is measured."""

import os  # one comment


def drawn(number, other=1):
    """Returns nothing.

    Args:
        number: A number.
    """
    # Another comment.
    a, b = number, other
    return a if b else (1 if a else 2)


class Box:
    def open_lid(self):
        return isinstance(self, Box)

    def close_lid(self, hand):
        """Whoever closes it."""
        return os
'''


def test_a_file_is_counted_as_by_hand() -> None:
    counts = count_file(SOURCE)
    assert counts["lines"] == 9
    assert counts["all lines"] == 23
    assert counts["comments"] == 2
    assert counts["functions"] == 3
    assert counts["one word"] == 1
    assert counts["participles"] == 1
    assert counts["conditional"] == 2
    assert counts["nested"] == 1
    assert counts["tuples"] == 1
    assert counts["isinstance"] == 1
    assert counts["with parameters"] == 2
    assert counts["documented"] == 1
    assert counts["unidiomatic"] == 2
    assert counts["docstring words"] == 3 + 6 + 3


def test_docstrings_and_comments_are_no_code() -> None:
    assert count_file("x = 1\n")["tokens"] == 3
    assert count_file('"""A docstring\nof two lines."""\n\nx = 1  # and a comment\n')["tokens"] == 3


def test_long_lines_and_rates_are_over_the_right_wholes() -> None:
    long = "x = 1  # " + "a" * 100 + "\n"
    readings = measure_readability([long, "y = 2\n" * 3])
    assert readings["lines over 100 columns, %"] == 25
    assert readings["comments per 1000 lines"] == 250
    assert readings["code tokens per source line"] == 3
    assert readings["one-word function names, %"] == 0


def test_names_in_several_modules_are_public_and_at_the_top() -> None:
    first = "def join(): pass\ndef _own(): pass\nclass Law:\n    def scale(self): pass\n"
    second = "def join(): pass\ndef _own(): pass\nclass Rule:\n    def scale(self): pass\n"
    assert find_shared_names([first, second]) == ["join"]


def test_the_command_prints_every_reading_and_the_densest_files(capsys) -> None:
    main([str(REPOSITORY / "tools"), "--densest", "1"])
    printed = capsys.readouterr().out
    for name in measure_readability([]):
        assert name in printed
    assert printed.count("tokens per line") == 1


def test_an_unreadable_file_is_named_by_python() -> None:
    with pytest.raises(SyntaxError):
        count_file("def (")


def test_options_of_a_command_are_documented_by_its_help_and_inner_functions_are_not_public() -> (
    None
):
    command = 'def show(n: Annotated[int, Option(help="How many.")]):\n    """Show it."""\n'
    inner = "def outer():\n    def inner(n): pass\n"
    assert count_file(command)["documented"] == 1
    assert count_file("@app.command()\ndef show(n: Count): pass\n")["documented"] == 1
    assert count_file("def show(n: Count): pass\n")["documented"] == 0
    assert count_file(inner)["with parameters"] == 0
    assert count_file(inner)["functions"] == 1

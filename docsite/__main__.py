"""Writes the reference of every command and every key, and the badges, from the code: `python -m docsite`.

They are committed, so that they can be read where the repository is hosted; tests compare them with the code.
"""

from docsite import badges, reference

badges.main()
reference.main()

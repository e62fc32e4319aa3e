"""Hypothesis: no time limit per example, since machines differ, and the same examples every time.

`HYPOTHESIS_PROFILE=search pytest` looks for new ones.
"""

import os

from hypothesis import settings

settings.register_profile("repeat", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))

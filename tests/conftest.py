"""For all tests: hypothesis asserts no time, since a busy machine is no failure.

HYPOTHESIS_PROFILE=quick draws few examples: for a first look, while something is being written.
"""

import os

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=10)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "untimed"))

"""For all tests: hypothesis asserts no time, since a busy machine is no failure.

HYPOTHESIS_PROFILE=quick draws few examples: for a first look, while something is being written.
"""

import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=10)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "untimed"))

# A shell's job in the background ignores it, and whatever that starts does too: tests send it to programs.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test logged may hold a file's name that is not UTF-8, and the processes of pytest-xdist tell each other
    only what is."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report

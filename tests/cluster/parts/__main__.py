"""`python -m tests.cluster.parts`: builds all that a cluster needs and that is not there yet."""

import sys

from tests.cluster.parts import images, programs
from tests.cluster.parts.places import CannotBuild

if __name__ == "__main__":
    try:
        programs.build()
        images.build()
    except CannotBuild as error:
        sys.exit(f"cluster: {error}")
    except KeyboardInterrupt:
        sys.exit(130)

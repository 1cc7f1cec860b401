"""Build what the tests run, before the first test: programs, and the layers of the image. `make test` does this.

What can't be built is no failure here: the tests that need it say so, and in the pipeline they fail.
"""

import sys
import time

import container_image
from build_control_plane import ensure_test_programs
from build_steps import BuildError, minutes
from local_node import missing_requirements


def main() -> int:
    """Build what is missing, say what can't be built, and return the exit status."""
    begin = time.monotonic()
    node = not missing_requirements()
    try:
        ensure_test_programs(node)
        if node and not container_image.missing_requirements():
            container_image.ensure_layers()
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("\nstopped; programs that are already built are kept", file=sys.stderr)
        return 130
    took_s = time.monotonic() - begin
    if took_s > 1:
        print(f"everything that the tests run is built, in {minutes(took_s)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

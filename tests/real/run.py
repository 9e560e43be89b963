"""Install the real services, run the tests against them, and say aloud which of them were not there."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from services.install import RECIPES, BuildError, NotInstalledError, install


def main(arguments):
    began = time.monotonic()
    missing, broken = {}, {}
    for name in RECIPES:
        try:
            install(name)
        except NotInstalledError as reason:
            missing[name] = str(reason)
        except BuildError as reason:
            broken[name] = str(reason)
    os.environ["ISTER_TEST_SERVICES"] = "1"
    os.environ["ISTER_SERVICES_MISSING"] = json.dumps(missing | broken)
    # A file of tests has its own services: both workers share none, and none is started twice. Who is skipped is said below.
    code = pytest.main(["-q", "-rfE", "-n", "2", "--dist", "loadfile", str(Path(__file__).parent), *arguments])
    for name, reason in missing.items():
        print(f"make test-services: SKIPPED every test with {name}: {reason}")
    for name, reason in broken.items():
        print(f"make test-services: FAILED to build {name}: {reason}")
    found = [name for name in RECIPES if name not in missing | broken]
    print(
        f"make test-services: {time.monotonic() - began:.0f} s in all, with {', '.join(found) or 'no service at all'}"
    )
    return 1 if broken else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

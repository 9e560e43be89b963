"""Whether this is the long run; a module of its own, because every directory may have a conftest."""

import os

LONG = os.environ.get("ISTER_TEST_LONG") == "1"

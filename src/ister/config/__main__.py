"""Print docs/config.md: `python -m ister.config > docs/config.md`."""

import sys

from ister.config.reference import reference

sys.stdout.write(reference())

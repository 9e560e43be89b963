"""Update the tables of keys in docs/config.md: `python -m ister.config docs/config.md`."""

import sys
from pathlib import Path

from ister.config.reference import reference

page = Path(sys.argv[1])
page.write_text(reference(page.read_text()))

"""`ister adopt`: make a copied data directory one of its own."""

import asyncio

from ister.cli.commands.config import load_config
from ister.cli.options import ConfigOption, DataDirOption, OutputOption, command, command_group
from ister.cli.output import Output, many, printable, say
from ister.runtime.identity import Adopted, adopt_directory

app = command_group()


@command(app)
def _adopt(
    *,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a copied data directory one of its own.

    It gets a new identity, and its tables the paths of this directory. The original is not changed. Stop the broker first.

    Example: ister adopt --data-dir /var/lib/ister-copy
    """
    loaded = load_config(file, data_dir)
    home = printable(str(loaded.home.resolve()))

    def write(adopted: Adopted) -> None:
        say(f"{home} is a directory of its own now, with {many(len(adopted.tables), 'table')} relocated to it.")

    output.show(asyncio.run(adopt_directory(loaded.config)), Adopted._asdict, write)

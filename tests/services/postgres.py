"""PostgreSQL, with a user who has a password and a database of his own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path

import psycopg2
from sqlalchemy.engine import URL

from services.server import Server

USER, PASSWORD, DATABASE = "ister", "p@ss word/%41", "lake"


def programs() -> Path | str:
    """Return the directory with initdb and postgres, or why there is none."""
    places = [*Path("/usr/lib/postgresql").glob("*/bin"), *map(Path, os.environ.get("PATH", "").split(os.pathsep))]
    for place in sorted(places, reverse=True):
        if (place / "initdb").exists() and (place / "postgres").exists():
            break
    else:
        return "PostgreSQL is not installed (initdb, postgres)"
    if os.geteuid() == 0 and _account() is None:
        return "PostgreSQL does not run as root, and this machine has no user postgres"
    return place


def _account() -> str | None:
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if os.geteuid() == 0 and "postgres" in names else None


class Postgres(Server):
    def __init__(self, place: Path) -> None:
        super().__init__()
        self._place = place
        self._data = self.directory / "data"
        self._data.mkdir()
        if (account := _account()) is not None:
            shutil.chown(self.directory, account)
            shutil.chown(self._data, account)
        (self.directory / "password").write_text(PASSWORD)
        subprocess.run(
            [place / "initdb", "-D", self._data, "-U", USER, "-A", "scram-sha-256", "--pwfile", self.directory / "password"],
            check=True, capture_output=True, user=account, cwd=self.directory,
        )  # fmt: skip

    def command(self) -> list[str]:
        words = [self._place / "postgres", "-D", self._data, "-p", self.port, "-h", "127.0.0.1", "-k", self._data]
        account = _account()
        return [*(() if account is None else ("setpriv", f"--reuid={account}", "--clear-groups")), *map(str, words)]

    def stop(self, number: int = signal.SIGINT) -> None:
        """Stop at once: on SIGTERM it waits until everybody has gone."""
        super().stop(number)

    @property
    def uri(self) -> str:
        return f"postgresql://127.0.0.1:{self.port}/{DATABASE}"

    def connect(self, database: str) -> psycopg2.extensions.connection:
        url = URL.create("postgresql", USER, PASSWORD, "127.0.0.1", self.port, database)
        return psycopg2.connect(url.render_as_string(hide_password=False))

    def _answers(self) -> bool:
        try:
            connection = self.connect("postgres")
        except psycopg2.OperationalError:
            return False
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,))
            if cursor.fetchone() is None:
                cursor.execute(f"CREATE DATABASE {DATABASE}")
        connection.close()
        return True

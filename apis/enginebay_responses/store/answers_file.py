"""The SQLite file of answers: what is in it."""

import json
from collections.abc import Sequence
from contextlib import closing

from enginebay.sqlite_file import SqliteFile, broken_told
from enginebay_responses.store.retention import Changes, Record


class AnswersFile(SqliteFile):
    """An open file of answers."""

    application = 0x456E6762
    version = 1
    schema = """
    CREATE TABLE responses (
        number INTEGER PRIMARY KEY,  -- parents have lower ones than their children
        id TEXT NOT NULL UNIQUE,
        owner TEXT,
        parent TEXT,
        items TEXT NOT NULL,
        used REAL NOT NULL,
        hidden INTEGER NOT NULL DEFAULT 0,
        body BLOB NOT NULL
    )
    """

    def records(self) -> list[Record]:
        """Records of all answers, parents before their children."""
        columns = "id, owner, parent, items, length(body), used, hidden"
        command = f"SELECT {columns} FROM responses ORDER BY number"
        with broken_told(), closing(self._connection.execute(command)) as rows:
            return [
                Record(
                    id=id,
                    owner=owner,
                    parent=parent,
                    items=tuple(json.loads(items)),
                    size=size,
                    used=float(used),
                    hidden=bool(hidden),
                )
                for id, owner, parent, items, size, used, hidden in rows
            ]

    def save(self, added: tuple[Record, bytes] | None, changes: Changes) -> None:
        """Write an answer, and what has changed of others: all or nothing."""
        with self._connection as connection:
            if added:
                record, body = added
                columns = "id, owner, parent, items, used, body"
                items = json.dumps(record.items)
                values = (record.id, record.owner, record.parent, items, record.used, body)
                connection.execute(
                    f"INSERT INTO responses ({columns}) VALUES (?, ?, ?, ?, ?, ?)", values
                )
            for id, used in changes.used.items():
                connection.execute("UPDATE responses SET used = ? WHERE id = ?", (used, id))
            for id in changes.hidden:
                connection.execute("UPDATE responses SET hidden = 1 WHERE id = ?", (id,))
            for id in changes.gone:
                connection.execute("DELETE FROM responses WHERE id = ?", (id,))

    def bodies(self, ids: Sequence[str]) -> list[bytes] | None:
        """The answers with these ids; None if one is not there."""
        bodies = []
        for id in ids:
            found = self._connection.execute("SELECT body FROM responses WHERE id = ?", (id,))
            row = found.fetchone()
            if row is None:
                return None
            bodies.append(row[0])
        return bodies

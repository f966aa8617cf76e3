"""The tables of the file of jobs, and the statements that bring an older file to this schema."""

_SCHEMA = (
    "CREATE TABLE leader (epoch INTEGER NOT NULL)",
    "INSERT INTO leader VALUES (0)",
    """
    CREATE TABLE jobs (
        name TEXT PRIMARY KEY,
        "order" INTEGER NOT NULL,
        document TEXT NOT NULL,
        status TEXT NOT NULL,
        cancelled INTEGER NOT NULL DEFAULT 0,
        spec_generation INTEGER NOT NULL DEFAULT 1
    )
    """,
    "CREATE TABLE cordons (node TEXT, gpu INTEGER, reason TEXT NOT NULL, PRIMARY KEY (node, gpu))",
)


_ORIGINS = ("CREATE TABLE origins (name TEXT PRIMARY KEY, origin TEXT NOT NULL)",)
"""The submitters of jobs, and their environments: apart from the documents, which clients may read."""


_SEALED = (
    "ALTER TABLE leader ADD COLUMN revision INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE leader ADD COLUMN boot TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE leader ADD COLUMN since_boot REAL NOT NULL DEFAULT 0",
    "ALTER TABLE leader ADD COLUMN at REAL NOT NULL DEFAULT 0",
    "ALTER TABLE leader ADD COLUMN seal TEXT NOT NULL DEFAULT ''",
)


STEPS = (_SCHEMA, _ORIGINS, _SEALED)
"""The statements that bring a file from each version of the schema to the next."""


COLUMNS = {
    "order": 'UPDATE jobs SET "order" = ? WHERE name = ?',
    "document": "UPDATE jobs SET document = ? WHERE name = ?",
    "status": "UPDATE jobs SET status = ? WHERE name = ?",
    "cancelled": "UPDATE jobs SET cancelled = ? WHERE name = ?",
    "spec_generation": "UPDATE jobs SET spec_generation = ? WHERE name = ?",
    "origin": "INSERT OR REPLACE INTO origins (origin, name) VALUES (?, ?)",
}

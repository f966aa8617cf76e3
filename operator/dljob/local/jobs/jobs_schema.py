"""The table of the list of jobs, and the statements that upgrade the files of older versions."""

_JOBS = (
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

_SEALED = (
    "ALTER TABLE leader ADD COLUMN revision INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE leader ADD COLUMN boot TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE leader ADD COLUMN since_boot REAL NOT NULL DEFAULT 0",
    "ALTER TABLE leader ADD COLUMN at REAL NOT NULL DEFAULT 0",
    "ALTER TABLE leader ADD COLUMN seal TEXT NOT NULL DEFAULT ''",
)

_CELLS = (
    """
    CREATE TABLE cells (
        name TEXT NOT NULL, "column" TEXT NOT NULL, value, PRIMARY KEY (name, "column")
    ) WITHOUT ROWID
    """,
    *(
        f"""INSERT INTO cells SELECT name, '{column}', "{column}" FROM jobs"""  # noqa: S608 - our own names
        for column in ("order", "document", "status", "cancelled", "spec_generation")
    ),
    "INSERT INTO cells SELECT name, 'origin', coalesce(origin, '') FROM jobs LEFT JOIN origins USING (name)",
    "INSERT INTO cells SELECT '', node || '/' || gpu, reason FROM cordons",
    "INSERT INTO cells SELECT '', 'epoch', epoch FROM leader",
    "INSERT INTO cells SELECT '', 'reading', json_array(boot, since_boot, at) FROM leader",
    "CREATE TABLE seal AS SELECT revision, seal FROM leader",
    *(f"DROP TABLE {table}" for table in ("jobs", "origins", "cordons", "leader")),
)

STEPS = (_JOBS, _ORIGINS, _SEALED, _CELLS)

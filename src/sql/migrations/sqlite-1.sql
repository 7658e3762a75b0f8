-- The keys of oncekey on SQLite 3.42 or later. Safe to run again.
--
-- All times are milliseconds since the Unix epoch, of the machine's clock.
CREATE TABLE IF NOT EXISTS oncekey_token (
    only  INTEGER PRIMARY KEY CHECK (only = 1),
    value INTEGER NOT NULL
);
INSERT INTO oncekey_token (only, value) VALUES (1, 0) ON CONFLICT DO NOTHING;

CREATE TABLE IF NOT EXISTS oncekey (
    scope          BLOB    NOT NULL,
    operation      BLOB    NOT NULL,
    id             BLOB    NOT NULL,
    algorithm      INTEGER NOT NULL,
    digest         BLOB    NOT NULL,
    -- 0 pending, 1 interrupted, 2 completed
    state          INTEGER NOT NULL CHECK (state BETWEEN 0 AND 2),
    -- fencing: greater at each takeover, and checked by every write of an owner
    token          INTEGER NOT NULL,
    attempt        INTEGER NOT NULL,
    created_ms     INTEGER NOT NULL,
    started_ms     INTEGER NOT NULL,
    lease_until_ms INTEGER NOT NULL,
    completed_ms   INTEGER,
    expires_ms     INTEGER,
    checkpoint     BLOB,
    -- NULL in a completed row: done, and its response was not kept
    response       BLOB,
    principal      BLOB,
    PRIMARY KEY (scope, operation, id)
);

CREATE INDEX IF NOT EXISTS oncekey_open ON oncekey (created_ms) WHERE state < 2;
CREATE INDEX IF NOT EXISTS oncekey_expires ON oncekey (expires_ms) WHERE state = 2;

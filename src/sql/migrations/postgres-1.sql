-- The keys of oncekey on PostgreSQL 13 or later. Safe to run again.
--
-- All times are milliseconds since the Unix epoch, of the server's clock.
CREATE SEQUENCE IF NOT EXISTS oncekey_token;

CREATE TABLE IF NOT EXISTS oncekey (
    scope          BYTEA  NOT NULL,
    operation      BYTEA  NOT NULL,
    id             BYTEA  NOT NULL,
    algorithm      BIGINT NOT NULL,
    digest         BYTEA  NOT NULL,
    -- 0 pending, 1 interrupted, 2 completed
    state          BIGINT NOT NULL CHECK (state BETWEEN 0 AND 2),
    -- fencing: greater at each takeover, and checked by every write of an owner
    token          BIGINT NOT NULL,
    attempt        BIGINT NOT NULL,
    created_ms     BIGINT NOT NULL,
    started_ms     BIGINT NOT NULL,
    lease_until_ms BIGINT NOT NULL,
    completed_ms   BIGINT,
    expires_ms     BIGINT,
    checkpoint     BYTEA,
    -- NULL in a completed row: done, and its response was not kept
    response       BYTEA,
    principal      BYTEA,
    PRIMARY KEY (scope, operation, id)
);

CREATE INDEX IF NOT EXISTS oncekey_open ON oncekey (created_ms) WHERE state < 2;
CREATE INDEX IF NOT EXISTS oncekey_expires ON oncekey (expires_ms) WHERE state = 2;

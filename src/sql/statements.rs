//! The statements, once for both databases.
//!
//! Each is one atomic step. The server's time is read in each, once (`n.now_ms`), and every write of
//! an owner names its token.

/// Columns of a record, in the order in which `Row::record` reads them. The key follows.
macro_rules! columns {
    () => {
        "n.now_ms, k.algorithm, k.digest, k.state, k.token, k.attempt, k.created_ms, k.started_ms, \
         k.lease_until_ms, k.completed_ms, k.expires_ms, k.checkpoint, k.response, k.principal, \
         k.scope, k.operation, k.id"
    };
}

/// Whether a row can be read, by the rules of `shared::fields`: unknown counts as no. `$whole` says of
/// one column that it has a whole number, where a column may have anything.
macro_rules! is_readable {
    ($digest:literal, $whole:literal) => {
        concat!(
            "((k.state BETWEEN 0 AND 2 AND k.algorithm BETWEEN 0 AND 255 AND ",
            $digest,
            " \
             AND k.token BETWEEN 1 AND 9007199254740990 AND k.attempt BETWEEN 1 AND 4294967295 \
             AND k.created_ms BETWEEN 0 AND 253402300799999 \
             AND k.started_ms BETWEEN 0 AND 253402300799999 \
             AND (CASE WHEN k.state = 2 THEN k.completed_ms ELSE k.lease_until_ms END) \
             BETWEEN 0 AND 253402300799999 \
             AND (CASE WHEN k.state = 2 THEN k.expires_ms ELSE 0 END) \
             BETWEEN 0 AND 253402300799999",
            $whole,
            ") IS TRUE)"
        )
    };
}

/// The statements of one dialect.
#[derive(Debug)]
pub struct Statements {
    pub(crate) begin: &'static str,
    pub(crate) read: &'static str,
    pub(crate) now: &'static str,
    pub(crate) take: &'static str,
    pub(crate) renew: &'static str,
    pub(crate) checkpoint: &'static str,
    pub(crate) complete: &'static str,
    pub(crate) release: &'static str,
    pub(crate) interrupt: &'static str,
    pub(crate) remove: &'static str,
    pub(crate) interrupted: &'static str,
    pub(crate) malformed_open: &'static str,
    pub(crate) malformed: &'static str,
    pub(crate) reap: &'static str,
}

/// `$now` is the server's time in ms, `$token` the next token, `$latest` the greater of two numbers,
/// `$skip` leaves out rows that somebody else has locked, `$readable` is the condition of a row that can
/// be read. What is returned of a row beside the token is what was just written there, so that nothing
/// old can make the answer unreadable.
macro_rules! statements {
    ($now:literal, $token:literal, $latest:literal, $skip:literal, $readable:expr) => {
        Statements {
            begin: concat!(
                "INSERT INTO oncekey (scope, operation, id, algorithm, digest, state, token, attempt, \
                 created_ms, started_ms, lease_until_ms) \
                 SELECT $1, $2, $3, $4, $5, $6, ", $token, ", 1, n.now_ms, n.now_ms, n.now_ms + $7 \
                 FROM (SELECT ", $now, " AS now_ms) AS n \
                 WHERE $8 < 0 OR $8 > n.now_ms - $9 \
                 ON CONFLICT DO NOTHING RETURNING token, created_ms"
            ),
            read: concat!(
                "SELECT ", columns!(), " FROM (SELECT ", $now, " AS now_ms) AS n, oncekey AS k \
                 WHERE k.scope = $1 AND k.operation = $2 AND k.id = $3"
            ),
            now: concat!("SELECT ", $now, ", CAST(0 AS BIGINT)"),
            // As it was seen, and still to be taken. Where an expired result makes room, nothing of
            // it stays.
            take: concat!(
                "UPDATE oncekey SET state = $5, token = ", $latest, "(", $token, ", token + 1), \
                 attempt = CASE WHEN state = 2 THEN 1 ELSE attempt + 1 END, \
                 algorithm = CASE WHEN state = 2 THEN $6 ELSE algorithm END, \
                 digest = CASE WHEN state = 2 THEN $7 ELSE digest END, \
                 created_ms = CASE WHEN state = 2 THEN n.now_ms ELSE created_ms END, \
                 started_ms = n.now_ms, lease_until_ms = n.now_ms + $8, \
                 completed_ms = NULL, expires_ms = NULL, response = NULL, principal = NULL, \
                 checkpoint = CASE WHEN state = 2 THEN NULL ELSE checkpoint END \
                 FROM (SELECT ", $now, " AS now_ms) AS n \
                 WHERE scope = $1 AND operation = $2 AND id = $3 AND token = $4 \
                 AND (state = 1 OR (state = 0 AND lease_until_ms <= n.now_ms) \
                 OR (state = 2 AND expires_ms <= n.now_ms)) \
                 RETURNING token, started_ms"
            ),
            renew: concat!(
                "UPDATE oncekey SET lease_until_ms = n.now_ms + $5 \
                 FROM (SELECT ", $now, " AS now_ms) AS n \
                 WHERE scope = $1 AND operation = $2 AND id = $3 AND token = $4 AND state = 0 \
                 RETURNING token, lease_until_ms"
            ),
            checkpoint: "UPDATE oncekey SET checkpoint = $5 \
                 WHERE scope = $1 AND operation = $2 AND id = $3 AND token = $4 AND state = 0 \
                 RETURNING token, CAST(0 AS BIGINT)",
            // $8: the state that it may be in besides pending.
            complete: concat!(
                "UPDATE oncekey SET state = 2, response = $5, principal = $6, checkpoint = NULL, \
                 completed_ms = ", $latest, "(n.now_ms, started_ms), \
                 expires_ms = ", $latest, "(n.now_ms, started_ms) + $7 \
                 FROM (SELECT ", $now, " AS now_ms) AS n \
                 WHERE scope = $1 AND operation = $2 AND id = $3 AND token = $4 \
                 AND (state = 0 OR state = $8) AND started_ms BETWEEN 0 AND 253402300799999 \
                 RETURNING token, completed_ms"
            ),
            release: "DELETE FROM oncekey \
                 WHERE scope = $1 AND operation = $2 AND id = $3 AND token = $4 \
                 AND (state = 0 OR state = $5) \
                 RETURNING token, CAST(0 AS BIGINT)",
            interrupt: "UPDATE oncekey SET state = 1 \
                 WHERE scope = $1 AND operation = $2 AND id = $3 AND token = $4 AND state = 0 \
                 RETURNING token, CAST(0 AS BIGINT)",
            remove: concat!(
                "DELETE FROM oncekey WHERE scope = $1 AND operation = $2 AND id = $3 \
                 AND ($4 = 1 OR state = 2) \
                 RETURNING CAST(CASE WHEN state = 2 AND expires_ms <= ", $now, " THEN 0 ELSE 1 END \
                 AS BIGINT), CAST(0 AS BIGINT)"
            ),
            interrupted: concat!(
                "SELECT ", columns!(), " FROM (SELECT ", $now, " AS now_ms) AS n, oncekey AS k \
                 WHERE k.state < 2 AND (k.state = 1 OR k.lease_until_ms <= n.now_ms) AND ", $readable,
                " ORDER BY k.created_ms LIMIT $1"
            ),
            malformed_open: concat!(
                "SELECT ", columns!(), " FROM (SELECT ", $now, " AS now_ms) AS n, oncekey AS k \
                 WHERE k.state < 2 AND NOT ", $readable, " LIMIT $1"
            ),
            malformed: concat!(
                "SELECT ", columns!(), " FROM (SELECT ", $now, " AS now_ms) AS n, oncekey AS k \
                 WHERE NOT ", $readable, " LIMIT $1"
            ),
            // The batch is chosen once, as a table of its own: PostgreSQL may run a subquery anew for
            // each row, and a limit then limits nothing.
            reap: concat!(
                "WITH expired AS (SELECT k.scope, k.operation, k.id FROM oncekey AS k \
                 WHERE k.state = 2 AND k.expires_ms <= ", $now, " AND ", $readable,
                " ORDER BY k.expires_ms LIMIT $1", $skip, ") \
                 DELETE FROM oncekey \
                 WHERE (scope, operation, id) IN (SELECT scope, operation, id FROM expired) \
                 AND state = 2 AND expires_ms <= ", $now
            ),
        }
    };
}

#[cfg(feature = "postgres")]
pub(crate) static POSTGRES: Statements = statements!(
    "CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS BIGINT)",
    "nextval('oncekey_token')",
    "GREATEST",
    " FOR UPDATE SKIP LOCKED",
    is_readable!("length(k.digest) = 16 AND length(k.id) > 0", "")
);

#[cfg(feature = "sqlite")]
pub(crate) static SQLITE: Statements = statements!(
    "CAST(round(unixepoch('subsec') * 1000) AS INTEGER)",
    "(SELECT value + 1 FROM oncekey_token)",
    "MAX",
    "",
    is_readable!(
        "typeof(k.digest) = 'blob' AND length(k.digest) = 16 AND typeof(k.id) = 'blob' \
         AND length(k.id) > 0",
        " AND typeof(k.state) = 'integer' AND typeof(k.algorithm) = 'integer' \
         AND typeof(k.token) = 'integer' AND typeof(k.attempt) = 'integer' \
         AND typeof(k.created_ms) = 'integer' AND typeof(k.started_ms) = 'integer' \
         AND typeof(CASE WHEN k.state = 2 THEN k.completed_ms ELSE k.lease_until_ms END) = 'integer' \
         AND typeof(CASE WHEN k.state = 2 THEN k.expires_ms ELSE 0 END) = 'integer'"
    )
);

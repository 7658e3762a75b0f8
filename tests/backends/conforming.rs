//! Every backend, each real, through the whole suite.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncekey::conformance::{self, Factory};
use oncekey::redis::redis;

use crate::servers::Server;
use crate::world::{Embedded, InPostgres, InRedis, InSqlite, block_on, redis_connection};

fn assert_conforms<F: Factory>(factory: &F) {
    let report = block_on(conformance::run(factory));
    assert!(report.failed.is_empty(), "{report}");
    assert!(report.skipped.is_empty(), "{report}");
    assert_eq!(report.passed.len(), 30, "{report}");
}

#[test]
fn the_embedded_store_conforms() {
    assert_conforms(&Embedded::new());
}

#[test]
fn sqlite_conforms() {
    let directory = tempfile::tempdir().expect("a directory");
    assert_conforms(&InSqlite(Arc::new(directory)));
}

#[test]
fn postgres_conforms() {
    if let Some(server) = Server::postgres() {
        assert_conforms(&InPostgres(Arc::new(Mutex::new(server))));
    }
}

#[test]
fn redis_conforms() {
    if let Some(server) = Server::redis() {
        assert_conforms(&InRedis(Arc::new(Mutex::new(server))));
    }
}

/// A cluster of one node, which refuses scripts that touch keys that they don't name, or in two slots.
#[test]
fn a_redis_cluster_conforms() {
    let Some(server) = Server::redis_cluster() else {
        return;
    };
    let port = server.port();
    block_on(async {
        let mut connection = redis_connection(port).await;
        let mut add = redis::cmd("CLUSTER");
        add.arg("ADDSLOTSRANGE").arg(0).arg(16_383);
        add.query_async::<()>(&mut connection)
            .await
            .expect("all slots");
        loop {
            let mut info = redis::cmd("CLUSTER");
            let said: String = info
                .arg("INFO")
                .query_async(&mut connection)
                .await
                .expect("said");
            if said.contains("cluster_state:ok") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    assert_conforms(&InRedis(Arc::new(Mutex::new(server))));
}

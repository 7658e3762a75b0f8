//! RocksDB, with its optimistic transactions.

use std::path::Path;

use ::rocksdb::{
    BlockBasedOptions, ErrorKind, OptimisticTransactionDB, OptimisticTransactionOptions, Options,
    WriteOptions,
};

use crate::measure::{Class, Entrant, Fault, Place};
use crate::rows::{Rows, Table, is_live};

pub(crate) fn entrants() -> [Entrant; 2] {
    let entrant = |class, is_synced| {
        let settings = format!(
            "OptimisticTransactionDB, get_for_update, WAL, sync={is_synced}, Bloom filter of 10 bits"
        );
        let place = Place::Files;
        Entrant::new("RocksDB", class, place, &settings, move |path, _| {
            open(path, is_synced)
        })
    };
    [entrant(Class::Buffered, false), entrant(Class::Sync, true)]
}

struct Rocks {
    database: OptimisticTransactionDB,
    is_synced: bool,
}

fn open(path: &Path, is_synced: bool) -> Result<Rows<Rocks>, Fault> {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_bloom_filter(10.0, false);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&blocks);
    let database = OptimisticTransactionDB::open(&options, path)?;
    Ok(Rows::new(Rocks {
        database,
        is_synced,
    }))
}

impl Rocks {
    fn options(&self) -> WriteOptions {
        let mut options = WriteOptions::default();
        options.set_sync(self.is_synced);
        options
    }
}

impl Table for Rocks {
    type Value = Vec<u8>;

    fn insert_if_free(&self, key: &[u8], row: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        loop {
            let options = OptimisticTransactionOptions::default();
            let transaction = self.database.transaction_opt(&self.options(), &options);
            let there = transaction.get_for_update(key, true)?;
            if let Some(there) = there.filter(|there| is_live(there)) {
                return Ok(Some(there));
            }
            transaction.put(key, row)?;
            match transaction.commit() {
                Ok(()) => return Ok(None),
                // Somebody else was faster.
                Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::TryAgain) => (),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn replace(&self, key: &[u8], row: &[u8]) -> Result<(), Fault> {
        Ok(self.database.put_opt(key, row, &self.options())?)
    }

    fn close(self) -> Result<(), Fault> {
        Ok(self.database.flush_wal(true)?)
    }
}

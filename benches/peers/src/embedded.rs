//! Stores of keys and values in the process: redb, fjall, sled and LMDB.

use std::path::Path;
use std::sync::Arc;

use fjall::{
    KeyspaceCreateOptions, OptimisticTxDatabase, OptimisticTxKeyspace, PersistMode, Readable as _,
};
use heed::types::Bytes;
use heed::{CommitOrAbort, Database as LmdbDatabase, Env, EnvFlags, EnvOpenOptions};
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};

use crate::measure::{Class, Entrant, Fault, Place};
use crate::rows::{Rows, Table, is_live};

pub(crate) fn entrants() -> Vec<Entrant> {
    let embedded = Place::Files;
    vec![
        Entrant::new(
            "fjall",
            Class::Buffered,
            embedded,
            "OptimisticTxDatabase, PersistMode::Buffer at each commit",
            |path, _| fjall(path, PersistMode::Buffer),
        ),
        Entrant::new(
            "LMDB",
            Class::Buffered,
            embedded,
            "heed, MDB_NOSYNC (a power loss can break the file)",
            |path, _| lmdb(path, EnvFlags::NO_SYNC),
        ),
        Entrant::new(
            "sled",
            Class::Buffered,
            embedded,
            "compare_and_swap for a claim, insert for a completion, flush after each (sync_file_range on \
             Linux, which promises nothing after a power loss)",
            |path, _| sled(path),
        ),
        Entrant::new(
            "redb",
            Class::Sync,
            embedded,
            "Durability::Immediate, the default, a transaction each step",
            |path, _| redb(path),
        ),
        Entrant::new(
            "fjall",
            Class::Sync,
            embedded,
            "OptimisticTxDatabase, PersistMode::SyncData at each commit",
            |path, _| fjall(path, PersistMode::SyncData),
        ),
        Entrant::new(
            "LMDB",
            Class::Sync,
            embedded,
            "heed, no flags, a transaction each step",
            |path, _| lmdb(path, EnvFlags::empty()),
        ),
    ]
}

const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("keys");

struct Redb {
    database: Arc<Database>,
    durability: Durability,
}

fn redb(path: &Path) -> Result<Rows<Redb>, Fault> {
    let database = Arc::new(Database::create(path.join("keys.redb"))?);
    let transaction = database.begin_write()?;
    transaction.open_table(TABLE)?;
    transaction.commit()?;
    let table = |durability| Redb {
        database: Arc::clone(&database),
        durability,
    };
    Ok(Rows::filled_through(
        table(Durability::Immediate),
        table(Durability::None),
    ))
}

impl Redb {
    fn write<T>(
        &self,
        step: impl FnOnce(&mut redb::Table<'_, &[u8], &[u8]>) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(self.durability)?;
        let done = step(&mut transaction.open_table(TABLE)?)?;
        transaction.commit()?;
        Ok(done)
    }
}

impl Table for Redb {
    type Value = Vec<u8>;

    fn insert_if_free(&self, key: &[u8], row: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        // A repeated claim need not wait for those who write.
        let table = self.database.begin_read()?.open_table(TABLE)?;
        if let Some(there) = table.get(key)?.filter(|there| is_live(there.value())) {
            return Ok(Some(there.value().to_vec()));
        }
        self.write(|table| {
            if let Some(there) = table.get(key)?.filter(|there| is_live(there.value())) {
                return Ok(Some(there.value().to_vec()));
            }
            table.insert(key, row)?;
            Ok(None)
        })
    }

    fn replace(&self, key: &[u8], row: &[u8]) -> Result<(), Fault> {
        self.write(|table| {
            table.insert(key, row)?;
            Ok(())
        })
    }

    fn close(self) -> Result<(), Fault> {
        // What it was filled with without a sync follows with this commit.
        self.database.begin_write()?.commit()?;
        Ok(())
    }
}

struct Fjall {
    database: OptimisticTxDatabase,
    keys: OptimisticTxKeyspace,
    mode: PersistMode,
}

fn fjall(path: &Path, mode: PersistMode) -> Result<Rows<Fjall>, Fault> {
    let database = OptimisticTxDatabase::builder(path).open()?;
    let keys = database.keyspace("keys", KeyspaceCreateOptions::default)?;
    Ok(Rows::new(Fjall {
        database,
        keys,
        mode,
    }))
}

impl Table for Fjall {
    type Value = fjall::Slice;

    fn insert_if_free(&self, key: &[u8], row: &[u8]) -> Result<Option<fjall::Slice>, Fault> {
        loop {
            let transaction = self.database.write_tx()?;
            let mut transaction = transaction.durability(Some(self.mode));
            let there = transaction.get(&self.keys, key)?;
            if let Some(there) = there.filter(|there| is_live(there)) {
                return Ok(Some(there));
            }
            transaction.insert(&self.keys, key, row);
            if transaction.commit()?.is_ok() {
                return Ok(None);
            }
        }
    }

    fn replace(&self, key: &[u8], row: &[u8]) -> Result<(), Fault> {
        let transaction = self.database.write_tx()?;
        let mut transaction = transaction.durability(Some(self.mode));
        transaction.insert(&self.keys, key, row);
        Ok(transaction.commit()??)
    }

    fn close(self) -> Result<(), Fault> {
        Ok(self.database.persist(PersistMode::SyncAll)?)
    }
}

struct Sled {
    database: sled::Db,
    is_synced: bool,
}

fn sled(path: &Path) -> Result<Rows<Sled>, Fault> {
    let database = sled::open(path)?;
    let table = |is_synced| Sled {
        database: database.clone(),
        is_synced,
    };
    Ok(Rows::filled_through(table(true), table(false)))
}

impl Sled {
    fn sync(&self) -> Result<(), Fault> {
        if self.is_synced {
            self.database.flush()?;
        }
        Ok(())
    }
}

impl Table for Sled {
    type Value = sled::IVec;

    fn insert_if_free(&self, key: &[u8], row: &[u8]) -> Result<Option<sled::IVec>, Fault> {
        let mut old: Option<sled::IVec> = None;
        loop {
            match self.database.compare_and_swap(key, old, Some(row))? {
                Ok(()) => {
                    self.sync()?;
                    return Ok(None);
                }
                Err(taken) => match taken.current {
                    Some(there) if is_live(&there) => return Ok(Some(there)),
                    there => old = there,
                },
            }
        }
    }

    fn replace(&self, key: &[u8], row: &[u8]) -> Result<(), Fault> {
        self.database.insert(key, row)?;
        self.sync()
    }

    fn close(self) -> Result<(), Fault> {
        self.database.flush()?;
        Ok(())
    }
}

/// Address space of an environment; its file only grows to what is used.
const MAP_BYTES: usize = 64 << 30;
/// Threads that may read at once: as many as can be asked for, and some.
const READERS: u32 = 1_100;

struct Lmdb {
    env: Env,
    keys: LmdbDatabase<'static, Bytes, Bytes>,
}

fn lmdb(path: &Path, flags: EnvFlags) -> Result<Rows<Lmdb>, Fault> {
    let mut options = EnvOpenOptions::new();
    options.map_size(MAP_BYTES).max_readers(READERS);
    // SAFETY: the directory is this process's alone, and its files are written by nothing but LMDB.
    let env = unsafe { options.flags(flags).open(path)? };
    let transaction = env.write_txn()?;
    let created = env.create_databases_and_commit(transaction, |opener, transaction| {
        let keys = opener.create_database(transaction, None);
        keys.map(CommitOrAbort::<_, ()>::Commit)
    })?;
    let keys = created.unwrap_commit();
    Ok(Rows::new(Lmdb { env, keys }))
}

impl Table for Lmdb {
    type Value = Vec<u8>;

    fn insert_if_free(&self, key: &[u8], row: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        let read = self.env.read_txn()?;
        if let Some(there) = self.keys.get(&read, key)?.filter(|there| is_live(there)) {
            return Ok(Some(there.to_vec()));
        }
        drop(read);
        let mut write = self.env.write_txn()?;
        if let Some(there) = self.keys.get(&write, key)?.filter(|there| is_live(there)) {
            return Ok(Some(there.to_vec()));
        }
        self.keys.put(&mut write, key, row)?;
        write.commit()?;
        Ok(None)
    }

    fn replace(&self, key: &[u8], row: &[u8]) -> Result<(), Fault> {
        let mut write = self.env.write_txn()?;
        self.keys.put(&mut write, key, row)?;
        Ok(write.commit()?)
    }

    fn close(self) -> Result<(), Fault> {
        Ok(self.env.force_sync()?)
    }
}

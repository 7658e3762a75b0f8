//! Maps and a cache in memory, which forget everything with their process.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use moka::sync::Cache;

use crate::measure::{
    Claimed, Class, Contestant, Entrant, FINGERPRINT, Fault, Place, Sample, Session,
};
use crate::rows::{lease_end, now, retention_end};

pub(crate) fn entrants() -> [Entrant; 3] {
    [
        Entrant::new(
            "DashMap",
            Class::Volatile,
            Place::Memory,
            "DashMap::new(), entry() for a claim, insert() for a completion",
            |_, _| Ok(Shared(Arc::new(DashMap::new()))),
        ),
        Entrant::new(
            "papaya",
            Class::Volatile,
            Place::Memory,
            "HashMap::new(), compute() for a claim, insert() for a completion",
            |_, _| Ok(Shared(Arc::new(papaya::HashMap::new()))),
        ),
        Entrant::new(
            "moka",
            Class::Volatile,
            Place::Memory,
            "no limit, so that nothing is evicted, time_to_live a day; entry().or_insert_with() for a \
             claim, insert() for a completion",
            |_, _| {
                let cache = Cache::builder().time_to_live(Duration::from_secs(24 * 3_600));
                Ok(Shared(Arc::new(cache.build())))
            },
        ),
    ]
}

type Bytes = Arc<[u8]>;

#[derive(Clone)]
struct Row {
    fingerprint: [u8; 16],
    deadline: u64,
    response: Option<Bytes>,
}

impl Row {
    fn pending() -> Self {
        Self {
            fingerprint: FINGERPRINT,
            deadline: lease_end(),
            response: None,
        }
    }

    fn done(response: &[u8]) -> Self {
        Self {
            fingerprint: FINGERPRINT,
            deadline: retention_end(),
            response: Some(response.into()),
        }
    }
}

trait Map: Send + Sync + 'static {
    /// Puts a pending row where there is none that counts; else what is there.
    fn insert_if_free(&self, key: &Bytes) -> Option<Row>;
    fn replace(&self, key: Bytes, row: Row);
}

impl Map for DashMap<Bytes, Row> {
    fn insert_if_free(&self, key: &Bytes) -> Option<Row> {
        match self.entry(Arc::clone(key)) {
            Entry::Vacant(free) => {
                free.insert(Row::pending());
                None
            }
            Entry::Occupied(mut taken) if taken.get().deadline <= now() => {
                taken.insert(Row::pending());
                None
            }
            Entry::Occupied(taken) => Some(taken.get().clone()),
        }
    }

    fn replace(&self, key: Bytes, row: Row) {
        self.insert(key, row);
    }
}

impl<S: BuildHasher + Send + Sync + 'static> Map for papaya::HashMap<Bytes, Row, S> {
    fn insert_if_free(&self, key: &Bytes) -> Option<Row> {
        use papaya::{Compute, Operation};
        let map = self.pin();
        let computed = map.compute(Arc::clone(key), |there| match there {
            Some((_, row)) if row.deadline > now() => Operation::Abort(row.clone()),
            _ => Operation::Insert(Row::pending()),
        });
        match computed {
            Compute::Aborted(row) => Some(row),
            _ => None,
        }
    }

    fn replace(&self, key: Bytes, row: Row) {
        self.pin().insert(key, row);
    }
}

impl Map for Cache<Bytes, Row> {
    fn insert_if_free(&self, key: &Bytes) -> Option<Row> {
        let entry = self
            .entry_by_ref(key)
            .or_insert_with_if(Row::pending, |row| row.deadline <= now());
        (!entry.is_fresh()).then(|| entry.into_value())
    }

    fn replace(&self, key: Bytes, row: Row) {
        self.insert(key, row);
    }
}

struct Shared<M>(Arc<M>);

impl<M: Map> Contestant for Shared<M> {
    type Session = SharedSession<M>;

    fn session(&self) -> Result<SharedSession<M>, Fault> {
        Ok(SharedSession(Arc::clone(&self.0)))
    }
}

struct SharedSession<M>(Arc<M>);

impl<M: Map> Session for SharedSession<M> {
    type Guard = Sample;
    type Response = Bytes;

    fn claim(&mut self, key: &Sample) -> Result<Claimed<Sample, Bytes>, Fault> {
        match self.0.insert_if_free(&key.bytes) {
            None => Ok(Claimed::Started(key.clone())),
            Some(row) if row.fingerprint != FINGERPRINT => {
                Err("a key stands for another request".into())
            }
            Some(row) => Ok(row.response.map_or(Claimed::Running, Claimed::Done)),
        }
    }

    fn complete(&mut self, key: Sample, response: &[u8]) -> Result<(), Fault> {
        self.0.replace(key.bytes, Row::done(response));
        Ok(())
    }
}

//! The names in use: those that somebody stands in line for.

use dlock_core::spi::Page;
use dlock_core::{LockName, Result};
use etcd_client::{GetOptions, SortOrder, SortTarget};

use crate::keys::behind;
use crate::lock::EtcdLock;
use crate::session::Session;

/// How many entries are read for one page.
const PAGE: i64 = 1_000;

impl EtcdLock {
    /// Goes through the entries in the order of their keys, and from each full page on behind the last name
    /// in it: so a name with many waiters is read once.
    pub(crate) async fn page(&self, session: &Session, prefix: &[u8], from: Option<&[u8]>) -> Result<Page> {
        let locks = self.keys().locks();
        let begin = match from {
            Some(from) => from.to_vec(),
            None => locks.as_bytes().to_vec(),
        };
        let how = GetOptions::new()
            .with_range(behind(locks))
            .with_keys_only()
            .with_sort(SortTarget::Key, SortOrder::Ascend)
            .with_limit(PAGE);
        let read = session.get(begin, how).await?;
        let mut names: Vec<LockName> = Vec::new();
        let mut last = None;
        for kv in read.kvs() {
            let part = kv.key().get(locks.len()..).unwrap_or_default();
            let part = part.split(|b| *b == b'/').next().unwrap_or_default();
            if last.as_deref() == Some(part) {
                continue;
            }
            last = Some(part.to_vec());
            let name = str::from_utf8(part).ok().and_then(LockName::from_path_part);
            names.extend(name.filter(|name| name.as_bytes().starts_with(prefix)));
        }
        let next = last.filter(|_| read.more()).map(|part| {
            let line = [locks.as_bytes(), &part, b"/"].concat();
            behind(&String::from_utf8_lossy(&line))
        });
        Ok(Page::new(names, next))
    }
}

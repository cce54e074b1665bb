//! Looking at a lock: `inspect`, `force_release`.

use async_trait::async_trait;
use dlock_core::spi::{Change, Inspection, Lock as _, Watch};
use dlock_core::{Error, ErrorKind, LockName, Result};
use futures::stream::BoxStream;

use super::connections::Absent;
use super::lock::MysqlLease;
use crate::lease::check::check_name;

#[async_trait]
impl Watch for MysqlLease {
    /// Not claimed.
    async fn watch(&self, name: &LockName) -> Result<BoxStream<'static, Result<Change>>> {
        let message = "the MySQL backend does not tell changes; look with `inspect`";
        Err(Error::new(ErrorKind::Unsupported, message).with_name(name))
    }

    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        let inspected = async {
            check_name(self.capabilities(), name)?;
            self.link
                .change(std::slice::from_ref(name), Absent::Left, |view| {
                    let now = view.now;
                    Ok(view
                        .name(name)?
                        .map_or_else(Inspection::default, |name| name.state.inspect(now)))
                })
                .await
        };
        let inspected = inspected.await.map_err(|e| e.with_name(name))?;
        Ok(inspected.1)
    }

    async fn force_release(&self, name: &LockName) -> Result<u32> {
        let forced = async {
            check_name(self.capabilities(), name)?;
            self.link
                .change(std::slice::from_ref(name), Absent::Left, |view| {
                    let now = view.now;
                    Ok(view
                        .name(name)?
                        .map_or(0, |name| name.state.force_release(now, &mut name.tokens)))
                })
                .await
        };
        let forced = forced.await.map_err(|e| e.with_name(name))?;
        Ok(forced.1)
    }
}

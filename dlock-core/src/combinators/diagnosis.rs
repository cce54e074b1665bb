//! The findings of several stores.

use std::time::Duration;

use futures::future::{Either, join_all, select};

use crate::diagnosis::Finding;
use crate::runtime::Runtime;
use crate::spi::Lock;

/// Adds the name of its store to each finding. A store that fails, or does not answer within `patience`, is a
/// problem.
pub(super) async fn of_each<'a>(
    stores: impl Iterator<Item = (String, &'a dyn Lock)>,
    runtime: &dyn Runtime,
    patience: Duration,
) -> Vec<Finding> {
    let each = stores.map(|(store, backend)| async move {
        let found = match select(backend.diagnose(), runtime.sleep(patience)).await {
            Either::Left((Ok(found), _)) => found,
            Either::Left((Err(e), _)) => vec![Finding::problem("server", e.to_string())],
            Either::Right(_) => vec![Finding::problem(
                "server",
                format!("no answer within {patience:?}"),
            )],
        };
        found
            .into_iter()
            .map(|finding| finding.of(&store))
            .collect::<Vec<_>>()
    });
    join_all(each).await.concat()
}

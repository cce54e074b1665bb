//! What one look at the row of a name shows.

/// What changes when anything does: the number of changes, that of other hints, the token, the phase. Of a
/// name that has no row it is all nought.
pub(in crate::lease) type Mark = (i64, i64, i64, i64);

/// What one look has shown.
#[derive(Default)]
pub(in crate::lease) struct Look {
    pub(in crate::lease) mark: Mark,
    /// Something is to be taken back.
    pub(in crate::lease) due: bool,
    /// Whoever was offered a lease and has not come for it, of any client.
    pub(in crate::lease) offered: Vec<dlock_core::RequestId>,
}

use crate::name::LockName;
use crate::request_id::RequestId;

/// The key of one acquisition: of the request first, then of the lease if it is granted. Every later
/// operation (release, renew, abandon, convert) names this key and touches nothing else.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub struct LeaseKey {
    /// The lock.
    pub name: LockName,
    /// The acquisition.
    pub id: RequestId,
}

impl LeaseKey {
    /// Creates the key of the acquisition `id` of the lock `name`.
    pub fn new(name: LockName, id: RequestId) -> Self {
        Self { name, id }
    }
}

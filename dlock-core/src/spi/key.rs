use crate::name::LockName;
use crate::request_id::RequestId;

/// Names one acquisition: first the request, then, if it is granted, the lease. Everything that is later said
/// about it (release, renew, abandon, convert) names this key and touches nothing else.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub struct LeaseKey {
    /// The lock.
    pub name: LockName,
    /// The acquisition.
    pub id: RequestId,
}

impl LeaseKey {
    /// The key of that acquisition of that lock.
    pub fn new(name: LockName, id: RequestId) -> Self {
        Self { name, id }
    }
}

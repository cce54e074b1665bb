//! Who may read and change nodes.

use dlock_core::Result;
use zookeeper_client::{Acl, Acls, AuthId, CreateMode, CreateOptions, Permission};

use crate::failure::invalid;

/// Who may read and change the nodes that this client creates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// Anyone may do anything: ZooKeeper's default.
    #[default]
    Anyone,
    /// Only the user who created the node: all clients of these locks need the same
    /// [login](crate::Config::login) or SASL user.
    Creator,
    /// A list as in `zkCli`: `scheme:id:permissions`, separated by commas, with permissions from `cdrwa`. For
    /// example `digest:app:kHqYpPMQpGtpUVhbJIRh3VeIHCg=:cdrwa,world:anyone:r`. All clients of
    /// these locks need `cdrw`.
    List(String),
}

/// The list that every node of ours is made with. Never empty.
#[derive(Clone, Debug)]
pub(crate) struct Rights(Vec<Acl>);

impl Rights {
    pub(crate) fn of(access: &Access) -> Result<Self> {
        Ok(Self(match access {
            Access::Anyone => Acls::anyone_all().to_vec(),
            Access::Creator => Acls::creator_all().to_vec(),
            Access::List(text) => text.split(',').map(entry).collect::<Result<Vec<_>>>()?,
        }))
    }

    /// For a node of that kind.
    pub(crate) fn node(&self, mode: CreateMode) -> CreateOptions<'_> {
        mode.with_acls(Acls::new(&self.0))
    }
}

fn entry(text: &str) -> Result<Acl> {
    let wrong = || invalid("an access list must be `scheme:id:permissions,...`, with permissions of `cdrwa`");
    // An id may have a colon in it, as that of `digest` has.
    let (scheme, rest) = text.trim().split_once(':').ok_or_else(wrong)?;
    let (id, letters) = rest.rsplit_once(':').ok_or_else(wrong)?;
    let mut permission = Permission::NONE;
    for letter in letters.chars() {
        permission = permission
            | match letter {
                'c' => Permission::CREATE,
                'd' => Permission::DELETE,
                'r' => Permission::READ,
                'w' => Permission::WRITE,
                'a' => Permission::ADMIN,
                _ => return Err(wrong()),
            };
    }
    match scheme.is_empty() || permission == Permission::NONE {
        true => Err(wrong()),
        false => Ok(Acl::new(permission, AuthId::new(scheme, id))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_zkcli_writes_it() {
        let list = "digest:app:aGFzaA==:cdrw, world:anyone:r";
        let Rights(acl) = Rights::of(&Access::List(list.into())).unwrap();
        assert_eq!((acl[0].scheme(), acl[0].id()), ("digest", "app:aGFzaA=="));
        assert!(acl[0].permission().has(Permission::WRITE));
        assert!(!acl[0].permission().has(Permission::ADMIN));
        let anyone = (acl[1].scheme(), acl[1].permission());
        assert_eq!(anyone, ("world", Permission::READ));
    }

    #[test]
    fn a_list_without_permissions_is_refused() {
        for wrong in [
            "",
            "world:anyone",
            "world:anyone:",
            "world:anyone:x",
            ":a:r",
            "a:b:r,",
        ] {
            let e = Rights::of(&Access::List(wrong.into())).expect_err(wrong);
            assert_eq!(e.kind(), dlock_core::ErrorKind::InvalidInput);
        }
    }
}

//! The checks of a request against what is claimed, for the engine and for every backend.

use std::time::Duration;

use crate::capabilities::{Capabilities, Capability, Nature};
use crate::error::{Error, ErrorKind, Result};
use crate::mode::Mode;
use crate::name::LockName;
use crate::spi::{Acquire, Queueing};

fn invalid<T>(message: String) -> Result<T> {
    Err(Error::new(ErrorKind::InvalidInput, message))
}

impl Capabilities {
    /// Refuses a request that asks for more than is claimed, or is out of the limits: for the first line of
    /// [`Lock::attempt`](crate::spi::Lock::attempt). The engine has checked it before; whoever calls a
    /// backend without one has not.
    ///
    /// # Errors
    /// `InvalidInput` for a name or label that is too long, a ttl out of range, or a priority that is not
    /// within 1 to 10; `Unsupported` for a mode, queue, priority or label that is not claimed.
    pub fn check(&self, request: &Acquire) -> Result<()> {
        let checked = || {
            self.check_name(&request.key.name)?;
            self.check_ttl(request.ttl)?;
            self.check_mode(request.mode)?;
            if request.queue == Queueing::Join {
                self.need(Capability::Queue, "a queue")?;
            }
            self.check_priority(request.priority)?;
            request
                .owner
                .as_deref()
                .map_or(Ok(()), |label| self.check_label(label))
        };
        checked().map_err(|e: Error| e.with_name(&request.key.name))
    }

    /// Refuses a name that is too long; it is never hashed or cut. For what names a lock or a resource.
    ///
    /// # Errors
    /// `InvalidInput`.
    pub fn check_name(&self, name: &LockName) -> Result<()> {
        let (len, max) = (name.as_bytes().len(), self.max_name_len);
        if len <= max {
            return Ok(());
        }
        let refused = invalid(format!(
            "the name has {len} bytes, {} takes at most {max}",
            self.backend
        ));
        refused.map_err(|e| e.with_name(name))
    }

    /// Refuses a ttl out of range. For a renewal, whose ttl need not be that of the request.
    ///
    /// # Errors
    /// `InvalidInput`.
    pub fn check_ttl(&self, ttl: Duration) -> Result<()> {
        let (min, max) = (self.min_ttl, self.max_ttl);
        if (min..=max).contains(&ttl) {
            return Ok(());
        }
        let why = match self.nature {
            Nature::Session => ", after which a session ends,",
            Nature::Lease => "",
        };
        invalid(format!(
            "a ttl of {ttl:?} is not between {min:?}{why} and {max:?}, which {} takes",
            self.backend
        ))
    }

    /// Refuses what is not claimed.
    pub(crate) fn need(&self, capability: Capability, what: &str) -> Result<()> {
        if self.has(capability) {
            return Ok(());
        }
        let text = format!(
            "{what} needs {capability:?}, which {} does not offer",
            self.backend
        );
        Err(Error::new(ErrorKind::Unsupported, text))
    }

    pub(crate) fn check_mode(&self, mode: Mode) -> Result<()> {
        match mode {
            Mode::Exclusive => Ok(()),
            Mode::Shared { limit: None } => self.need(Capability::Shared, "a read lock"),
            Mode::Shared { limit: Some(_) } => self.need(Capability::Permits, "a semaphore"),
        }
    }

    pub(crate) fn check_priority(&self, priority: u8) -> Result<()> {
        if !(1..=10).contains(&priority) {
            return invalid(format!("the priority {priority} is not within 1 to 10"));
        }
        match priority == Acquire::DEFAULT_PRIORITY {
            true => Ok(()),
            false => self.need(Capability::Priority, "a priority"),
        }
    }

    pub(crate) fn check_label(&self, label: &str) -> Result<()> {
        self.need(Capability::OwnerLabel, "an owner label")?;
        let (len, max) = (label.len(), self.max_owner_len);
        match len <= max {
            true => Ok(()),
            false => invalid(format!(
                "the owner label has {len} bytes, {} takes at most {max}",
                self.backend
            )),
        }
    }
}

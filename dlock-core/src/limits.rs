//! Checks of a request against the claims of a backend, for the engine and for backends.

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
    /// For backends: checks that a request asks for no more than is claimed. Belongs in the first line of
    /// [`Lock::attempt`](crate::spi::Lock::attempt). The engine has checked its requests before; a backend
    /// that is called directly must do it.
    ///
    /// # Errors
    /// `InvalidInput` for a name or label that is too long, a ttl out of range, or a priority that is not
    /// within 1 to 10. `Unsupported` for a mode, queue, priority or label that is not claimed.
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

    /// Checks the length of a lock or resource name. A name that is too long is refused, never hashed or cut.
    ///
    /// # Errors
    /// `InvalidInput` if the name is too long.
    pub fn check_name(&self, name: &LockName) -> Result<()> {
        let (len, max) = (name.as_bytes().len(), self.max_name_len);
        if len <= max {
            return Ok(());
        }
        let refused = invalid(format!(
            "the name has {len} bytes, but {} accepts at most {max}",
            self.backend
        ));
        refused.map_err(|e| e.with_name(name))
    }

    /// Checks that a ttl is in range. For renewals, whose ttl may differ from that of the request.
    ///
    /// # Errors
    /// `InvalidInput` if the ttl is out of range.
    pub fn check_ttl(&self, ttl: Duration) -> Result<()> {
        let (min, max) = (self.min_ttl, self.max_ttl);
        let backend = &self.backend;
        if ttl > max {
            invalid(format!(
                "a ttl of {ttl:?} is above the maximum of {backend}, {max:?}"
            ))
        } else if ttl >= min {
            Ok(())
        } else if self.nature == Nature::Session {
            invalid(format!(
                "a ttl of {ttl:?} is shorter than this client's session with {backend}, {min:?}: take a \
                 longer ttl, or connect with a shorter `session_timeout` (SQL: `session_ttl`)"
            ))
        } else {
            invalid(format!(
                "a ttl of {ttl:?} is below the minimum of {backend}, {min:?}"
            ))
        }
    }

    /// Refuses what is not claimed.
    pub(crate) fn need(&self, capability: Capability, what: &str) -> Result<()> {
        if self.has(capability) {
            return Ok(());
        }
        let text = format!(
            "{what} needs {capability:?}, which {} does not support",
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
            return invalid(format!("the priority {priority} must be between 1 and 10"));
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
                "the owner label has {len} bytes, but {} accepts at most {max}",
                self.backend
            )),
        }
    }
}

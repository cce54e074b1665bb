//! The resource side of fencing.

use async_trait::async_trait;
use dlock_core::{Access, Admission, Error, FenceGate, FencedValue, LockName, Result, Token};
use redis::Value;

use crate::keys::resource;
use crate::lock::RedisLock;
use crate::reply::{strange, token};

impl RedisLock {
    async fn ask_gate(
        &self,
        name: &LockName,
        t: Token,
        access: Access,
        value: Option<&[u8]>,
    ) -> Result<Admission> {
        let named = |e: Error| e.with_name(name);
        self.backend.check_name(name).map_err(named)?;
        let c = &self.backend;
        let call = c
            .call(&c.scripts.gate, 1)
            .arg(resource(&c.prefix, name))
            .arg(t.to_string())
            .arg(if access == Access::Exclusive { "1" } else { "0" })
            .arg(if value.is_some() { "1" } else { "0" })
            .arg(value.unwrap_or_default());
        match call.run().await.map_err(named)?.1 {
            Value::BulkString(highest) => Ok(Admission::Refused {
                highest: token(&highest).map_err(named)?,
            }),
            Value::Nil | Value::Boolean(false) => Ok(Admission::Admitted),
            _ => Err(named(strange("no token"))),
        }
    }
}

#[async_trait]
impl FenceGate for RedisLock {
    async fn admit(&self, resource: &LockName, token: Token, access: Access) -> Result<Admission> {
        self.ask_gate(resource, token, access, None).await
    }

    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission> {
        self.ask_gate(resource, token, Access::Exclusive, Some(value))
            .await
    }

    async fn read(&self, name: &LockName) -> Result<Option<FencedValue>> {
        let named = |e: Error| e.with_name(name);
        self.backend.check_name(name).map_err(named)?;
        let c = &self.backend;
        let mut command = redis::cmd("HMGET");
        command.arg(resource(&c.prefix, name)).arg(&["v", "x", "a"]);
        let fields = c.query(&command).await.map_err(named)?;
        let [value, exclusive, any]: [Option<Vec<u8>>; 3] =
            redis::from_redis_value(fields).map_err(|_| named(strange("no three fields")))?;
        if any.is_none() && value.is_none() {
            return Ok(None);
        }
        let read = |digits: Option<Vec<u8>>| digits.map(|d| token(&d)).transpose();
        let (exclusive, any) = (read(exclusive).map_err(named)?, read(any).map_err(named)?);
        Ok(Some(FencedValue::new(value.unwrap_or_default(), exclusive, any)))
    }
}

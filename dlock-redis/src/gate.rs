//! The resource side of fencing.

use async_trait::async_trait;
use dlock_core::{Access, Admission, FenceGate, FencedValue, LockName, Result, Token};
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
        let c = &self.backend;
        c.capabilities.check_name(name)?;
        let mut call = c
            .call(&c.scripts.gate, 1)
            .arg(resource(&c.prefix, name))
            .arg(t.to_string())
            .arg(if access == Access::Exclusive { "1" } else { "0" })
            .arg(if value.is_some() { "1" } else { "0" })
            .arg(value.unwrap_or_default());
        match call.run().await?.1 {
            Value::BulkString(highest) => Ok(Admission::Refused {
                highest: token(&highest)?,
            }),
            Value::Nil | Value::Boolean(false) => Ok(Admission::Admitted),
            _ => Err(strange("no token")),
        }
    }
}

#[async_trait]
impl FenceGate for RedisLock {
    async fn admit(&self, name: &LockName, token: Token, access: Access) -> Result<Admission> {
        self.ask_gate(name, token, access, None).await
    }

    async fn write(&self, name: &LockName, token: Token, value: &[u8]) -> Result<Admission> {
        self.ask_gate(name, token, Access::Exclusive, Some(value)).await
    }

    async fn read(&self, name: &LockName) -> Result<Option<FencedValue>> {
        let c = &self.backend;
        c.capabilities.check_name(name)?;
        let mut command = redis::cmd("HMGET");
        command.arg(resource(&c.prefix, name)).arg(&["v", "x", "a"]);
        let fields = c.query(&command).await?;
        let [value, exclusive, any]: [Option<Vec<u8>>; 3] =
            redis::from_redis_value(fields).map_err(|_| strange("no three fields"))?;
        if any.is_none() && value.is_none() {
            return Ok(None);
        }
        let read = |digits: Option<Vec<u8>>| digits.map(|d| token(&d)).transpose();
        let value = value.unwrap_or_default();
        Ok(Some(FencedValue::new(value, read(exclusive)?, read(any)?)))
    }
}

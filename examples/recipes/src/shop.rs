//! A web service that sells from a stock, and never more than there is, however many instances of it run.

use std::collections::BTreeMap;

use axum::extract::{Path, State};
use axum::routing::{get, put};
use axum::{Json, Router};
use dlock::{Client, LockName};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::row;

/// What stands in the row of an item.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Stock {
    left: u32,
    /// The orders that were taken, by id. An order that is sent again is found here.
    orders: BTreeMap<String, u32>,
}

impl Stock {
    fn parse(row: &[u8]) -> Result<Self, Failure> {
        match row.is_empty() {
            true => Ok(Self::default()),
            false => Ok(serde_json::from_slice(row)?),
        }
    }

    fn order(&mut self, id: String, quantity: u32) -> Result<(), Failure> {
        if !self.orders.contains_key(&id) {
            let left = self.left.checked_sub(quantity);
            self.left = left.ok_or(Failure::NotEnough { left: self.left })?;
            self.orders.insert(id, quantity);
        }
        Ok(())
    }
}

/// The routes. The client is shared by all requests: it is cheap to clone.
pub fn router(client: Client) -> Router {
    Router::new()
        .route("/stock/{item}", get(show).put(count))
        .route("/stock/{item}/orders/{id}", put(order))
        .with_state(client)
}

/// How many are left. A read alone takes no lock: the answer may be old by the time that it arrives.
async fn show(State(client): State<Client>, Path(item): Path<String>) -> Result<Json<u32>, Failure> {
    let fenced = client.gate()?.read(name(&item)?).await?;
    let row = fenced.map(|fenced| fenced.value).unwrap_or_default();
    Ok(Json(Stock::parse(&row)?.left))
}

/// Sets how many there are.
async fn count(
    State(client): State<Client>,
    Path(item): Path<String>,
    Json(left): Json<u32>,
) -> Result<Json<u32>, Failure> {
    change(&client, &name(&item)?, |stock| {
        stock.left = left;
        Ok(())
    })
    .await
}

/// Takes that many items, once for each order id, and answers how many are left.
async fn order(
    State(client): State<Client>,
    Path((item, id)): Path<(String, String)>,
    Json(quantity): Json<u32>,
) -> Result<Json<u32>, Failure> {
    change(&client, &name(&item)?, |stock| stock.order(id, quantity)).await
}

fn name(item: &str) -> dlock::Result<LockName> {
    LockName::new(format!("stock/{item}"))
}

/// Changes a row under its lock. Axum drops this future when the web client hangs up. The lock is then
/// released, and the gate refuses a write that is still on its way once the next holder has read the row.
async fn change<F>(client: &Client, row: &LockName, change: F) -> Result<Json<u32>, Failure>
where
    F: FnOnce(&mut Stock) -> Result<(), Failure>,
{
    let lock = client.lock(row)?;
    lock.with(|held| async move {
        let mut stock = Stock::parse(&row::read(client, row, &held).await?)?;
        change(&mut stock)?;
        row::write(client, row, &held, &serde_json::to_vec(&stock)?).await?;
        Ok(Json(stock.left))
    })
    .await?
}

use std::collections::BTreeSet;

use axum::body::{Body, to_bytes};
use axum::http::{Request, header::RETRY_AFTER};
use axum::response::IntoResponse;
use axum::{Router, response::Response};
use dlock::{ErrorKind, LockName};
use dlock_recipes::{failure::Failure, row, shop::router};
use futures::future::join_all;
use tower::ServiceExt;

use crate::{Store, soon};

async fn put(shop: &Router, path: &str, body: u32) -> Response {
    let request = Request::put(path).header("content-type", "application/json");
    let request = request.body(Body::from(body.to_string())).unwrap();
    soon(shop.clone().oneshot(request)).await.unwrap()
}

async fn left(shop: &Router, item: &str) -> String {
    let request = Request::get(format!("/stock/{item}"))
        .body(Body::empty())
        .unwrap();
    text(soon(shop.clone().oneshot(request)).await.unwrap()).await
}

async fn text(response: Response) -> String {
    let bytes = to_bytes(response.into_body(), 1000).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_instances_sell_what_there_is_and_no_more() {
    let store = Store::new();
    let clients = [store.client().await, store.client().await];
    let shops = clients.clone().map(router);
    assert_eq!(put(&shops[0], "/stock/42", 5).await.status(), 200);

    let orders = (0..12).map(|id| {
        let shop = &shops[id % 2];
        async move { put(shop, &format!("/stock/42/orders/{id}"), 1).await }
    });
    let mut sold = BTreeSet::new();
    let mut refused = 0;
    for response in join_all(orders).await {
        if response.status() == 200 {
            assert!(sold.insert(text(response).await), "two have the same item");
        } else {
            assert_eq!(response.status(), 409);
            refused += 1;
        }
    }
    assert_eq!((sold.len(), refused), (5, 7));
    assert_eq!(left(&shops[1], "42").await, "0");
}

#[tokio::test]
async fn an_order_that_is_sent_again_is_taken_once() {
    let store = Store::new();
    let client = store.client().await;
    let shop = router(client.clone());
    put(&shop, "/stock/42", 5).await;
    for _ in 0..2 {
        let response = put(&shop, "/stock/42/orders/a", 2).await;
        assert_eq!(response.status(), 200);
        assert_eq!(text(response).await, "3");
    }
    assert_eq!(left(&shop, "42").await, "3");
}

#[tokio::test]
async fn a_stale_holder_is_refused_and_changes_nothing() {
    let store = Store::new();
    let (paused, other) = (store.client().await, store.client().await);
    let shop = router(other.clone());
    put(&shop, "/stock/42", 5).await;

    // One instance has read, and stands still. The store gives its lock away, and it does not know yet.
    let name = LockName::new("stock/42").unwrap();
    let guard = paused.lock(&name).unwrap().acquire().await.unwrap();
    let stock = row::read(&paused, &name, &guard.held()).await.unwrap();
    assert_eq!(other.force_release(&name).await.unwrap(), 1);
    assert_eq!(put(&shop, "/stock/42/orders/a", 1).await.status(), 200);

    assert!(guard.is_valid());
    let refused = row::write(&paused, &name, &guard.held(), &stock)
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Lost);
    let response = Failure::from(refused).into_response();
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()[RETRY_AFTER], "1");
    assert_eq!(left(&shop, "42").await, "4");
}

#[tokio::test]
async fn a_write_on_its_way_from_an_older_holder_is_refused() {
    let store = Store::new();
    let (paused, other) = (store.client().await, store.client().await);
    put(&router(paused.clone()), "/stock/42", 5).await;
    let guard = paused.lock("stock/42").unwrap().acquire().await.unwrap();
    other.force_release("stock/42").await.unwrap();

    // The next holder has only read so far: there is not enough.
    let response = put(&router(other.clone()), "/stock/42/orders/much", 9).await;
    assert_eq!(response.status(), 409);
    let late = paused
        .gate()
        .unwrap()
        .write("stock/42", guard.token().unwrap(), b"late")
        .await;
    assert!(!late.unwrap().is_admitted());
    assert_eq!(left(&router(other.clone()), "42").await, "5");
}

#[tokio::test]
async fn a_shop_that_shuts_down_says_to_come_again() {
    let store = Store::new();
    let client = store.client().await;
    client.close().await.unwrap();
    let response = put(&router(client.clone()), "/stock/42", 5).await;
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()[RETRY_AFTER], "1");
}

#[tokio::test]
async fn an_item_whose_name_is_too_long_is_a_bad_request() {
    let store = Store::new();
    let client = store.client().await;
    let path = format!("/stock/{}", "x".repeat(2000));
    let response = put(&router(client.clone()), &path, 5).await;
    assert_eq!(response.status(), 400);
    assert_eq!(response.headers().get(RETRY_AFTER), None);
}

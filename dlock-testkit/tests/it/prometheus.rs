//! Prometheus.

use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use dlock_testkit::{Port, PrometheusServer, promtool, until};

/// Enough for a busy machine.
const LONG: Duration = Duration::from_secs(30);

const RULES: &str = "groups: [ { name: g, rules: [ { alert: Away, expr: 'up{job=\"nobody\"} == 0' } ] } ]";

#[test]
fn it_scrapes_where_it_is_told_and_evaluates_its_rules() {
    let nobody = Port::free().unwrap();
    let server = PrometheusServer::start(&[("nobody".into(), nobody.address())], RULES).unwrap();
    until("nobody is missed", LONG, || {
        Ok(server.get("/api/v1/alerts")?.contains(r#""alertname":"Away""#))
    })
    .unwrap();
    assert!(server.query("1 + 1").unwrap().contains(r#""2""#));
    let said = server.query("1 +").unwrap_err().to_string();
    assert!(
        said.contains("400 Bad Request") && said.contains("parse error"),
        "{said}"
    );

    let (address, pid) = (server.address(), server.pid().unwrap());
    drop(server);
    assert!(TcpStream::connect(address).is_err());
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn rules_that_are_not_valid_are_said_to_be() {
    let rules = RULES.replace("== 0", "==");
    let said = PrometheusServer::start(&[], &rules).unwrap_err();
    assert!(said.to_string().contains("parse error"), "{said}");
    let folder = std::env::temp_dir();
    promtool(&folder, &["check", "rules", "no-such-file.yml"]).unwrap_err();
    assert!(promtool(&folder, &["--version"]).unwrap().contains("promtool"));
}

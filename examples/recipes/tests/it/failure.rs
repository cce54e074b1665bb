use axum::http::StatusCode;
use dlock::{Error, ErrorKind};
use dlock_recipes::failure::status;

#[test]
fn every_kind_has_a_status_and_a_verdict_about_retries() {
    for (kind, code, retry) in [
        (ErrorKind::Timeout, 503, true),
        (ErrorKind::Lost, 503, true),
        (ErrorKind::Unknown, 503, true),
        (ErrorKind::InvalidInput, 400, false),
        (ErrorKind::Unsupported, 500, false),
        (ErrorKind::LimitReached, 503, true),
        (ErrorKind::Unavailable, 503, true),
        (ErrorKind::PermissionDenied, 500, false),
        (ErrorKind::BackendData, 500, false),
        (ErrorKind::Closed, 503, true),
    ] {
        let e = Error::new(kind, "it failed");
        let (answer, again) = status(&e);
        assert_eq!((answer.as_u16(), again.is_some()), (code, retry), "{kind:?}");
        // A web client looks at either. They must not contradict one another.
        assert_eq!(
            answer == StatusCode::SERVICE_UNAVAILABLE,
            again.is_some(),
            "{kind:?}"
        );
        // What dlock calls retryable may be sent again. `Lost` and `Closed` are added: the next request takes
        // a new hold, or goes to another instance.
        assert!(again.is_some() || !e.is_retryable(), "{kind:?}");
    }
}

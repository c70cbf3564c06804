//! Errors of streaming requests as provider errors. The messages are kept, because people search for them.

use vk_kube::Kind as Lower;
use vk_provider::{Error, error::Kind};

/// Messages with status 400 about a container that is not running.
const NOT_RUNNING: [&str; 4] =
    ["is waiting to start", "does not have a host assigned", "in a completed pod", "is not running"];

/// Messages about a container that does not exist.
const ABSENT: [&str; 5] = [
    "is not valid for pod",
    "container not found",
    "pod does not exist",
    "previous terminated container",
    "is not available",
];

/// The provider error of an operation.
pub(super) fn to_provider_error(doing: &str, error: vk_kube::Error) -> Error {
    Error::new(kind(&error), doing.to_owned()).caused_by(error)
}

fn kind(error: &vk_kube::Error) -> Kind {
    let says = |words: &[&str]| words.iter().any(|words| error.message.contains(words));
    match error.kind {
        // Kubelets answer without a Status.
        Lower::NotFound | Lower::NotServed => Kind::NotFound,
        Lower::AlreadyExists => Kind::AlreadyExists,
        Lower::Unauthorized | Lower::Forbidden => Kind::Denied,
        Lower::Throttled => Kind::Throttled { after: error.retry_after },
        // Some kubelet errors carry the status code of the API server that proxied the request.
        Lower::Invalid | Lower::Server if says(&ABSENT) => Kind::NotFound,
        Lower::Invalid if says(&NOT_RUNNING) => Kind::Unavailable,
        Lower::Invalid | Lower::MethodNotAllowed => Kind::Invalid,
        Lower::Conflict
        | Lower::Replaced
        | Lower::Expired
        | Lower::Server
        | Lower::Timeout
        | Lower::Unreachable
        | Lower::Fenced => Kind::Unavailable,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn messages_of_kubelets_determine_the_error_kind() {
        for (lower, words, kind) in [
            (
                Lower::Invalid,
                "container \"c\" in pod \"p\" is waiting to start: ContainerCreating",
                Kind::Unavailable,
            ),
            (Lower::Invalid, "previous terminated container \"c\" in pod \"p\" not found", Kind::NotFound),
            (Lower::Invalid, "container x is not valid for pod p", Kind::NotFound),
            (
                Lower::Invalid,
                "cannot exec into a container in a completed pod; current phase is Succeeded",
                Kind::Unavailable,
            ),
            (Lower::Invalid, "pod p does not have a host assigned", Kind::Unavailable),
            (Lower::Server, "unable to upgrade connection: container not found (\"c\")", Kind::NotFound),
            (Lower::Server, "dial tcp 10.0.0.1:10250: connect: connection refused", Kind::Unavailable),
            (Lower::Invalid, "you must specify at least 1 of stdin, stdout, stderr", Kind::Invalid),
            (Lower::Forbidden, "pods \"p\" is forbidden", Kind::Denied),
            (Lower::Unauthorized, "Unauthorized", Kind::Denied),
            (Lower::NotFound, "pods \"p\" not found", Kind::NotFound),
            (Lower::Timeout, "no answer", Kind::Unavailable),
        ] {
            let error = to_provider_error("do it", vk_kube::Error::new(lower, words));
            assert_eq!(*error.kind(), kind, "{words}");
            assert_eq!(error.report(), format!("do it: {words}"));
        }
    }

    #[test]
    fn retry_after_is_kept() {
        let wait = Some(Duration::from_secs(7));
        let busy = vk_kube::Error { retry_after: wait, ..vk_kube::Error::new(Lower::Throttled, "slow down") };
        assert_eq!(to_provider_error("do it", busy).kind().retry_after(), wait);
    }
}

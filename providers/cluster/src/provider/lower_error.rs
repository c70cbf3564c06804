//! What the lower API server's refusals mean for a pod.

use vk_kube::{Error as LowerError, Kind as Lower};
use vk_provider::{Error, error::Kind};

/// What it means that a call below failed. Nothing of it is for ever.
pub(super) fn to_provider_error(doing: &str, error: LowerError) -> Error {
    let kind = match error.kind {
        Lower::NotFound | Lower::Replaced => Kind::NotFound,
        Lower::Forbidden if is_transient(&error) => Kind::Unavailable,
        Lower::Unauthorized | Lower::Forbidden | Lower::Invalid => Kind::Denied,
        Lower::Throttled => Kind::Throttled { after: error.retry_after },
        Lower::Fenced => Kind::Cancelled,
        _ => Kind::Unavailable,
    };
    Error::new(kind, format!("{doing} in the lower cluster")).caused_by(error)
}

/// Whether it is the object that the lower cluster does not like: what it says would be said again, however often it is asked. A right
/// that we lack is our fault.
pub(super) fn is_rejection(error: &LowerError) -> bool {
    match error.kind {
        Lower::Invalid => true,
        Lower::Forbidden => {
            !is_transient(error)
                && !error.message.contains("cannot create resource")
                && !error.message.contains("cannot patch resource")
        }
        _ => false,
    }
}

/// Whether a refusal passes by itself: a namespace that is going away will be gone, and one that was just made gets its service account.
fn is_transient(error: &LowerError) -> bool {
    ["because it is being terminated", "error looking up service account"]
        .iter()
        .any(|words| error.message.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_admission_says_of_a_pod_is_a_verdict_and_a_lack_of_rights_is_none() {
        let forbidden = |message: &str| LowerError::new(Lower::Forbidden, message);
        assert!(is_rejection(&forbidden("pods \"a\" is forbidden: exceeded quota: few, requested: pods=1")));
        assert!(is_rejection(&forbidden(
            "pods \"a\" is forbidden: violates PodSecurity \"restricted:latest\""
        )));
        assert!(is_rejection(&LowerError::new(Lower::Invalid, "Pod \"a\" is invalid")));
        let rights = "pods is forbidden: User \"vk\" cannot create resource \"pods\" in API group \"\"";
        assert!(!is_rejection(&forbidden(rights)));
        let going = "unable to create new content in namespace a because it is being terminated";
        assert!(!is_rejection(&forbidden(going)));
        let early =
            forbidden("pods \"a\" is forbidden: error looking up service account b/default: not found");
        assert!(!is_rejection(&early));
        assert_eq!(
            *to_provider_error("create the pod", early).kind(),
            Kind::Unavailable,
            "it is tried again soon"
        );
        assert!(!is_rejection(&LowerError::new(Lower::Server, "etcd")));
    }

    #[test]
    fn the_lower_clusters_words_are_passed_on() {
        let error =
            to_provider_error("create the pod", LowerError::new(Lower::Unauthorized, "token expired"));
        assert_eq!(*error.kind(), Kind::Denied);
        assert_eq!(error.report(), "create the pod in the lower cluster: token expired");
    }
}

//! Errors of the lower API server as provider errors.

use vk_kube::{Error as LowerError, Kind as Lower};
use vk_provider::{Error, error::Kind};

/// The provider error for a failed call. None of them is permanent.
pub(super) fn to_provider_error(doing: &str, error: LowerError) -> Error {
    let kind = match error.kind {
        Lower::NotFound | Lower::Replaced => Kind::NotFound,
        Lower::Forbidden if is_transient(&error) => Kind::Unavailable,
        Lower::Forbidden if is_full_quota(&error) => Kind::Exhausted,
        Lower::Unauthorized | Lower::Forbidden | Lower::Invalid => Kind::Denied,
        Lower::Throttled => Kind::Throttled { after: error.retry_after },
        Lower::Fenced => Kind::Cancelled,
        _ => Kind::Unavailable,
    };
    Error::new(kind, format!("{doing} in the lower cluster")).caused_by(error)
}

/// Whether the lower cluster rejects the object itself, so that a retry would fail the same way. A missing permission is not a rejection.
pub(super) fn is_rejection(error: &LowerError) -> bool {
    match error.kind {
        Lower::Invalid => true,
        Lower::Forbidden => {
            !is_transient(error)
                && !is_full_quota(error)
                && !error.message.contains("cannot create resource")
                && !error.message.contains("cannot patch resource")
        }
        _ => false,
    }
}

/// Whether a quota of the lower cluster has no room left, or has not been counted yet. A pod that lacks what the quota demands is another
/// matter: it is rejected.
pub(super) fn is_full_quota(error: &LowerError) -> bool {
    let full = ["exceeded quota:", "status unknown for quota:"];
    error.kind == Lower::Forbidden && full.iter().any(|words| error.message.contains(words))
}

/// Whether an error goes away without intervention: a terminating namespace will be deleted, and a new one gets its service account.
fn is_transient(error: &LowerError) -> bool {
    ["because it is being terminated", "error looking up service account"]
        .iter()
        .any(|words| error.message.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admission_error_is_a_rejection_and_a_missing_permission_is_not() {
        let forbidden = |message: &str| LowerError::new(Lower::Forbidden, message);
        assert!(is_rejection(&forbidden(
            "pods \"a\" is forbidden: failed quota: few: must specify cpu for: c"
        )));
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
    fn a_full_quota_is_no_rejection() {
        for message in [
            "pods \"a\" is forbidden: exceeded quota: few, requested: pods=1, used: pods=3, limited: pods=3",
            "pods \"a\" is forbidden: status unknown for quota: few, resources: pods",
        ] {
            let error = LowerError::new(Lower::Forbidden, message);
            assert!(is_full_quota(&error) && !is_rejection(&error), "{message}");
            assert_eq!(*to_provider_error("change the pod", error).kind(), Kind::Exhausted);
        }
        let security = LowerError::new(Lower::Forbidden, "pods \"a\" is forbidden: violates PodSecurity");
        assert!(!is_full_quota(&security) && is_rejection(&security));
    }

    #[test]
    fn the_message_of_the_lower_cluster_is_kept() {
        let error =
            to_provider_error("create the pod", LowerError::new(Lower::Unauthorized, "token expired"));
        assert_eq!(*error.kind(), Kind::Denied);
        assert_eq!(error.report(), "create the pod in the lower cluster: token expired");
    }
}

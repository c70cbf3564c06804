//! Whether the ServiceAccount of placement may do what placement does, and no more.

use vk_kube::{Error, Kind};
use vk_provider::Finding;

use super::{Doctor, unreadable};
use crate::rbac::{self, GUARD, NAME, SECRET_GUARD};

const PRINT_RBAC: &str = "apply the output of `virtual-kubelet placement print rbac`";

pub(super) async fn findings(doctor: &Doctor<'_>) -> Vec<Finding> {
    match examine(doctor).await {
        Ok(findings) => findings,
        Err(error) if error.kind == Kind::Forbidden => {
            let remedy =
                "use credentials that may read ServiceAccounts and policies, and create SubjectAccessReviews";
            vec![Finding::warning("permissions", format!("cannot be checked: {error}"), remedy)]
        }
        Err(error) => vec![unreadable("permissions", &error)],
    }
}

async fn examine(doctor: &Doctor<'_>) -> Result<Vec<Finding>, Error> {
    let namespace = doctor.namespace;
    let account = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{NAME}");
    if doctor.find("serviceaccounts", &account).await?.is_none() {
        let found = format!(
            "there is no ServiceAccount {namespace}/{NAME}: a process of placement has other credentials, or does not run"
        );
        return Ok(vec![Finding::warning("permissions", found, PRINT_RBAC)]);
    }
    let mut missing = Vec::new();
    for permission in rbac::permissions(namespace) {
        if !permission.allowed_to(doctor.client, namespace, NAME).await? {
            missing.push(permission.to_string());
        }
    }
    let mut findings = vec![if missing.is_empty() {
        Finding::ok("permissions", format!("{} has all", rbac::user(namespace)))
    } else {
        let found = format!("{} may not: {}", rbac::user(namespace), missing.join(", "));
        Finding::warning("permissions", found, PRINT_RBAC)
    }];
    let guards = [
        (GUARD, "change every pod"),
        (SECRET_GUARD, "create Secrets that get tokens of other ServiceAccounts"),
    ];
    for (guard, danger) in guards {
        let policy = doctor.find_registration("validatingadmissionpolicies", guard).await?;
        let binding = doctor.find_registration("validatingadmissionpolicybindings", guard).await?;
        if policy.is_none() || binding.is_none() {
            let found = format!(
                "the policy {guard} or its binding is missing: whoever has the account's token may {danger}"
            );
            findings.push(Finding::warning("guard", found, PRINT_RBAC));
        }
    }
    Ok(findings)
}

//! Who the API server takes us for, and what it lets us do.

use std::fmt;

use k8s_openapi::api::{
    authentication::v1::SelfSubjectReview,
    authorization::v1::{
        ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
        SubjectAccessReviewSpec,
    },
};
use kube::{Api, api::PostParams};

use crate::{Client, Error, objects::with_timeout};

/// The groups of every node. Impersonating a node needs the right to impersonate both. The API server adds the second group to
/// authenticated users, but not to impersonated ones.
pub const NODE_GROUPS: [&str; 2] = ["system:nodes", "system:authenticated"];

/// A permission to ask for (SelfSubjectAccessReview).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessCheck {
    /// The verb, such as `get`.
    pub verb: String,
    /// The API group; empty for the core group.
    pub group: String,
    /// The resource, in the plural, such as `pods`.
    pub resource: String,
    /// The subresource, or empty.
    pub subresource: String,
    /// The namespace, or empty for all namespaces.
    pub namespace: String,
    /// The object's name, or empty for all objects.
    pub name: String,
}

/// The user that our credentials belong to (SelfSubjectReview).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user's name.
    pub user: String,
    /// The user's groups.
    pub groups: Vec<String>,
}

// === impl Identity ===

impl Identity {
    /// Asks the API server. Every authenticated user may.
    pub async fn fetch(client: &Client) -> Result<Self, Error> {
        let api: Api<SelfSubjectReview> = Api::all(client.kube());
        let params = PostParams::default();
        let review = with_timeout(api.create(&params, &SelfSubjectReview::default())).await;
        client.metrics().count("create", "selfsubjectreviews", &review);
        let user = review?.status.and_then(|status| status.user_info).unwrap_or_default();
        Ok(Self { user: user.username.unwrap_or_default(), groups: user.groups.unwrap_or_default() })
    }

    /// The node that these credentials belong to, if they are a kubelet's. The Node authorizer and NodeRestriction then limit
    /// us to this node and its pods.
    pub fn node(&self) -> Option<&str> {
        let is_node = self.groups.iter().any(|group| group == "system:nodes");
        self.user.strip_prefix("system:node:").filter(|_| is_node)
    }
}

// === impl AccessCheck ===

impl AccessCheck {
    /// Permission to impersonate a user (`users`) or a group (`groups`); an empty name means any.
    pub fn impersonate(resource: &str, name: impl Into<String>) -> Self {
        Self {
            verb: "impersonate".to_owned(),
            resource: resource.to_owned(),
            name: name.into(),
            ..Self::default()
        }
    }

    /// Asks the API server whether the client has this permission. Every authenticated user may ask.
    pub async fn allowed(&self, client: &Client) -> Result<bool, Error> {
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(self.attributes()),
            ..SelfSubjectAccessReviewSpec::default()
        };
        let question = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let api: Api<SelfSubjectAccessReview> = Api::all(client.kube());
        let answer = with_timeout(api.create(&PostParams::default(), &question)).await;
        client.metrics().count("create", "selfsubjectaccessreviews", &answer);
        Ok(answer?.status.is_some_and(|status| status.allowed))
    }

    /// Asks the API server whether a ServiceAccount has this permission. Needs the permission to create SubjectAccessReviews.
    pub async fn allowed_to(&self, client: &Client, namespace: &str, account: &str) -> Result<bool, Error> {
        let groups = [
            "system:serviceaccounts",
            &format!("system:serviceaccounts:{namespace}"),
            "system:authenticated",
        ];
        let spec = SubjectAccessReviewSpec {
            user: Some(format!("system:serviceaccount:{namespace}:{account}")),
            groups: Some(groups.map(ToOwned::to_owned).to_vec()),
            resource_attributes: Some(self.attributes()),
            ..SubjectAccessReviewSpec::default()
        };
        let question = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let api: Api<SubjectAccessReview> = Api::all(client.kube());
        let answer = with_timeout(api.create(&PostParams::default(), &question)).await;
        client.metrics().count("create", "subjectaccessreviews", &answer);
        Ok(answer?.status.is_some_and(|status| status.allowed))
    }

    fn attributes(&self) -> ResourceAttributes {
        let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        ResourceAttributes {
            verb: text(&self.verb),
            group: text(&self.group),
            resource: text(&self.resource),
            subresource: text(&self.subresource),
            namespace: text(&self.namespace),
            name: text(&self.name),
            ..ResourceAttributes::default()
        }
    }
}

impl fmt::Display for AccessCheck {
    /// As in `kubectl auth can-i`, such as `patch leases.coordination.k8s.io/a in namespace b`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        for (separator, part) in [('/', &self.subresource), ('.', &self.group), ('/', &self.name)] {
            if !part.is_empty() {
                write!(f, "{separator}{part}")?;
            }
        }
        if self.namespace.is_empty() { Ok(()) } else { write!(f, " in namespace {}", self.namespace) }
    }
}

/// Whether the client may [impersonate](Client::impersonating) this node, or every node if `node` is `None`.
pub async fn may_impersonate(client: &Client, node: Option<&str>) -> Result<bool, Error> {
    let user = node.map_or_else(String::new, |node| format!("system:node:{node}"));
    let groups = NODE_GROUPS.map(|group| AccessCheck::impersonate("groups", group));
    for check in [AccessCheck::impersonate("users", user)].into_iter().chain(groups) {
        if !check.allowed(client).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(user: &str, groups: &[&str]) -> Identity {
        Identity { user: user.into(), groups: groups.iter().map(ToString::to_string).collect() }
    }

    #[test]
    fn a_permission_is_shown_as_kubectl_takes_it() {
        let check = |subresource: &str, group: &str, name: &str, namespace: &str| {
            let [subresource, group, name, namespace] =
                [subresource, group, name, namespace].map(ToOwned::to_owned);
            let (verb, resource) = ("get".to_owned(), "things".to_owned());
            AccessCheck { verb, group, resource, subresource, namespace, name }.to_string()
        };
        assert_eq!(check("", "", "", ""), "get things");
        assert_eq!(check("status", "x.io", "a", "b"), "get things/status.x.io/a in namespace b");
    }

    #[test]
    fn only_a_member_of_the_nodes_group_is_a_node() {
        assert_eq!(identity("system:node:vk", &["system:nodes", "system:authenticated"]).node(), Some("vk"));
        assert_eq!(identity("system:node:vk", &["system:authenticated"]).node(), None);
        assert_eq!(identity("admin", &["system:masters"]).node(), None);
    }
}

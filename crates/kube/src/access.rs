//! What we may do, as the API server says before we try.

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::{Api, api::PostParams};

use crate::{Client, Error, objects::limited};

/// The groups of every node, which whoever impersonates one has to be allowed too. The API server adds the second by itself,
/// but a impersonation says all that it is.
pub const NODE_GROUPS: [&str; 2] = ["system:nodes", "system:authenticated"];

/// Something that one may be allowed to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessCheck {
    /// The verb, such as `get`.
    pub verb: String,
    /// The group of the resource; empty for the core.
    pub group: String,
    /// The resource, in the plural.
    pub resource: String,
    /// Its subresource, or empty.
    pub subresource: String,
    /// The namespace, or empty for all.
    pub namespace: String,
    /// The object, or empty for all.
    pub name: String,
}

// === impl AccessCheck ===

impl AccessCheck {
    /// To impersonate a user (`users`) or a group (`groups`); an empty name means any.
    pub fn impersonate(resource: &str, name: impl Into<String>) -> Self {
        Self {
            verb: "impersonate".to_owned(),
            resource: resource.to_owned(),
            name: name.into(),
            ..Self::default()
        }
    }

    /// Asks the API server whether the client may. Every authenticated user may ask.
    pub async fn allowed(&self, client: &Client) -> Result<bool, Error> {
        let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let question = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    verb: text(&self.verb),
                    group: text(&self.group),
                    resource: text(&self.resource),
                    subresource: text(&self.subresource),
                    namespace: text(&self.namespace),
                    name: text(&self.name),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let api: Api<SelfSubjectAccessReview> = Api::all(client.kube());
        let answer = limited(api.create(&PostParams::default(), &question)).await;
        client.metrics().count("create", "selfsubjectaccessreviews", &answer);
        Ok(answer?.status.is_some_and(|status| status.allowed))
    }
}

/// Whether the client may [impersonate](Client::impersonating) this node, or any node where none is named.
pub async fn may_impersonate(client: &Client, node: Option<&str>) -> Result<bool, Error> {
    let user = node.map_or_else(String::new, |node| format!("system:node:{node}"));
    let groups = NODE_GROUPS.map(|group| AccessCheck::impersonate("groups", group));
    for deed in [AccessCheck::impersonate("users", user)].into_iter().chain(groups) {
        if !deed.allowed(client).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

//! Token reviews and access reviews by the API server.

use async_trait::async_trait;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use vk_kube::{Client, Objects};

use super::UserInfo;

/// Reviews tokens and accesses.
#[async_trait]
pub trait Reviewer: Send + Sync {
    /// The user of a token; `None` for an invalid token.
    async fn review_token(&self, token: &str) -> Result<Option<UserInfo>, vk_kube::Error>;

    /// Whether the access is allowed.
    async fn review_access(&self, access: &AccessRequest) -> Result<bool, vk_kube::Error>;
}

/// An access of a user to a node.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct AccessRequest {
    /// The user.
    pub user: UserInfo,
    /// The verb.
    pub verb: String,
    /// The subresource of the node.
    pub subresource: String,
    /// The node.
    pub node: String,
}

/// Reviews with `TokenReview` and `SubjectAccessReview`.
#[derive(Clone, Debug)]
pub struct ApiReviewer {
    tokens: Objects<TokenReview>,
    accesses: Objects<SubjectAccessReview>,
}

// === impl ApiReviewer ===

impl ApiReviewer {
    /// Uses this client, without a fence: reviews change nothing.
    pub fn new(client: &Client) -> Self {
        let client = client.unfenced();
        Self { tokens: Objects::all(client.clone()), accesses: Objects::all(client) }
    }
}

#[async_trait]
impl Reviewer for ApiReviewer {
    async fn review_token(&self, token: &str) -> Result<Option<UserInfo>, vk_kube::Error> {
        let spec = TokenReviewSpec { token: token.to_owned(), ..TokenReviewSpec::default() };
        let review = self.tokens.create(&TokenReview { spec, ..TokenReview::default() }).await?;
        let status = review.status.unwrap_or_default();
        if status.authenticated != Some(true) {
            return Ok(None);
        }
        let user = status.user.unwrap_or_default();
        Ok(user.username.filter(|name| !name.is_empty()).map(|name| {
            let extra = user.extra.unwrap_or_default();
            UserInfo { name, uid: user.uid, groups: user.groups.unwrap_or_default(), extra }
                .with_authenticated_group()
        }))
    }

    async fn review_access(&self, access: &AccessRequest) -> Result<bool, vk_kube::Error> {
        let AccessRequest { user, verb, subresource, node } = access.clone();
        let attributes = ResourceAttributes {
            verb: Some(verb),
            version: Some("v1".to_owned()),
            resource: Some("nodes".to_owned()),
            subresource: Some(subresource),
            name: Some(node),
            ..ResourceAttributes::default()
        };
        let spec = SubjectAccessReviewSpec {
            user: Some(user.name),
            uid: user.uid,
            groups: Some(user.groups),
            extra: Some(user.extra),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        };
        let review =
            self.accesses.create(&SubjectAccessReview { spec, ..SubjectAccessReview::default() }).await?;
        Ok(review.status.is_some_and(|status| status.allowed && status.denied != Some(true)))
    }
}

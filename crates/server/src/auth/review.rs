//! The questions that only the API server can answer.

use async_trait::async_trait;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use vk_kube::{Client, Objects};

use super::user::User;

/// Answers who a token belongs to, and what a user may do.
#[async_trait]
pub trait Reviews: Send + Sync {
    /// The user that a token stands for; `None` when it stands for nobody.
    async fn token(&self, token: &str) -> Result<Option<User>, vk_kube::Error>;

    /// Whether the user may do this.
    async fn access(&self, access: &Access) -> Result<bool, vk_kube::Error>;
}

/// Something that a user wants to do to a node.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Access {
    /// Who.
    pub user: User,
    /// What.
    pub verb: String,
    /// To which part of the node.
    pub subresource: String,
    /// To which node.
    pub node: String,
}

/// The API server, by `TokenReview` and `SubjectAccessReview`.
#[derive(Clone, Debug)]
pub struct ApiServer {
    tokens: Objects<TokenReview>,
    accesses: Objects<SubjectAccessReview>,
}

// === impl ApiServer ===

impl ApiServer {
    /// Asks through this client. Questions change nothing: they pass no fence.
    pub fn new(client: &Client) -> Self {
        let client = client.unfenced();
        Self { tokens: Objects::all(client.clone()), accesses: Objects::all(client) }
    }
}

#[async_trait]
impl Reviews for ApiServer {
    async fn token(&self, token: &str) -> Result<Option<User>, vk_kube::Error> {
        let spec = TokenReviewSpec { token: token.to_owned(), ..TokenReviewSpec::default() };
        let review = self.tokens.create(&TokenReview { spec, ..TokenReview::default() }).await?;
        let status = review.status.unwrap_or_default();
        if status.authenticated != Some(true) {
            return Ok(None);
        }
        let user = status.user.unwrap_or_default();
        Ok(user.username.filter(|name| !name.is_empty()).map(|name| {
            let extra = user.extra.unwrap_or_default();
            User { name, uid: user.uid, groups: user.groups.unwrap_or_default(), extra }.authenticated()
        }))
    }

    async fn access(&self, access: &Access) -> Result<bool, vk_kube::Error> {
        let Access { user, verb, subresource, node } = access.clone();
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

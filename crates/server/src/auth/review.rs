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
    /// The user of a token for this audience, or without one for the API server; `None` for an invalid token.
    async fn review_token(
        &self,
        token: &str,
        audience: Option<&str>,
    ) -> Result<Option<UserInfo>, vk_kube::Error>;

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
    async fn review_token(
        &self,
        token: &str,
        audience: Option<&str>,
    ) -> Result<Option<UserInfo>, vk_kube::Error> {
        let review = self.tokens.create(&token_review(token, audience)).await?;
        Ok(reviewed_user(review, audience))
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

fn token_review(token: &str, audience: Option<&str>) -> TokenReview {
    let audiences = audience.map(|audience| vec![audience.to_owned()]);
    TokenReview { spec: TokenReviewSpec { token: token.to_owned(), audiences }, ..TokenReview::default() }
}

/// The user in the API server's answer. An answer without our audience is about the API server's: whoever reviewed the token has ignored
/// the question.
fn reviewed_user(review: TokenReview, audience: Option<&str>) -> Option<UserInfo> {
    let status = review.status.unwrap_or_default();
    let is_for_audience = audience.is_none_or(|audience| {
        status.audiences.unwrap_or_default().iter().any(|confirmed| confirmed == audience)
    });
    if status.authenticated != Some(true) || !is_for_audience {
        return None;
    }
    let user = status.user.unwrap_or_default();
    let name = user.username.filter(|name| !name.is_empty())?;
    let (groups, extra) = (user.groups.unwrap_or_default(), user.extra.unwrap_or_default());
    Some(UserInfo { name, uid: user.uid, groups, extra }.with_authenticated_group())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::authentication::v1::{TokenReviewStatus, UserInfo as ReviewedUser};
    use serde_json::json;

    use super::*;

    fn answer(authenticated: bool, audiences: Option<&[&str]>) -> TokenReview {
        let user = ReviewedUser { username: Some("jane".to_owned()), ..ReviewedUser::default() };
        let audiences = audiences.map(|all| all.iter().map(ToString::to_string).collect());
        let status = TokenReviewStatus {
            authenticated: Some(authenticated),
            audiences,
            user: Some(user),
            ..TokenReviewStatus::default()
        };
        TokenReview { status: Some(status), ..TokenReview::default() }
    }

    #[test]
    fn a_review_names_an_audience_only_if_there_is_one() {
        let spec = |audience| json!(token_review("t", audience))["spec"].clone();
        assert_eq!(spec(None), json!({"token": "t"}));
        assert_eq!(spec(Some("placement")), json!({"token": "t", "audiences": ["placement"]}));
    }

    #[test]
    fn a_token_counts_for_an_audience_only_if_the_answer_confirms_it() {
        let name = |review, audience| reviewed_user(review, audience).map(|user| user.name);
        let jane = Some("jane".to_owned());
        assert_eq!(name(answer(true, Some(&["placement"])), Some("placement")), jane);
        assert_eq!(name(answer(true, Some(&["other", "placement"])), Some("placement")), jane);
        // Authenticated, but by an authenticator that does not know audiences.
        for audiences in [None, Some(&[][..]), Some(&["https://kubernetes.default.svc"][..])] {
            assert_eq!(name(answer(true, audiences), Some("placement")), None, "{audiences:?}");
            assert_eq!(name(answer(true, audiences), None), jane, "{audiences:?}");
        }
        assert_eq!(name(answer(false, Some(&["placement"])), Some("placement")), None);
        assert_eq!(name(answer(false, None), None), None);
        assert_eq!(name(TokenReview::default(), None), None);
    }
}

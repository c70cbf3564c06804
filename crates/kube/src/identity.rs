//! Who we are to the API server.

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::{Api, api::PostParams};

use crate::{Client, Error, objects::CALL_LIMIT};

/// The user that our credentials stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user's name.
    pub user: String,
    /// The user's groups.
    pub groups: Vec<String>,
}

impl Identity {
    /// Asks the API server. Every authenticated user may.
    pub async fn ask(client: &Client) -> Result<Self, Error> {
        let api: Api<SelfSubjectReview> = Api::all(client.kube());
        let params = PostParams::default();
        let question = SelfSubjectReview::default();
        let request = api.create(&params, &question);
        let review = match tokio::time::timeout(CALL_LIMIT, Box::pin(request)).await {
            Ok(answer) => answer.map_err(Error::from),
            Err(_) => Err(Error::timeout(CALL_LIMIT)),
        };
        client.metrics().count("create", "selfsubjectreviews", &review);
        let user = review?.status.and_then(|status| status.user_info).unwrap_or_default();
        Ok(Self { user: user.username.unwrap_or_default(), groups: user.groups.unwrap_or_default() })
    }

    /// The node that these credentials belong to, when they are a kubelet's: the Node authorizer and NodeRestriction
    /// then limit what we may do to this node and its pods.
    pub fn node(&self) -> Option<&str> {
        let is_node = self.groups.iter().any(|group| group == "system:nodes");
        self.user.strip_prefix("system:node:").filter(|_| is_node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(user: &str, groups: &[&str]) -> Identity {
        Identity { user: user.into(), groups: groups.iter().map(ToString::to_string).collect() }
    }

    #[test]
    fn only_a_member_of_the_nodes_group_is_a_node() {
        assert_eq!(identity("system:node:vk", &["system:nodes", "system:authenticated"]).node(), Some("vk"));
        assert_eq!(identity("system:node:vk", &["system:authenticated"]).node(), None);
        assert_eq!(identity("admin", &["system:masters"]).node(), None);
    }
}

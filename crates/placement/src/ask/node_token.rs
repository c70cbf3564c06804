//! What nodes get as authorization.
//!
//! A node names the key of its server itself (NodeRestriction lets a kubelet annotate its own Node), so a node that was taken over is asked like
//! any other. No token that the API server accepts is sent to it: whoever has it can act as its owner. Nodes get another token of the same
//! ServiceAccount, or of that of placement if ours is a person's, whose only audience is [`TOKEN_AUDIENCE`], so that the API server accepts it for
//! no request.

use std::time::Duration;

use http::HeaderValue;
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use tokio::{sync::Mutex, time::Instant};
use tracing::warn;
use vk_kube::{Client, Credentials, Kind, Objects};
use vk_provider::placement::TOKEN_AUDIENCE;

use super::{
    AskError,
    service_account::{ServiceAccountName, is_only_for},
};
use crate::rbac;

/// The lifetime that is requested: the shortest that API servers permit.
const LIFETIME: Duration = Duration::from_mins(10);
/// After a failed request, no other is made for this long.
const RETRY: Duration = Duration::from_secs(5);
/// A token that a node rejects is replaced at most this often, because every node can reject every token.
const REPLACEMENT_PERIOD: Duration = Duration::from_mins(1);

/// Issues tokens for nodes, and keeps the current one.
pub(super) struct NodeTokens {
    client: Client,
    /// The account whose tokens nodes get instead of those of persons.
    placement: ServiceAccountName,
    /// Limit of a request to the API server.
    limit: Duration,
    /// Locked during a request, so that there is one at a time, for which all others wait.
    state: Mutex<State>,
}

/// The header `Authorization` of a request to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeAuthorization {
    pub(super) value: HeaderValue,
    issued_to: Account,
}

/// The ServiceAccount that a token is issued for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Account {
    name: ServiceAccountName,
    /// Whether it is our own one.
    is_own: bool,
}

#[derive(Default)]
struct State {
    token: Option<IssuedToken>,
    failure: Option<Failure>,
    /// When a token was last replaced because a node rejected it.
    replaced: Option<Instant>,
}

struct IssuedToken {
    account: Account,
    value: HeaderValue,
    renew_at: Instant,
    expires: Instant,
}

struct Failure {
    account: Account,
    error: AskError,
    retry_at: Instant,
}

// === impl NodeTokens ===

impl NodeTokens {
    /// Requests tokens with this client. They change nothing, so no fence holds them back.
    pub(super) fn new(client: &Client, limit: Duration, namespace: &str) -> Self {
        let placement = ServiceAccountName { namespace: namespace.to_owned(), name: rbac::NAME.to_owned() };
        Self { client: client.unfenced(), placement, limit, state: Mutex::default() }
    }

    /// What a node gets, if these credentials have a token.
    pub(super) async fn authorization(
        &self,
        credentials: &Credentials,
    ) -> Result<Option<NodeAuthorization>, AskError> {
        let Some(own) = credentials.authorization().await? else { return Ok(None) };
        let issued_to = match ServiceAccountName::of(&own) {
            Some(name) => Account { name, is_own: true },
            None => Account { name: self.placement.clone(), is_own: false },
        };
        let value = self.state.lock().await.token(self, &issued_to).await?;
        Ok(Some(NodeAuthorization { value, issued_to }))
    }

    /// Another token instead of one that a node has rejected, if there is one.
    pub(super) async fn replacement(&self, rejected: &NodeAuthorization) -> Option<NodeAuthorization> {
        let issued_to = &rejected.issued_to;
        let mut state = self.state.lock().await;
        let now = Instant::now();
        let may_replace = state.replaced.is_none_or(|at| now.duration_since(at) >= REPLACEMENT_PERIOD);
        if let Some(token) = &mut state.token
            && token.value == rejected.value
        {
            if !may_replace {
                return None;
            }
            token.renew_at = now;
            state.replaced = Some(now);
        }
        let value = state.token(self, issued_to).await.ok()?;
        (value != rejected.value).then(|| NodeAuthorization { value, issued_to: issued_to.clone() })
    }

    /// Requests a token (TokenRequest).
    async fn request(&self, account: &Account) -> Result<IssuedToken, AskError> {
        let Account { name, is_own } = account;
        let accounts = Objects::<ServiceAccount>::namespaced(self.client.clone(), &name.namespace);
        let spec = TokenRequestSpec {
            audiences: Some(vec![TOKEN_AUDIENCE.to_owned()]),
            expiration_seconds: Some(LIFETIME.as_secs().cast_signed()),
            ..TokenRequestSpec::default()
        };
        let body = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let failed = |error| AskError::NoToken { account: name.to_string(), is_own: *is_own, error };
        let sent = Instant::now();
        let answer = accounts.create_subresource::<_, TokenRequest>(&name.name, "token", &body);
        let answer = tokio::time::timeout(self.limit, answer)
            .await
            .unwrap_or_else(|_| Err(vk_kube::Error::timeout(self.limit)))
            .map_err(failed)?;
        let token = answer.status.unwrap_or_default().token.unwrap_or_default();
        // Something between us and the API server may have changed the request.
        if !is_only_for(&token, TOKEN_AUDIENCE) {
            let message = format!("the token in the answer is not only for the audience {TOKEN_AUDIENCE}");
            return Err(failed(vk_kube::Error::new(Kind::Invalid, message)));
        }
        let mut value = HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|error| failed(vk_kube::Error::new(Kind::Invalid, error.to_string())))?;
        value.set_sensitive(true);
        // Counted from the request on, because the clock of the API server is not known.
        let granted = answer.spec.and_then(|spec| u64::try_from(spec.expiration_seconds?).ok());
        let lifetime = granted.map_or(LIFETIME, |seconds| Duration::from_secs(seconds).min(LIFETIME));
        let (renew_at, expires) = (sent + lifetime * 4 / 5, sent + lifetime);
        Ok(IssuedToken { account: account.clone(), value, renew_at, expires })
    }
}

// === impl State ===

impl State {
    /// A token of the account that is valid, and is renewed at 80 % of its life. One that cannot be renewed is used until it expires.
    async fn token(&mut self, tokens: &NodeTokens, account: &Account) -> Result<HeaderValue, AskError> {
        let now = Instant::now();
        let current = self.token.as_ref().filter(|token| token.account == *account && now < token.expires);
        if let Some(token) = current.filter(|token| now < token.renew_at) {
            return Ok(token.value.clone());
        }
        let current = current.map(|token| token.value.clone());
        let failure = self.failure.as_ref();
        let failure = failure.filter(|failure| failure.account == *account && now < failure.retry_at);
        let error = match failure {
            Some(failure) => failure.error.clone(),
            None => match tokens.request(account).await {
                Ok(token) => {
                    let value = token.value.clone();
                    (self.token, self.failure) = (Some(token), None);
                    return Ok(value);
                }
                Err(error) => {
                    if current.is_some() {
                        warn!(%error, "cannot renew the token for nodes: using the old one");
                    }
                    let (account, retry_at) = (account.clone(), Instant::now() + RETRY);
                    self.failure = Some(Failure { account, error: error.clone(), retry_at });
                    error
                }
            },
        };
        current.ok_or(error)
    }
}

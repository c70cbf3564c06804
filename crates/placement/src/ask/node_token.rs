//! What nodes get as authorization.
//!
//! A node names the key of its server itself (NodeRestriction lets a kubelet annotate its own Node), so a node that was taken over is asked like
//! any other. No token that the API server accepts is sent to it: whoever has it can act as its owner. Nodes get another token of the same
//! ServiceAccount, or of that of placement if ours is a person's, whose only audience is [`TOKEN_AUDIENCE`], so that the API server accepts it for
//! no request.

use std::{sync::Arc, time::Duration};

use http::HeaderValue;
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use parking_lot::Mutex;
use tokio::{sync::Mutex as AsyncMutex, task::JoinSet, time::Instant};
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
    /// Locked during a request, so that there is one at a time. Those who have no token wait for it.
    requesting: Arc<AsyncMutex<()>>,
    state: Mutex<State>,
    /// Renews the token while the old one is used.
    renewal: Mutex<JoinSet<()>>,
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
        let (requesting, state, renewal) = Default::default();
        Self { client: client.unfenced(), placement, limit, requesting, state, renewal }
    }

    /// What a node gets, if these credentials have a token.
    pub(super) async fn authorization(
        self: &Arc<Self>,
        credentials: &Credentials,
    ) -> Result<Option<NodeAuthorization>, AskError> {
        let Some(own) = credentials.authorization().await? else { return Ok(None) };
        let issued_to = match ServiceAccountName::of(&own) {
            Some(name) => Account { name, is_own: true },
            None => Account { name: self.placement.clone(), is_own: false },
        };
        if let Some(value) = self.current(&issued_to) {
            return Ok(Some(NodeAuthorization { value, issued_to }));
        }
        let _one_at_a_time = self.requesting.lock().await;
        let value = match self.current(&issued_to) {
            Some(value) => value,
            None => self.renew(&issued_to).await?,
        };
        Ok(Some(NodeAuthorization { value, issued_to }))
    }

    /// The token of the account, if it is valid. At 80 % of its life it is renewed, and used until that has succeeded or it expires: nobody
    /// waits for a slow API server as long as there is a token.
    fn current(self: &Arc<Self>, account: &Account) -> Option<HeaderValue> {
        let now = Instant::now();
        let (value, is_due) = {
            let state = self.state.lock();
            let token = state.token.as_ref();
            let token = token.filter(|token| token.account == *account && now < token.expires)?;
            (token.value.clone(), token.renew_at <= now && state.failure(account, now).is_none())
        };
        if is_due && let Ok(one_at_a_time) = Arc::clone(&self.requesting).try_lock_owned() {
            let (tokens, account) = (Arc::downgrade(self), account.clone());
            let mut renewal = self.renewal.lock();
            while renewal.try_join_next().is_some() {}
            renewal.spawn(async move {
                let _one_at_a_time = one_at_a_time;
                let Some(tokens) = tokens.upgrade() else { return };
                if let Err(error) = tokens.renew(&account).await {
                    warn!(%error, "cannot renew the token for nodes: using the old one");
                }
            });
        }
        Some(value)
    }

    /// Requests a token and keeps it. After a failure, none is requested for a while.
    async fn renew(&self, account: &Account) -> Result<HeaderValue, AskError> {
        if let Some(error) = self.state.lock().failure(account, Instant::now()) {
            return Err(error.clone());
        }
        let issued = self.request(account).await;
        let mut state = self.state.lock();
        match issued {
            Ok(token) => {
                let value = token.value.clone();
                (state.token, state.failure) = (Some(token), None);
                Ok(value)
            }
            Err(error) => {
                let (account, retry_at) = (account.clone(), Instant::now() + RETRY);
                state.failure = Some(Failure { account, error: error.clone(), retry_at });
                Err(error)
            }
        }
    }

    /// Another token instead of one that a node has rejected, if there is one.
    pub(super) async fn replacement(&self, rejected: &NodeAuthorization) -> Option<NodeAuthorization> {
        let issued_to = &rejected.issued_to;
        let _one_at_a_time = self.requesting.lock().await;
        {
            let (mut state, now) = (self.state.lock(), Instant::now());
            let token =
                state.token.as_ref().filter(|token| token.account == *issued_to && now < token.expires);
            if let Some(token) = token.filter(|token| token.value != rejected.value) {
                return Some(NodeAuthorization { value: token.value.clone(), issued_to: issued_to.clone() });
            }
            if state.replaced.is_some_and(|at| now.duration_since(at) < REPLACEMENT_PERIOD) {
                return None;
            }
            state.replaced = Some(now);
        }
        let value = self.renew(issued_to).await.ok()?;
        Some(NodeAuthorization { value, issued_to: issued_to.clone() })
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
    /// Why no token is requested now.
    fn failure(&self, account: &Account, now: Instant) -> Option<&AskError> {
        let failure = self.failure.as_ref();
        let failure = failure.filter(|failure| failure.account == *account && now < failure.retry_at);
        failure.map(|failure| &failure.error)
    }
}

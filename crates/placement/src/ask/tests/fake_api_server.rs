//! A server that issues tokens like the API server, and records the requests.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    response::{IntoResponse as _, Response},
    routing::post,
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, Uri, header};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};
use vk_provider::placement::TOKEN_AUDIENCE;

/// The ServiceAccount that asks for tokens of itself.
pub(super) const ACCOUNT: &str = "system:serviceaccount:infra:placement";
/// The paths of its tokens, and of those of placement.
pub(super) const TOKENS: &str = "/api/v1/namespaces/infra/serviceaccounts/placement/token";
pub(super) const TOKENS_OF_PLACEMENT: &str =
    "/api/v1/namespaces/kube-system/serviceaccounts/virtual-kubelet-placement/token";

/// How requests are answered.
#[derive(Clone, Copy, Debug)]
pub(super) enum TokenResponse {
    /// With a token that lives this many seconds.
    Token { seconds: i64 },
    /// With a token that the API server accepts, too.
    TokenForMore,
    /// With 403.
    Forbidden,
    /// With 404.
    NotFound,
    /// With 500.
    Broken,
    /// Not at all.
    Never,
}

/// A server on loopback. It stops when it is dropped.
pub(super) struct FakeApiServer {
    pub(super) url: String,
    state: Arc<ServerState>,
    _server: JoinSet<()>,
}

struct ServerState {
    response: Mutex<TokenResponse>,
    /// Header `Authorization` and body of each request.
    requests: Mutex<Vec<(String, Value)>>,
    /// Their paths.
    paths: Mutex<Vec<String>>,
}

// === impl FakeApiServer ===

impl FakeApiServer {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let response = Mutex::new(TokenResponse::Token { seconds: 600 });
        let state = Arc::new(ServerState { response, requests: Mutex::default(), paths: Mutex::default() });
        let router = Router::new().route(TOKENS, post(respond)).route(TOKENS_OF_PLACEMENT, post(respond));
        let router = router.with_state(Arc::clone(&state));
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, state, _server: server }
    }

    /// Answers requests like this from now on.
    pub(super) fn respond_with(&self, response: TokenResponse) {
        *self.state.response.lock() = response;
    }

    pub(super) fn requests(&self) -> Vec<(String, Value)> {
        self.state.requests.lock().clone()
    }

    pub(super) fn paths(&self) -> Vec<String> {
        self.state.paths.lock().clone()
    }
}

/// A token with these claims.
pub(super) fn jwt(claims: &Value) -> String {
    format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims.to_string()))
}

/// The token that the server issues with its request of this number.
pub(super) fn issued(number: usize) -> String {
    jwt(&json!({"sub": ACCOUNT, "aud": [TOKEN_AUDIENCE], "jti": number}))
}

async fn respond(
    State(state): State<Arc<ServerState>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    state.paths.lock().push(uri.path().to_owned());
    let body = serde_json::from_slice(&body).unwrap();
    let authorization = headers[header::AUTHORIZATION].to_str().unwrap().to_owned();
    let number = {
        let mut requests = state.requests.lock();
        requests.push((authorization, body));
        requests.len()
    };
    let status = |code: StatusCode, reason: &str, message: &str| {
        let status = json!({
            "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code.as_u16(), "reason": reason, "message": message,
        });
        json_response(code, &status)
    };
    let response = *state.response.lock();
    let (token, seconds) = match response {
        TokenResponse::Token { seconds } => (issued(number), seconds),
        TokenResponse::TokenForMore => (jwt(&json!({"sub": ACCOUNT, "aud": [TOKEN_AUDIENCE, "api"]})), 600),
        TokenResponse::Forbidden => return status(StatusCode::FORBIDDEN, "Forbidden", "no such right"),
        TokenResponse::NotFound => return status(StatusCode::NOT_FOUND, "NotFound", "no such account"),
        TokenResponse::Broken => {
            return status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", "it broke");
        }
        TokenResponse::Never => return std::future::pending().await,
    };
    // Others ask meanwhile.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {},
        "spec": {"audiences": [TOKEN_AUDIENCE], "expirationSeconds": seconds},
        "status": {"token": token, "expirationTimestamp": "2026-06-01T00:10:00Z"},
    });
    json_response(StatusCode::CREATED, &request)
}

fn json_response(code: StatusCode, body: &Value) -> Response {
    (code, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

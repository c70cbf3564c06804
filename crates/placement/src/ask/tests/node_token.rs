//! The token of a ServiceAccount stays here: nodes get one that is issued for them.

use std::time::Duration;

use futures::future::join_all;
use serde_json::json;

use super::{
    fake_api_server::{ACCOUNT, FakeApiServer, TOKENS_OF_PLACEMENT, TokenResponse, issued, jwt},
    *,
};

/// A fake API server, a node, and a client with the token of a ServiceAccount.
struct Setup {
    api_server: FakeApiServer,
    node: FakeNode,
    client: FitClient,
    own_token: String,
    _running: (Supervisor, TempDir),
}

// === impl Setup ===

impl Setup {
    async fn new() -> Self {
        Self::with(AskLimits::default()).await
    }

    async fn with(limits: AskLimits) -> Self {
        let api_server = FakeApiServer::start().await;
        let node = FakeNode::start(ServingPair::new(), StatusCode::OK, ANSWER).await;
        let own_token = jwt(&json!({"sub": ACCOUNT, "aud": ["https://kubernetes.default.svc"]}));
        let (client, supervisor, folder) =
            client_of(&api_server.url, &json!({"token": own_token}), limits).await;
        Self { api_server, node, client, own_token, _running: (supervisor, folder) }
    }

    async fn ask(&self) -> Result<FitAnswer, AskError> {
        self.client.ask(&self.node.object(), &question()).await
    }

    /// Asks until the node gets this token.
    async fn ask_until(&self, token: &str) {
        let asking = async {
            while self.node.tokens().pop().as_deref() != Some(token) {
                self.ask().await.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(20), asking).await.expect("the node gets it");
    }

    fn token_requests(&self) -> usize {
        self.api_server.requests().len()
    }
}

/// Waits until this is so.
async fn eventually(is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("it is so eventually");
}

/// Moves the clock. It runs otherwise, because the servers are real.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_node_gets_a_token_for_placement_and_not_that_of_the_service_account() {
    let setup = Setup::new().await;
    for _ in 0..3 {
        setup.ask().await.unwrap();
    }
    assert_eq!(setup.node.tokens(), [issued(1), issued(1), issued(1)]);
    let requests = setup.api_server.requests();
    let (authorization, body) = &requests[0];
    assert_eq!(requests.len(), 1, "it is kept");
    assert_eq!(authorization, &format!("Bearer {}", setup.own_token));
    let spec = json!({"audiences": ["placement.virtual-kubelet.io"], "expirationSeconds": 600});
    assert_eq!(body["spec"], spec);
}

#[tokio::test]
async fn many_questions_at_once_cost_one_token_request() {
    let setup = Setup::new().await;
    for result in join_all((0..50).map(|_| setup.ask())).await {
        result.unwrap();
    }
    assert_eq!((setup.token_requests(), setup.node.tokens().len()), (1, 50));
}

#[tokio::test]
async fn a_token_is_renewed_at_80_percent_of_its_life() {
    let setup = Setup::new().await;
    setup.ask().await.unwrap();
    pass(Duration::from_secs(475)).await;
    setup.ask().await.unwrap();
    assert_eq!(setup.token_requests(), 1);
    setup.api_server.respond_with(TokenResponse::Token { seconds: 100 });
    pass(Duration::from_secs(6)).await;
    setup.ask_until(&issued(2)).await;
    // The API server has shortened the life of the second one.
    pass(Duration::from_secs(75)).await;
    setup.ask().await.unwrap();
    assert_eq!((setup.token_requests(), setup.node.tokens().pop()), (2, Some(issued(2))));
    pass(Duration::from_secs(6)).await;
    setup.ask_until(&issued(3)).await;
    assert_eq!(setup.token_requests(), 3, "one for all questions");
}

#[tokio::test]
async fn a_valid_token_is_handed_out_at_once_while_it_is_renewed() {
    let setup = Setup::new().await;
    setup.ask().await.unwrap();
    setup.api_server.respond_with(TokenResponse::Never);
    pass(Duration::from_secs(510)).await;
    let started = Instant::now();
    for result in join_all((0..10).map(|_| setup.ask())).await {
        result.unwrap();
    }
    assert!(started.elapsed() < Duration::from_millis(1500), "{:?}", started.elapsed());
    assert_eq!(setup.node.tokens(), vec![issued(1); 11]);
    eventually(|| setup.token_requests() == 2).await;
}

#[tokio::test]
async fn a_token_that_cannot_be_renewed_is_used_until_it_expires() {
    let setup = Setup::new().await;
    setup.ask().await.unwrap();
    setup.api_server.respond_with(TokenResponse::Broken);
    pass(Duration::from_secs(500)).await;
    for _ in 0..10 {
        setup.ask().await.unwrap();
    }
    eventually(|| setup.token_requests() >= 2).await;
    assert_eq!(setup.token_requests(), 2, "a failure is not repeated at once");
    pass(Duration::from_secs(6)).await;
    setup.ask().await.unwrap();
    eventually(|| setup.token_requests() == 3).await;
    pass(Duration::from_secs(100)).await;
    let error = setup.ask().await.unwrap_err();
    assert!(matches!(error, AskError::NoToken { .. }), "{error:?}");
    assert_eq!(setup.node.tokens(), vec![issued(1); 12]);
    setup.api_server.respond_with(TokenResponse::Token { seconds: 600 });
    pass(Duration::from_secs(6)).await;
    setup.ask().await.unwrap();
}

#[tokio::test]
async fn a_node_that_rejects_the_token_gets_a_new_one_once() {
    let setup = Setup::new().await;
    setup.ask().await.unwrap();
    setup.node.reject(issued(1));
    for result in join_all((0..10).map(|_| setup.ask())).await {
        result.unwrap();
    }
    assert_eq!(setup.token_requests(), 2, "one for all");

    // Whoever rejects every token is not given one after the other.
    for number in 2..10 {
        setup.node.reject(issued(number));
    }
    for _ in 0..10 {
        let error = setup.ask().await.unwrap_err();
        assert!(matches!(error, AskError::Forbidden { code: StatusCode::UNAUTHORIZED, .. }), "{error:?}");
    }
    assert_eq!(setup.token_requests(), 2);
    pass(Duration::from_mins(1)).await;
    let before = setup.node.requests().len();
    assert!(setup.ask().await.is_err() && setup.ask().await.is_err());
    assert_eq!((setup.token_requests(), setup.node.requests().len()), (3, before + 3));
    assert!(!setup.node.tokens().contains(&setup.own_token));
}

#[tokio::test]
async fn without_the_permission_the_node_is_not_asked_and_the_error_names_it() {
    let setup = Setup::new().await;
    setup.api_server.respond_with(TokenResponse::Forbidden);
    for result in join_all((0..10).map(|_| setup.ask())).await {
        let error = result.unwrap_err().to_string();
        for part in
            ["infra/placement", "no such right", "create serviceaccounts/token", "placement print rbac"]
        {
            assert!(error.contains(part), "{error}");
        }
    }
    assert_eq!(setup.token_requests(), 1, "nobody who waited asks again");
    assert_eq!((setup.node.requests(), setup.node.connections()), (Vec::new(), 0));
    setup.api_server.respond_with(TokenResponse::Token { seconds: 600 });
    pass(Duration::from_secs(6)).await;
    setup.ask().await.unwrap();
}

#[tokio::test]
async fn a_silent_api_server_costs_the_time_limit_of_a_token() {
    let limits = AskLimits { token: Duration::from_millis(300), ..AskLimits::default() };
    let setup = Setup::with(limits).await;
    setup.api_server.respond_with(TokenResponse::Never);
    for result in join_all((0..10).map(|_| setup.ask())).await {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("the API server did not answer within 300ms"), "{error}");
        assert!(!error.contains("print rbac"), "{error}");
    }
    assert_eq!((setup.token_requests(), setup.node.connections()), (1, 0));
}

#[tokio::test]
async fn a_question_that_is_given_up_does_not_keep_others_waiting() {
    let limits = AskLimits { answer: Duration::from_millis(1500), ..AskLimits::default() };
    let setup = Setup::with(limits).await;
    setup.api_server.respond_with(TokenResponse::Never);
    let error = setup.ask().await.unwrap_err();
    assert!(matches!(error, AskError::Timeout { .. }), "{error:?}");
    setup.api_server.respond_with(TokenResponse::Token { seconds: 600 });
    setup.ask().await.unwrap();
}

#[tokio::test]
async fn a_token_that_the_api_server_would_accept_is_not_sent() {
    let setup = Setup::new().await;
    setup.api_server.respond_with(TokenResponse::TokenForMore);
    let error = setup.ask().await.unwrap_err().to_string();
    assert!(error.contains("not only for the audience placement.virtual-kubelet.io"), "{error}");
    assert_eq!(setup.node.connections(), 0);
}

#[tokio::test]
async fn the_token_of_a_person_stays_here_and_nodes_get_one_of_the_account_of_placement() {
    let api_server = FakeApiServer::start().await;
    let node = FakeNode::start(ServingPair::new(), StatusCode::OK, ANSWER).await;
    for person in [jwt(&json!({"sub": "jane", "aud": ["kubernetes"]})), "opaque".to_owned()] {
        let user = json!({"token": person});
        let (client, _supervisor, _folder) = client_of(&api_server.url, &user, AskLimits::default()).await;
        client.ask(&node.object(), &question()).await.unwrap();
        let (authorization, body) = api_server.requests().pop().unwrap();
        assert_eq!(authorization, format!("Bearer {person}"));
        assert_eq!(body["spec"]["audiences"], json!(["placement.virtual-kubelet.io"]));
    }
    assert_eq!(node.tokens(), [issued(1), issued(2)]);
    assert_eq!(api_server.paths(), [TOKENS_OF_PLACEMENT, TOKENS_OF_PLACEMENT]);
}

#[tokio::test]
async fn a_person_who_gets_no_token_for_nodes_asks_none_and_learns_what_to_do() {
    let api_server = FakeApiServer::start().await;
    let node = FakeNode::start(ServingPair::new(), StatusCode::OK, ANSWER).await;
    for (response, parts) in [
        (TokenResponse::Forbidden, ["create serviceaccounts/token", "a client certificate"]),
        (TokenResponse::NotFound, ["placement print rbac", "a client certificate"]),
    ] {
        api_server.respond_with(response);
        let user = json!({"token": "opaque"});
        let (client, _supervisor, _folder) = client_of(&api_server.url, &user, AskLimits::default()).await;
        let error = client.ask(&node.object(), &question()).await.unwrap_err().to_string();
        for part in [&["kube-system/virtual-kubelet-placement"], &parts[..]].concat() {
            assert!(error.contains(part), "{error}");
        }
    }
    assert_eq!((node.requests(), node.connections()), (Vec::new(), 0));
}

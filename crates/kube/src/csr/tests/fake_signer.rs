//! A fake API server with certificate signing requests only, which signs or rejects them.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    ByteString,
    api::certificates::v1::{
        CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
    },
};
use kube::client::Body;
use parking_lot::Mutex;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, IsCa, Issuer, KeyPair,
};
use serde_json::{Value, json};
use vk_supervisor::Clock;

use crate::{Client, Metrics};

/// What happens to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    Sign,
    Wait,
    Deny,
    Fail,
    Delete,
    /// Signs for another key.
    WrongKey,
    /// Signs without the alternative names.
    NoNames,
    /// Rejects the creation with this status code.
    Reject(u16),
}

#[derive(Clone)]
pub(super) struct FakeSigner(Arc<Inner>);

struct Inner {
    clock: Clock,
    lifetime: Duration,
    issuer: Issuer<'static, KeyPair>,
    state: Mutex<State>,
}

struct State {
    policy: Policy,
    behind: Duration,
    attempts: usize,
    reads: usize,
    watches: usize,
    requests: BTreeMap<String, CertificateSigningRequest>,
    order: Vec<String>,
}

impl FakeSigner {
    pub(super) fn new(clock: Clock, lifetime: Duration) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "ca");
        let issuer = Issuer::new(params, KeyPair::generate().unwrap());
        let state = State {
            policy: Policy::Sign,
            behind: Duration::ZERO,
            attempts: 0,
            reads: 0,
            watches: 0,
            requests: BTreeMap::new(),
            order: Vec::new(),
        };
        Self(Arc::new(Inner { clock, lifetime, issuer, state: Mutex::new(state) }))
    }

    pub(super) fn set_policy(&self, policy: Policy) {
        self.0.state.lock().policy = policy;
    }

    pub(super) fn set_clock_behind(&self, behind: Duration) {
        self.0.state.lock().behind = behind;
    }

    /// Attempts to create a request.
    pub(super) fn attempts(&self) -> usize {
        self.0.state.lock().attempts
    }

    /// Reads of requests.
    pub(super) fn reads(&self) -> usize {
        self.0.state.lock().reads
    }

    /// Attempts to watch.
    pub(super) fn watches(&self) -> usize {
        self.0.state.lock().watches
    }

    /// All requests, in order of creation.
    pub(super) fn requests(&self) -> Vec<CertificateSigningRequest> {
        let state = self.0.state.lock();
        state.order.iter().filter_map(|name| state.requests.get(name).cloned()).collect()
    }

    pub(super) fn client(&self) -> Client {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let this = this.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let (code, answer) = this.answer(&head.method, head.uri.path(), &body);
                let answer = Body::from(answer.to_string().into_bytes());
                Ok::<_, Infallible>(
                    Response::builder().status(StatusCode::from_u16(code).unwrap()).body(answer).unwrap(),
                )
            }
        });
        Client::fixed(kube::Client::new(service, "default"), Metrics::default())
    }

    fn answer(&self, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
        let mut state = self.0.state.lock();
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        if method == Method::POST {
            state.attempts += 1;
            if let Policy::Reject(code) = state.policy {
                return status_error(code, "Refused");
            }
            let mut object: CertificateSigningRequest = serde_json::from_slice(body).unwrap();
            let name = object.metadata.name.clone().unwrap();
            if state.requests.contains_key(&name) {
                return status_error(409, "AlreadyExists");
            }
            object.metadata.uid = Some(format!("uid-{}", state.attempts));
            state.order.push(name.clone());
            state.requests.insert(name, object.clone());
            return (201, json!(object));
        }
        // Lists and watches are forbidden: the client may only get.
        if name == "certificatesigningrequests" {
            state.watches += 1;
            return status_error(403, "Forbidden");
        }
        state.reads += 1;
        if !state.requests.contains_key(&name) || state.policy == Policy::Delete {
            return status_error(404, "NotFound");
        }
        let now = self.0.clock.now() - SignedDuration::try_from(state.behind).unwrap();
        let policy = state.policy;
        let object = state.requests.get_mut(&name).unwrap();
        if object.status.is_none() {
            object.status = self.decide(object, policy, now);
        }
        (200, json!(object))
    }

    fn decide(
        &self,
        object: &CertificateSigningRequest,
        policy: Policy,
        now: Timestamp,
    ) -> Option<CertificateSigningRequestStatus> {
        let condition = |type_: &str, reason: &str| CertificateSigningRequestCondition {
            type_: type_.to_owned(),
            status: "True".to_owned(),
            reason: Some(reason.to_owned()),
            message: Some("no".to_owned()),
            ..CertificateSigningRequestCondition::default()
        };
        let (condition, certificate) = match policy {
            Policy::Wait | Policy::Delete | Policy::Reject(_) => return None,
            Policy::Deny => (condition("Denied", "NotYou"), None),
            Policy::Fail => (condition("Failed", "Broken"), None),
            Policy::Sign | Policy::WrongKey | Policy::NoNames => {
                (condition("Approved", "AutoApproved"), Some(ByteString(self.sign(object, policy, now))))
            }
        };
        Some(CertificateSigningRequestStatus { conditions: Some(vec![condition]), certificate })
    }

    fn sign(&self, object: &CertificateSigningRequest, policy: Policy, now: Timestamp) -> Vec<u8> {
        let pem = String::from_utf8(object.spec.request.0.clone()).unwrap();
        let mut request = CertificateSigningRequestParams::from_pem(&pem).unwrap();
        let date = |time: Timestamp| {
            rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(time.as_second().try_into().unwrap())
        };
        request.params.not_before = date(now);
        request.params.not_after = date(now + SignedDuration::try_from(self.0.lifetime).unwrap());
        if policy == Policy::NoNames {
            request.params.subject_alt_names.clear();
        }
        let certificate = if policy == Policy::WrongKey {
            request.params.signed_by(&KeyPair::generate().unwrap(), &self.0.issuer).unwrap()
        } else {
            request.signed_by(&self.0.issuer).unwrap()
        };
        certificate.pem().into_bytes()
    }
}

fn status_error(code: u16, reason: &str) -> (u16, Value) {
    (
        code,
        json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "rejected"}),
    )
}

//! Questions as they are sent.
//!
//! A question goes to many nodes at the same time, and its pods can have a megabyte. They are serialized once, and all nodes get the same bytes;
//! only the held pods differ. All large questions together have a limited size: more wait, before anything of them is serialized. Small ones do
//! not wait for them.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Weak},
};

use bytes::Bytes;
use futures::stream::{self, Iter};
use http_body_util::StreamBody;
use hyper::body::Frame;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use serde::{Serialize, Serializer};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};
use vk_provider::placement::{FitQuery, MAX_QUERY_BYTES, MAX_QUERY_OBJECTS, json_objects};

use crate::{query_pod::disclosed, watched_pod::json_bytes};

/// Limit of the pods in question, and of all else, in all large questions that are being sent or answered.
const MAX_BYTES: usize = 2 * MAX_QUERY_BYTES;

/// The name of the last member of a question, before the pods, and its end, after them.
const PODS_MEMBER: &[u8] = br#""pods":"#;
const END: &[u8] = b"}";

/// What does not count: a pod has at most this size, and how many questions are asked is limited anyway.
const SMALL: usize = 64 << 10;

/// The body of a request.
pub(super) type QueryBody = StreamBody<Iter<std::array::IntoIter<Result<Frame<Bytes>, Infallible>, 3>>>;

/// Serializes questions.
pub(super) struct QueryTexts {
    /// Bytes left for pods in question, and for all else. These are two, so that nobody who has a share of one waits for another one of the
    /// same.
    pods: Arc<Semaphore>,
    heads: Arc<Semaphore>,
    /// The pods in question, by the address of the first one.
    shared: Mutex<HashMap<usize, Weak<SharedPods>>>,
}

/// A question as it is sent. It counts until it is dropped.
pub(super) struct QueryText {
    head: Bytes,
    pods: Bytes,
    _shared: Arc<SharedPods>,
    _permit: Option<OwnedSemaphorePermit>,
}

/// The pods of a question that is sent to several nodes.
struct SharedPods {
    pods: Vec<Arc<Pod>>,
    text: OnceCell<PodsText>,
}

struct PodsText {
    json: Bytes,
    objects: usize,
    _permit: Option<OwnedSemaphorePermit>,
}

/// Serializes pods as nodes get them, one after the other.
struct Disclosed<'a>(&'a [Arc<Pod>]);

/// All of a question but its pods.
#[derive(Serialize)]
struct Head<'a> {
    #[serde(skip_serializing_if = "Disclosed::is_empty")]
    held: Disclosed<'a>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    without: &'a [Arc<str>],
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    explain: bool,
}

// === impl QueryTexts ===

impl QueryTexts {
    pub(super) fn new() -> Self {
        let bytes = || Arc::new(Semaphore::new(MAX_BYTES));
        Self { pods: bytes(), heads: bytes(), shared: Mutex::default() }
    }

    /// Serializes a question. If it is too long, returns the limit.
    pub(super) async fn serialize(&self, query: &FitQuery) -> Result<QueryText, String> {
        if let Some(limit) = query.exceeded_count() {
            return Err(limit);
        }
        let shared = self.shared(&query.pods);
        let text = shared.text.get_or_init(|| self.serialize_pods(&shared.pods)).await;
        let head = Head { held: Disclosed(&query.held), without: &query.without, explain: query.explain };
        let bytes = json_bytes(&head);
        if text.json.is_empty() || bytes + text.json.len() + PODS_MEMBER.len() + 1 > MAX_QUERY_BYTES {
            return Err(format!("{} MiB", MAX_QUERY_BYTES >> 20));
        }
        let permit = acquire(&self.heads, bytes).await;
        let mut json = serde_json::to_vec(&head).unwrap_or_default();
        if json_objects(&json) + text.objects > MAX_QUERY_OBJECTS {
            return Err(format!("{MAX_QUERY_OBJECTS} JSON objects"));
        }
        // The pods are the last member of the object.
        json.pop();
        if json.len() > 1 {
            json.push(b',');
        }
        json.extend_from_slice(PODS_MEMBER);
        Ok(QueryText {
            head: json.into(),
            pods: text.json.clone(),
            _shared: Arc::clone(&shared),
            _permit: permit,
        })
    }

    /// Pods that are the same objects have one text.
    fn shared(&self, pods: &[Arc<Pod>]) -> Arc<SharedPods> {
        let address = pods.first().map_or(0, |pod| Arc::as_ptr(pod).addr());
        let mut shared = self.shared.lock();
        let known = shared.get(&address).and_then(Weak::upgrade).filter(|known| {
            known.pods.len() == pods.len()
                && known.pods.iter().zip(pods).all(|(one, other)| Arc::ptr_eq(one, other))
        });
        known.unwrap_or_else(|| {
            shared.retain(|_, pods| pods.strong_count() > 0);
            let new = Arc::new(SharedPods { pods: pods.to_vec(), text: OnceCell::new() });
            shared.insert(address, Arc::downgrade(&new));
            new
        })
    }

    /// An empty text if it would be too long for any question.
    async fn serialize_pods(&self, pods: &[Arc<Pod>]) -> PodsText {
        let bytes = json_bytes(&Disclosed(pods));
        let (permit, json) = if bytes > MAX_QUERY_BYTES {
            (None, Vec::new())
        } else {
            (acquire(&self.pods, bytes).await, serde_json::to_vec(&Disclosed(pods)).unwrap_or_default())
        };
        PodsText { objects: json_objects(&json), json: json.into(), _permit: permit }
    }

    /// The bytes of all large questions that are being sent or answered.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        [&self.pods, &self.heads].iter().map(|left| MAX_BYTES - left.available_permits()).sum()
    }
}

async fn acquire(left: &Arc<Semaphore>, bytes: usize) -> Option<OwnedSemaphorePermit> {
    if bytes <= SMALL {
        return None;
    }
    let bytes = u32::try_from(bytes.min(MAX_BYTES)).unwrap_or(u32::MAX);
    // It is never closed.
    Arc::clone(left).acquire_many_owned(bytes).await.ok()
}

// === impl QueryText ===

impl QueryText {
    pub(super) fn len(&self) -> usize {
        self.head.len() + self.pods.len() + END.len()
    }

    /// The body of a request. It can be sent more than once.
    pub(super) fn body(&self) -> QueryBody {
        let parts = [self.head.clone(), self.pods.clone(), Bytes::from_static(END)];
        StreamBody::new(stream::iter(parts.map(|part| Ok(Frame::data(part)))))
    }
}

// === impl Disclosed ===

impl Disclosed<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Disclosed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|pod| disclosed(pod)))
    }
}

//! Impersonation of nodes.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Request};
use kube::client::Body;
use parking_lot::Mutex;

use crate::{Error, Kind, access::NODE_GROUPS, transport::Transport};

const USER: HeaderName = HeaderName::from_static("impersonate-user");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");

/// Adds impersonation headers to requests.
pub(crate) struct Impersonation {
    /// The headers, or why there cannot be any.
    headers: Result<HeaderMap, Error>,
    /// The wrapped clients, and the credentials that they were built for.
    cached: Mutex<Option<(Arc<()>, Transport)>>,
}

impl Impersonation {
    /// Impersonates a node's kubelet.
    pub(crate) fn as_node(node: &str) -> Self {
        let user = format!("system:node:{node}");
        let headers = HeaderValue::from_str(&user)
            .map(|user| {
                let mut headers = HeaderMap::new();
                headers.insert(USER, user);
                for group in NODE_GROUPS {
                    headers.append(GROUP, HeaderValue::from_static(group));
                }
                headers
            })
            .map_err(|_| {
                Error::new(Kind::Invalid, format!("cannot impersonate {user:?}: not a valid header value"))
            });
        Self { headers, cached: Mutex::new(None) }
    }

    /// Picks a client of this transport and adds the headers to its requests.
    pub(crate) fn select<T>(&self, transport: &Transport, pick: impl FnOnce(&Transport) -> T) -> T {
        let mut cached = self.cached.lock();
        if let Some((credentials_id, clients)) = &*cached
            && Arc::ptr_eq(credentials_id, &transport.credentials_id)
        {
            return pick(clients);
        }
        let wrapped = Transport {
            calls: self.wrap(&transport.calls),
            watches: self.wrap(&transport.watches),
            // Wrapped where it is used.
            watch_pool: transport.watch_pool.clone(),
            connections: Arc::clone(&transport.connections),
            credentials_id: Arc::clone(&transport.credentials_id),
            credentials: transport.credentials.clone(),
        };
        let client = pick(&wrapped);
        *cached = Some((Arc::clone(&transport.credentials_id), wrapped));
        client
    }

    pub(crate) fn wrap(&self, client: &kube::Client) -> kube::Client {
        let (inner, headers) = (client.clone(), self.headers.clone());
        let namespace = client.default_namespace().to_owned();
        let service = tower::service_fn(move |mut request: Request<Body>| {
            let inner = inner.clone();
            let headers = headers.clone().map(|headers| request.headers_mut().extend(headers));
            async move {
                headers.map_err(|error| kube::Error::Service(error.into()))?;
                inner.send(request).await
            }
        });
        kube::Client::new(service, namespace)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::Response;

    use super::*;

    /// A client that records the impersonation headers.
    fn client(log: &Arc<Mutex<Vec<String>>>) -> Transport {
        let log = Arc::clone(log);
        let service = tower::service_fn(move |request: Request<Body>| {
            let all = |name: &HeaderName| {
                let values = request.headers().get_all(name).iter();
                values.map(|value| value.to_str().unwrap().to_owned()).collect::<Vec<_>>().join(",")
            };
            log.lock().push(format!("{}/{}", all(&USER), all(&GROUP)));
            async { Ok::<_, Infallible>(Response::new(Body::from(b"{}".to_vec()))) }
        });
        Transport::single(kube::Client::new(service, "default"))
    }

    async fn ask(client: &kube::Client) -> Result<(), Error> {
        let request = Request::get("/x").body(Body::empty()).unwrap();
        client.send(request).await.map(drop).map_err(Error::from)
    }

    #[tokio::test]
    async fn requests_name_the_node_and_both_groups_and_the_wrapped_client_is_unchanged() {
        let log = Arc::default();
        let transport = client(&log);
        let impersonation = Impersonation::as_node("vk");
        ask(&impersonation.select(&transport, |one| one.calls.clone())).await.unwrap();
        ask(&impersonation.select(&transport, |one| one.watches.clone())).await.unwrap();
        ask(&transport.calls).await.unwrap();
        let node = "system:node:vk/system:nodes,system:authenticated";
        assert_eq!(*log.lock(), [node, node, "/"]);
    }

    #[tokio::test]
    async fn new_credentials_are_used_with_the_same_headers() {
        let (old, new) = (Arc::default(), Arc::default());
        let (first, second) = (client(&old), client(&new));
        let impersonation = Impersonation::as_node("vk");
        ask(&impersonation.select(&first, |one| one.calls.clone())).await.unwrap();
        ask(&impersonation.select(&second, |one| one.calls.clone())).await.unwrap();
        ask(&impersonation.select(&second, |one| one.calls.clone())).await.unwrap();
        assert_eq!((old.lock().len(), new.lock().len()), (1, 2));
    }

    #[tokio::test]
    async fn an_invalid_name_is_an_error_and_nothing_is_sent_with_our_own_identity() {
        let log = Arc::default();
        let rejected = ask(&Impersonation::as_node("a\nb").select(&client(&log), |one| one.calls.clone()))
            .await
            .unwrap_err();
        assert!(rejected.message.contains("cannot impersonate"), "{rejected}");
        assert!(log.lock().is_empty());
    }
}

//! Requests in somebody else's name.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Request};
use kube::client::Body;
use parking_lot::Mutex;

use crate::{Error, Kind, access::NODE_GROUPS, transport::Transport};

const USER: HeaderName = HeaderName::from_static("impersonate-user");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");

/// As whom requests are made.
pub(crate) struct Impersonation {
    /// What is added to each request; or why nothing can be.
    headers: Result<HeaderMap, Error>,
    /// The clients that add it, for the credentials of which they were made.
    made: Mutex<Option<(Arc<()>, Transport)>>,
}

impl Impersonation {
    /// As a node's kubelet.
    pub(crate) fn of_node(node: &str) -> Self {
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
            .map_err(|_| Error::new(Kind::Invalid, format!("nobody can be impersonated as {user:?}")));
        Self { headers, made: Mutex::new(None) }
    }

    /// One of the clients over these, which are those of the moment.
    pub(crate) fn over<T>(&self, transport: &Transport, pick: impl FnOnce(&Transport) -> T) -> T {
        let mut made = self.made.lock();
        if let Some((mark, known)) = &*made
            && Arc::ptr_eq(mark, &transport.mark)
        {
            return pick(known);
        }
        let fresh = Transport {
            calls: self.wrap(&transport.calls),
            watches: self.wrap(&transport.watches),
            // Wrapped where they are used.
            watch_pool: transport.watch_pool.clone(),
            mark: Arc::clone(&transport.mark),
        };
        let picked = pick(&fresh);
        *made = Some((Arc::clone(&transport.mark), fresh));
        picked
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

    /// A client that writes down who asks.
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
    async fn a_guise_says_the_node_and_both_groups_and_leaves_the_client_as_it_is() {
        let log = Arc::default();
        let transport = client(&log);
        let impersonation = Impersonation::of_node("vk");
        ask(&impersonation.over(&transport, |one| one.calls.clone())).await.unwrap();
        ask(&impersonation.over(&transport, |one| one.watches.clone())).await.unwrap();
        ask(&transport.calls).await.unwrap();
        let node = "system:node:vk/system:nodes,system:authenticated";
        assert_eq!(*log.lock(), [node, node, "/"]);
    }

    #[tokio::test]
    async fn new_credentials_are_used_under_the_same_guise() {
        let (old, new) = (Arc::default(), Arc::default());
        let (first, second) = (client(&old), client(&new));
        let impersonation = Impersonation::of_node("vk");
        ask(&impersonation.over(&first, |one| one.calls.clone())).await.unwrap();
        ask(&impersonation.over(&second, |one| one.calls.clone())).await.unwrap();
        ask(&impersonation.over(&second, |one| one.calls.clone())).await.unwrap();
        assert_eq!((old.lock().len(), new.lock().len()), (1, 2));
    }

    #[tokio::test]
    async fn a_name_that_nobody_can_have_is_refused_and_not_sent_as_ourselves() {
        let log = Arc::default();
        let refused = ask(&Impersonation::of_node("a\nb").over(&client(&log), |one| one.calls.clone()))
            .await
            .unwrap_err();
        assert!(refused.message.contains("impersonated"), "{refused}");
        assert!(log.lock().is_empty());
    }
}

//! Request bodies that check the fence again when they are sent.
//!
//! A connection carries about a hundred requests at a time; others queue inside the HTTP client. If the process is paused, the queue
//! moves on when it resumes, before anybody checks a clock, and dropping a request is too late. Without its body a request
//! changes nothing.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::Request;
use http_body::{Body, Frame, SizeHint};
use tower::BoxError;

use crate::{Error, Fence};

/// A body that fails instead of being sent when the request's fence is closed.
pub(crate) struct FencedBody {
    body: kube::client::Body,
    fence: Option<Fence>,
}

/// Wraps the body of a request with the fence in the request's extensions, if any.
pub(crate) fn fence_body(request: Request<kube::client::Body>) -> Request<FencedBody> {
    let fence = request.extensions().get::<Fence>().cloned();
    request.map(|body| FencedBody { body, fence })
}

impl Body for FencedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.fence.as_ref().is_some_and(|fence| !fence.is_open()) {
            return Poll::Ready(Some(Err(Error::fenced().into())));
        }
        Pin::new(&mut self.body).poll_frame(context).map_err(BoxError::from)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, time::Duration};

    use jiff::Timestamp;
    use tokio::time::Instant;

    use super::*;
    use crate::fence::Deadline;

    async fn body_of(fence: Option<&Fence>) -> Result<Bytes, String> {
        let mut request = Request::new(kube::client::Body::from(b"text".to_vec()));
        request.extensions_mut().extend(
            fence
                .cloned()
                .map(|fence| {
                    let mut extensions = http::Extensions::new();
                    extensions.insert(fence);
                    extensions
                })
                .unwrap_or_default(),
        );
        let mut body = fence_body(request).into_body();
        assert_eq!(body.size_hint().exact(), Some(4), "the length is unchanged");
        let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await.unwrap();
        frame.map(|frame| frame.into_data().unwrap()).map_err(|error| error.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_is_sent_only_while_the_fence_is_open() {
        assert_eq!(body_of(None).await.unwrap(), "text");
        let fence = Fence::default();
        assert!(body_of(Some(&fence)).await.unwrap_err().contains("lease"));
        fence.set(Some(Deadline { steady: Instant::now() + Duration::from_secs(1), wall: Timestamp::MAX }));
        assert_eq!(body_of(Some(&fence)).await.unwrap(), "text");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(body_of(Some(&fence)).await.is_err());
    }
}

//! Reads the bodies of requests, with limits on their size, time and number.

use std::time::Duration;

use axum::body::{self, Body};
use bytes::Bytes;
use http::StatusCode;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, timeout_at},
};

/// Requests whose bodies are in memory at the same time. Others wait, and are not read meanwhile.
const CONCURRENT: usize = 32;

/// Reads the bodies of requests.
#[derive(Debug)]
pub(crate) struct BodyReader {
    permits: Semaphore,
    max_bytes: usize,
    timeout: Duration,
}

// === impl BodyReader ===

impl BodyReader {
    /// The timeout is for the time to wait for other requests, and to receive this one.
    pub(crate) fn new(max_bytes: usize, timeout: Duration) -> Self {
        Self { permits: Semaphore::new(CONCURRENT), max_bytes, timeout }
    }

    /// Reads a body, or returns the answer to the request. The permit is for as long as the body, or what is made of it, is in memory.
    pub(crate) async fn read(
        &self,
        body: Body,
    ) -> Result<(Bytes, SemaphorePermit<'_>), (StatusCode, String)> {
        let deadline = Instant::now() + self.timeout;
        let Ok(Ok(permit)) = timeout_at(deadline, self.permits.acquire()).await else {
            let message = format!("{CONCURRENT} other requests were not answered within {:?}", self.timeout);
            return Err((StatusCode::SERVICE_UNAVAILABLE, message));
        };
        match timeout_at(deadline, body::to_bytes(body, self.max_bytes)).await {
            Ok(Ok(body)) => Ok((body, permit)),
            Ok(Err(_)) => {
                let message =
                    format!("the request cannot be read, or has more than {} bytes", self.max_bytes);
                Err((StatusCode::PAYLOAD_TOO_LARGE, message))
            }
            Err(_) => {
                let message = format!("the request did not arrive within {:?}", self.timeout);
                Err((StatusCode::REQUEST_TIMEOUT, message))
            }
        }
    }
}

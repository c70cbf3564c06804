//! The time in which this process owns the node: as long as the core reads the changes.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures::{Stream, StreamExt as _, stream, stream::BoxStream};
use vk_provider::PodChange;

use super::context::EngineContext;
use crate::{GroupBackend, reconciler::Input};

/// Changes, and the right to write.
struct Session<B: GroupBackend> {
    context: Arc<EngineContext<B>>,
    number: u64,
    changes: BoxStream<'static, PodChange>,
}

/// Begins a session. It ends when the stream is dropped; then no write begins any more.
pub(super) fn changes<B: GroupBackend>(context: &Arc<EngineContext<B>>) -> BoxStream<'static, PodChange> {
    let number = context.begin_session();
    let changes = stream::select(context.outbox.changes(), context.annotations.changes()).boxed();
    Session { context: Arc::clone(context), number, changes }.boxed()
}

impl<B: GroupBackend> Stream for Session<B> {
    type Item = PodChange;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<PodChange>> {
        self.changes.poll_next_unpin(cx)
    }
}

impl<B: GroupBackend> Drop for Session<B> {
    fn drop(&mut self) {
        // Another session may have begun meanwhile.
        if self.context.is_session(self.number) {
            self.context.handle(Input::Leading(false));
        }
    }
}

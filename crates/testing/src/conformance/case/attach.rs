//! Attaching to the main process of a container.

use vk_provider::{ability::AttachOptions, error::Kind};

use super::exec::session;
use crate::conformance::{
    context::CaseContext,
    pod_builder::{APP, reference},
    result::{Outcome, ensure},
};

const ALL: AttachOptions = AttachOptions { stdin: true, stdout: true, stderr: true, tty: false };

/// The process keeps running when the session ends.
pub(crate) async fn a_detached_container_goes_on(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let attach = caller.attach()?;
    let (made, before) = caller.start(&context.pod().build()).await?;
    for _ in 0..2 {
        let started = caller.call("attach", attach.attach(&made.container(APP), &ALL)).await?;
        drop(session(started, "attach")?);
    }
    caller.undisturbed(&made, &before, "end the session when it is dropped, and not the container").await
}

/// Attaching to an unknown container or pod fails.
pub(crate) async fn attaching_to_nobody_is_not_found(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let attach = caller.attach()?;
    let (made, _) = caller.start(&context.pod().build()).await?;
    let stranger = reference(&context.pod().build());
    for container in [made.container("nobody"), stranger.container(APP)] {
        let answer = caller.call("attach", attach.attach(&container, &ALL)).await?;
        let found = answer.as_ref().err().is_none_or(|error| *error.kind() != Kind::NotFound);
        ensure(
            !found,
            || format!("attaching to {container} answered {answer:?}"),
            "answer NotFound for a pod or container that the backend does not have",
        )?;
    }
    Ok(())
}

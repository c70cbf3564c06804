//! Connections to ports.

use vk_provider::{ability::Forward, error::Kind};

use crate::conformance::{
    caller::describe_error,
    context::CaseContext,
    pod_builder::reference,
    result::{Outcome, Stop, ensure},
    subject::Feature,
};

/// A port on which nothing listens.
const CLOSED: u16 = 1;

/// A port on which the pod listens accepts several connections.
pub(crate) async fn a_port_that_listens_is_reached(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let forward = caller.port_forward()?;
    let Some(port) = context.subject().port() else {
        return Err(Stop::DoesNotApply("the subject names no port on which its pods listen".to_owned()));
    };
    let (made, _) = caller.start(&context.pod().build()).await?;
    let advice = "connect to the port inside of the pod, once for each call";
    for _ in 0..2 {
        let dialled = caller.call("port_forward.dial", forward.dial(&made, port)).await?;
        dialled.map_err(|error| Stop::violated(describe_error("port_forward.dial", &error), advice))?;
    }
    Ok(())
}

/// A closed port is a temporary error.
pub(crate) async fn a_closed_port_is_unavailable(context: &CaseContext) -> Outcome {
    context.needs(Feature::ClosedPorts)?;
    let caller = context.open().await?;
    let forward = caller.port_forward()?;
    let (made, _) = caller.start(&context.pod().build()).await?;
    let answer = caller.call("port_forward.dial", forward.dial(&made, CLOSED)).await?;
    if let Ok(Forward::Url(_)) = answer {
        return Err(Stop::DoesNotApply(
            "the provider answers with an address, which the server proxies".to_owned(),
        ));
    }
    let unavailable = answer.as_ref().err().is_some_and(|error| *error.kind() == Kind::Unavailable);
    ensure(
        unavailable,
        || format!("dialling port {CLOSED}, on which nothing listens, answered {answer:?}"),
        "answer Unavailable when the connection is refused",
    )
}

/// Connecting to an unknown pod fails.
pub(crate) async fn a_port_of_nobody_is_not_found(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let forward = caller.port_forward()?;
    let stranger = reference(&context.pod().build());
    let answer = caller.call("port_forward.dial", forward.dial(&stranger, 80)).await?;
    let found = answer.as_ref().err().is_none_or(|error| *error.kind() != Kind::NotFound);
    ensure(
        !found,
        || format!("dialling a port of {stranger}, which was never created, answered {answer:?}"),
        "answer NotFound for a UID that the backend does not have",
    )
}

//! Container logs.

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use vk_provider::{
    ContainerRef,
    ability::{LogBody, LogOptions, LogStream},
    error::Kind,
};

use crate::conformance::{
    caller::{Caller, describe_error},
    context::CaseContext,
    pod_builder::{APP, reference},
    pod_status,
    result::{Outcome, Stop, ensure},
    subject::{ContainerBehavior, Feature},
};

/// The log of a running container can be read to its current end, by concurrent readers.
pub(crate) async fn the_log_of_a_running_container_can_be_read(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    caller.logs()?;
    let (made, _) = caller.start(&context.pod().build()).await?;
    let (app, options) = (made.container(APP), LogOptions::default());
    let (one, other) = tokio::join!(read(&caller, &app, &options), read(&caller, &app, &options));
    other?;
    let (body, text) = one?;
    if body != Body::Stamped {
        return Ok(());
    }
    for line in text.lines() {
        let stamp = line.split_once(' ').map(|(stamp, _)| stamp).unwrap_or_default();
        ensure(
            stamp.parse::<Timestamp>().is_ok(),
            || format!("the log is Stamped and has the line {line:?}"),
            "put an RFC 3339 time and one blank before each line, or answer Plain",
        )?;
    }
    Ok(())
}

/// Reading the log of an unknown container or pod fails.
pub(crate) async fn the_log_of_nobody_is_not_found(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let logs = caller.logs()?;
    let (made, _) = caller.start(&context.pod().build()).await?;
    let stranger = reference(&context.pod().build());
    for container in [made.container("nobody"), stranger.container(APP)] {
        let answer = caller.call("logs.open", logs.open(&container, &LogOptions::default())).await?;
        let found = answer.as_ref().err().is_none_or(|error| *error.kind() != Kind::NotFound);
        ensure(
            !found,
            || format!("opening the log of {container} answered {answer:?}"),
            "answer NotFound for a pod or container that the backend does not have",
        )?;
    }
    Ok(())
}

/// A container that never ended has no previous log.
pub(crate) async fn there_is_no_log_before_the_first(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let logs = caller.logs()?;
    let (made, _) = caller.start(&context.pod().build()).await?;
    let options = LogOptions { previous: true, ..LogOptions::default() };
    let answer = caller.call("logs.open", logs.open(&made.container(APP), &options)).await?;
    let found = answer.as_ref().err().is_none_or(|error| *error.kind() != Kind::NotFound);
    ensure(
        !found,
        || format!("with `previous` the log of a first instance answered {answer:?}"),
        "answer NotFound for `previous` while there is no earlier instance",
    )
}

/// A followed log ends with its container.
pub(crate) async fn a_followed_log_ends_with_its_container(context: &CaseContext) -> Outcome {
    context.needs(Feature::Endings)?;
    let caller = context.open().await?;
    caller.logs()?;
    let pod = context.pod().restart("Never").behaves(ContainerBehavior::Ends(0)).build();
    let made = caller.create(&pod).await?;
    let advice = "end a followed stream when the container has ended";
    let started = |status: &PodStatus| pod_status::is_running(status) || pod_status::is_final(status);
    caller.shows(&made, "the container has started", advice, started).await?;
    let options = LogOptions { follow: true, ..LogOptions::default() };
    read(&caller, &made.container(APP), &options).await?;
    Ok(())
}

/// A provider that claims to have applied the options has applied them.
pub(crate) async fn a_final_log_has_its_options_applied(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    caller.logs()?;
    let (made, _) = caller.start(&context.pod().build()).await?;
    let app = made.container(APP);
    let none = LogOptions { tail: Some(0), ..LogOptions::default() };
    let one = LogOptions { tail: Some(1), ..LogOptions::default() };
    let short = LogOptions { limit_bytes: Some(1), ..LogOptions::default() };
    for (options, lines, bytes) in [(none, 0, 0), (one, 1, usize::MAX), (short, 1, 1)] {
        let (body, text) = read(&caller, &app, &options).await?;
        if body != Body::Final {
            return Err(Stop::DoesNotApply("the provider leaves the options to the server".to_owned()));
        }
        ensure(
            text.lines().count() <= lines && text.len() <= bytes,
            || format!("the log is Final, and with {options:?} it is {text:?}"),
            "apply every option to a Final log, or answer Stamped or Plain",
        )?;
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Body {
    Final,
    Stamped,
    Plain,
}

/// Reads a log to its end.
async fn read(caller: &Caller, container: &ContainerRef, options: &LogOptions) -> Outcome<(Body, String)> {
    let opened = caller.call("logs.open", caller.logs()?.open(container, options)).await?;
    let advice = "open the log of a container that has started, and end the stream where the log ends";
    let (body, stream): (Body, LogStream) = match opened {
        Ok(LogBody::Final(stream)) => (Body::Final, stream),
        Ok(LogBody::Stamped(stream)) => (Body::Stamped, stream),
        Ok(LogBody::Plain(stream)) => (Body::Plain, stream),
        Err(error) => return Err(Stop::violated(describe_error("logs.open", &error), advice)),
    };
    let chunks: Vec<_> = caller.call("reading a log to its end", stream.collect()).await?;
    let mut text = Vec::new();
    for chunk in chunks {
        text.extend(chunk.map_err(|error| Stop::violated(format!("reading the log: {error}"), advice))?);
    }
    Ok((body, String::from_utf8_lossy(&text).into_owned()))
}

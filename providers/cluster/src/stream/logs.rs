//! Logs. All options are passed to the lower API server, so that only the requested lines are transferred.

use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt as _, stream};
use vk_kube::{Kind as Lower, ServerVersion};
use vk_provider::{
    ContainerRef, Error, Result,
    ability::{LogBody, LogOptions, Logs, Output, Since},
};

use super::{PodStreams, stream_error};

/// The first version that supports a single stream. Earlier API servers ignore the parameter.
const SPLIT_STREAMS: ServerVersion = ServerVersion { major: 1, minor: 32 };

#[async_trait]
impl Logs for PodStreams {
    async fn open(&self, container: &ContainerRef, options: &LogOptions) -> Result<LogBody> {
        let doing = format!("read the log of {container}");
        let query = query(&container.container, options);
        let query: Vec<(&str, &str)> = query.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let address = self.address(&container.pod, "log", &query)?;
        // An API server rejects a limit of 0.
        if options.limit_bytes == Some(0) {
            return Ok(LogBody::Final(stream::empty().boxed()));
        }
        let split = options.output != Output::All;
        if split {
            let version = ServerVersion::fetch(&self.client)
                .await
                .map_err(|error| stream_error::to_provider_error(&doing, error))?;
            if version < SPLIT_STREAMS {
                return Err(unsupported_split(&doing));
            }
        }
        match self.client.stream("pods/log", &address).await {
            Ok(stream) => Ok(LogBody::Final(stream)),
            Err(error) if split && is_split_unsupported(&error) => {
                Err(unsupported_split(&doing).caused_by(error))
            }
            Err(error) => Err(stream_error::to_provider_error(&doing, error)),
        }
    }
}

fn unsupported_split(doing: &str) -> Error {
    Error::unsupported(format!(
        "{doing}: the lower cluster does not support separate streams (feature gate PodLogsQuerySplitStreams)"
    ))
}

/// Whether the server, or a kubelet behind it, does not support a single stream.
fn is_split_unsupported(error: &vk_kube::Error) -> bool {
    error.kind == Lower::Invalid
        && (error.message.contains("PodLogsQuerySplitStreams")
            || error.message.contains("stream") && error.message.contains("may not be specified"))
}

/// The query parameters. Numbers that exceed the range of the API mean no limit.
fn query(container: &str, options: &LogOptions) -> Vec<(&'static str, String)> {
    let mut query = vec![("container", container.to_owned())];
    let mut number = |key, value: Option<u64>| {
        if let Some(value) = value.and_then(|value| i64::try_from(value).ok()) {
            query.push((key, value.to_string()));
        }
    };
    number("tailLines", options.tail);
    number("limitBytes", options.limit_bytes);
    match options.since {
        Some(Since::Ago(ago)) => number("sinceSeconds", Some(seconds(ago))),
        Some(Since::Time(time)) => query.push(("sinceTime", time.to_string())),
        None => {}
    }
    let flags =
        [("timestamps", options.timestamps), ("follow", options.follow), ("previous", options.previous)];
    query.extend(flags.into_iter().filter(|(_, on)| *on).map(|(key, _)| (key, "true".to_owned())));
    match options.output {
        Output::All => {}
        Output::Stdout => query.push(("stream", "Stdout".to_owned())),
        Output::Stderr => query.push(("stream", "Stderr".to_owned())),
    }
    query
}

/// Whole seconds, rounded up, and at least 1, which the API requires.
fn seconds(ago: Duration) -> u64 {
    ago.as_secs().saturating_add(u64::from(ago.subsec_nanos() > 0)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(options: &LogOptions) -> String {
        let query = query("main", options);
        query.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join("&")
    }

    #[test]
    fn default_options_add_no_parameters() {
        assert_eq!(asked(&LogOptions::default()), "container=main");
    }

    #[test]
    fn every_option_has_a_parameter() {
        let all = LogOptions {
            tail: Some(0),
            since: Some(Since::Ago(Duration::from_millis(1500))),
            limit_bytes: Some(100),
            timestamps: true,
            follow: true,
            previous: true,
            output: Output::Stderr,
        };
        assert_eq!(
            asked(&all),
            "container=main&tailLines=0&limitBytes=100&sinceSeconds=2&timestamps=true&follow=true&previous=true&stream=Stderr"
        );
    }

    /// tensile-kube dereferenced nil pointers for `sinceSeconds` and `sinceTime`, and crashed.
    #[test]
    fn tensile_kube_since_options_do_not_crash() {
        let since = |since| asked(&LogOptions { since: Some(since), ..LogOptions::default() });
        assert_eq!(since(Since::Ago(Duration::from_mins(1))), "container=main&sinceSeconds=60");
        assert_eq!(since(Since::Ago(Duration::ZERO)), "container=main&sinceSeconds=1");
        assert_eq!(since(Since::Ago(Duration::MAX)), "container=main");
        assert_eq!(
            since(Since::Time("2026-01-02T03:04:05Z".parse().unwrap())),
            "container=main&sinceTime=2026-01-02T03:04:05Z"
        );
    }

    #[test]
    fn a_number_out_of_range_is_no_limit() {
        let huge = LogOptions { tail: Some(u64::MAX), limit_bytes: Some(u64::MAX), ..LogOptions::default() };
        assert_eq!(asked(&huge), "container=main");
    }
}
